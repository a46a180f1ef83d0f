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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
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

    @cached_property
    def size(self) -> Tensor:
        """At least the largest absolute value, and 0 only if all values are."""
        if self.is_point:
            return _lifted(self.low.abs())
        return _lifted(torch.maximum(-self.low, self.high))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Interval:
        """The interval with all numbers arranged in another way, or changed by a rising map."""
        low = change(self.low)
        return Interval(low, low if self.is_point else change(self.high))

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
        if not any(_may_hold_nan(end) for end in self._ends):
            return self
        return Interval(_nan_to(-inf, self.low), _nan_to(inf, self.high))

    def clipped(self, bound: float) -> Interval:
        """The image under clipping to [-bound, bound]."""
        return self.mapped(lambda end: end.clamp(-bound, bound))

    def __add__(self, other: Interval) -> Interval:
        return Interval(_down(self.low + other.low), _up(self.high + other.high))

    def times(self, factor: float) -> Interval:
        """The multiple by a number."""
        multiple = self.mapped(lambda end: factor * end)
        turned = multiple if factor >= 0 else Interval(multiple.high, multiple.low)
        return turned if abs(factor) == 1 else turned.widened(_OUTWARDS * abs(factor) * self.size)

    def times_within(self, low: float, high: float) -> Interval:
        """All multiples by the numbers from `low` to `high`, of which the ends decide."""
        if low == high:
            return self.times(low)
        one, other = self.times(low), self.times(high)
        return Interval(torch.minimum(one.low, other.low), torch.maximum(one.high, other.high))

    def __mul__(self, other: Interval) -> Interval:
        corners = [a * b for a in self._ends for b in other._ends]
        return Interval.between(corners).widened(_OUTWARDS * self.size * other.size)

    @property
    def _ends(self) -> tuple[Tensor, ...]:
        """The ends, each tensor once."""
        return (self.low,) if self.is_point else (self.low, self.high)

    @classmethod
    def between(cls, values: Sequence[Tensor]) -> Interval:
        """The interval from the least to the largest of the values, at every entry."""
        if len(values) == 1:
            return cls.point(values[0])
        return cls(reduce(torch.minimum, values), reduce(torch.maximum, values))

    def __matmul__(self, other: Interval) -> Interval:
        """The matrix product, by midpoints and radii.

        With |a - m| <= r and |b - n| <= s it is |a b - m n| <= |m| s + r (|n| + s). Rounding adds
        gamma (|m| + r) (|n| + s), which is what a larger s, by gamma (|n| + s), adds to it.
        """
        middle, radius = self._ball()
        other_middle, other_radius = other._ball()
        size, gamma = other.size, _matrix_rounding(self)
        wide = gamma * size if other_radius is None else other_radius + gamma * size
        spread = _lifted(middle.abs()) @ wide
        if radius is not None:
            spread = spread + (1 + gamma) * (radius @ size)
        centre, spread = middle @ other_middle, ROOM * spread
        return Interval(centre - spread, centre + spread)

    def _ball(self) -> tuple[Tensor, Tensor | None]:
        """The midpoint as it is rounded, and the larger distance of an end from it, if any is."""
        if self.is_point:
            return self.low, None
        middle = (self.low + self.high) / 2
        radius = _lifted(torch.maximum(self.high - middle, middle - self.low))
        return middle, radius if bool(radius.any()) else None

    @property
    def mT(self) -> Interval:  # noqa: N802 - torch's name
        """The transposed interval."""
        return self.mapped(lambda end: end.mT)

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


def _may_hold_nan(values: Tensor) -> bool:
    """Whether an entry may be NaN: then the sum is, as it is where infinities cancel."""
    return bool(values.sum().isnan())


def _nan_to(replacement: float, values: Tensor) -> Tensor:
    return torch.where(values.isnan(), replacement, values)


def norm(errors: Tensor) -> Tensor:
    """The 2-norm over the last axis. It is scaled, because squares of small errors would be 0.

    It is infinite where an error is.
    """
    largest = errors.amax(-1, keepdim=True).clamp(min=torch.finfo(errors.dtype).tiny)
    length: Tensor = (errors / largest).norm(dim=-1)
    return _nan_to(inf, ROOM * length * largest.squeeze(-1))
