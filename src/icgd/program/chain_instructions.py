r"""Instructions of chain programs: verbs that depend on what kind of blocks a step is shown.

An instruction adds its result where all flags of `closed_by` are 0. Where a flag is 1 it adds
exactly nothing, because every ReLU's argument is then lowered by `gate`, which is larger than any
argument. Where the flags are 0 the gate changes nothing, so it may be arbitrarily large. A flag is
one number, or one for each unit. A slot with fewer columns than `write` is read alike in all
columns.

A unit is marked as flat by `flat = relu(c - z) / c` for the width c of a kink: that is exactly 0
where the unit is steep, and at least 1 where it is flat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from icgd.errors import ProgramError
from icgd.program.instructions import (
    IDENTITY,
    Combination,
    Evaluated,
    Flag,
    Instruction,
    LayerKind,
    Read,
    Written,
)
from icgd.program.layout import OFFSET, ONE, Layout, value_slot
from icgd.program.meaning import BlockDomain, Value
from icgd.program.wires import Heads, Units, Wire, Wiring, by_slot

if TYPE_CHECKING:
    from icgd.program.program import AbstractProgram

NO_CLASS = "no_class"
"""The constant slot by which heads over classes mask the tokens of a grid."""


def _where_open(closed_by: tuple[str, ...]) -> str:
    return f" unless {' or '.join(closed_by)}" if closed_by else ""


def _clipped(source: Combination, bound: float | None) -> str:
    return source.formula() if bound is None else f"clip({source.formula()}, {bound:g})"


def gated_units(
    layout: Layout,
    verb: CopyWhere | PassBack | ActivateWhere | MarkFlat,
    terms: Mapping[str, float],
    shift: float = 0.0,
    gain: float = 1.0,
    more_flags: tuple[str, ...] = (),
) -> Units:
    """gain * relu(terms + shift - gate * flags) for every entry of what the verb writes.

    The flags are `more_flags` and those that close the verb. A slot with one row or one column is
    read alike in all of them.
    """
    shape, flags = layout.slot(verb.write).shape, (*more_flags, *verb.closed_by)
    axes = dict(zip(("row", "column")[: len(shape)], shape, strict=True))

    def read(slot: str, factor: float) -> Wire:
        sizes = layout.slot(slot).shape
        names = [*axes][len(axes) - len(sizes) :]
        at = tuple(
            name if size == axes[name] else 0 for name, size in zip(names, sizes, strict=True)
        )
        return Wire(slot, at, factor=factor)

    summed = by_slot([*terms.items(), *((flag, -verb.gate) for flag in flags)])
    argument = " ".join(f"{factor:+g} {slot}" for slot, factor in terms.items())
    place = ", ".join(f"{{{name}}}" for name in axes)
    return Units(
        axes=axes,
        reads=tuple(read(slot, factor) for slot, factor in summed.items()),
        shift=shift,
        writes=(Wire(verb.write, tuple(axes), factor=gain),),
        label=f"{verb.write}[{place}] {gain:+g} relu({argument} {shift:+g}){_where_open(flags)}",
    )


def line_units(
    layout: Layout,
    verb: CopyWhere | PassBack,
    source: Combination,
    factor: float = 1.0,
    more_flags: tuple[str, ...] = (),
) -> list[Units]:
    """factor * s = factor * relu(s) - factor * relu(-s); a bound clips s."""
    pieces = [(sign, 0.0, sign * factor) for sign in (1.0, -1.0) if factor]
    if verb.bound is not None:
        pieces += [(sign, -verb.bound, -gain) for sign, _, gain in pieces]
    return [
        gated_units(
            layout,
            verb,
            {slot: sign * c for slot, c in by_slot(source.terms()).items()},
            shift,
            gain,
            more_flags,
        )
        for sign, shift, gain in pieces
    ]


def product_heads(
    program: AbstractProgram,
    verb: Product | LookUpProduct,
    function: str,
    scale: float,
    left: tuple[str, str],
    right: tuple[str, str],
) -> Heads:
    """Heads that write scale * function(entry / scale) for every entry of a product.

    `left` and `right` name the axes of the factors; an entry is the sum over their axis "term".
    """
    layout, grid = program.layout, program.look_up(function)
    shapes = (*layout.slot(verb.left).shape, *layout.slot(verb.right).shape)
    sizes = dict(zip((*left, *right), shapes, strict=True))
    n_terms, feature = (sizes["term"], "term") if "term" in sizes else (1, 0)
    gain = grid.half / (grid.spacing * grid.ratio**2 * scale)
    return Heads(
        axes={"row": sizes["row"], "column": sizes["column"]},
        query=(
            Wire(verb.left, left, feature, gain),
            Wire(ONE, feature=n_terms, factor=1 / grid.ratio**2),
        ),
        key=(Wire(verb.right, right, feature), Wire(OFFSET, feature=n_terms)),
        value=(Wire(value_slot(grid.name)),),
        output=(Wire(verb.write, ("row", "column"), factor=scale),),
        label=f"{verb.write}[{{row}}, {{column}}], {function} of the product",
    )


@dataclass(frozen=True)
class CopyWhere(Instruction):
    """Add `source` to `write` where no flag of `closed_by` is set, clipped to +-`bound` if given.

    relu(s) - relu(-s) is s. Adding - relu(s - bound) + relu(-s - bound) clips it.
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
    """Add the one of `sources` whose number flags name in bits, as `CopyWhere` adds its source.

    Flag `ones[k]` is 1 if bit k of the number is 1, and flag `zeros[k]` is 1 if it is 0. So a
    source is closed by the flags of the bits that its own number does not have.
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
                f"{len(self.zeros)} of those that are 0."
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
            part = CopyWhere(source, closed_by, self.gate, self.write, self.bound)
            families += part.wires(program)
        return families

    def formula(self) -> str:
        first, last = (_clipped(self.sources[place], self.bound) for place in (0, -1))
        where = _where_open(self.closed_by)
        return f"{self.write} += one of {len(self.sources)}: {first} .. {last}{where}"


@dataclass(frozen=True)
class PassBack(Instruction):
    """Add `upstream * slope` to `write` where no flag of `closed_by` is set.

    The slope is 1 where `flat` is 0, and `leak` where it is at least 1: with B = `gate`, leak up +
    (1 - leak) (relu(up - B flat) - relu(-up - B flat)). On a kink `flat` lies between, and so does
    the slope: the result is never larger than `upstream`. If `bound` is given, `upstream` is
    clipped to +-bound first.
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
        """leak * upstream, and (1 - leak) * upstream, which `flat` closes as a flag does."""
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
        """relu(z) - leak relu(-z), minus (1 - leak) relu(-z) if there is no kink."""
        layout, z, below = program.layout, {self.argument: 1.0}, {self.argument: -1.0}
        units = [gated_units(layout, self, z)]
        if self.leak != 1.0:
            kinked = (self.kinked,)
            units.append(gated_units(layout, self, below, gain=self.leak - 1, more_flags=kinked))
        if self.leak:
            units.append(gated_units(layout, self, below, gain=-self.leak))
        return units

    def formula(self) -> str:
        return f"{self.write} += r({self.argument}, {self.kinked}){_where_open(self.closed_by)}"


