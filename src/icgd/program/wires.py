r"""Heads and hidden units as data: what they read and write, and with which factors.

The heads of an instruction form families with named axes, such as "unit" and "term": one head for
each combination of places, the last axis fastest. A wire specifies which coordinates of a slot a
feature of every head reads or writes. Weights, sizes and labels all follow from the wires.

The places of an axis that a wire covers:

- An axis of the family has the family's number of places, or fewer if the wire's slot or factor has
  fewer: inputs of width 3 cover the first 3 of 4 columns of weights with a bias.
- An axis that is not one of the family belongs to the wire alone, and its slot and factor determine
  its length. If the axis is the wire's feature, each place is a feature; otherwise one feature
  reads all places.

Two wires of one projection never have a nonzero number for the same entry. So the number of
nonzeros is a product of extents and of counts of nonzero factors, which is fast for any size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import prod
from typing import Any, NamedTuple

from icgd.program.layout import Layout

Rows = tuple[tuple[float, ...], ...]
"""A matrix as plain data."""


@dataclass(frozen=True)
class AxisFactor:
    """A factor for each place of an axis, or for each pair of places of two axes, row by row."""

    axes: tuple[str, ...]
    numbers: tuple[float, ...] | Rows

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of places on each axis."""
        if len(self.axes) == 1:
            return (len(self.numbers),)
        return len(self.numbers), len(self.numbers[0])  # type: ignore[arg-type]

    def __truediv__(self, divisor: float) -> AxisFactor:
        """Divide the numbers along one axis."""
        quotients = tuple(number / divisor for number in self.numbers)  # type: ignore[operator]
        return AxisFactor(self.axes, quotients)

    def nonzeros(self, extents: Mapping[str, int]) -> int:
        """Count the nonzero numbers at the first places of the axes, as many as `extents` says."""
        covered = tuple(extents[axis] for axis in self.axes)
        return self._nonzeros if covered == self.shape else self._count(*covered)

    @cached_property
    def _nonzeros(self) -> int:
        return self._count(*self.shape)

    def _count(self, *covered: int) -> int:
        rows: Iterable[tuple[float, ...]] = (self.numbers,)  # type: ignore[assignment]
        if len(covered) == 2:
            rows = self.numbers[: covered[0]]  # type: ignore[assignment]
        return sum(covered[-1] - row[: covered[-1]].count(0.0) for row in rows)


SIGN = AxisFactor(("sign",), (1.0, -1.0))
"""The factors of heads in pairs, on an axis whose places labels show as + and -."""

Factor = float | AxisFactor | tuple[float | AxisFactor, ...]
"""A number, numbers along axes, or a product of these, multiplied from left to right; each axis
occurs in at most one of them."""


def factors_in(factor: Factor) -> tuple[float | AxisFactor, ...]:
    """Return the terms of the product that a factor is."""
    return factor if isinstance(factor, tuple) else (factor,)


@dataclass(frozen=True)
class Wire:
    """Feature `feature` of a head reads (or writes) `factor` times the coordinate slot[at].

    `at` has an entry for each axis of the slot, or one entry for a flattened matrix, or none for a
    slot of one coordinate. An entry is the name of an axis, a number, or a tuple of axes that
    together index the slot's axis, the last one fastest.

    A feature is a number, where -1 is the last feature of the layer, or the name of an axis: then
    it is `start` plus the place on that axis.
    """

    slot: str
    at: tuple[str | int | tuple[str, ...], ...] = ()
    feature: str | int = 0
    factor: Factor = 1.0
    start: int = 0

    def shifted(self, by: int) -> Wire:
        """Return the wire with its features shifted by `by`."""
        if isinstance(self.feature, str):
            return replace(self, start=self.start + by)
        return replace(self, feature=self.feature + by)


class Span(NamedTuple):
    """The entries (head, coordinate, feature) of a wire, which covers `extents` of its axes.

    The entry at place 0 of all axes is `origin`; each further place on an axis adds its `steps`.
    """

    extents: dict[str, int]
    origin: tuple[int, int, int]
    steps: dict[str, tuple[int, int, int]]


