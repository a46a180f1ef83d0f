r"""Functions of one variable with proved ranges and Lipschitz constants; activations.

There are three main kinds: smooth functions (given by their derivatives and the stationary points
of these), kinked functions (piecewise linear) and step functions (piecewise constant, the
derivatives of kinked ones). Each has a value, and a range and a Lipschitz constant on any interval,
for whole tensors of intervals at once. Exponentials, reciprocals and reciprocal roots, which the
softmax, optimisers and norms need, have their own classes.

Ranges are widened by the rounding error of float64 (`rounding_of`), so they contain the real and
the computed values. Between stationary points a function is monotone, so its extremes are at the
ends. A stationary point rounded to a double has the extreme value up to the square of its rounding
error, 1e-32, which is negligible.

Targets, losses and transformers refer to functions by name: `ACTIVATIONS` are those of target
networks, `UNIT_ACTIVATIONS` those of the transformer's own units.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from itertools import accumulate, pairwise
from math import atanh, cosh, exp, inf, pi, sin, sqrt, tan
from typing import ClassVar, TypeGuard

import torch
from torch import Tensor
from torch.nn import functional

from icgd.errors import SettingError, UnsupportedActivationError, quoted
from icgd.problems.analytic import Strip, strip_of_text
from icgd.problems.expressions import CALL, POWER, Node
from icgd.problems.piecewise import (
    Function,
    built_in,
    is_written,
    of_lines,
    read_function,
    unbounded,
)
from icgd.problems.scalar import EXACT, Evaluate, FunctionRounding, Kind, ScalarFunction
from icgd.problems.settings import by_name, finite, named
from icgd.shapes import Values

_SIGMOID = {
    0: FunctionRounding(4.0),
    1: FunctionRounding(8.0),
    2: FunctionRounding(8.0),
    3: FunctionRounding(8.0, 3.0),
}

FUNCTION_ROUNDING: dict[str, dict[int, FunctionRounding]] = {
    **{name: {0: EXACT, 1: EXACT} for name in ("identity", "relu", "double", "negate", "clip")},
    **{
        name: {0: FunctionRounding(2.0, is_linear=True), 1: FunctionRounding(4.0, is_linear=True)}
        for name in ("leaky_relu", "kinked")
    },
    "tanh": {
        0: FunctionRounding(2.0),
        1: FunctionRounding(8.0),
        2: FunctionRounding(8.0),
        3: FunctionRounding(8.0, 6.0),
    },
    "sigmoid": _SIGMOID,
    "softplus": {0: FunctionRounding(4.0), 1: _SIGMOID[0], 2: _SIGMOID[1], 3: _SIGMOID[2]},
    "gelu": {order: FunctionRounding(8.0, 1.0) for order in range(4)},
    "silu": {
        0: FunctionRounding(8.0),
        1: FunctionRounding(8.0, 1.0),
        2: FunctionRounding(8.0, 1.0),
        3: FunctionRounding(8.0, 1.0),
    },
    "normal_distribution": {order: FunctionRounding(8.0, 1.0) for order in range(3)},
    "coin_entropy": {
        0: FunctionRounding(8.0),
        1: FunctionRounding(8.0),
        2: FunctionRounding(8.0, 1.0),
    },
    "cauchit": {order: FunctionRounding(8.0) for order in range(3)},
    "cloglog": {
        0: FunctionRounding(8.0),
        1: FunctionRounding(8.0, 1.0),
        2: FunctionRounding(8.0, 2.0),
    },
    "exp": {order: FunctionRounding(2.0) for order in range(4)},
    "square": {0: FunctionRounding(2.0), 1: EXACT, 2: EXACT, 3: EXACT},
}
"""Bounds on the rounding error of every built-in function, by order of the derivative."""

_OTHER = FunctionRounding(16.0, 16.0)


def rounding_of(name: str) -> FunctionRounding:
    """Return a bound on the rounding error of a function, named with a prime per derivative.

    For a function given as text the bound is proved from the text. For any other function 16 units
    of roundoff are assumed.
    """
    function = name.rstrip("'")
    rounding = FUNCTION_ROUNDING.get(function, {}).get(len(name) - len(function))
    if rounding is not None:
        return rounding
    if name.startswith(POSITIVE):
        return FunctionRounding(1.0, is_linear=True)
    if is_written(name) or function in OWN or name.endswith(CURVE) or STEP in name:
        return function_named(name).rounding
    return _OTHER


def _extremes(
    evaluate: Evaluate, low: Values, high: Values, points: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return the least and the largest value of `evaluate` on [low, high].

    The function must be monotone between consecutive `points`, so its extremes are at the ends or
    at points inside. If both ends are the same tensor, the function is evaluated once.
    """
    if low is high:
        value = evaluate(low)
        return value, value
    candidates = [evaluate(low), evaluate(high)]
    for point in points:
        inside = (low <= point) & (point <= high)
        candidates.append(torch.where(inside, evaluate(low.new_tensor(point)), candidates[0]))
    return reduce(torch.minimum, candidates), reduce(torch.maximum, candidates)


