r"""Activations and the other functions of one variable, by name.

The stationary points below are where a derivative of the next order vanishes. Those of tanh,
sigmoid and softplus come from t = tanh z:

    tanh' = 1 - t^2,  tanh'' = -2 t (1 - t^2),  tanh''' = (6 t^2 - 2)(1 - t^2),
    tanh'''' = (16 t - 24 t^3)(1 - t^2),

those of gelu from its second derivative phi(z) (2 - z^2), where phi is the normal density.
The three of silu, and the minimum of gelu, are roots of transcendental equations, correct to
the last digit of a double.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import atanh, cosh, exp, pi, sin, sqrt, tan

import torch
from torch import Tensor
from torch.nn import functional

from icgd.errors import UnsupportedActivationError
from icgd.problems.functions import (
    Evaluate,
    KinkedFunction,
    ScalarFunction,
    SmoothFunction,
    class_function_named,
    root_named,
)
from icgd.problems.settings import by_name, named


@dataclass(frozen=True)
class Activation:
    """An activation r together with its derivative r'.

    A smooth one that grows like a line is z gate(z) + rest(z), where gate and rest are bounded.
    """

    value: ScalarFunction
    gate: SmoothFunction | None = None
    rest: SmoothFunction | None = None

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
)

SOFTPLUS = SmoothFunction(
    "softplus",
    (lambda z: torch.logaddexp(z, torch.zeros_like(z)), *SIGMOID.tower[:3]),
    ((), *SIGMOID.stationary[:3]),
)


def _normal_density(z: Tensor) -> Tensor:
    return torch.exp(-z * z / 2) / sqrt(2 * pi)


def _normal_distribution(z: Tensor) -> Tensor:
    # Not torch.special.ndtr, which is exactly 0 below -9.
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
)

NORMAL_DISTRIBUTION = SmoothFunction(
    "normal_distribution",
    (_normal_distribution, _normal_density, lambda z: -z * _normal_density(z)),
    ((), (0.0,), (-1.0, 1.0)),
)


def _coin_entropy(z: Tensor) -> Tensor:
    # Even; written for the side on which nothing cancels.
    size = z.abs()
    return torch.log1p(torch.exp(-size)) + size * torch.sigmoid(-size)


# softplus(z) - z sigmoid(z), the entropy of a coin that shows heads with probability sigmoid(z).
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
)

LEAK = 0.01
"""Slope of leaky_relu for negative arguments, torch's default."""

RELU = KinkedFunction("relu", torch.relu, (0.0,), (0.0, 1.0))
LEAKY_RELU = KinkedFunction(
    "leaky_relu", lambda z: functional.leaky_relu(z, LEAK), (0.0,), (LEAK, 1.0)
)
IDENTITY_FUNCTION = KinkedFunction("identity", lambda z: z, (), (1.0,))

# The slopes of losses are made of these.
DOUBLE = KinkedFunction("double", lambda z: 2 * z, (), (2.0,))
NEGATE = KinkedFunction("negate", lambda z: -z, (), (-1.0,))
CLIP = KinkedFunction("clip", lambda z: z.clamp(-1.0, 1.0), (-1.0, 1.0), (0.0, 1.0, 0.0))

ACTIVATIONS = by_name(
    *map(Activation, (RELU, LEAKY_RELU, IDENTITY_FUNCTION, TANH, SIGMOID)),
    Activation(GELU, gate=NORMAL_DISTRIBUTION),
    Activation(SILU, gate=SIGMOID),
    Activation(SOFTPLUS, gate=SIGMOID, rest=COIN_ENTROPY),
)


def activation_named(name: str) -> Activation:
    """Return the activation called `name`."""
    return named("activation", name, ACTIVATIONS)


FUNCTIONS: dict[str, ScalarFunction] = by_name(
    *(activation.value for activation in ACTIVATIONS.values()),
    *(activation.derivative for activation in ACTIVATIONS.values()),
    *(part for a in ACTIVATIONS.values() for part in (a.gate, a.rest) if part is not None),
    *(DOUBLE, NEGATE, CLIP),
)
"""The functions that a program may approximate, besides those with a number in their name."""


def function_named(name: str) -> ScalarFunction:
    """Return the function called `name`; a prime after the name marks a derivative."""
    return root_named(name) or class_function_named(name) or named("function", name, FUNCTIONS)


# The activations of the transformer's own units, with what a proof needs to know about them.
#
# They need not be activations that a target network can have: elu and cos are only here. A proof
# uses that an activation is analytic in a strip around the real line and bounded there:
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
# Some bend like relu: |f(z) - relu(z)| has a bound, so f(beta z) / beta is within bound / beta of
# relu(z) for every beta. With x = |z| the distance is
#
#     softplus  log(1 + exp(-x)) <= log 2
#     silu      x sigmoid(-x), largest where 1 + exp(-x) = x
#     gelu      x Phi(-x), largest where Phi(-x) = x phi(x)
#     elu       1 - exp(-x) to the left of 0, and 0 to the right


@dataclass(frozen=True)
class Strip:
    """|f(z)| <= size(reach) wherever |Im z| <= height and |Re z| <= reach."""

    height: float
    size: Callable[[float], float]


@dataclass(frozen=True)
class UnitActivation:
    """An activation and its derivative, analytic in `strip`, on either side of 0 if `kinked`.

    `off_relu` bounds |value(z) - relu(z)| for all z; it is None where there is no bound.
    """

    name: str
    value: Evaluate
    slope: Evaluate
    strip: Strip
    kinked: bool = False
    off_relu: float | None = None

    @property
    def bends(self) -> bool:
        """Whether it looks like relu from afar."""
        return self.off_relu is not None

    def __call__(self, z: Tensor) -> Tensor:
        return self.value(z)


# The heights are free: a taller strip allows wider panels, but the function is larger there.
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
# A panel on one side of 0 reaches over to the other by at most the height.
PIECE_STRIP = Strip(_PIECE_HEIGHT, lambda reach: reach + _PIECE_HEIGHT + exp(_PIECE_HEIGHT) + 1)


def _elu(z: Tensor) -> Tensor:
    return torch.where(z > 0, z, torch.expm1(z.clamp(max=0.0)))


# The bounds on the distance to relu are rounded up.
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
"""The degrees of polynomials; a transformer whose units are polynomials approximates little."""


def bending_activations() -> list[str]:
    """Return the names of the activations that bend like relu."""
    return [name for name, activation in UNIT_ACTIVATIONS.items() if activation.bends]


def unit_activation_named(name: str) -> UnitActivation:
    """Return the activation called `name`."""
    if isinstance(name, str) and name in DEGREES:
        of_degree = "" if DEGREES[name] is None else f" of degree {DEGREES[name]}"
        raise UnsupportedActivationError(
            f"Activation {name!r} is a polynomial{of_degree}: so is every combination of its "
            "copies, and it decays only if it is zero. Use an activation that is not a polynomial, "
            "such as relu or sigmoid."
        )
    return named("unit activation", name, UNIT_ACTIVATIONS)