def span(wire: Wire, axes: dict[str, int], layout: Layout) -> Span:
    """Return the entries that a wire has in a family with these axes."""
    shape = layout.slot(wire.slot).shape
    places = [*zip(wire.at, (prod(shape),) if len(wire.at) == 1 else shape, strict=False)]
    limits = [(place, size) for place, size in places if isinstance(place, str)]
    for factor in factors_in(wire.factor):
        if isinstance(factor, AxisFactor):
            limits += zip(factor.axes, factor.shape, strict=True)
    extents = dict(axes)
    for axis, size in limits:
        extents[axis] = min(extents.get(axis, size), size)

    # Heads are numbered along the family's axes, and coordinates row by row: the last fastest.
    head_steps, coordinate_steps = dict.fromkeys(extents, 0), dict.fromkeys(extents, 0)
    step = 1
    for axis, size in reversed(axes.items()):
        head_steps[axis], step = step, step * size
    first, stride = layout.range_of(wire.slot).start, 1
    for place, size in reversed(places):
        if isinstance(place, int):
            first += place * stride
        else:
            step = stride
            for axis in (place,) if isinstance(place, str) else reversed(place):
                coordinate_steps[axis] += step
                step *= axes.get(axis, extents[axis])
        stride *= size
    feature = wire.start if isinstance(wire.feature, str) else wire.feature
    steps = {
        axis: (head_steps[axis], coordinate_steps[axis], int(axis == wire.feature))
        for axis in extents
    }
    return Span(extents, (0, first, feature), steps)


def nonzeros(factor: Factor, extents: Mapping[str, int]) -> int:
    """Count the nonzero entries of a wire with this factor and these extents."""
    count, free = 1, dict(extents)  # axes along which the factor is constant
    for term in factors_in(factor):
        if isinstance(term, AxisFactor):
            count *= term.nonzeros(extents)
            for axis in term.axes:
                del free[axis]
        else:
            count *= term != 0.0
    return count * prod(free.values())


class Family:
    """The base of heads and hidden units: axes, and a label with a placeholder for each axis."""

    axes: dict[str, int]
    label: str

    @property
    def size(self) -> int:
        """The number of heads or units."""
        return prod(self.axes.values())

    def label_of(self, number: int) -> str:
        """Return the label of a head or unit, with places counted from 1 and signs as + or -."""
        text = self.label
        for axis, size in reversed(self.axes.items()):
            number, place = divmod(number, size)
            text = text.replace(f"{{{axis}}}", "+-"[place] if axis == "sign" else str(place + 1))
        return text


@dataclass(frozen=True)
class Grid:
    """The tokens that a head of grid attention reads: see `linear_instructions.py`.

    They are multiples of the first column, or with `own_column`, in head i of a family, of column
    i. If there are `label_points`, the last feature of the keys, a label, is multiplied by these
    instead of `points`. Only the columns from `first` on have queries and are written to.
    """

    points: tuple[float, ...]
    offsets: tuple[float, ...]
    values: tuple[float, ...]
    own_column: bool = False
    first: int = 0
    label_points: tuple[float, ...] = ()

    @property
    def numbers(self) -> tuple[float, ...]:
        """All numbers of the grid."""
        return (*self.points, *self.label_points, *self.offsets, *self.values)


@dataclass(frozen=True)
class Kernel:
    """The kernel of a head of kernel attention, by name."""

    name: str
    shape: float | None


ITSELF_AT_EXAMPLES, ITSELF_AT_TOKENS = "examples", "tokens"
"""The patterns of heads of kernel attention in which every example, or every token, attends only to
itself."""