def _outwards(name: str, least: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Widen a range by the rounding errors of its ends and of the values in it.

    These are two errors; a third covers the rounding of the sum itself.
    """
    rounding = rounding_of(name)
    if rounding == EXACT:
        return least, largest
    return least - 3 * rounding.at(least.abs()), largest + 3 * rounding.at(largest.abs())


@dataclass(frozen=True)
class SmoothFunction(ScalarFunction):
    """A smooth function: `tower[m]` is derivative m, `stationary[m]` has the zeros of m + 1."""

    name: str
    tower: tuple[Evaluate, ...]
    stationary: tuple[tuple[float, ...], ...]
    text: str = ""

    kind: ClassVar[Kind] = "smooth"

    @property
    def rounding(self) -> FunctionRounding:
        return rounding_of(self.name)

    def __call__(self, z: Values) -> Values:
        return self.tower[0](z)

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        ends = _extremes(self.tower[0], low, high, self.stationary[0])
        return _outwards(self.name, *ends)

    def lipschitz(self, low: Values, high: Values) -> Values:
        least, largest = self.derivative().bounds(low, high)
        return torch.maximum(-least, largest)

    def derivative(self) -> SmoothFunction:
        return SmoothFunction(f"{self.name}'", self.tower[1:], self.stationary[1:], self.text)

    @cached_property
    def written(self) -> Function:
        """The same function, defined by its text."""
        return unbounded(self.name, (), (self.text,), self.name.count("'"))


@dataclass(frozen=True)
class KinkedFunction(ScalarFunction):
    """A continuous piecewise linear function: `slopes[i]` holds between knots i - 1 and i."""

    name: str
    evaluate: Evaluate
    knots: tuple[float, ...] = field()  # required, unlike in the base class
    slopes: tuple[float, ...]

    kind: ClassVar[Kind] = "kinked"

    @property
    def rounding(self) -> FunctionRounding:
        return rounding_of(self.name)

    def __call__(self, z: Values) -> Values:
        return self.evaluate(z)

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        return _outwards(self.name, *_extremes(self.evaluate, low, high, self.knots))

    def lipschitz(self, low: Values, high: Values) -> Values:
        """Return the steepest slope in [low, high]; at a single point, that to its left."""
        steepest = torch.zeros_like(low)
        ends = zip((-inf, *self.knots), (*self.knots, inf), self.slopes, strict=True)
        for left, right, slope in ends:
            reached = (left < high) & ((right > low) | ((right == low) & (low == high)))
            steepest = torch.where(reached, steepest.clamp(min=abs(slope)), steepest)
        return steepest

    def derivative(self) -> StepFunction:
        return StepFunction(f"{self.name}'", self.knots, self.slopes)

    @cached_property
    def written(self) -> Function:
        """The same function, defined by its knots, its slopes and its value at 0."""
        value = float(self(torch.zeros((), dtype=torch.float64)))
        return of_lines(self.name, self.knots, self.slopes, value)


@dataclass(frozen=True)
class StepFunction(ScalarFunction):
    """A step function: `levels[i]` on the half-open piece (knots[i - 1], knots[i]]."""

    name: str
    knots: tuple[float, ...] = field()  # required, unlike in the base class
    levels: tuple[float, ...]
    own_rounding: FunctionRounding | None = None

    kind: ClassVar[Kind] = "step"

    @property
    def rounding(self) -> FunctionRounding:
        return self.own_rounding or rounding_of(self.name)

    def __call__(self, z: Values) -> Values:
        value = torch.full_like(z, self.levels[0])
        for knot, before, after in zip(self.knots, self.levels[:-1], self.levels[1:], strict=True):
            value = value + (after - before) * (z > knot).to(z.dtype)
        return value

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        least = largest = self(low)
        if low is high:
            return least, largest
        for knot, level in zip(self.knots, self.levels[1:], strict=True):
            reached = (low <= knot) & (knot < high)
            least = torch.where(reached, least.clamp(max=level), least)
            largest = torch.where(reached, largest.clamp(min=level), largest)
        return _outwards(self.name, least, largest)

    def lipschitz(self, low: Values, high: Values) -> Values:
        jumps = torch.zeros_like(low, dtype=torch.bool)
        for knot in self.knots:
            jumps |= (low <= knot) & (knot < high)
        return torch.where(jumps, inf, torch.zeros_like(low))

    def derivative(self) -> StepFunction:
        return StepFunction(f"{self.name}'", (), (0.0,))

    @cached_property
    def written(self) -> Function:
        """The same function, defined by its knots and levels."""
        return unbounded(self.name, self.knots, [repr(level) for level in self.levels])


def is_kinked(function: ScalarFunction) -> TypeGuard[KinkedFunction | Function]:
    """Return whether a function is continuous and piecewise linear, however it is defined."""
    return function.kind == "kinked"


# The functions of a softmax over classes: a capped exponential and a reciprocal. Both are convex
# and positive, and need a small relative error over many orders of magnitude. Their parameters are
# part of their names, so that a loaded program can reconstruct them.

CAPPED = "exp up to "
RELATIVE_ROUNDING = 2.0**-49
"""Bound on the relative rounding error of an exponential or a quotient in float64."""

SOFTMAX_ROUNDING = 16
"""The number of roundings in a softmax, besides those of the sum over its classes."""


@dataclass(frozen=True)
class CappedExponential(ScalarFunction):
    """The function exp(min(z, cap))."""

    name: str
    cap: float

    def __call__(self, z: Values) -> Values:
        return z.clamp(max=self.cap).exp()

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        margin = 1 + RELATIVE_ROUNDING
        return self(low) / margin, self(high) * margin

    def lipschitz(self, low: Values, high: Values) -> Values:
        steepest = self(high) * (1 + RELATIVE_ROUNDING)
        return torch.where(low >= self.cap, 0.0, steepest)


@dataclass(frozen=True)
class Reciprocal(ScalarFunction):
    """The function 1 / z for z >= 1 / 2, and 2 below."""

    name: str = "reciprocal"

    def __call__(self, z: Values) -> Values:
        return 1.0 / z.clamp_min(0.5)

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        margin = 1 + RELATIVE_ROUNDING
        return self(high) / margin, self(low) * margin

    def lipschitz(self, low: Values, high: Values) -> Values:
        return self(low) ** 2 * (1 + 4 * RELATIVE_ROUNDING)

    def curvature(self, low: Values, high: Values) -> Values:
        """Return the largest f'' in [low, high], which is f''(low), for low >= 1 / 2."""
        return 2 / low**3


RECIPROCAL = Reciprocal()


@lru_cache
def capped_exponential(cap: float) -> CappedExponential:
    """Return the function with this cap, which is part of its name."""
    return CappedExponential(f"{CAPPED}{cap!r}", cap)


# The reciprocal roots of Adam, RMSprop and layer norms.
#
# Both are decreasing and convex for t >= 0. An optimiser has 1 / (sqrt(t) + eps), infinitely steep
# at 0; a norm has 1 / sqrt(t + eps). Their relative curvatures are
#
#     t^2 f''(t) / f(t) = s (3 s + eps) / (4 (s + eps)^2) <= 3 / 4,    s = sqrt(t)
#     t^2 f''(t) / f(t) = 3 t^2 / (4 (t + eps)^2) <= 3 / 4

ROOT_PREFIX = "reciprocal root of eps "
NORM_PREFIX = "reciprocal deviation of eps "
ROOT_ROUNDING = 2.0**-50
"""Bound on the relative rounding error of a root, a sum and a quotient in float64."""


@dataclass(frozen=True)
class AbstractRoot(ScalarFunction):
    """A reciprocal root: decreasing and convex for t >= 0, constant below 0."""

    name: str
    eps: float

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        margin = 1 + ROOT_ROUNDING
        return self(high) / margin, self(low) * margin

    @abstractmethod
    def curvature(self, low: Values, high: Values) -> Values:
        """Return the largest f'' in [low, high], which is f''(low)."""

    @abstractmethod
    def bend(self, t: Values) -> Values:
        """Return the square root of the relative curvature t^2 f''(t) / f(t)."""

    @abstractmethod
    def first_end(self, error: float) -> float:
        """Return the right end of the chord from t = 0 whose relative error is `error`."""


@dataclass(frozen=True)
class ReciprocalRoot(AbstractRoot):
    """The function 1 / (sqrt(t) + eps), extended by 1 / eps below 0."""

    def __call__(self, z: Values) -> Values:
        return 1.0 / (z.clamp_min(0.0).sqrt() + self.eps)

    def lipschitz(self, low: Values, high: Values) -> Values:
        root = low.clamp_min(0.0).sqrt()
        steepest = 1.0 / (2 * root * (root + self.eps) ** 2)
        return torch.where(high <= 0, 0.0, steepest * (1 + 4 * ROOT_ROUNDING))

    def curvature(self, low: Values, high: Values) -> Values:
        root = low.sqrt()
        return (3 * root + self.eps) / (4 * root**3 * (root + self.eps) ** 3)

    def bend(self, t: Values) -> Values:
        root = t.sqrt()
        return (root * (3 * root + self.eps)).sqrt() / (2 * (root + self.eps))

    def first_end(self, error: float) -> float:
        """Return the right end of the first piece, on which the function is nearly constant.

        There 0 <= sqrt(t) <= 8 error eps, so the steepness at 0 does not matter.
        """
        return (8 * error * self.eps) ** 2


@dataclass(frozen=True)
class ReciprocalDeviation(AbstractRoot):
    """The function 1 / sqrt(t + eps), extended by 1 / sqrt(eps) below 0."""

    def __call__(self, z: Values) -> Values:
        return 1.0 / (z.clamp_min(0.0) + self.eps).sqrt()

    def lipschitz(self, low: Values, high: Values) -> Values:
        steepest = 0.5 * (low.clamp_min(0.0) + self.eps) ** -1.5
        return torch.where(high <= 0, 0.0, steepest * (1 + 8 * ROOT_ROUNDING))

    def curvature(self, low: Values, high: Values) -> Values:
        return 0.75 * (low + self.eps) ** -2.5

    def bend(self, t: Values) -> Values:
        return sqrt(0.75) * t / (t + self.eps)

    def first_end(self, error: float) -> float:
        return self.eps * sqrt(16 * error / 0.75)


@lru_cache
def reciprocal_root(eps: float) -> ReciprocalRoot:
    """Return the function with this `eps`, which is part of its name."""
    return ReciprocalRoot(f"{ROOT_PREFIX}{eps!r}", eps)


@lru_cache
def reciprocal_deviation(eps: float) -> ReciprocalDeviation:
    """Return the function with this `eps`, which is part of its name."""
    return ReciprocalDeviation(f"{NORM_PREFIX}{eps!r}", eps)


def numbered_function(name: str) -> ScalarFunction | None:
    """Return the function called `name` if it is the reciprocal or has a parameter in its name."""
    if name == RECIPROCAL.name:
        return RECIPROCAL
    kinds = {
        ROOT_PREFIX: reciprocal_root,
        NORM_PREFIX: reciprocal_deviation,
        CAPPED: capped_exponential,
    }
    for prefix, function_of in kinds.items():
        if name.startswith(prefix):
            with suppress(ValueError):
                number = float(name.removeprefix(prefix))
                return function_of(number) if 0 < number < inf else None
    return None


@dataclass(frozen=True)
class Activation:
    """An activation r of target networks, together with its derivative r'.

    A smooth activation of linear growth is split into z gate(z) + rest(z), where gate and rest are
    bounded.
    """

    value: ScalarFunction
    gate: ScalarFunction | None = None
    rest: ScalarFunction | None = None

    @property
    def name(self) -> str:
        return self.value.name

    @property
    def derivative(self) -> ScalarFunction:
        return self.value.derivative()


def _around_zero(*points: float) -> tuple[float, ...]:
    return (*(-point for point in reversed(points)), *points)


def _tanh_1(z: Tensor) -> Tensor:
    return 1 / torch.cosh(z) ** 2


# Stationary points are the zeros of the next derivative. For tanh, sigmoid and softplus they follow
# from t = tanh z:
#
#     tanh' = 1 - t^2,  tanh'' = -2 t (1 - t^2),  tanh''' = (6 t^2 - 2)(1 - t^2),
#     tanh'''' = (16 t - 24 t^3)(1 - t^2),
#
# and for gelu from its second derivative phi(z) (2 - z^2), where phi is the normal density. Those
# of silu, and the minimum of gelu, are roots of transcendental equations, given to the precision of
# a double.
TANH = SmoothFunction(
    "tanh",
    (
        torch.tanh,
        _tanh_1,
        lambda z: -2 * torch.tanh(z) * _tanh_1(z),
        lambda z: (6 * torch.tanh(z) ** 2 - 2) * _tanh_1(z),
    ),
    (
        (),
        (0.0,),
        _around_zero(atanh(sqrt(1 / 3))),
        (-atanh(sqrt(2 / 3)), 0.0, atanh(sqrt(2 / 3))),
    ),
    "tanh(x)",
)


def _sigmoid_1(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * torch.sigmoid(-z)


def _sigmoid_2(z: Tensor) -> Tensor:
    return -torch.tanh(z / 2) * _sigmoid_1(z)


def _sigmoid_3(z: Tensor) -> Tensor:
    return (1 - 6 * _sigmoid_1(z)) * _sigmoid_1(z)


# sigmoid(z) = (1 + tanh(z / 2)) / 2, so its stationary points are twice those of tanh.
SIGMOID = SmoothFunction(
    "sigmoid",
    (torch.sigmoid, _sigmoid_1, _sigmoid_2, _sigmoid_3),
    tuple(tuple(2 * point for point in points) for points in TANH.stationary),
    "sigmoid(x)",
)

SOFTPLUS = SmoothFunction(
    "softplus",
    (lambda z: torch.logaddexp(z, torch.zeros_like(z)), *SIGMOID.tower[:3]),
    ((), *SIGMOID.stationary[:3]),
    "softplus(x)",
)


def _normal_density(z: Tensor) -> Tensor:
    return torch.exp(-z * z / 2) / sqrt(2 * pi)


def _normal_distribution(z: Tensor) -> Tensor:
    # torch.special.ndtr would return exactly 0 below -9.
    return torch.erfc(-z / sqrt(2)) / 2


GELU = SmoothFunction(
    "gelu",
    (
        lambda z: z * _normal_distribution(z),
        lambda z: _normal_distribution(z) + z * _normal_density(z),
        lambda z: (2 - z * z) * _normal_density(z),
        lambda z: (z * z - 4) * z * _normal_density(z),
    ),
    (
        (-0.75179152469356445746,),
        _around_zero(sqrt(2)),
        (-2.0, 0.0, 2.0),
        _around_zero(sqrt((7 - sqrt(33)) / 2), sqrt((7 + sqrt(33)) / 2)),
    ),
    "x * erfc(-x / sqrt(2)) / 2",
)

SILU = SmoothFunction(
    "silu",
    (
        lambda z: z * torch.sigmoid(z),
        lambda z: torch.sigmoid(z) + z * _sigmoid_1(z),
        lambda z: 2 * _sigmoid_1(z) + z * _sigmoid_2(z),
        lambda z: 3 * _sigmoid_2(z) + z * _sigmoid_3(z),
    ),
    (
        (-1.2784645427610737951,),
        _around_zero(2.3993572805154676678),
        (-3.435840993535110689, 0.0, 3.435840993535110689),
        _around_zero(1.0319582417807491234, 4.4292351005572279796),
    ),
    "x * sigmoid(x)",
)

# All derivatives of exp are increasing, so none has a stationary point.
EXP = SmoothFunction("exp", (torch.exp,) * 4, ((),) * 4, "exp(x)")

NORMAL_DISTRIBUTION = SmoothFunction(
    "normal_distribution",
    (_normal_distribution, _normal_density, lambda z: -z * _normal_density(z)),
    ((), (0.0,), (-1.0, 1.0)),
    "erfc(-x / sqrt(2)) / 2",
)


def _coin_entropy(z: Tensor) -> Tensor:
    # The function is even; for positive arguments nothing cancels.
    size = z.abs()
    return torch.log1p(torch.exp(-size)) + size * torch.sigmoid(-size)


# softplus(z) - z sigmoid(z), the entropy of a coin that lands heads with probability sigmoid(z).
COIN_ENTROPY = SmoothFunction(
    "coin_entropy",
    (
        _coin_entropy,
        lambda z: -z * _sigmoid_1(z),
        lambda z: -_sigmoid_1(z) - z * _sigmoid_2(z),
    ),
    (
        (0.0,),
        _around_zero(1.5434046384182084480),
        (-2.7032361206583568889, 0.0, 2.7032361206583568889),
    ),
    "softplus(x) - x * sigmoid(x)",
)

_SELU, _SELU_ALPHA = "1.0507009873554804934193349852946", "1.6732632423543772848170429916717"

OWN: dict[str, Function] = {
    name: built_in(name, knots, pieces, *domain)
    for name, knots, pieces, *domain in (
        ("relu6", (0, 6), ("0", "x", "6")),
        ("hardtanh", (-1, 1), ("-1", "x", "1")),
        ("hardswish", (-3, 3), ("0", "x*(x + 3)/6", "x")),
        ("elu", (0,), ("exp(x) - 1", "x")),
        ("selu", (0,), (f"{_SELU}*{_SELU_ALPHA}*(exp(x) - 1)", f"{_SELU}*x")),
        ("mish", (), ("x*tanh(log(1 + exp(x)))",)),
        ("softsign", (0,), ("x/(1 - x)", "x/(1 + x)")),
        ("sin", (), ("sin(x)",), 1024.0),
        ("erf", (), ("erf(x)",)),
        # Further out, an underflowing factor times the cube would dominate the rounding bound.
        ("gelu_tanh", (), ("x/2*(1 + tanh(sqrt(2/pi)*(x + 0.044715*x**3)))",), 2.0**20),
    )
}
"""Activations defined by a text, with torch's constants and conventions."""

LEAK = 0.01
"""The slope of leaky_relu for negative arguments, torch's default."""

RELU = KinkedFunction("relu", torch.relu, (0.0,), (0.0, 1.0))
LEAKY_RELU = KinkedFunction(
    "leaky_relu", lambda z: functional.leaky_relu(z, LEAK), (0.0,), (LEAK, 1.0)
)
IDENTITY_FUNCTION = KinkedFunction("identity", lambda z: z, (), (1.0,))

# Summands of the slopes of losses.
DOUBLE = KinkedFunction("double", lambda z: 2 * z, (), (2.0,))
NEGATE = KinkedFunction("negate", lambda z: -z, (), (-1.0,))
CLIP = KinkedFunction("clip", lambda z: z.clamp(-1.0, 1.0), (-1.0, 1.0), (0.0, 1.0, 0.0))

ACTIVATIONS = by_name(
    *map(Activation, (RELU, LEAKY_RELU, IDENTITY_FUNCTION, TANH, SIGMOID)),
    Activation(GELU, gate=NORMAL_DISTRIBUTION),
    Activation(SILU, gate=SIGMOID),
    Activation(SOFTPLUS, gate=SIGMOID, rest=COIN_ENTROPY),
    *(Activation(function, function.gate, function.rest) for function in OWN.values()),
)


def activation_named(name: str) -> Activation:
    """Return the activation called `name`, which may be the text of a function."""
    if not is_written(name):
        return named("activation", name, ACTIVATIONS)
    function = read_function(name)
    if any(function.jumps):
        knot = next(knot for knot, jump in zip(function.knots, function.jumps, strict=True) if jump)
        raise UnsupportedActivationError(
            f"{function} jumps at {knot:g}; an activation must be continuous."
        )
    return Activation(function, function.gate, function.rest)


@dataclass(frozen=True)
class Jump:
    """A jump of a slope at `place`, as a step function of relu(z - place) that jumps at 0."""

    place: float
    steps: StepFunction | Function

    @property
    def positive(self) -> ScalarFunction:
        """The function relu(z - place)."""
        return positive_part(self.place)


@dataclass(frozen=True)
class Slope:
    """The slope of an activation or a loss: the sum of `curve` at z and of its jumps' steps.

    A ramp approximates each jump. The ramp is computed relative to its upper end, so digits cancel
    only for arguments below the ramp, and relu(z - place) is never below it.
    """

    curve: ScalarFunction | None
    jumps: tuple[Jump, ...] = ()


CURVE, STEP = " curve", " step at "
"""The suffix of the name of a slope without its jumps, and the infix of the name of a jump."""


@lru_cache
def slope_of(function: ScalarFunction) -> Slope:
    """Return the slope of a continuous function, split so that sums of ReLUs approximate it."""
    return split_at_jumps(function.derivative())


@lru_cache
def split_at_jumps(slope: ScalarFunction) -> Slope:
    """Return a slope as a continuous part and jumps, which sums of ReLUs can approximate."""
    if isinstance(slope, StepFunction) or (isinstance(slope, Function) and slope.kind == "step"):
        levels, curve = slope.levels, None
        changes = [after - before for before, after in pairwise(levels)]
        if not any(changes):
            return Slope(slope)
        places = [knot for knot, change in zip(slope.knots, changes, strict=True) if change]
        if slope.name.endswith("'") and places == [0.0]:
            return Slope(None, (Jump(0.0, slope),))
        sums = accumulate(map(Fraction, changes), initial=Fraction(levels[0]))
        is_exact = list(sums) == [Fraction(level) for level in levels]
        rounding, first = slope.rounding, levels[0]
    elif isinstance(slope, Function) and any(slope.jumps):
        changes, curve, first = list(slope.jumps), slope.without_jumps(slope.name + CURVE), 0.0
        rounding, is_exact = EXACT, False
    else:
        return Slope(slope)
    if not is_exact:  # adding the jumps up again rounds
        of_sum = 2 * (abs(first) + sum(map(abs, changes)))
        rounding = FunctionRounding(rounding.relative, rounding.absolute + of_sum)
    jumps = list[Jump]()
    for knot, change in zip(slope.knots, changes, strict=True):
        if change:
            below = 0.0 if jumps else first
            name, ends = f"{slope.name}{STEP}{knot!r}", (below, below + change)
            jumps.append(Jump(knot, StepFunction(name, (0.0,), ends, rounding)))
    return Slope(curve, tuple(jumps))


POSITIVE = "relu from "
"""The prefix of the name of relu(z - place), as in "relu from -1.0"."""


@lru_cache
def positive_part(start: float) -> KinkedFunction:
    """Return relu(z - start)."""
    if start == 0.0:
        return RELU
    return KinkedFunction(
        f"{POSITIVE}{start!r}", lambda z: torch.relu(z - start), (start,), (0.0, 1.0)
    )


def functions_in(tables: object) -> dict[str, Function]:
    """Return the functions defined in the tables of a problem file, by name.

    A name of a built-in activation must define the same function.
    """
    if not isinstance(tables, Mapping):
        raise SettingError(f"functions must have a table for each function, got {quoted(tables)}.")
    functions = {name: Function.from_data(name, data) for name, data in tables.items()}
    for name, function in functions.items():
        built_in_activation = ACTIVATIONS.get(name)
        if built_in_activation is not None and not function.has_pieces_of(
            built_in_activation.value.written
        ):
            raise SettingError(
                f"functions.{name} differs from the activation {name!r} of icgd. Give your "
                "function another name."
            )
    return functions


FUNCTIONS: dict[str, ScalarFunction] = by_name(
    *(activation.value for activation in ACTIVATIONS.values()),
    *(activation.derivative for activation in ACTIVATIONS.values()),
    *(
        part
        for name, activation in ACTIVATIONS.items()
        for part in (activation.gate, activation.rest)
        if part is not None and name not in OWN
    ),
    *(DOUBLE, NEGATE, CLIP),
)
"""The functions that a program may approximate, besides those with a parameter in their name."""


def function_named(name: str) -> ScalarFunction:
    """Return the function called `name`; a prime after the name marks a derivative."""
    if name.endswith(CURVE):
        curve = split_at_jumps(function_named(name.removesuffix(CURVE))).curve
        if curve is not None:
            return curve
    if STEP in name:
        for jump in split_at_jumps(function_named(name.partition(STEP)[0])).jumps:
            if jump.steps.name == name:
                return jump.steps
    if name.startswith(POSITIVE):
        with suppress(ValueError):
            return positive_part(finite("place", float(name.removeprefix(POSITIVE))))
    if is_written(name):
        return read_function(name)
    return numbered_function(name) or named("function", name, FUNCTIONS | {EXP.name: EXP})


# The activations of the transformer's own units, with their bounds.
#
# Target networks need not support them: cos is only here. Proofs use that an activation is analytic
# in a strip around the real line and bounded there:
#
#     sigmoid   |1 + exp(-z)| >= sin |Im z| beyond pi/2, and >= 1 before
#     tanh      |tanh z| <= tan |Im z| beyond pi/4, and <= 1 before
#     softplus  its derivative is sigmoid, so it changes by at most 1.95 |Im z|
#     silu      |z| |sigmoid(z)|
#     gelu      |z| |Phi(z)|, and Phi changes by at most |Im z| exp(Im z^2 / 2) / sqrt(2 pi)
#     cos       |cos z| <= cosh Im z
#
# relu and elu are analytic on either side of 0 only; their strips hold for each side.
#
# Some resemble relu: |f(z) - relu(z)| has a bound, so f(beta z) / beta is within bound / beta of
# relu(z) for every beta. With x = |z| the distance is
#
#     softplus  log(1 + exp(-x)) <= log 2
#     silu      x sigmoid(-x), largest where 1 + exp(-x) = x
#     gelu      x Phi(-x), largest where Phi(-x) = x phi(x)
#     elu       1 - exp(-x) to the left of 0, and 0 to the right


@dataclass(frozen=True)
class UnitActivation:
    """An activation and its derivative, analytic in `strip`, on either side of 0 if `kinked`.

    `off_relu` is an upper bound on |value(z) - relu(z)| for all z, or None if there is none.
    """

    name: str
    value: Evaluate
    slope: Evaluate
    strip: Strip
    kinked: bool = False
    off_relu: float | None = None

    @property
    def ulps(self) -> float:
        """The rounding error of a value in units of 1 + |value|; 0 if it is only a few units."""
        if not isinstance(self.value, Function):
            return 0.0
        return self.value.rounding.relative + self.value.rounding.absolute

    @property
    def bends(self) -> bool:
        """Whether f(beta z) / beta tends to relu(z) for large beta."""
        return self.off_relu is not None

    def __call__(self, z: Tensor) -> Tensor:
        return self.value(z)


# The heights are a choice: a taller strip allows wider panels, but the function is larger in it.
_SIGMOID_HEIGHT = 2.6
_SIGMOID_SIZE = 1 / sin(_SIGMOID_HEIGHT)
_TANH_HEIGHT = 1.3
_GELU_HEIGHT = 3.0
_GELU_SIZE = 1 + _GELU_HEIGHT * exp(_GELU_HEIGHT**2 / 2) / sqrt(2 * pi)
_COS_HEIGHT = 4.0
_PIECE_HEIGHT = 2.0

SIGMOID_STRIP = Strip(_SIGMOID_HEIGHT, lambda reach: _SIGMOID_SIZE)
TANH_STRIP = Strip(_TANH_HEIGHT, lambda reach: tan(_TANH_HEIGHT))
SOFTPLUS_STRIP = Strip(
    _SIGMOID_HEIGHT, lambda reach: reach + 1 + _SIGMOID_SIZE * _SIGMOID_HEIGHT
)  # softplus(x) <= |x| + log 2
SILU_STRIP = Strip(_SIGMOID_HEIGHT, lambda reach: (reach + _SIGMOID_HEIGHT) * _SIGMOID_SIZE)
GELU_STRIP = Strip(_GELU_HEIGHT, lambda reach: (reach + _GELU_HEIGHT) * _GELU_SIZE)
COS_STRIP = Strip(_COS_HEIGHT, lambda reach: cosh(_COS_HEIGHT))
# The ellipse around a panel on one side of 0 extends beyond 0 by at most the height.
PIECE_STRIP = Strip(_PIECE_HEIGHT, lambda reach: reach + _PIECE_HEIGHT + exp(_PIECE_HEIGHT) + 1)


def _elu(z: Tensor) -> Tensor:
    return torch.where(z > 0, z, torch.expm1(z.clamp(max=0.0)))


# The values of off_relu are rounded up.
UNIT_ACTIVATIONS = by_name(
    UnitActivation("relu", RELU, RELU.derivative(), PIECE_STRIP, kinked=True, off_relu=0.0),
    UnitActivation("sigmoid", SIGMOID, SIGMOID.derivative(), SIGMOID_STRIP),
    UnitActivation("tanh", TANH, TANH.derivative(), TANH_STRIP),
    UnitActivation("softplus", SOFTPLUS, SOFTPLUS.derivative(), SOFTPLUS_STRIP, off_relu=0.6932),
    UnitActivation("gelu", GELU, GELU.derivative(), GELU_STRIP, off_relu=0.17),
    UnitActivation("silu", SILU, SILU.derivative(), SILU_STRIP, off_relu=0.2785),
    UnitActivation(
        "elu", _elu, lambda z: z.clamp(max=0.0).exp(), PIECE_STRIP, kinked=True, off_relu=1.0
    ),
    UnitActivation("cos", torch.cos, lambda z: -torch.sin(z), COS_STRIP),
)

DEGREES: dict[str, int | None] = {"identity": 1, "square": 2, "cube": 3, "polynomial": None}
"""Polynomials that users may try, with their degrees; units of these are not universal."""


_POLYNOMIAL = (
    "{what}. Sums of such units are polynomials of the same degree, which cannot approximate "
    "other functions. Use an activation that is not a polynomial, such as relu or sigmoid."
)

STEEPEST_UNIT = 1.2
"""The largest slope of a unit that is allowed; the largest built-in one is that of gelu, 1.13."""


def _is_polynomial(node: Node) -> bool:
    if node.kind == CALL or (node.kind == POWER and not (node.number > 0 and node.number % 1 == 0)):
        return False
    return all(map(_is_polynomial, node.parts))


def bending_activations() -> list[str]:
    """Return the names of the activations that resemble relu: see `UnitActivation.bends`."""
    return [name for name, activation in UNIT_ACTIVATIONS.items() if activation.bends]


def unit_activation_named(name: str) -> UnitActivation:
    """Return the activation of units called `name`, which may be the text of a function."""
    if isinstance(name, str) and name in DEGREES:
        of_degree = "" if DEGREES[name] is None else f" of degree {DEGREES[name]}"
        raise UnsupportedActivationError(
            _POLYNOMIAL.format(what=f"Activation {name!r} is a polynomial{of_degree}")
        )
    is_own = isinstance(name, str) and name in OWN and name not in UNIT_ACTIVATIONS
    if is_written(name) or is_own:
        return _checked_unit(function_named(name))
    return named("unit activation", name, UNIT_ACTIVATIONS)


@lru_cache(maxsize=64)
def own_unit(function: Function) -> UnitActivation:
    """Return the unit activation of a user's analytic function."""
    return UnitActivation(function.name, function, function.derivative(), strip_of_text(function))


@lru_cache(maxsize=64)
def _checked_unit(function: ScalarFunction) -> UnitActivation:
    """Return the unit activation of a user's function; raise if the proofs do not cover it."""
    if not isinstance(function, Function) or function.knots:
        raise UnsupportedActivationError(
            f"{function.name} has knots, and the error bounds of units need an analytic function. "
            f"Use a function without knots, or one of {', '.join(UNIT_ACTIVATIONS)}."
        )
    (node,) = function.nodes
    if _is_polynomial(node):
        raise UnsupportedActivationError(
            _POLYNOMIAL.format(what=f"{function.name} is a polynomial")
        )
    ends = (torch.tensor(end, dtype=torch.float64) for end in (function.low, function.high))
    steepest = float(function.lipschitz(*ends))
    at_zero = float(function(torch.zeros((), dtype=torch.float64)))
    if not (steepest <= STEEPEST_UNIT and abs(at_zero) <= 1):
        raise UnsupportedActivationError(
            f"{function.name} has slopes up to {steepest:.3g} and the value {at_zero:.3g} at 0; "
            f"rounding bounds of units assume at most {STEEPEST_UNIT:g} and 1. Scale the function "
            "down, or its argument, as in f(x / 2): fits choose their own scale."
        )
    return own_unit(function)
