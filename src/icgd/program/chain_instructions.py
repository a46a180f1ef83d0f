r"""Instructions of chain programs, which depend on the kinds of the blocks that a step reads.

An instruction adds its result where all flags of `closed_by` are 0. Where a flag is 1 it adds
exactly 0, because the flag lowers every ReLU's argument by `gate`, which is larger than any
argument. Where the flags are 0 the gate has no effect, so it may be arbitrarily large. A flag is
one number, or one for each unit. A slot with fewer columns than `write` is broadcast to all
columns.

A unit is marked as flat by `flat = relu(c - z) / c` for the width c of a kink: `flat` is exactly 0
where the unit is steep, and at least 1 where it is flat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from icgd.errors import ProgramError
from icgd.program.instructions import (
    IDENTITY,
    Combination,
    Evaluated,
    Evaluation,
    Flag,
    Instruction,
    LayerKind,
    Read,
    Written,
)
from icgd.program.layout import OFFSET, ONE, Layout, value_slot
from icgd.program.meaning import BlockDomain, Value
from icgd.program.wires import AxisFactor, Heads, Units, Wire, Wiring, by_slot

if TYPE_CHECKING:
    from icgd.program.program import AbstractProgram

NO_CLASS = "no_class"
"""The constant slot that masks the tokens of a grid for heads over classes."""

GAP = 1024.0
"""The least gap between the score of the block that a head finds and those of all others, whose
weights are then exactly 0."""

FINDING = (1.0, -1.0, 1.0, GAP, GAP, 2 * GAP, -GAP)
"""The query weights of that head: a reflection, the position, the two kinds of data, the round."""


def _where_open(closed_by: tuple[str, ...]) -> str:
    return f" unless {' or '.join(closed_by)}" if closed_by else ""


def _clipped(source: Combination, bound: float | None) -> str:
    return source.formula() if bound is None else f"clip({source.formula()}, {bound:g})"


def gated_units(
    layout: Layout,
    instruction: CopyWhere | PassBack | ActivateWhere | MarkFlat,
    terms: Mapping[str, float],
    shift: float = 0.0,
    gain: float = 1.0,
    more_flags: tuple[str, ...] = (),
) -> Units:
    """Return gain * relu(terms + shift - gate * flags) for every entry of the written slot.

    The flags are `more_flags` and `closed_by` of the instruction. A slot with one row or one column
    is broadcast.
    """
    shape, flags = layout.slot(instruction.write).shape, (*more_flags, *instruction.closed_by)
    axes = dict(zip(("row", "column")[: len(shape)], shape, strict=True))

    def read(slot: str, factor: float) -> Wire:
        sizes = layout.slot(slot).shape
        names = [*axes][len(axes) - len(sizes) :]
        at = tuple(
            name if size == axes[name] else 0 for name, size in zip(names, sizes, strict=True)
        )
        return Wire(slot, at, factor=factor)

    factors = by_slot([*terms.items(), *((flag, -instruction.gate) for flag in flags)])
    argument = " ".join(f"{factor:+g} {slot}" for slot, factor in terms.items())
    place = ", ".join(f"{{{name}}}" for name in axes)
    return Units(
        axes=axes,
        reads=tuple(read(slot, factor) for slot, factor in factors.items()),
        shift=shift,
        writes=(Wire(instruction.write, tuple(axes), factor=gain),),
        label=f"{instruction.write}[{place}] {gain:+g} relu({argument} {shift:+g})"
        f"{_where_open(flags)}",
    )


def line_units(
    layout: Layout,
    instruction: CopyWhere | PassBack,
    source: Combination,
    factor: float = 1.0,
    more_flags: tuple[str, ...] = (),
) -> list[Units]:
    """Return the units of factor * s = factor * relu(s) - factor * relu(-s); a bound clips s."""
    pieces = [(sign, 0.0, sign * factor) for sign in (1.0, -1.0) if factor]
    if instruction.bound is not None:
        pieces += [(sign, -instruction.bound, -gain) for sign, _, gain in pieces]
    return [
        gated_units(
            layout,
            instruction,
            {slot: sign * c for slot, c in by_slot(source.terms()).items()},
            shift,
            gain,
            more_flags,
        )
        for sign, shift, gain in pieces
    ]


def entry_heads(
    program: AbstractProgram,
    entries: str,
    reach: float,
    carried: Sequence[tuple[Wire, Wire]],
    formula: str,
) -> Heads:
    """Return one head for each entry of a matrix, which multiplies the `carried` values by it.

    The query holds the entry. Grid token g is g / half times the column: its constant 1 makes the
    key of point g, and all other slots are multiples of those of the column. The mean of g under
    the softmax weights is the entry divided by reach * spacing. `carried` has pairs of wires: of
    values, without a factor, and of outputs.
    """
    n_rows, n_columns = program.layout.slot(entries).shape
    grid = program.look_up(IDENTITY)
    gain = grid.half / (grid.spacing * grid.ratio**2 * reach)
    scale = grid.half * grid.spacing * reach
    return Heads(
        axes={"entry": n_rows, "column": n_columns},
        query=(
            Wire(entries, ("entry", "column"), factor=gain),
            Wire(ONE, feature=1, factor=1 / grid.ratio**2),
        ),
        key=(Wire(ONE), Wire(OFFSET, feature=1)),
        value=tuple(value for value, _ in carried),
        output=tuple(replace(output, factor=scale) for _, output in carried),
        label=f"{entries}[{{entry}}, {{column}}] in {formula}",
    )


@dataclass(frozen=True)
class CopyWhere(Instruction):
    """Add `source` to `write` where no flag of `closed_by` is set, clipped to +-`bound` if given.

    The units compute s = relu(s) - relu(-s); adding - relu(s - bound) + relu(-s - bound) clips s.
    """

    source: Combination
    closed_by: tuple[Flag, ...]
    gate: float
    write: Written
    bound: float | None = None
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        source = domain.copied((self.source,), (), self.bound, slots)
        value = domain.unless([slots[flag] for flag in self.closed_by], source)
        return {self.write: domain.add(slots[self.write], value)}

    def wires(self, program: AbstractProgram) -> list[Units]:
        return line_units(program.layout, self, self.source)

    def formula(self) -> str:
        source = _clipped(self.source, self.bound)
        return f"{self.write} += {source}{_where_open(self.closed_by)}"


@dataclass(frozen=True)
class SelectWhere(Instruction):
    """Add one of `sources`, selected by the bits of its number, as `CopyWhere` adds its source.

    Flag `ones[k]` is 1 if bit k of the number is 1, and flag `zeros[k]` is 1 if it is 0. So a
    source is closed by the flags of all bits that differ from those of its own number.
    """

    sources: tuple[Combination, ...]
    ones: tuple[Flag, ...]
    zeros: tuple[Flag, ...]
    closed_by: tuple[Flag, ...]
    gate: float
    write: Written
    bound: float | None = None
    kind = LayerKind.MLP

    def __post_init__(self) -> None:
        if len(self.ones) != len(self.zeros):
            raise ProgramError(
                f"SelectWhere: has {len(self.ones)} flags of bits that are 1, and "
                f"{len(self.zeros)} of those that are 0, expected as many of both."
            )

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        bits = [slots[flag] for flag in self.ones]
        source = domain.copied(self.sources, bits, self.bound, slots)
        value = domain.unless([slots[flag] for flag in self.closed_by], source)
        return {self.write: domain.add(slots[self.write], value)}

    def wires(self, program: AbstractProgram) -> Wiring:
        families: list[Units] = []
        for number, source in enumerate(self.sources):
            pairs = enumerate(zip(self.zeros, self.ones, strict=True))
            others = (zero if number >> k & 1 else one for k, (zero, one) in pairs)
            closed_by = (*self.closed_by, *others)
            copy = CopyWhere(source, closed_by, self.gate, self.write, self.bound)
            families += copy.wires(program)
        return families

    def formula(self) -> str:
        first, last = (_clipped(self.sources[place], self.bound) for place in (0, -1))
        where = _where_open(self.closed_by)
        return f"{self.write} += one of {len(self.sources)}: {first} .. {last}{where}"


@dataclass(frozen=True)
class PassBack(Instruction):
    """Add `upstream * slope` to `write` where no flag of `closed_by` is set.

    The slope is 1 where `flat` is 0, and `leak` where it is at least 1: with B = `gate` the result
    is leak up + (1 - leak) (relu(up - B flat) - relu(-up - B flat)). On a kink `flat` lies between
    0 and 1, and the slope between `leak` and 1, so the result is never larger than `upstream`. If
    `bound` is given, `upstream` is clipped to +-bound first.
    """

    upstream: Combination
    flat: Read
    closed_by: tuple[Flag, ...]
    leak: float
    gate: float
    write: Written
    bound: float | None = None
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        closed_by = [slots[flag] for flag in self.closed_by]
        upstream = domain.unless(closed_by, self.upstream.value(slots, domain))
        value = domain.pass_back(self, upstream, slots[self.flat])
        return {self.write: domain.add(slots[self.write], value)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return units of leak * upstream, and of (1 - leak) * upstream, which `flat` closes."""
        everywhere = line_units(program.layout, self, self.upstream, self.leak)
        steep = line_units(program.layout, self, self.upstream, 1 - self.leak, (self.flat,))
        return (*everywhere, *steep)

    def formula(self) -> str:
        slope, source = f"slope({self.flat})", _clipped(self.upstream, self.bound)
        return f"{self.write} += ({source}) * {slope}{_where_open(self.closed_by)}"


