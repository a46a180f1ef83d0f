r"""Functions as plain data: what a program's layers can evaluate exactly.

There are four kinds: sums of ReLUs, look-ups by one softmax head over a lattice, means over the
tokens of a grid, and sums of units with any activation, which may have two variables.

A continuous piecewise-linear function is a sum of ReLUs. Counted outwards from an anchor c, it is

    f(z) = f(c) + right * relu(z - c) - left * relu(c - z)
           + sum_{knots t > c} jump(t) relu(z - t) + sum_{knots t < c} jump(t) relu(t - z),

where jump(t) is the change of slope at t. Counting outwards keeps the terms small near the
anchor, so that little is lost to rounding.

A look-up is a softmax head over tokens g = -half .. half, one for each lattice point g * spacing.
At an argument s it has the scores (g s / spacing - g^2 / 2) / ratio^2. These weigh the tokens by a
discrete Gaussian around s, `ratio` spacings wide, and the head returns the mean of their values.

A sum of units is

    f(z) = sum_m coefficient_m activation(direction_m . z + offset_m).

In a transformer each unit is a head. Its query multiplies the coordinates of z by the entries of
`direction`, and a coordinate that is 1 at every token by `offset`; its value holds `coefficient`.
There is no affine part beside the units: a constant is a unit whose direction is zero, and a line
is made of units as well.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar, final

from icgd.program.wires import AxisFactor

AnyFunction = TypeVar("AnyFunction", bound="Function")


class Function(ABC):
    """What layers evaluate in place of the function called `name`. Kinds are frozen dataclasses.

    `error` bounds the distance to the real function, except near kinks.
    """

    name: str
    error: float

    @property
    @abstractmethod
    def fineness(self) -> str:
        """How finely it is approximated, in words."""

    @abstractmethod
    def in_words(self) -> str:
        """Return how finely it is approximated, and where."""

    @property
    def largest_error(self) -> float:
        """The certified largest distance to the real function, kinks included."""
        return self.error

    @property
    def is_exact(self) -> bool:
        return self.largest_error == 0.0

    @property
    def is_ramp(self) -> bool:
        """Whether it stands in for a step function, or for a step function times a number."""
        return False

    def without_error(self: AnyFunction) -> AnyFunction:
        """Return the same function, taken for the real one."""
        return replace(self, error=0.0)  # type: ignore[type-var]


@dataclass(frozen=True)
class ReluTerm:
    """coefficient * relu(scale * z + shift)."""

    scale: float
    shift: float
    coefficient: float


@final
@dataclass(frozen=True)
class ReluSum(Function):
    """A piecewise-linear stand-in for the function called `name`, with its certified errors.

    Between knots i - 1 and i it has the slope `slopes[i]`, and `errors[i]` bounds its distance to
    the real function, within [low, high]. Knots are multiples of `knot_unit`, a power of two, so
    that one exact multiplication finds a piece.
    """

    name: str
    low: float
    high: float
    knot_unit: float
    knots: tuple[float, ...]
    slopes: tuple[float, ...]
    anchor: float
    anchor_value: float
    errors: tuple[float, ...]

    @property
    def n_pieces(self) -> int:
        return len(self.slopes)

    @property
    def fineness(self) -> str:
        return f"{self.n_pieces} piece{'s' * (self.n_pieces != 1)}"

    def in_words(self) -> str:
        n_terms = len(self.terms())
        terms = f"{n_terms} term{'s' * (n_terms != 1)}"
        return f"{self.fineness}, {terms} on [{self.low:g}, {self.high:g}]"

    @property
    def error(self) -> float:  # type: ignore[override]
        """The certified largest distance to the real function on [low, high]."""
        return max(self.errors)

    @property
    def is_ramp(self) -> bool:
        """Whether it stands in for a derivative that is level but for jumps."""
        is_level = not any(self.slopes[::2]) and not any(self.errors[::2])
        # A derivative, or a jump of one, is called so.
        return is_level and (self.name.endswith("'") or " step at " in self.name)

    def terms(self) -> tuple[ReluTerm, ...]:
        """Return the function as a sum of ReLUs; terms that vanish identically are left out."""
        return self._terms

    @cached_property
    def _terms(self) -> tuple[ReluTerm, ...]:
        left = self.slopes[bisect_left(self.knots, self.anchor)]
        right = self.slopes[bisect_right(self.knots, self.anchor)]
        terms = [
            ReluTerm(0.0, 1.0, self.anchor_value),
            ReluTerm(1.0, -self.anchor, right),
            ReluTerm(-1.0, self.anchor, -left),
        ]
        for knot, before, after in zip(self.knots, self.slopes, self.slopes[1:], strict=False):
            if knot != self.anchor:
                side = 1.0 if knot > self.anchor else -1.0
                terms.append(ReluTerm(side, -side * knot, after - before))
        return tuple(term for term in terms if term.coefficient != 0.0)

    @cached_property
    def term_factors(self) -> tuple[AxisFactor, AxisFactor, AxisFactor]:
        """The scales, shifts and coefficients of its terms, along the axis "term"."""
        return (
            AxisFactor(("term",), tuple(term.scale for term in self.terms())),
            AxisFactor(("term",), tuple(term.shift for term in self.terms())),
            AxisFactor(("term",), tuple(term.coefficient for term in self.terms())),
        )

    def intercepts(self) -> tuple[float, ...]:
        """Return the constants b with f(z) = slope * z + b, one for each piece."""
        home = bisect_left(self.knots, self.anchor)
        constants = [0.0] * self.n_pieces
        constants[home] = self.anchor_value - self.slopes[home] * self.anchor
        for piece in range(home, len(self.knots)):
            jump = self.slopes[piece + 1] - self.slopes[piece]
            constants[piece + 1] = constants[piece] - jump * self.knots[piece]
        for piece in range(home - 1, -1, -1):
            jump = self.slopes[piece + 1] - self.slopes[piece]
            constants[piece] = constants[piece + 1] + jump * self.knots[piece]
        return tuple(constants)

    def __call__(self, z: float) -> float:
        """Return the value at one point, term by term."""
        values = [term.coefficient * max(term.scale * z + term.shift, 0.0) for term in self.terms()]
        return sum(values, 0.0)

    def without_error(self) -> ReluSum:
        return replace(self, errors=(0.0,) * self.n_pieces)


def joint_terms(
    functions: Sequence[ReluSum],
) -> tuple[AxisFactor, AxisFactor, tuple[AxisFactor, ...]]:
    """Return the scales and shifts of the terms that any of the functions has, each once.

    Then, for every function, its coefficients of these terms, 0 where it does not have one.
    """
    own = [{(t.scale, t.shift): t.coefficient for t in f.terms()} for f in functions]
    terms = tuple(dict.fromkeys(term for coefficients in own for term in coefficients))
    return (
        AxisFactor(("term",), tuple(scale for scale, _ in terms)),
        AxisFactor(("term",), tuple(shift for _, shift in terms)),
        tuple(AxisFactor(("term",), tuple(part.get(term, 0.0) for term in terms)) for part in own),
    )


@final
@dataclass(frozen=True)
class LatticeFunction(Function):
    """A look-up: with these `values` at the lattice points, a head returns `name` within `error`.

    The error is proved on [-reach, reach], or everywhere if the function `saturates`: far out the
    head returns the value of the last point. `size` bounds the sum of weight * |value|. If all
    scores are rounded relatively by r, the result changes by at most `sensitivity` * r, as long as
    the terms of the argument have a total size of at most `reach`.
    """

    name: str
    reach: float
    spacing: float
    ratio: float
    values: tuple[float, ...]
    error: float
    size: float
    sensitivity: float
    saturates: bool = False

    @property
    def half(self) -> int:
        """The lattice points are numbered from -half to half."""
        return len(self.values) // 2

    @property
    def fineness(self) -> str:
        return f"{len(self.values)} lattice points"

    def in_words(self) -> str:
        where = "everywhere" if self.saturates else f"on [-{self.reach:g}, {self.reach:g}]"
        return f"{self.fineness}, {self.spacing:.3g} apart, {where}"


@final
@dataclass(frozen=True)
class GridMean(Function):
    """The mean of `values` over a grid whose tokens g have the scores points[g] * s + offsets[g].

    It is `name` at s, within `error`, on [-reach, reach]. `size` bounds the sum of weight *
    |value|. If all scores are rounded relatively by r, it changes by at most r times the sum of
    `per_offset` and of `per_argument` times the total size of the terms of s.

    With `label_points` it is a function of s and a label y, |y| <= label_reach: the scores have
    label_points[g] * y more, whose terms count `per_label` times.
    """

    name: str
    reach: float
    points: tuple[float, ...]
    offsets: tuple[float, ...]
    values: tuple[float, ...]
    error: float
    size: float
    per_argument: float
    per_offset: float
    label_reach: float = 0.0
    label_points: tuple[float, ...] = ()
    per_label: float = 0.0

    @property
    def fineness(self) -> str:
        return f"{len(self.values)} grid tokens"

    def in_words(self) -> str:
        labels = f" x [-{self.label_reach:g}, {self.label_reach:g}]" if self.label_points else ""
        return f"{self.fineness} on [-{self.reach:g}, {self.reach:g}]{labels}"


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
        """Return the largest argument on the box: |direction| . half_widths + |offset|."""
        sides = zip(self.direction, half_widths, strict=True)
        return sum((abs(entry) * width for entry, width in sides), abs(self.offset))

    def along(self, axis: Sequence[float], factor: float) -> RidgeUnit:
        """Return the unit of one argument times `factor`, at axis . z in place of its argument."""
        (slope,) = self.direction
        direction = tuple(slope * entry for entry in axis)
        return RidgeUnit(direction, self.offset, factor * self.coefficient)


@dataclass(frozen=True)
class Band:
    """A range [low, high] of the last argument in which the error may be as large as `error`."""

    low: float
    high: float
    error: float


def slope_product(function: str) -> str:
    """Return the name of the function (s, t) -> s f(t), where f is a slope such as "tanh'"."""
    return f"s {function}(t)"


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
    def directions(self) -> tuple[AxisFactor, ...]:
        """For each argument its entries of the directions, along the axis "term"."""
        return tuple(
            AxisFactor(("term",), tuple(unit.direction[argument] for unit in self.units))
            for argument in range(len(self.half_widths))
        )

    @cached_property
    def offset(self) -> AxisFactor:
        """The offsets, along the axis "term"."""
        return AxisFactor(("term",), tuple(unit.offset for unit in self.units))

    @cached_property
    def coefficient(self) -> AxisFactor:
        """The coefficients, along the axis "term"."""
        return AxisFactor(("term",), tuple(unit.coefficient for unit in self.units))

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
        return bool(self.bands) and self.slope is not None

    @property
    def slope(self) -> str | None:
        """The function f if the sum is the product `slope_product(f)`, or None."""
        found = re.fullmatch(r"s (.*)\(t\)", self.name)
        return found[1] if found else None

    @property
    def largest_error(self) -> float:
        return max([self.error, *(band.error for band in self.bands)])

    def along(self, axis: Sequence[float], factor: float) -> RidgeSum:
        """Return the sum of one argument times `factor`, at axis . z in place of its argument.

        The bands would be bands of axis . z, not of the last argument, so they are not kept.
        """
        units = tuple(unit.along(axis, factor) for unit in self.units)
        return replace(self, units=units, error=abs(factor) * self.largest_error, bands=())

    def without_error(self) -> RidgeSum:
        return replace(self, error=0.0, bands=())
