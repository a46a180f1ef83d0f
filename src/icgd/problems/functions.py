r"""Functions of one variable with what a proof needs to know about them.

There are three kinds: smooth functions (known by their derivatives and where these are stationary),
kinked ones (piecewise linear) and steps (piecewise constant, the derivative of a kinked function).
Each gives its value, its range and its Lipschitz constant on any interval,
for whole tensors of intervals at once.

A range is moved outwards by what values in float64 may be off by (`rounding_of`): it holds
the real values and the computed ones. Between stationary points a function is monotone, so that
its extremes are those at the ends; a stationary point that is rounded to a double has the extreme
value to within the square of its rounding, 1e-32, which is far less.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import inf, sqrt

import torch
from torch import Tensor

from icgd.shapes import Values

# How far torch's values of the functions of one variable are from the real ones.
#
# With the unit roundoff u and the least normal number of a precision, a value f(z) is off by at
# most
#
#     u (relative |f(z)| + absolute) + LEAST_NUMBERS least,    for every finite z.
#
# `absolute` is for functions that cancel where they cross 0, such as gelu' near -0.75, and for
# those with a square in the exponent: exp(-z^2 / 2) is off by u z^2 / 2 of itself, which is
# little of 1.
#
# What is known of these numbers: torch states no accuracy.
# `tests/problems/test_function_rounding.py` compares float64 and float32 with balls that hold the
# real values (Arb), at points of every size, near zeros, stationary points and the ends of the
# range, in vectors and one by one. That is evidence for the functions that round, not a proof.
# Functions that are `EXACT` have one: they choose between numbers that they are given, change a
# sign, or double.


LEAST_NUMBERS = 128
"""The least normal numbers that underflow may take: silu multiplies what is left of an exponential
by up to 104."""


@dataclass(frozen=True)
class FunctionRounding:
    """The two numbers of a function. One that is `linear` between its knots is exactly 0 at 0."""

    relative: float
    absolute: float = 0.0
    is_linear: bool = False

    def at(
        self,
        size: Values,
        roundoff: float = 2.0**-53,
        least: float = torch.finfo(torch.float64).tiny,
    ) -> Values:
        """Bound the rounding error of values of at most this size."""
        off = roundoff * self.relative * size
        if self.is_linear:
            return torch.add(off, off.sign(), alpha=LEAST_NUMBERS * least)
        return off + (roundoff * self.absolute + LEAST_NUMBERS * least)


EXACT = FunctionRounding(0.0, is_linear=True)

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
    "exp": {order: FunctionRounding(2.0) for order in range(4)},
    "square": {0: FunctionRounding(2.0), 1: EXACT, 2: EXACT, 3: EXACT},
}
"""For every function that bounds or runs evaluate, and for each of its derivatives."""

_OTHER = FunctionRounding(16.0, 16.0)


def rounding_of(name: str) -> FunctionRounding:
    """Return the rounding of a function, whose name has a prime for each derivative.

    A function that the table does not know is taken to be off by 16 units.
    """
    function = name.rstrip("'")
    return FUNCTION_ROUNDING.get(function, {}).get(len(name) - len(function), _OTHER)


Evaluate = Callable[[Tensor], Tensor]


def _extremes(
    evaluate: Evaluate, low: Values, high: Values, points: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return the least and the largest value of `evaluate` on [low, high].

    The function must be monotone between consecutive `points`; then its extremes are taken at
    the ends or at points inside. If both ends are the same tensor, it is evaluated once.
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
    """Widen a range by the rounding error of its ends and of the values in it.

    That is two errors, and a third for the rounding of this sum.
    """
    rounding = rounding_of(name)
    if rounding == EXACT:
        return least, largest
    return least - 3 * rounding.at(least.abs()), largest + 3 * rounding.at(largest.abs())


class ScalarFunction(ABC):
    """A function of one variable; subclasses are final."""

    name: str

    @abstractmethod
    def __call__(self, z: Values) -> Values:
        """Return the value at every entry of `z`."""

    @abstractmethod
    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        """Return the least and the largest value on [low, high]."""

    @abstractmethod
    def lipschitz(self, low: Values, high: Values) -> Values:
        """Smallest L with |f(a) - f(b)| <= L |a - b| on [low, high]; infinite across a jump."""

    @abstractmethod
    def derivative(self) -> ScalarFunction:
        """Return the derivative; at a kink, its value from the left."""

    def slope_times(self, low: Values, high: Values, distance: Values) -> Values:
        """Return the Lipschitz constant on [low, high] times `distance`; 0 if `distance` is 0.

        It bounds |f(a) - f(b)| for a, b in [low, high] at most `distance` apart, as the width of
        the range does.
        """
        product = self.lipschitz(low, high) * distance
        if not bool(product.sum().isnan()):
            return product
        return torch.where(distance == 0, 0.0, product)


@dataclass(frozen=True)
class SmoothFunction(ScalarFunction):
    """`tower[m]` is the m-th derivative, `stationary[m]` the zeros of derivative m + 1."""

    name: str
    tower: tuple[Evaluate, ...]
    stationary: tuple[tuple[float, ...], ...]

    def __call__(self, z: Values) -> Values:
        return self.tower[0](z)

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        ends = _extremes(self.tower[0], low, high, self.stationary[0])
        return _outwards(self.name, *ends)

    def lipschitz(self, low: Values, high: Values) -> Values:
        least, largest = self.derivative().bounds(low, high)
        return torch.maximum(-least, largest)

    def curvature(self, low: Values, high: Values) -> Values:
        """Return the largest |f''| on [low, high]."""
        return self.derivative().lipschitz(low, high)

    def derivative(self) -> SmoothFunction:
        return SmoothFunction(f"{self.name}'", self.tower[1:], self.stationary[1:])


@dataclass(frozen=True)
class KinkedFunction(ScalarFunction):
    """Continuous and piecewise linear: `slopes[i]` holds between knots i - 1 and i."""

    name: str
    evaluate: Evaluate
    knots: tuple[float, ...]
    slopes: tuple[float, ...]

    def __call__(self, z: Values) -> Values:
        return self.evaluate(z)

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        return _outwards(self.name, *_extremes(self.evaluate, low, high, self.knots))

    def lipschitz(self, low: Values, high: Values) -> Values:
        """Return the steepest slope in [low, high]; a point has that of the piece to its left."""
        steepest = torch.zeros_like(low)
        ends = zip((-inf, *self.knots), (*self.knots, inf), self.slopes, strict=True)
        for left, right, slope in ends:
            reached = (left < high) & ((right > low) | ((right == low) & (low == high)))
            steepest = torch.where(reached, steepest.clamp(min=abs(slope)), steepest)
        return steepest

    def derivative(self) -> StepFunction:
        return StepFunction(f"{self.name}'", self.knots, self.slopes)


@dataclass(frozen=True)
class StepFunction(ScalarFunction):
    """Piecewise constant: `levels[i]` on the half-open piece (knots[i - 1], knots[i]]."""

    name: str
    knots: tuple[float, ...]
    levels: tuple[float, ...]

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


# The functions of which shares of classes are made: a capped exponential and a reciprocal.
#
# Both are convex and positive, and are wanted to a relative error over many powers of ten. What
# they take stands in their names, so that a program that is loaded finds them again.


CAPPED = "exp up to "
RELATIVE_ROUNDING = 2.0**-49
"""An exponential or a quotient in float64 is off by less, relative to the value."""

SOFTMAX_ROUNDING = 16
"""The operations of a softmax besides those of a sum over its classes."""


@dataclass(frozen=True)
class CappedExponential(ScalarFunction):
    """exp(min(z, cap))."""

    name: str
    cap: float

    def __call__(self, z: Values) -> Values:
        return z.clamp(max=self.cap).exp()

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        room = 1 + RELATIVE_ROUNDING
        return self(low) / room, self(high) * room

    def lipschitz(self, low: Values, high: Values) -> Values:
        steepest = self(high) * (1 + RELATIVE_ROUNDING)
        return torch.where(low >= self.cap, 0.0, steepest)

    def derivative(self) -> ScalarFunction:
        raise NotImplementedError("No proof needs the slope of a capped exponential.")


@dataclass(frozen=True)
class Reciprocal(ScalarFunction):
    """1 / z for z >= 1 / 2, and 2 below."""

    name: str = "reciprocal"

    def __call__(self, z: Values) -> Values:
        return 1.0 / z.clamp_min(0.5)

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        room = 1 + RELATIVE_ROUNDING
        return self(high) / room, self(low) * room

    def lipschitz(self, low: Values, high: Values) -> Values:
        return self(low) ** 2 * (1 + 4 * RELATIVE_ROUNDING)

    def derivative(self) -> ScalarFunction:
        raise NotImplementedError("No proof needs the slope of a reciprocal.")

    def curvature(self, low: Values) -> Values:
        """f'' at `low` >= 1 / 2, which is the largest from there on."""
        return 2 / low**3


RECIPROCAL = Reciprocal()


@lru_cache
def capped_exponential(cap: float) -> CappedExponential:
    """Return the function with this cap; its name contains it."""
    return CappedExponential(f"{CAPPED}{cap!r}", cap)


def class_function_named(name: str) -> CappedExponential | Reciprocal | None:
    """Return the capped exponential or the reciprocal called `name`, if it is one."""
    if name == RECIPROCAL.name:
        return RECIPROCAL
    cap = _number_after(CAPPED, name)
    return None if cap is None else capped_exponential(cap)


def _number_after(prefix: str, name: str) -> float | None:
    """Return the positive number that follows `prefix` in `name`, if there is one."""
    if not name.startswith(prefix):
        return None
    try:
        number = float(name.removeprefix(prefix))
    except ValueError:
        return None
    return number if 0 < number < inf else None


# The reciprocal roots by which Adam, RMSprop and layer norms divide.
#
# Both fall from t = 0 on, convex. That of an optimiser is 1 / (sqrt(t) + eps), infinitely steep
# at 0; that of a norm is 1 / sqrt(t + eps). Their relative curvature is
#
#     t^2 f''(t) / f(t) = s (3 s + eps) / (4 (s + eps)^2) <= 3 / 4,    s = sqrt(t)
#     t^2 f''(t) / f(t) = 3 t^2 / (4 (t + eps)^2) <= 3 / 4


PREFIX = "reciprocal root of eps "
NORM_PREFIX = "reciprocal deviation of eps "
ROOT_ROUNDING = 2.0**-50
"""A root, a sum and a quotient in float64 are off by less, relative to the value."""


@dataclass(frozen=True)
class AbstractRoot(ScalarFunction):
    """A reciprocal root: it falls from 0 on, convex, and is constant below 0."""

    name: str
    eps: float

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        room = 1 + ROOT_ROUNDING
        return self(high) / room, self(low) * room

    def derivative(self) -> ScalarFunction:
        raise NotImplementedError("No proof needs the slope of a reciprocal root.")

    @abstractmethod
    def curvature(self, low: Values) -> Values:
        """f'' at `low`, which is the largest from there on."""

    @abstractmethod
    def bend(self, t: Values) -> Values:
        """Return the root of the relative curvature."""

    @abstractmethod
    def first_end(self, error: float) -> float:
        """Return the end of the chord from 0 whose relative error is `error`."""


@dataclass(frozen=True)
class ReciprocalRoot(AbstractRoot):
    """1 / (sqrt(t) + eps), taken as 1 / eps below 0."""

    def __call__(self, z: Values) -> Values:
        return 1.0 / (z.clamp_min(0.0).sqrt() + self.eps)

    def lipschitz(self, low: Values, high: Values) -> Values:
        root = low.clamp_min(0.0).sqrt()
        steepest = 1.0 / (2 * root * (root + self.eps) ** 2)
        return torch.where(high <= 0, 0.0, steepest * (1 + 4 * ROOT_ROUNDING))

    def curvature(self, low: Values) -> Values:
        root = low.sqrt()
        return (3 * root + self.eps) / (4 * root**3 * (root + self.eps) ** 3)

    def bend(self, t: Values) -> Values:
        root = t.sqrt()
        return (root * (3 * root + self.eps)).sqrt() / (2 * (root + self.eps))

    def first_end(self, error: float) -> float:
        """Below it the root is constant to that error, however steep it is."""
        return (8 * error * self.eps) ** 2


@dataclass(frozen=True)
class ReciprocalDeviation(AbstractRoot):
    """1 / sqrt(t + eps), taken as 1 / sqrt(eps) below 0."""

    def __call__(self, z: Values) -> Values:
        return 1.0 / (z.clamp_min(0.0) + self.eps).sqrt()

    def lipschitz(self, low: Values, high: Values) -> Values:
        steepest = 0.5 * (low.clamp_min(0.0) + self.eps) ** -1.5
        return torch.where(high <= 0, 0.0, steepest * (1 + 8 * ROOT_ROUNDING))

    def curvature(self, low: Values) -> Values:
        return 0.75 * (low + self.eps) ** -2.5

    def bend(self, t: Values) -> Values:
        return sqrt(0.75) * t / (t + self.eps)

    def first_end(self, error: float) -> float:
        return self.eps * sqrt(16 * error / 0.75)


@lru_cache
def reciprocal_root(eps: float) -> ReciprocalRoot:
    """Return the function with this `eps`; its name contains it."""
    return ReciprocalRoot(f"{PREFIX}{eps!r}", eps)


@lru_cache
def reciprocal_deviation(eps: float) -> ReciprocalDeviation:
    """Return the function with this `eps`; its name contains it."""
    return ReciprocalDeviation(f"{NORM_PREFIX}{eps!r}", eps)


def root_named(name: str) -> AbstractRoot | None:
    """Return the reciprocal root called `name`, if it is one."""
    for prefix, root in ((PREFIX, reciprocal_root), (NORM_PREFIX, reciprocal_deviation)):
        if (eps := _number_after(prefix, name)) is not None:
            return root(eps)
    return None
