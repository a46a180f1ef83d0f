"""Every function of one variable that a program may approximate, by its name."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from math import inf, sqrt

import torch
from torch import Tensor

from icgd.problems.activations import ACTIVATIONS
from icgd.problems.functions import ScalarFunction
from icgd.problems.losses import LOSSES
from icgd.problems.settings import by_name, named
from icgd.shapes import Values

# -----------------------------------------------------------------------------
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
    """The function for this cap, which stands in its name."""
    return CappedExponential(f"{CAPPED}{cap!r}", cap)


def class_function_named(name: str) -> CappedExponential | Reciprocal | None:
    """The capped exponential or the reciprocal called `name`, if it is one."""
    if name == RECIPROCAL.name:
        return RECIPROCAL
    if not name.startswith(CAPPED):
        return None
    try:
        cap = float(name.removeprefix(CAPPED))
    except ValueError:
        return None
    return capped_exponential(cap) if 0 < cap < inf else None


# -----------------------------------------------------------------------------
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
        """The root of the relative curvature."""

    @abstractmethod
    def first_end(self, error: float) -> float:
        """Where a chord from 0 may end that is to have this relative error."""


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
    """The function for this `eps`, which stands in its name."""
    return ReciprocalRoot(f"{PREFIX}{eps!r}", eps)


@lru_cache
def reciprocal_deviation(eps: float) -> ReciprocalDeviation:
    """The function for this `eps`, which stands in its name."""
    return ReciprocalDeviation(f"{NORM_PREFIX}{eps!r}", eps)


def root_named(name: str) -> AbstractRoot | None:
    """The reciprocal root called `name`, if it is one."""
    for prefix, root in ((PREFIX, reciprocal_root), (NORM_PREFIX, reciprocal_deviation)):
        if name.startswith(prefix):
            eps = _number(name.removeprefix(prefix))
            return root(eps) if 0 < eps < inf else None
    return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


FUNCTIONS: dict[str, ScalarFunction] = by_name(
    *(activation.value for activation in ACTIVATIONS.values()),
    *(activation.derivative for activation in ACTIVATIONS.values()),
    *(part for a in ACTIVATIONS.values() for part in (a.gate, a.rest) if part is not None),
    *(part.function for loss in LOSSES.values() for part in loss.slope_parts or ()),
)


def function_named(name: str) -> ScalarFunction:
    """The function called `name`; a derivative is called by its function's name and a prime."""
    return root_named(name) or class_function_named(name) or named("function", name, FUNCTIONS)
