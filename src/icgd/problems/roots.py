r"""The reciprocal roots by which Adam, RMSprop and layer norms divide.

Both fall from t = 0 on, convex. That of an optimiser is 1 / (sqrt(t) + eps), infinitely steep at 0;
that of a norm is 1 / sqrt(t + eps). Their relative curvature is

    t^2 f''(t) / f(t) = s (3 s + eps) / (4 (s + eps)^2) <= 3 / 4,    s = sqrt(t)
    t^2 f''(t) / f(t) = 3 t^2 / (4 (t + eps)^2) <= 3 / 4
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from math import inf, sqrt

import torch
from torch import Tensor

from icgd.problems.functions import ScalarFunction
from icgd.shapes import Values

PREFIX = "reciprocal root of eps "
NORM_PREFIX = "reciprocal deviation of eps "
RELATIVE_ROUNDING = 2.0**-50
"""A root, a sum and a quotient in float64 are off by less, relative to the value."""


@dataclass(frozen=True)
class AbstractRoot(ScalarFunction):
    """A reciprocal root: it falls from 0 on, convex, and is constant below 0."""

    name: str
    eps: float

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        room = 1 + RELATIVE_ROUNDING
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
        return torch.where(high <= 0, 0.0, steepest * (1 + 4 * RELATIVE_ROUNDING))

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
        return torch.where(high <= 0, 0.0, steepest * (1 + 8 * RELATIVE_ROUNDING))

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