@dataclass(frozen=True)
class ActivateWhere(Instruction):
    """Add r(z) to `write` where no flag of `closed_by` is set.

    Where flag `kinked` is 0, r is the identity; where it is 1, r has the slope `leak` below 0.
    """

    argument: Read
    kinked: Flag
    closed_by: tuple[Flag, ...]
    leak: float
    gate: float
    write: Written
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        closed_by = [slots[flag] for flag in self.closed_by]
        value = domain.activate(slots[self.argument], slots[self.kinked], self.leak)
        return {self.write: domain.add(slots[self.write], domain.unless(closed_by, value))}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return units of relu(z) - leak relu(-z), minus (1 - leak) relu(-z) without a kink."""
        layout, z, minus_z = program.layout, {self.argument: 1.0}, {self.argument: -1.0}
        units = [gated_units(layout, self, z)]
        if self.leak != 1.0:
            kinked = (self.kinked,)
            units.append(gated_units(layout, self, minus_z, gain=self.leak - 1, more_flags=kinked))
        if self.leak:
            units.append(gated_units(layout, self, minus_z, gain=-self.leak))
        return units

    def formula(self) -> str:
        return f"{self.write} += r({self.argument}, {self.kinked}){_where_open(self.closed_by)}"


@dataclass(frozen=True)
class MarkFlat(Instruction):
    """Add relu(c - z) / c with c = `width` to `write` where no flag of `closed_by` is set.

    The mark is exactly 0 for z >= c and at least 1 for z <= 0, if c is a power of two. Where flag
    `linear` is 1 it is 0.
    """

    argument: Read
    linear: Flag
    closed_by: tuple[Flag, ...]
    width: float
    gate: float
    write: Written
    kind = LayerKind.MLP

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        closed_by = [slots[flag] for flag in (self.linear, *self.closed_by)]
        value = domain.unless(closed_by, domain.mark_flat(slots[self.argument], self.width))
        return {self.write: domain.add(slots[self.write], value)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return units of relu(width - z) / width."""
        minus_z, gain = {self.argument: -1.0}, 1 / self.width
        return gated_units(program.layout, self, minus_z, self.width, gain, (self.linear,))

    def formula(self) -> str:
        flags = (self.linear, *self.closed_by)
        return f"{self.write} += flat({self.argument}){_where_open(flags)}"


