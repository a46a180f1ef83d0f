"""Intervals of tensors: the arithmetic in which bounds are propagated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from icgd.shapes import Values


@dataclass(frozen=True)
class Interval:
    """Every entry lies between `low` and `high`."""

    low: Tensor
    high: Tensor

    @classmethod
    def point(cls, value: Values) -> Interval:
        """The interval that holds `value` alone."""
        return cls(value, value)

    @classmethod
    def symmetric(cls, bound: float, *shape: int) -> Interval:
        """The interval [-bound, bound] in every entry."""
        size = torch.full(shape, bound, dtype=torch.float64)
        return cls(-size, size)

    @property
    def size(self) -> Tensor:
        """The largest absolute value."""
        return torch.maximum(-self.low, self.high)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Interval:
        """The interval with all numbers arranged in another way."""
        return Interval(change(self.low), change(self.high))

    def widened(self, margin: Values) -> Interval:
        """The interval with both ends moved outwards by `margin`."""
        return Interval(self.low - margin, self.high + margin)

    def within(self, other: Interval) -> Interval:
        """The common part with an interval that is known to hold the same value.

        Where rounding leaves the two a hair apart, it is what lies between them.
        """
        low = torch.maximum(self.low, other.low)
        high = torch.minimum(self.high, other.high)
        return Interval(torch.minimum(low, high), torch.maximum(low, high))

    def without_nan(self) -> Interval:
        """The interval without a bound where infinities cancelled."""
        return Interval(_nan_to(-inf, self.low), _nan_to(inf, self.high))

    def clipped(self, bound: float) -> Interval:
        """The image under clipping to [-bound, bound]."""
        return Interval(self.low.clamp(-bound, bound), self.high.clamp(-bound, bound))

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Interval:
        """The multiple by a number."""
        ends = (factor * self.low, factor * self.high)
        return Interval(*ends) if factor >= 0 else Interval(*ends[::-1])

    def __mul__(self, other: Interval) -> Interval:
        corners = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        products = torch.stack(torch.broadcast_tensors(*corners))
        return Interval(products.amin(0), products.amax(0))

    def __matmul__(self, other: Interval) -> Interval:
        """The matrix product, by midpoints and radii."""
        middle, radius = (self.low + self.high) / 2, (self.high - self.low) / 2
        other_middle, other_radius = (other.low + other.high) / 2, (other.high - other.low) / 2
        centre = middle @ other_middle
        spread = middle.abs() @ other_radius + radius @ (other_middle.abs() + other_radius)
        return Interval(centre - spread, centre + spread)

    @property
    def mT(self) -> Interval:  # noqa: N802 - torch's name
        """The transposed interval."""
        return Interval(self.low.mT, self.high.mT)

    def distance_to(self, other: Interval) -> Tensor:
        """The largest distance between a value here and a value there."""
        return torch.maximum(self.high - other.low, other.high - self.low)


def _nan_to(replacement: float, values: Tensor) -> Tensor:
    return torch.where(values.isnan(), replacement, values)
