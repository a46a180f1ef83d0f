r"""The reciprocal root 1 / (sqrt(t) + eps), by which Adam and RMSprop divide.

It falls from 1 / eps at t = 0, convex, and infinitely steep there. Its relative curvature is

    t^2 f''(t) / f(t) = s (3 s + eps) / (4 (s + eps)^2) <= 3 / 4,    s = sqrt(t)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf

import torch
from torch import Tensor

from icgd.problems.functions import ScalarFunction
from icgd.shapes import Values

PREFIX = "reciprocal root of eps "
RELATIVE_ROUNDING = 2.0**-50
"""A root, a sum and a quotient in float64 are off by less, relative to the value."""


@dataclass(frozen=True)
class ReciprocalRoot(ScalarFunction):
    """1 / (sqrt(t) + eps), taken as 1 / eps below 0."""

    name: str
    eps: float

    def __call__(self, z: Values) -> Values:
        return 1.0 / (z.clamp_min(0.0).sqrt() + self.eps)

    def bounds(self, low: Values, high: Values) -> tuple[Tensor, Tensor]:
        room = 1 + RELATIVE_ROUNDING
        return self(high) / room, self(low) * room

    def lipschitz(self, low: Values, high: Values) -> Values:
        root = low.clamp_min(0.0).sqrt()
        steepest = 1.0 / (2 * root * (root + self.eps) ** 2)
        return torch.where(high <= 0, 0.0, steepest * (1 + 4 * RELATIVE_ROUNDING))

    def derivative(self) -> ScalarFunction:
        raise NotImplementedError("No proof needs the slope of a reciprocal root.")

    def curvature(self, low: Values) -> Values:
        """f'' at `low` > 0, which is the largest from there on."""
        root = low.sqrt()
        return (3 * root + self.eps) / (4 * root**3 * (root + self.eps) ** 3)


@lru_cache
def reciprocal_root(eps: float) -> ReciprocalRoot:
    """The function for this `eps`, which stands in its name."""
    return ReciprocalRoot(f"{PREFIX}{eps!r}", eps)


def root_named(name: str) -> ReciprocalRoot | None:
    """The reciprocal root called `name`, if it is one."""
    if not name.startswith(PREFIX):
        return None
    try:
        eps = float(name.removeprefix(PREFIX))
    except ValueError:
        return None
    return reciprocal_root(eps) if 0 < eps < inf else None