@dataclass(frozen=True)
class Multiplied:
    """A matrix that `MultiplyByEntries` multiplies by its entries X, and the slot of the product.

    The product is `matrix @ X`, or `matrix^T @ X` if `transposed`, or `matrix @ X^T` if `outer`.
    """

    matrix: Read
    write: Written
    transposed: bool = False
    outer: bool = False

    def formula(self, entries: str) -> str:
        matrix = f"{self.matrix}^T" if self.transposed else self.matrix
        return f"{self.write} = {matrix} @ {entries}{'^T' if self.outer else ''}"


@dataclass(frozen=True)
class MultiplyByEntries(Instruction):
    """Multiply matrices by `entries`, with one head for each entry and all matrices.

    The query of head (j, c) holds x = entries[j, c], and its values are column j of a matrix (row
    j, if it is transposed), or column c for an outer product. It returns x times these values:

        matrix @ X       sum over j of   matrix[:, j] X[j, c]      in column c
        matrix^T @ X     sum over j of   matrix[j, :] X[j, c]      in column c
        matrix @ X^T     sum over c of   matrix[:, c] X[j, c]      in column j

    Entries are at most `reach` in size: the lattice covers no more. The values may be of any size.
    """

    entries: Read
    reach: float
    matrices: tuple[Multiplied, ...]
    kind = LayerKind.SOFTMAX
    function: ClassVar[Evaluated] = IDENTITY

    @property
    def limited(self) -> str:
        """The slot that the reach bounds."""
        return self.entries

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        entries, written = domain.within_reach(self, slots[self.entries]), {}
        for factor in self.matrices:
            left = slots[factor.matrix]
            left = domain.transposed(left) if factor.transposed else left
            right = domain.transposed(entries) if factor.outer else entries
            product = domain.product(left, right)
            written[factor.write] = domain.by_entries(self, product, left, right)
        return written

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query an entry, key the points of the grid, values the numbers that it multiplies."""
        carried, first = [], 0
        for factor in self.matrices:
            read_axis, write_axis = ("column", "entry") if factor.outer else ("entry", "column")
            at = (read_axis, "k") if factor.transposed else ("k", read_axis)
            value = Wire(factor.matrix, at, "k", start=first)
            carried.append((value, Wire(factor.write, ("k", write_axis), "k", start=first)))
            first += program.layout.slot(factor.write).shape[0]
        return entry_heads(program, self.entries, self.reach, carried, self.formula())

    def formula(self) -> str:
        return ", ".join(factor.formula(self.entries) for factor in self.matrices)


@dataclass(frozen=True)
class MultiplyEntries(Instruction):
    """Set `write = left * right`, entry by entry, with one head for each entry of `right`.

    The query holds the entry of `right`, which is at most `reach` in size, and the value that of
    `left`.
    """

    left: Read
    right: Read
    reach: float
    write: Written
    kind = LayerKind.SOFTMAX
    function: ClassVar[Evaluated] = IDENTITY

    @property
    def limited(self) -> str:
        """The slot that the reach bounds."""
        return self.right

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        left, right = slots[self.left], domain.within_reach(self, slots[self.right])
        return {self.write: domain.by_entries(self, domain.multiply(left, right), left, right)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query the entry of `right`, key the points of the grid, value that of `left`."""
        at = ("entry", "column")
        carried = [(Wire(self.left, at), Wire(self.write, at))]
        return entry_heads(program, self.right, self.reach, carried, self.formula())

    def formula(self) -> str:
        return f"{self.write} = {self.left} * {self.right}"


