r"""The fused generator runs a chain program without weights, with the same numbers.

A block is its rows by name. A row that is the same number everywhere, such as a flag or zeros, is
kept as that number. So for two blocks of given kinds most instructions have a result that is known
before, and only the others are run, if something that is kept depends on them: a block costs one or
two products of matrices and a few passes over their entries, O(b d^2), whatever N.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from icgd.backends.chain_generator import AbstractGenerator, Row
from icgd.backends.look_up import HeadTable
from icgd.errors import ProgramError
from icgd.program import chain_instructions as verbs
from icgd.program.chain import FAR, NEAR, OUT, ChainProgram, bit_slots, row_of
from icgd.program.chain_instructions import LookUpProduct, Product
from icgd.program.instructions import IDENTITY, ONE, Combination, Instruction

Rows = Mapping[str, Row]
Constants = tuple[float | None, ...]
"""The rows that are a number, in order; None for those that are a matrix."""

Evaluate = Callable[[Any, Rows], Row]


class FusedBlock(NamedTuple):
    """The rows of a block by name, and which of them are known without looking."""

    rows: Rows
    constants: Constants


@dataclass(frozen=True)
class _Work:
    """An instruction whose result is not known before; it may add to another's."""

    instruction: Instruction
    evaluate: Evaluate
    write: str
    adds: bool

    @property
    def reads(self) -> tuple[str, ...]:
        part = self.instruction
        return (part.product,) if isinstance(part, LookUpProduct) else part.reads()


@dataclass(frozen=True)
class _Plan:
    """The plan for two blocks of given kinds: what is known, what is read, and what is run."""

    known: Rows
    near: tuple[tuple[str, str], ...]
    far: tuple[tuple[str, str], ...]
    work: tuple[_Work, ...]
    out: tuple[tuple[str, str], ...]
    constants: Constants


class FusedGenerator(AbstractGenerator[FusedBlock]):
    """A generator that plans the work for each kind of step once.

    There are four kinds, two of them in linear layers.
    """

    name: ClassVar[str] = "fused"

    def __init__(self, program: ChainProgram, like: Tensor) -> None:
        super().__init__(program, like)
        self._plans: dict[tuple[Constants, Constants], _Plan] = {}
        self._code = {name for names in bit_slots(program.n_bits) for name in names}
        self._tables = {
            fit.name: HeadTable(fit, like) for fit in program.functions if fit.name != IDENTITY
        }

    def encode(self, rows: Rows) -> FusedBlock:
        """A block of the prompt; bits of rules are matrices, so that one plan serves all rules."""
        coded = {name: self.expanded(rows[name], name) for name in self._code & rows.keys()}
        return _block(dict.fromkeys(self.program.rows.names, 0.0) | dict(rows) | coded)

    def step(
        self, near: FusedBlock, far: FusedBlock, number: int, *, at_queries: bool = False
    ) -> FusedBlock:
        key = (near.constants, far.constants)
        if key not in self._plans:
            self._plans[key] = self._planned(near, far)
        plan = self._plans[key]
        stream = dict(plan.known)
        for slot, name in plan.near:
            stream[slot] = near.rows[name]
        for slot, name in plan.far:
            stream[slot] = far.rows[name]
        for work in plan.work:
            value = work.evaluate(work.instruction, stream)
            if isinstance(work.instruction, Product) and isinstance(value, Tensor):
                self.require_reach(work.instruction, value, number, at_queries=at_queries)
            stream[work.write] = stream[work.write] + value if work.adds else value
        return FusedBlock({name: stream[slot] for slot, name in plan.out}, plan.constants)

    def row(self, block: FusedBlock, name: str) -> Tensor:
        return self.expanded(block.rows[name], name)

    def _planned(self, near: FusedBlock, far: FusedBlock) -> _Plan:
        """Run everything once, and remember what did not turn out to be a number."""
        names = self.program.rows.names
        stream: dict[str, Row] = {row_of(OUT, name): 0.0 for name in names}
        stream[ONE] = 1.0
        stream |= {row_of(NEAR, name): row for name, row in near.rows.items()}
        stream |= {row_of(FAR, name): row for name, row in far.rows.items()}
        work = []
        for instruction in (part for layer in self.program.layers for part in layer.instructions):
            evaluate, (write,) = self._evaluate(instruction), instruction.writes()
            value = evaluate(instruction, stream)
            if isinstance(value, Tensor):
                adds = isinstance(stream.get(write), Tensor)
                if isinstance(instruction, verbs.CopyWhere):
                    evaluate = _source if value is _source(instruction, stream) else evaluate
                work.append(_Work(instruction, evaluate, write, adds))
            stream[write] = _sum(stream.get(write, 0.0), value)
        return _Plan(
            known={slot: value for slot, value in stream.items() if isinstance(value, float)},
            near=_tensors(near, NEAR),
            far=_tensors(far, FAR),
            work=_used(work, {row_of(OUT, name) for name in names}),
            out=tuple((row_of(OUT, name), name) for name in names),
            constants=_block({name: stream[row_of(OUT, name)] for name in names}).constants,
        )

    def _evaluate(self, instruction: Instruction) -> Evaluate:
        """The function that runs an instruction; a look-up reads its table at the product."""
        if not isinstance(instruction, LookUpProduct):
            return result.dispatch(type(instruction))
        table = self._tables[instruction.function]

        def look_up(part: LookUpProduct, stream: Rows) -> Row:
            z = stream[part.product]
            return z if isinstance(z, float) else table(z)

        return look_up


def _source(copy: verbs.CopyWhere, stream: Rows) -> Row:
    """The first slot of a copy, which is the whole copy if it changes nothing."""
    return stream[copy.source.slots[0]]


