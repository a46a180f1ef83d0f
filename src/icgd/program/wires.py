r"""Heads and hidden units as data: what they read and write, and with which factors.

The heads of an instruction form families with named axes, such as "unit" and "term": one head for
each combination of places, the last axis fastest. A wire says which coordinates of a slot a feature
of every head reads or writes. Weights, sizes and labels all follow from the wires.

Which places of its axes a wire covers:

- An axis of the family has as many places as the family says, or fewer if the wire's slot or factor
  has fewer: inputs of width 3 cover the first 3 of 4 columns of weights with a bias.
- An axis that the family does not have belongs to the wire alone, and is as long as its slot and
  factor say. If it is the wire's feature, each place is a feature; otherwise one feature reads all.

Two wires of one projection never meet in the same entry, except where both are 0. So non-zeros are
products of extents and of counts of factors that are not 0, quickly counted for any size.
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
    """A number for each place of an axis, or for each pair of places of two axes, row by row."""

    axes: tuple[str, ...]
    numbers: tuple[float, ...] | Rows

    @property
    def shape(self) -> tuple[int, ...]:
        """How many places it has on each axis."""
        if len(self.axes) == 1:
            return (len(self.numbers),)
        return len(self.numbers), len(self.numbers[0])  # type: ignore[arg-type]

    def __truediv__(self, divisor: float) -> AxisFactor:
        """Return the quotients of numbers along one axis."""
        quotients = tuple(number / divisor for number in self.numbers)  # type: ignore[operator]
        return AxisFactor(self.axes, quotients)

    def nonzeros(self, extents: Mapping[str, int]) -> int:
        """Return how many numbers are not 0, of those at so many first places of the axes."""
        wanted = tuple(extents[axis] for axis in self.axes)
        return self._nonzeros if wanted == self.shape else self._count(*wanted)

    @cached_property
    def _nonzeros(self) -> int:
        return self._count(*self.shape)

    def _count(self, *wanted: int) -> int:
        rows: Iterable[tuple[float, ...]] = (self.numbers,)  # type: ignore[assignment]
        if len(wanted) == 2:
            rows = self.numbers[: wanted[0]]  # type: ignore[assignment]
        return sum(wanted[-1] - row[: wanted[-1]].count(0.0) for row in rows)


SIGN = AxisFactor(("sign",), (1.0, -1.0))
"""The factors of heads in pairs, on an axis whose places labels show as + and -."""

Factor = float | AxisFactor | tuple[float | AxisFactor, ...]
"""A number, numbers over axes, or a product of such, multiplied from left to right; each axis
occurs in one of them at most."""


def factors_in(factor: Factor) -> tuple[float | AxisFactor, ...]:
    """Return the numbers whose product a factor is."""
    return factor if isinstance(factor, tuple) else (factor,)


@dataclass(frozen=True)
class Wire:
    """Feature `feature` of a head reads (or writes) `factor` times the coordinate slot[at].

    `at` has an entry for each axis of the slot, or one entry for a matrix that is taken flat, or
    none for a slot of one coordinate. An entry is the name of an axis, a number, or a tuple of axes
    that together number the places of the slot's axis, the last one fastest.

    A feature is a number, where -1 is the last feature of the layer, or the name of an axis: then
    it is `start` plus the place on that axis.
    """

    slot: str
    at: tuple[str | int | tuple[str, ...], ...] = ()
    feature: str | int = 0
    factor: Factor = 1.0
    start: int = 0

    def shifted(self, by: int) -> Wire:
        """Return the same wire, `by` features further on."""
        if isinstance(self.feature, str):
            return replace(self, start=self.start + by)
        return replace(self, feature=self.feature + by)


class Span(NamedTuple):
    """The entries (head, coordinate, feature) of a wire, which covers `extents` of its axes.

    The entry at place 0 of all axes is `origin`; a place further on an axis adds its `steps`.
    """

    extents: dict[str, int]
    origin: tuple[int, int, int]
    steps: dict[str, tuple[int, int, int]]


def span(wire: Wire, axes: dict[str, int], layout: Layout) -> Span:
    """Return the entries that a wire has in a family with these axes."""
    shape = layout.slot(wire.slot).shape
    places = [*zip(wire.at, (prod(shape),) if len(wire.at) == 1 else shape, strict=False)]
    limits = [(place, size) for place, size in places if isinstance(place, str)]
    for part in factors_in(wire.factor):
        if isinstance(part, AxisFactor):
            limits += zip(part.axes, part.shape, strict=True)
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
    """Return how many entries are not 0, of a wire with this factor and these extents."""
    count, free = 1, dict(extents)
    for part in factors_in(factor):
        if isinstance(part, AxisFactor):
            count *= part.nonzeros(extents)
            for axis in part.axes:
                del free[axis]
        else:
            count *= part != 0.0
    return count * prod(free.values())


class Family:
    """What heads and hidden units share: axes, and a label that names a place of each in braces."""

    axes: dict[str, int]
    label: str

    @property
    def size(self) -> int:
        """How many heads or units it has."""
        return prod(self.axes.values())

    def label_of(self, number: int) -> str:
        """Return what a head or unit is for; places are counted from 1, and signs are shown as
        such.
        """
        text = self.label
        for axis, size in reversed(self.axes.items()):
            number, place = divmod(number, size)
            text = text.replace(f"{{{axis}}}", "+-"[place] if axis == "sign" else str(place + 1))
        return text


@dataclass(frozen=True)
class Grid:
    """The tokens that a head of grid attention reads: see `linear_instructions.py`.

    They are made of the first column, or in head i of a family of column i, its own. The last
    feature of their keys, a label, is multiplied by `label_points` in place of `points` if there
    are any. The columns from `first` on ask, and are written to.
    """

    points: tuple[float, ...]
    offsets: tuple[float, ...]
    values: tuple[float, ...]
    own_column: bool = False
    first: int = 0
    label_points: tuple[float, ...] = ()

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers of all tokens."""
        return (*self.points, *self.label_points, *self.offsets, *self.values)