@dataclass(frozen=True)
class LookUpProduct(Instruction):
    """Set `write = left @ right`, and look up functions of the entries of this product.

    Head (row, column) computes the whole dot product in its score: its query is a row of `left`,
    its key a column of `right`. So its values may be those of any function. Entries are at most
    `reach` in size.
    """

    left: Read
    right: Read
    reach: float
    write: Written
    others: tuple[Evaluation, ...]
    kind = LayerKind.SOFTMAX
    function: ClassVar[Evaluated] = IDENTITY

    @property
    def limited(self) -> str:
        """The slot that the reach bounds."""
        return self.write

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        left, right = slots[self.left], slots[self.right]
        product = domain.product(left, right)
        written = {
            other.write: domain.look_up_product(self, other.function, product, left, right)
            for other in self.others
        }
        return {self.write: domain.by_rows(self, product, left, right)} | written

    def wires(self, program: AbstractProgram) -> Wiring:
        """Return heads of the product on a lattice of its reach, and of functions on theirs."""
        layout = program.layout
        (n_rows, n_terms), n_columns = (
            layout.slot(self.left).shape,
            layout.slot(self.right).shape[1],
        )
        families = []
        for function, write, scale in (
            (IDENTITY, self.write, self.reach),
            *((other.function, other.write, 1.0) for other in self.others),
        ):
            grid = program.look_up(function)
            gain = grid.half / (grid.spacing * grid.ratio**2 * scale)
            families.append(
                Heads(
                    axes={"row": n_rows, "column": n_columns},
                    query=(
                        Wire(self.left, ("row", "term"), "term", gain),
                        Wire(ONE, feature=n_terms, factor=1 / grid.ratio**2),
                    ),
                    key=(
                        Wire(self.right, ("term", "column"), "term"),
                        Wire(OFFSET, feature=n_terms),
                    ),
                    value=(Wire(value_slot(grid.name)),),
                    output=(Wire(write, ("row", "column"), factor=scale),),
                    label=f"{write}[{{row}}, {{column}}], {function} of the product",
                )
            )
        return families

    def formula(self) -> str:
        product = f"{self.left} @ {self.right}"
        looked_up = (f", {other.write} = {other.function}({product})" for other in self.others)
        return f"{self.write} = {product}{''.join(looked_up)}"