def _used(work: list[_Work], kept: set[str]) -> tuple[_Work, ...]:
    """The work on which a slot that is kept depends, in order."""
    used: list[_Work] = []
    for each in reversed(work):
        if each.write in kept:
            kept.update(each.reads)
            used.append(each)
    return tuple(reversed(used))


def _block(rows: Rows) -> FusedBlock:
    return FusedBlock(rows, tuple(row if isinstance(row, float) else None for row in rows.values()))


def _tensors(block: FusedBlock, prefix: str) -> tuple[tuple[str, str], ...]:
    """The rows that are matrices, each with its slot."""
    items = block.rows.items()
    return tuple((row_of(prefix, name), name) for name, row in items if isinstance(row, Tensor))


def _sum(left: Row, right: Row) -> Row:
    """The sum; adding the number 0 costs nothing."""
    if isinstance(left, float) and left == 0.0:
        return right
    return left if isinstance(right, float) and right == 0.0 else left + right


def _combined(combination: Combination, stream: Rows) -> Row:
    total: Row = 0.0
    for slot, factor in combination.terms():
        value = stream[slot]
        if isinstance(total, Tensor) and isinstance(value, Tensor):
            total = torch.add(total, value, alpha=factor)
        else:
            total = _sum(total, value if factor == 1.0 else value * factor)
    return total


def _is_closed(closed_by: tuple[str, ...], stream: Rows) -> bool:
    """Whether a flag closes all entries."""
    flags = (stream[flag] for flag in closed_by)
    return any(flag != 0.0 for flag in flags if isinstance(flag, float))


def _where_open(value: Row, closed_by: tuple[str, ...], stream: Rows) -> Row:
    """The value, which is 0 at the units that a flag closes."""
    for flag in (stream[name] for name in closed_by):
        if isinstance(flag, Tensor):
            value = value * (flag == 0)
    return value


def _clipped(value: Row, bound: float | None) -> Row:
    if bound is None:
        return value
    if isinstance(value, Tensor):
        return value.clamp(-bound, bound)
    return min(max(value, -bound), bound)


@singledispatch
def result(instruction: Instruction, stream: Rows) -> Row:
    """What the instruction adds to the slot that it writes."""
    raise ProgramError(f"{type(instruction).__name__} has no operation in backends/chain_fused.py")


@result.register
def _result_of_copy_where(instruction: verbs.CopyWhere, stream: Rows) -> Row:
    if _is_closed(instruction.closed_by, stream):
        return 0.0
    source = _clipped(_combined(instruction.source, stream), instruction.bound)
    return _where_open(source, instruction.closed_by, stream)


@result.register
def _result_of_select_where(instruction: verbs.SelectWhere, stream: Rows) -> Row:
    if _is_closed(instruction.closed_by, stream):
        return 0.0
    bits = enumerate(stream[flag] for flag in instruction.ones)
    number = sum(2**place for place, bit in bits if isinstance(bit, Tensor) and bit.any())
    source = _combined(instruction.sources[number], stream)
    return _clipped(source, instruction.bound)


@result.register
def _result_of_pass_back(instruction: verbs.PassBack, stream: Rows) -> Row:
    """relu(up - B flat) - relu(-up - B flat) is up, drawn towards 0 by B flat."""
    if _is_closed(instruction.closed_by, stream):
        return 0.0
    upstream = _combined(instruction.upstream, stream)
    upstream, flat = _where_open(upstream, instruction.closed_by, stream), stream[instruction.flat]
    leak, bound = instruction.leak, instruction.bound
    if isinstance(upstream, float) or isinstance(flat, float):
        return _clipped(upstream, bound)
    drawn = torch.sub(upstream.abs(), flat, alpha=instruction.gate)
    steep = drawn.clamp_(min=0.0, max=bound).copysign_(upstream)
    return steep.mul_(1 - leak).add_(_clipped(upstream, bound), alpha=leak) if leak else steep


@result.register
def _result_of_activate_where(instruction: verbs.ActivateWhere, stream: Rows) -> Row:
    z, closed_by = stream[instruction.argument], instruction.closed_by
    if isinstance(z, float) or _is_closed(closed_by, stream):
        return 0.0
    if stream[instruction.kinked] != 0.0:
        leak = instruction.leak
        z = functional.leaky_relu(z, leak) if leak else torch.relu(z)
    return _where_open(z, closed_by, stream)


@result.register
def _result_of_mark_flat(instruction: verbs.MarkFlat, stream: Rows) -> Row:
    z = stream[instruction.argument]
    if isinstance(z, float) or _is_closed((instruction.linear, *instruction.closed_by), stream):
        return 0.0
    return torch.rsub(z, instruction.width).relu_().mul_(1 / instruction.width)


@result.register
def _result_of_multiply_matrices(instruction: verbs.MultiplyMatrices, stream: Rows) -> Row:
    left, right = stream[instruction.left], stream[instruction.right]
    if isinstance(left, float) or isinstance(right, float):
        return 0.0
    left = left.mT if instruction.left_transposed else left
    return left @ (right.mT if instruction.right_transposed else right)


@result.register
def _result_of_multiply_entries(instruction: verbs.MultiplyEntries, stream: Rows) -> Row:
    left, right = stream[instruction.left], stream[instruction.right]
    if isinstance(right, float) and right == 1.0:
        return left
    return left * right


@result.register
def _result_of_share_columns(instruction: verbs.ShareColumns, stream: Rows) -> Row:
    """Blocks that go back have no scores, and nobody reads their shares."""
    scores, n_classes = stream[instruction.scores], len(instruction.classes)
    if isinstance(scores, float):
        return 0.0
    shares = scores[..., :n_classes, :].softmax(-2)
    return functional.pad(shares, (0, 0, 0, scores.shape[-2] - n_classes))
