"""The functions of which shares of classes are made: a capped exponential and a reciprocal.

Both are convex and positive, and are wanted to a relative error over many powers of ten. What they
take stands in their names, so that a program that is loaded finds them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf

import torch
from torch import Tensor

from icgd.problems.functions import ScalarFunction
from icgd.shapes import Values

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