@dataclass(frozen=True)
class ShareColumns(Instruction):
    """Set the first rows of `write` to the softmax of those rows of `scores`, in every column.

    There are as many of these rows as `classes`, and one head for each column, which is exact. It
    attends to the tokens of the classes: slot `classes[k]` is 1 in the token of class k, and 0 in
    all others. Slot `no_class` masks grid tokens.
    """

    scores: Read
    classes: tuple[Read, ...]
    write: Written
    kind = LayerKind.SOFTMAX

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        return {self.write: domain.softmax_columns(slots[self.scores], len(self.classes))}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query [scores of a column; 1], key [class; mask], value the class."""
        mask = len(self.classes)
        classes = tuple(Wire(name, feature=n) for n, name in enumerate(self.classes))
        return Heads(
            axes={"column": program.layout.slot(self.scores).shape[1]},
            query=(
                *(Wire(self.scores, (n, "column"), n) for n in range(mask)),
                Wire(ONE, feature=mask),
            ),
            key=(*classes, Wire(NO_CLASS, feature=mask)),
            value=classes,
            output=tuple(Wire(self.write, (n, "column"), n) for n in range(mask)),
            label=f"column {{column}} of {self.write}, the shares of all classes",
        )

    def formula(self) -> str:
        return f"{self.write} = softmax({self.scores}_1 .. {self.scores}_{len(self.classes)})"


@dataclass(frozen=True)
class FindBlock(Instruction):
    """Read the block that the mask selects, by one head over all columns so far.

    The query is slot `asks` of the newest column, and the keys are slot `answers` of every column,
    of a block or of data: positions from `ChainMask.asks` and `ChainMask.answers`. The value is the
    block in the column's `rows`; it is written to the rows `into` of the newest column.
    """

    asks: Read
    answers: Read
    rows: tuple[Read, ...]
    into: tuple[Written, ...]
    kind = LayerKind.SOFTMAX

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        """Return nothing: the caller provides the rows that the mask selects."""
        return {}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Query and key are positions, the value is the block of a column."""
        value, output, first = [], [], 0
        for row, write in zip(self.rows, self.into, strict=True):
            value.append(Wire(row, ("k",), "k", start=first))
            output.append(Wire(write, ("k",), "k", start=first))
            first += program.layout.slot(row).width
        factors = AxisFactor(("f",), FINDING)
        return Heads(
            axes={"head": 1},
            query=(Wire(self.asks, ("f",), "f", factors),),
            key=(Wire(self.answers, ("f",), "f"),),
            value=tuple(value),
            output=tuple(output),
            label="the block that the mask shows",
        )

    def formula(self) -> str:
        rows = f"{self.into[0]} .. {self.into[-1]}"
        return f"{rows} = the block whose {self.answers} fit {self.asks}"


Product = MultiplyByEntries | MultiplyEntries | LookUpProduct
"""Instructions that look up products on a lattice, which covers their reach."""
