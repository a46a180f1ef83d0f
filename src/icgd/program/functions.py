r"""Functions as plain data: the functions that a program's layers can evaluate exactly.

There are four kinds: sums of ReLUs, look-ups by one softmax head over a lattice, means over the
tokens of a grid, and sums of units with any activation, which may have two variables.

A continuous piecewise-linear function is a sum of ReLUs. Counted outwards from an anchor c, it is

    f(z) = f(c) + right * relu(z - c) - left * relu(c - z)
           + sum_{knots t > c} jump(t) relu(z - t) + sum_{knots t < c} jump(t) relu(t - z),

where jump(t) is the change of slope at t. Counting outwards keeps the terms small near the
anchor, and so their rounding errors.

A look-up is a softmax head over tokens g = -half .. half, one for each lattice point g * spacing.
At an argument s it has the scores (g s / spacing - g^2 / 2) / ratio^2. These weigh the tokens by a
discrete Gaussian around s, `ratio` spacings wide, and the head returns the mean of their values.

A sum of units is

    f(z) = sum_m coefficient_m activation(direction_m . z + offset_m).

In a transformer each unit is a head. Its query multiplies the coordinates of z by the entries of
`direction`, and a coordinate that is 1 at every token by `offset`; its value holds `coefficient`.
There is no affine part: a constant is a unit whose direction is zero, and a line is a sum of units
as well.
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
    """An approximation, evaluated by layers, of the function called `name`.

    `error` bounds the distance to the real function, except near kinks. Subclasses are frozen
    dataclasses.
    """

    name: str
    error: float

    @property
    @abstractmethod
    def fineness(self) -> str:
        """The number of pieces, points or units, in words."""

    @abstractmethod
    def in_words(self) -> str:
        """Return the fineness and the domain of the approximation in words."""

    @property
    def largest_error(self) -> float:
        """The certified largest distance to the real function, kinks included."""
        return self.error

    @property
    def is_exact(self) -> bool:
        return self.largest_error == 0.0

    @property
    def is_ramp(self) -> bool:
        """Whether it approximates a step function, or a step function times a number."""
        return False

    def without_error(self: AnyFunction) -> AnyFunction:
        """Return the same function with an error of 0, as if it were the real one."""
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
    """A piecewise-linear approximation of the function called `name`, with certified errors.

    Between knots i - 1 and i the slope is `slopes[i]`, and `errors[i]` bounds the distance to the
    real function, within [low, high]. Knots are multiples of `knot_unit`, a power of two, so that
    one exact multiplication finds a piece.
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
        """Whether it approximates a piecewise constant derivative by ramps at the jumps."""
        is_level = not any(self.slopes[::2]) and not any(self.errors[::2])
        # Only derivatives and their jumps have such names.
        return is_level and (self.name.endswith("'") or " step at " in self.name)

    def terms(self) -> tuple[ReluTerm, ...]:
        """Return the function as a sum of ReLUs, without terms whose coefficient is 0."""
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
    """Return the scales and shifts of all terms of the functions, each once, and coefficients.

    There are coefficients for every function, 0 for the terms that it does not have.
    """
    by_function = [{(t.scale, t.shift): t.coefficient for t in f.terms()} for f in functions]
    terms = tuple(dict.fromkeys(term for coefficients in by_function for term in coefficients))
    return (
        AxisFactor(("term",), tuple(scale for scale, _ in terms)),
        AxisFactor(("term",), tuple(shift for _, shift in terms)),
        tuple(
            AxisFactor(("term",), tuple(coefficients.get(term, 0.0) for term in terms))
            for coefficients in by_function
        ),
    )


@final
@dataclass(frozen=True)
class LatticeFunction(Function):
    """A look-up: with these `values` at the lattice points, a head returns `name` within `error`.

    The error is proved on [-reach, reach], or everywhere if the function `saturates`: far out the
    head returns the value of the last point. `size` bounds the sum of weight * |value|. If all
    scores have a relative rounding error of r, the result changes by at most `sensitivity` * r,
    provided that the terms of the argument have a total size of at most `reach`.
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
        """The number of the last lattice point; they are numbered from -half to half."""
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

    The mean is `name` at s, within `error`, on [-reach, reach]. `size` bounds the sum of weight *
    |value|. If all scores have a relative rounding error of r, the mean changes by at most
    r (per_offset + per_argument * sizes), where sizes is the total size of the terms of s.

    With `label_points` the mean is a function of s and a label y, |y| <= label_reach: the scores
    have an additional term label_points[g] * y, and the rounding one of `per_label` times its size.
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
"""The value of every activation of units at 1, by which a head with the score 1 divides."""


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
    """An approximation of the function called `name` on the box |z[i]| <= half_widths[i].

    The units apply the `activation`. In exact arithmetic `error` bounds the distance to the real
    function on the box, except in the `bands` around kinks, which have errors of their own.
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
        """The units' entries of `direction` for each argument, along the axis "term"."""
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

        The rounding of the units' arguments and values changes the result by about the unit
        roundoff times this. No activation exceeds 1 + |argument|, or is much steeper than 1.
        """
        sizes = (abs(u.coefficient) * (1.0 + u.reach(self.half_widths)) for u in self.units)
        return sum(sizes, 0.0)

    @property
    def is_ramp(self) -> bool:
        """Whether it approximates a derivative with jumps, times a number."""
        return bool(self.bands) and self.slope is not None

    @property
    def slope(self) -> str | None:
        """The function f if the sum is the product `slope_product(f)`, or None."""
        match = re.fullmatch(r"s (.*)\(t\)", self.name)
        return match[1] if match else None

    @property
    def largest_error(self) -> float:
        return max([self.error, *(band.error for band in self.bands)])

    def along(self, axis: Sequence[float], factor: float) -> RidgeSum:
        """Return the sum of one argument times `factor`, at axis . z in place of its argument.

        Its bands would be ranges of axis . z, not of the last argument, so the error covers them.
        """
        units = tuple(unit.along(axis, factor) for unit in self.units)
        return replace(self, units=units, error=abs(factor) * self.largest_error, bands=())

    def without_error(self) -> RidgeSum:
        return replace(self, error=0.0, bands=())