@dataclass(frozen=True)
class MarkFlat(Instruction):
    """Add relu(c - z) / c with c = `width` to `write` where no flag of `closed_by` is set.

    That is exactly 0 for z >= c and at least 1 for z <= 0, if c is a power of two. Where flag
    `linear` is 1 nothing is flat.
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
        """relu(width - z) / width."""
        below, gain = {self.argument: -1.0}, 1 / self.width
        return gated_units(program.layout, self, below, self.width, gain, (self.linear,))

    def formula(self) -> str:
        flags = (self.linear, *self.closed_by)
        return f"{self.write} += flat({self.argument}){_where_open(flags)}"


@dataclass(frozen=True)
class MultiplyMatrices(Instruction):
    """Set `write = left @ right`, with one head for each entry; each factor can be transposed.

    Entries are at most `reach` in size: the lattice covers no more.
    """

    left: Read
    right: Read
    reach: float
    write: Written
    left_transposed: bool = False
    right_transposed: bool = False
    kind = LayerKind.SOFTMAX
    function: ClassVar[Evaluated] = IDENTITY

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        left, right = slots[self.left], slots[self.right]
        left = domain.transposed(left) if self.left_transposed else left
        right = domain.transposed(right) if self.right_transposed else right
        return {self.write: domain.from_lattice(self, domain.product(left, right), left, right)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """A head has a row of `left` in the query and a column of `right` in the key."""
        left = ("term", "row") if self.left_transposed else ("row", "term")
        right = ("column", "term") if self.right_transposed else ("term", "column")
        return product_heads(program, self, IDENTITY, self.reach, left, right)

    def formula(self) -> str:
        left = f"{self.left}^T" if self.left_transposed else self.left
        right = f"{self.right}^T" if self.right_transposed else self.right
        return f"{self.write} = {left} @ {right}"


@dataclass(frozen=True)
class LookUpProduct(Instruction):
    """Set `write = f(left @ right)`, entry by entry, where f is the `function`.

    The heads are those of `MultiplyMatrices` with other values. The same layer writes left @ right
    to the slot `product`; its entries are at most `reach` in size.
    """

    left: Read
    right: Read
    reach: float
    product: str
    function: Evaluated
    write: Written
    kind = LayerKind.SOFTMAX

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        left, right = slots[self.left], slots[self.right]
        product = domain.product(left, right)
        return {self.write: domain.look_up_product(self, product, left, right)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """The heads of the product, with the values of the function."""
        left, right = ("row", "term"), ("term", "column")
        return product_heads(program, self, self.function, 1.0, left, right)

    def formula(self) -> str:
        return f"{self.write} = {self.function}({self.left} @ {self.right})"


@dataclass(frozen=True)
class MultiplyEntries(Instruction):
    """Set `write = left * right`, entry by entry, with one head for each entry.

    The query holds the entry of `left`, the keys that of `right`. Products are at most `reach`.
    """

    left: Read
    right: Read
    reach: float
    write: Written
    kind = LayerKind.SOFTMAX
    function: ClassVar[Evaluated] = IDENTITY

    def meaning(self, slots: Mapping[str, Value], domain: BlockDomain[Value]) -> dict[str, Value]:
        left, right = slots[self.left], slots[self.right]
        return {self.write: domain.from_lattice(self, domain.multiply(left, right), left, right)}

    def wires(self, program: AbstractProgram) -> Wiring:
        """Head [row, column] has one entry in the query and one in the key."""
        entry = ("row", "column")
        return product_heads(program, self, IDENTITY, self.reach, entry, entry)

    def formula(self) -> str:
        return f"{self.write} = {self.left} * {self.right}"


@dataclass(frozen=True)
class ShareColumns(Instruction):
    """Set the first rows of `write` to the softmax of those rows of `scores`, in every column.

    There are as many of these rows as `classes`, and there is one head for each column. Its keys
    are the tokens of the classes: slot `classes[k]` is 1 in that of class k, and 0 in all others.
    Grid tokens are masked by slot `no_class`. It is exact.
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


Product = MultiplyMatrices | MultiplyEntries
"""Instructions that read products from a lattice, which covers their reach."""