@dataclass(frozen=True)
class Heads(Family):
    """A family of heads: the wires of their queries, keys, values and outputs.

    Heads of grid attention have a `grid`, and those of kernel attention a `pattern`. Heads of
    mirror attention also attend to the mirror image of every token, in which the slots `mirrored`
    of all heads of the layer are negated, including those that values read.
    """

    axes: dict[str, int]
    query: tuple[Wire, ...]
    key: tuple[Wire, ...]
    value: tuple[Wire, ...]
    output: tuple[Wire, ...]
    label: str
    grid: Grid | None = None
    pattern: Kernel | str = ""
    mirrored: tuple[str, ...] = ()

    @property
    def projections(self) -> tuple[tuple[Wire, ...], ...]:
        """The wires of query, key, value and output."""
        return self.query, self.key, self.value, self.output

    def width(self, layout: Layout) -> int:
        """Return the number of features: the larger of the two `widths`."""
        return max(self.widths(layout))

    def widths(self, layout: Layout) -> tuple[int, int]:
        """Return the numbers of features of query and key, and of value and output; at least 1."""
        scores, values = (*self.query, *self.key), (*self.value, *self.output)
        last = any(wire.feature == -1 for wire in scores)
        return max(1, self._end(scores, layout) + last), max(1, self._end(values, layout))

    def _end(self, wires: tuple[Wire, ...], layout: Layout) -> int:
        """Return the first feature after those of all wires."""
        ends = [0]
        for wire in wires:
            if isinstance(wire.feature, str):
                ends.append(wire.start + span(wire, self.axes, layout).extents[wire.feature])
            else:
                ends.append(wire.feature + 1)
        return max(ends)

    def beside(self, other: Heads, layout: Layout) -> Heads:
        """Merge with a family of equal scores: each head returns the values of both."""
        value, output = other.value, other.output
        if value != self.value:
            first = self._end((*self.value, *self.output), layout)
            value = (*self.value, *(wire.shifted(first) for wire in value))
            output = tuple(wire.shifted(first) for wire in output)
        label = f"{self.label}; {other.label}"
        mirrored = tuple(dict.fromkeys((*self.mirrored, *other.mirrored)))
        output = (*self.output, *output)
        return replace(self, value=value, output=output, label=label, mirrored=mirrored)


def merged(families: Iterable[Heads], layout: Layout) -> tuple[Heads, ...]:
    """Merge heads with equal queries and keys, unless this adds weights to the layer.

    All heads of a layer are as wide as the widest, so a wider merged head may cost more than it
    saves.
    """
    by_scores: dict[Any, list[Heads]] = {}
    for family in families:
        scores = (*family.axes.items(), family.query, family.key, family.grid, family.pattern)
        by_scores.setdefault(scores, []).append(family)
    groups = [*by_scores.values()]
    for number, group in enumerate(groups):
        written_slots = [slot for family in group for slot in {wire.slot for wire in family.output}]
        if len(group) > 1 and len({*written_slots}) == len(written_slots):
            merged_family = reduce(lambda left, right: left.beside(right, layout), group)
            fewer = [*groups[:number], [merged_family], *groups[number + 1 :]]
            if _weights(fewer, layout) <= _weights(groups, layout):
                groups = fewer
    return tuple(family for group in groups for family in group)


def _weights(groups: Sequence[Sequence[Heads]], layout: Layout) -> int:
    """Return the number of heads times their width; a layer's weights are proportional to it."""
    families = [family for group in groups for family in group]
    return sum(family.size for family in families) * max(f.width(layout) for f in families)


@dataclass(frozen=True)
class Units(Family):
    """A family of hidden units: activation(sum of reads + shift), times the factors of writes."""

    axes: dict[str, int]
    reads: tuple[Wire, ...]
    shift: Factor
    writes: tuple[Wire, ...]
    label: str


Wiring = Heads | Units | Sequence[Heads | Units]
"""The heads or hidden units of an instruction: a family, or several in the order of its layer."""


def by_slot(terms: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sum the factors of each slot."""
    factors: dict[str, float] = {}
    for slot, factor in terms:
        factors[slot] = factors.get(slot, 0.0) + factor
    return factors


def relu_pairs(
    layout: Layout,
    slots: Iterable[str],
    label: str,
    *,
    gain: float = -1.0,
    lowered_by: tuple[Wire, ...] = (),
    also: tuple[str, ...] = (),
) -> tuple[Units, ...]:
    """Return units gain * relu(h - b) and -gain * relu(-h - b) for every coordinate h of the slots.

    The wires `lowered_by` read -b. The same is added to the slots `also`. Units of +h come first.
    """
    return tuple(
        Units(
            axes={"k": layout.width_of(slot)},
            reads=(Wire(slot, ("k",), factor=sign), *lowered_by),
            shift=0.0,
            writes=tuple(Wire(write, ("k",), factor=gain * sign) for write in (slot, *also)),
            label=f"{label} {slot}[{{k}}], relu({sign:+.0f} h)",
        )
        for sign in (1.0, -1.0)
        for slot in slots
    )