@dataclass(frozen=True)
class Kernel:
    """The kernel of a head of kernel attention, by name."""

    name: str
    shape: float | None


ITSELF_AT_EXAMPLES, ITSELF_AT_TOKENS = "examples", "tokens"
"""The patterns of heads of kernel attention in which every example, or every token, reads itself
alone."""


@dataclass(frozen=True)
class Heads(Family):
    """A family of heads: what feeds its queries, keys and values, and what its outputs write.

    Heads of grid attention have a `grid`, and those of kernel attention a `pattern`. Heads of
    mirror attention also read the mirror image of every token, in which the slots `mirrored` of all
    heads of the layer are negated; among them are those that values read.
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
        """Return how many features it needs: those of query and key, or of value and output."""
        return max(self.widths(layout))

    def widths(self, layout: Layout) -> tuple[int, int]:
        """Return how many features query and key need; how many value and output; one at least."""
        scores, values = (*self.query, *self.key), (*self.value, *self.output)
        last = any(wire.feature == -1 for wire in scores)
        return max(1, self._end(scores, layout) + last), max(1, self._end(values, layout))

    def _end(self, wires: tuple[Wire, ...], layout: Layout) -> int:
        """Return the first feature that no wire has."""
        ends = [0]
        for wire in wires:
            if isinstance(wire.feature, str):
                ends.append(wire.start + span(wire, self.axes, layout).extents[wire.feature])
            else:
                ends.append(wire.feature + 1)
        return max(ends)

    def beside(self, other: Heads, layout: Layout) -> Heads:
        """One family for two with equal scores: its heads have the values of both."""
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
    """Let heads with equal queries and keys be one, where this makes the layer's weights no more.

    All heads of a layer are as wide as the widest, so that a wider one may cost more than it saves.
    """
    by_scores: dict[Any, list[Heads]] = {}
    for family in families:
        scores = (*family.axes.items(), family.query, family.key, family.grid, family.pattern)
        by_scores.setdefault(scores, []).append(family)
    groups = [*by_scores.values()]
    for place, group in enumerate(groups):
        written = [slot for family in group for slot in {wire.slot for wire in family.output}]
        if len(group) > 1 and len({*written}) == len(written):
            one = reduce(lambda left, right: left.beside(right, layout), group)
            fewer = [*groups[:place], [one], *groups[place + 1 :]]
            if _weights(fewer, layout) <= _weights(groups, layout):
                groups = fewer
    return tuple(family for group in groups for family in group)


def _weights(groups: Sequence[Sequence[Heads]], layout: Layout) -> int:
    """Return the number of heads times their width, to which the weights of a layer are
    proportional.
    """
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
    """Return the factors of slots; a slot that occurs twice has the sum of its factors."""
    found: dict[str, float] = {}
    for slot, factor in terms:
        found[slot] = found.get(slot, 0.0) + factor
    return found


def relu_pairs(
    layout: Layout,
    slots: Iterable[str],
    label: str,
    *,
    gain: float = -1.0,
    lowered_by: tuple[Wire, ...] = (),
    also: tuple[str, ...] = (),
) -> tuple[Units, ...]:
    """Units gain * relu(h - b) and -gain * relu(-h - b) for every coordinate h of the slots.

    `lowered_by` reads -b. Slots `also` get what is added to the slot. Units of +h come first.
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
