"""Intervals of tensors: the arithmetic in which bounds are propagated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf

import torch
from torch import Tensor

from icgd.shapes import Values


@dataclass(frozen=True)
class Interval:
    """Every entry lies between `low` and `high`.

    Numbers that are known are one tensor, which is both ends; they cost half the work.
    """

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
    def is_point(self) -> bool:
        """Whether both ends are the same tensor."""
        return self.low is self.high

    @property
    def size(self) -> Tensor:
        """The largest absolute value."""
        return self.low.abs() if self.is_point else torch.maximum(-self.low, self.high)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Interval:
        """The interval with all numbers arranged in another way, or changed by a rising map."""
        low = change(self.low)
        return Interval(low, low if self.is_point else change(self.high))

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
        if not any(_may_hold_nan(end) for end in self._ends):
            return self
        return Interval(_nan_to(-inf, self.low), _nan_to(inf, self.high))

    def clipped(self, bound: float) -> Interval:
        """The image under clipping to [-bound, bound]."""
        return self.mapped(lambda end: end.clamp(-bound, bound))

    def __add__(self, other: Interval) -> Interval:
        if self.is_point and other.is_point:
            return Interval.point(self.low + other.low)
        return Interval(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Interval:
        """The multiple by a number."""
        multiple = self.mapped(lambda end: factor * end)
        return multiple if factor >= 0 else Interval(multiple.high, multiple.low)

    def __mul__(self, other: Interval) -> Interval:
        corners = [a * b for a in self._ends for b in other._ends]
        return Interval.between(corners)

    @property
    def _ends(self) -> tuple[Tensor, ...]:
        """The ends, each tensor once."""
        return (self.low,) if self.is_point else (self.low, self.high)

    @classmethod
    def between(cls, values: Sequence[Tensor]) -> Interval:
        """From the least to the largest of the values at every entry."""
        if len(values) == 1:
            return cls.point(values[0])
        return cls(reduce(torch.minimum, values), reduce(torch.maximum, values))

    def __matmul__(self, other: Interval) -> Interval:
        """The matrix product, by midpoints and radii."""
        if self.is_point and other.is_point:
            return Interval.point(self.low @ other.low)
        if other.is_point:
            return self._times_matrix(other.low)
        middle, radius = (self.low + self.high) / 2, (self.high - self.low) / 2
        other_middle, other_radius = (other.low + other.high) / 2, (other.high - other.low) / 2
        centre = middle @ other_middle
        spread = middle.abs() @ other_radius + radius @ (other_middle.abs() + other_radius)
        return Interval(centre - spread, centre + spread)

    def _times_matrix(self, matrix: Tensor) -> Interval:
        """The product with a matrix that is known."""
        centre = (self.low + self.high) / 2 @ matrix
        spread = (self.high - self.low) / 2 @ matrix.abs()
        return Interval(centre - spread, centre + spread)

    @property
    def mT(self) -> Interval:  # noqa: N802 - torch's name
        """The transposed interval."""
        return self.mapped(lambda end: end.mT)

    def distance_to(self, other: Interval) -> Tensor:
        """The largest distance between a value here and a value there."""
        return torch.maximum(self.high - other.low, other.high - self.low)


def _may_hold_nan(values: Tensor) -> bool:
    """Whether an entry may be NaN: then the sum is, as it is where infinities cancel."""
    return bool(values.sum().isnan())


def _nan_to(replacement: float, values: Tensor) -> Tensor:
    return torch.where(values.isnan(), replacement, values)
