r"""Functions of one or two variables as plain data: sums of an activation over directions.

A unit is coefficient * activation(direction . z + offset), so a sum of them is

    f(z) = sum_m coefficient_m activation(direction_m . z + offset_m).

In a transformer each unit is a head. Its query multiplies the coordinates of z by the entries of
`direction`, and a coordinate that is 1 at every token by `offset`; its value holds `coefficient`.
There is no affine part beside the units: a constant is a unit whose direction is zero, and a line
is made of units as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from icgd.program.functions import Function
from icgd.program.wires import Over

ACTIVATIONS_AT_ONE = {
    "relu": 1.0,
    "sigmoid": 0.7310585786300049,
    "tanh": 0.7615941559557649,
    "softplus": 1.3132616875182228,
    "gelu": 0.8413447460685429,
    "silu": 0.7310585786300049,
    "elu": 1.0,
    "cos": 0.5403023058681398,
}
"""The value of every activation of units at 1: a head whose score is 1 divides by it."""


@dataclass(frozen=True)
class RidgeUnit:
    """coefficient * activation(direction . z + offset)."""

    direction: tuple[float, ...]
    offset: float
    coefficient: float

    def reach(self, half_widths: Sequence[float]) -> float:
        """The largest argument on the box: |direction| . half_widths + |offset|."""
        sides = zip(self.direction, half_widths, strict=True)
        return sum((abs(entry) * width for entry, width in sides), abs(self.offset))

    def along(self, axis: Sequence[float], factor: float) -> RidgeUnit:
        """The unit of one argument times `factor`, at axis . z in place of its argument."""
        (slope,) = self.direction
        direction = tuple(slope * entry for entry in axis)
        return RidgeUnit(direction, self.offset, factor * self.coefficient)


@dataclass(frozen=True)
class Band:
    """A range [low, high] of the last argument in which the error may be as large as `error`."""

    low: float
    high: float
    error: float


@final
@dataclass(frozen=True)
class RidgeSum(Function):
    """A stand-in for the function called `name` on the box |z[i]| <= half_widths[i].

    The units apply the `activation`. In exact arithmetic `error` bounds the distance to the real
    function on the box. In the `bands`, which lie around kinks, the distance may be larger.
    """

    name: str
    activation: str
    half_widths: tuple[float, ...]
    units: tuple[RidgeUnit, ...]
    error: float
    bands: tuple[Band, ...] = ()

    @property
    def n_units(self) -> int:
        return len(self.units)

    @cached_property
    def directions(self) -> tuple[Over, ...]:
        """For each argument its entries of the directions, along the axis "term"."""
        arguments = range(len(self.half_widths))
        return tuple(
            Over(("term",), tuple(unit.direction[argument] for unit in self.units))
            for argument in arguments
        )

    @cached_property
    def offset(self) -> Over:
        """The offsets, along the axis "term"."""
        return Over(("term",), tuple(unit.offset for unit in self.units))

    @cached_property
    def coefficient(self) -> Over:
        """The coefficients, along the axis "term"."""
        return Over(("term",), tuple(unit.coefficient for unit in self.units))

    @property
    def fineness(self) -> str:
        return f"{self.n_units} {self.activation} unit{'s' * (self.n_units != 1)}"

    def in_words(self) -> str:
        box = " x ".join(f"[-{width:g}, {width:g}]" for width in self.half_widths)
        return f"{self.fineness} on {box}"

    @property
    def largest_coefficient(self) -> float:
        return max((abs(unit.coefficient) for unit in self.units), default=0.0)

    @property
    def size(self) -> float:
        """The sum of |coefficient| (1 + |direction| . half_widths + |offset|).

        A run rounds arguments and values of the units, which changes the result by about the unit
        roundoff times this. No activation exceeds 1 + |argument|, or is much steeper than 1.
        """
        sizes = (abs(u.coefficient) * (1.0 + u.reach(self.half_widths)) for u in self.units)
        return sum(sizes, 0.0)

    @property
    def is_ramp(self) -> bool:
        """Whether it stands in for a derivative that jumps, times a number."""
        return bool(self.bands) and self.name.endswith("'(t)")

    @property
    def largest_error(self) -> float:
        return max([self.error, *(band.error for band in self.bands)])

    def along(self, axis: Sequence[float], factor: float) -> RidgeSum:
        """The sum of one argument times `factor`, at axis . z in place of its argument.

        The bands would be bands of axis . z, not of the last argument, so they are not kept.
        """
        units = tuple(unit.along(axis, factor) for unit in self.units)
        return replace(self, units=units, error=abs(factor) * self.largest_error, bands=())

    def without_error(self) -> RidgeSum:
        return replace(self, error=0.0, bands=())
