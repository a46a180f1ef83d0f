r"""The activations of the transformer's own units, with what a proof needs to know about them.

They need not be activations that a target network can have: elu and cos are only here. A proof
uses that an activation is analytic in a strip around the real line and bounded there:

    sigmoid   |1 + exp(-z)| >= sin |Im z| beyond pi/2, and >= 1 before
    tanh      |tanh z| <= tan |Im z| beyond pi/4, and <= 1 before
    softplus  its derivative is sigmoid, so it changes by at most 1.95 |Im z|
    silu      |z| |sigmoid(z)|
    gelu      |z| |Phi(z)|, and Phi changes by at most |Im z| exp(Im z^2 / 2) / sqrt(2 pi)
    cos       |cos z| <= cosh Im z

relu and elu are analytic on either side of 0 only; their strips hold for each side.

Some bend like relu: |f(z) - relu(z)| has a bound, so f(beta z) / beta is within bound / beta of
relu(z) for every beta. With x = |z| the distance is

    softplus  log(1 + exp(-x)) <= log 2
    silu      x sigmoid(-x), largest where 1 + exp(-x) = x
    gelu      x Phi(-x), largest where Phi(-x) = x phi(x)
    elu       1 - exp(-x) to the left of 0, and 0 to the right
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cosh, exp, pi, sin, sqrt, tan

import torch
from torch import Tensor

from icgd.errors import UnsupportedActivationError
from icgd.problems.activations import GELU, RELU, SIGMOID, SILU, SOFTPLUS, TANH
from icgd.problems.functions import Evaluate
from icgd.problems.settings import by_name, named


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


def _elu_slope(z: Tensor) -> Tensor:
    return torch.exp(z.clamp(max=0.0))


# The bounds on the distance to relu are rounded up.
UNIT_ACTIVATIONS = by_name(
    UnitActivation("relu", RELU, RELU.derivative(), PIECE_STRIP, kinked=True, off_relu=0.0),
    UnitActivation("sigmoid", SIGMOID, SIGMOID.derivative(), SIGMOID_STRIP),
    UnitActivation("tanh", TANH, TANH.derivative(), TANH_STRIP),
    UnitActivation("softplus", SOFTPLUS, SOFTPLUS.derivative(), SOFTPLUS_STRIP, off_relu=0.6932),
    UnitActivation("gelu", GELU, GELU.derivative(), GELU_STRIP, off_relu=0.17),
    UnitActivation("silu", SILU, SILU.derivative(), SILU_STRIP, off_relu=0.2785),
    UnitActivation("elu", _elu, _elu_slope, PIECE_STRIP, kinked=True, off_relu=1.0),
    UnitActivation("cos", torch.cos, lambda z: -torch.sin(z), COS_STRIP),
)

DEGREES: dict[str, int | None] = {"identity": 1, "square": 2, "cube": 3, "polynomial": None}
"""The degrees of polynomials; a transformer whose units are polynomials approximates little."""


def bending_activations() -> list[str]:
    """The names of the activations that bend like relu."""
    return [name for name, activation in UNIT_ACTIVATIONS.items() if activation.bends]


def unit_activation_named(name: str) -> UnitActivation:
    """The activation called `name`."""
    if isinstance(name, str) and name in DEGREES:
        of_degree = "" if DEGREES[name] is None else f" of degree {DEGREES[name]}"
        raise UnsupportedActivationError(
            f"Activation {name!r} is a polynomial{of_degree}: so is every combination of its "
            "copies, and it decays only if it is zero. Use an activation that is not a polynomial, "
            "such as relu or sigmoid."
        )
    return named("unit activation", name, UNIT_ACTIVATIONS)
