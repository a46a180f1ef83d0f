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
from typing import ClassVar

from icgd.program.instructions import IDENTITY, Combination, Instruction, LayerKind
from icgd.program.meaning import Domain, Value
from icgd.program.uses import Evaluated, Flag, Read, Written

NO_CLASS = "no_class"
"""The constant slot by which heads over classes mask the tokens of a grid."""


def _where_open(closed_by: tuple[str, ...]) -> str:
    return f" unless {' or '.join(closed_by)}" if closed_by else ""


def _clipped(source: Combination, bound: float | None) -> str:
    return source.formula() if bound is None else f"clip({source.formula()}, {bound:g})"


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

    def formula(self) -> str:
        source = _clipped(self.source, self.bound)
        return f"{self.write} += {source}{_where_open(self.closed_by)}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        source = self.source.value(slots, domain)
        source = source if self.bound is None else domain.clip_copied(self, source, slots)
        value = domain.unless([slots[flag] for flag in self.closed_by], source)
        return {self.write: domain.add(slots[self.write], value)}


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

    def formula(self) -> str:
        first, last = (_clipped(self.sources[place], self.bound) for place in (0, -1))
        where = _where_open(self.closed_by)
        return f"{self.write} += one of {len(self.sources)}: {first} .. {last}{where}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        source = domain.select([slots[flag] for flag in self.ones], self.sources, slots)
        source = source if self.bound is None else domain.clip_copied(self, source, slots)
        value = domain.unless([slots[flag] for flag in self.closed_by], source)
        return {self.write: domain.add(slots[self.write], value)}

    def sum_of(self, number: int) -> CopyWhere:
        """What adds source `number`, if no flag closes it."""
        pairs = zip(self.zeros, self.ones, strict=True)
        others = tuple(zero if number >> k & 1 else one for k, (zero, one) in enumerate(pairs))
        closed_by = (*self.closed_by, *others)
        return CopyWhere(self.sources[number], closed_by, self.gate, self.write, self.bound)


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

    def formula(self) -> str:
        slope, source = f"slope({self.flat})", _clipped(self.upstream, self.bound)
        return f"{self.write} += ({source}) * {slope}{_where_open(self.closed_by)}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        closed_by = [slots[flag] for flag in self.closed_by]
        upstream = domain.unless(closed_by, self.upstream.value(slots, domain))
        value = domain.pass_back(self, upstream, slots[self.flat])
        return {self.write: domain.add(slots[self.write], value)}


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

    def formula(self) -> str:
        return f"{self.write} += r({self.argument}, {self.kinked}){_where_open(self.closed_by)}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        closed_by = [slots[flag] for flag in self.closed_by]
        value = domain.activate(slots[self.argument], slots[self.kinked], self.leak)
        return {self.write: domain.add(slots[self.write], domain.unless(closed_by, value))}


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

    def formula(self) -> str:
        flags = (self.linear, *self.closed_by)
        return f"{self.write} += flat({self.argument}){_where_open(flags)}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        closed_by = [slots[flag] for flag in (self.linear, *self.closed_by)]
        value = domain.unless(closed_by, domain.mark_flat(slots[self.argument], self.width))
        return {self.write: domain.add(slots[self.write], value)}


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

    def formula(self) -> str:
        left = f"{self.left}^T" if self.left_transposed else self.left
        right = f"{self.right}^T" if self.right_transposed else self.right
        return f"{self.write} = {left} @ {right}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        left, right = slots[self.left], slots[self.right]
        left = domain.transposed(left) if self.left_transposed else left
        right = domain.transposed(right) if self.right_transposed else right
        return {self.write: domain.from_lattice(self, domain.product(left, right), left, right)}


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

    def formula(self) -> str:
        return f"{self.write} = {self.function}({self.left} @ {self.right})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        left, right = slots[self.left], slots[self.right]
        product = domain.product(left, right)
        return {self.write: domain.look_up_product(self, product, left, right)}


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

    def formula(self) -> str:
        return f"{self.write} = {self.left} * {self.right}"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        left, right = slots[self.left], slots[self.right]
        return {self.write: domain.from_lattice(self, domain.multiply(left, right), left, right)}


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

    def formula(self) -> str:
        return f"{self.write} = softmax({self.scores}_1 .. {self.scores}_{len(self.classes)})"

    def meaning(self, slots: Mapping[str, Value], domain: Domain[Value]) -> dict[str, Value]:
        return {self.write: domain.softmax_columns(slots[self.scores], len(self.classes))}


Gated = CopyWhere | SelectWhere | PassBack | ActivateWhere | MarkFlat
"""Instructions that flags can close."""

Product = MultiplyMatrices | MultiplyEntries
"""Instructions that read products from a lattice, which covers their reach."""
