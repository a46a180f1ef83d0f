r"""Intervals of tensors: the arithmetic in which bounds are propagated.

Numbers here are rounded too, so every operation moves its ends outwards. Its result then holds
the real result for all numbers in the operands, and what float64 makes of them in any order: the
oracle's own number. With u = 2^-53 one operation is off by u times its result, and a sum of m
products by gamma(m) = m u / (1 - m u) times the sum of their sizes.

    sum, widening    2 roundings, and the one that moves the end: 4 u of the end
    product          3 roundings: 4 u times the product of the sizes
    matrix product   the midpoint's m products, the oracle's, and the last rounding: gamma(2 m + 4);
                     the spread, a sum of numbers that are not negative, has its `ROOM`

Underflow breaks these rules, but only below 2^-1022. `LEAST` is added to every size that is not 0,
so that no product of up to four sizes underflows, and u times it is far above what underflow
takes. A size is 0 only where all is exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from icgd.shapes import Values

UNIT_ROUNDOFF = 2.0**-53
"""The unit roundoff of float64, in which bounds and oracles are computed."""

ROOM = 1 + 2.0**-28
"""The factor that covers the rounding of up to 2^24 operations on numbers that are not negative:
gamma(2^24) < 2^-28.
"""

LEAST = 2.0**-256
"""What is added to sizes that are not 0."""

_OUTWARDS = 4 * UNIT_ROUNDOFF


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
        """At least the largest absolute value, and 0 only if all values are."""
        return _lifted(torch.maximum(-self.low, self.high))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Interval:
        """The interval with all numbers arranged in another way."""
        return Interval(change(self.low), change(self.high))

    def widened(self, margin: Values) -> Interval:
        """The interval with both ends moved outwards by `margin`."""
        return Interval(_down(self.low - margin), _up(self.high + margin))

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
        return Interval(_down(self.low + other.low), _up(self.high + other.high))

    def times(self, factor: float) -> Interval:
        """The multiple by a number."""
        ends = (factor * self.low, factor * self.high)
        low, high = ends if factor >= 0 else ends[::-1]
        if abs(factor) == 1:
            return Interval(low, high)
        margin = _OUTWARDS * abs(factor) * self.size
        return Interval(low - margin, high + margin)

    def __mul__(self, other: Interval) -> Interval:
        corners = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        products = torch.stack(torch.broadcast_tensors(*corners))
        margin = _OUTWARDS * self.size * other.size
        return Interval(products.amin(0) - margin, products.amax(0) + margin)

    def __matmul__(self, other: Interval) -> Interval:
        """The matrix product, by midpoints and radii.

        With |a - m| <= r and |b - n| <= s it is |a b - m n| <= |m| s + r (|n| + s). Rounding adds
        gamma (|m| + r) (|n| + s), which is what a larger s, by gamma (|n| + s), adds to it.
        """
        middle, radius = self._ball()
        other_middle, other_radius = other._ball()
        size = other.size
        spread = _lifted(middle.abs()) @ (other_radius + _matrix_rounding(self) * size)
        if bool(radius.any()):
            spread = spread + (1 + _matrix_rounding(self)) * (radius @ size)
        centre, spread = middle @ other_middle, ROOM * spread
        return Interval(centre - spread, centre + spread)

    def _ball(self) -> tuple[Tensor, Tensor]:
        """The midpoint as it is rounded, and the larger distance of an end from it."""
        middle = (self.low + self.high) / 2
        return middle, _lifted(torch.maximum(self.high - middle, middle - self.low))

    @property
    def mT(self) -> Interval:  # noqa: N802 - torch's name
        """The transposed interval."""
        return Interval(self.low.mT, self.high.mT)

    def distance_to(self, other: Interval) -> Tensor:
        """The largest distance between a value here and a value there."""
        return torch.maximum(self.high - other.low, other.high - self.low)


def _matrix_rounding(left: Interval) -> float:
    """gamma(2 m + 4) for sums of m products."""
    product = (2 * left.low.shape[-1] + 4) * UNIT_ROUNDOFF
    return product / (1 - product)


def _lifted(size: Tensor) -> Tensor:
    """A size with `LEAST` added, unless it is 0."""
    return torch.add(size, size.sign(), alpha=LEAST)


def _down(end: Tensor) -> Tensor:
    return torch.sub(end, end.abs(), alpha=_OUTWARDS)


def _up(end: Tensor) -> Tensor:
    return torch.add(end, end.abs(), alpha=_OUTWARDS)


def _nan_to(replacement: float, values: Tensor) -> Tensor:
    return torch.where(values.isnan(), replacement, values)
