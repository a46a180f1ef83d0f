r"""The fused generator: runs a chain program without weights, with the same numbers.

A block is its rows by name. A row that is the same number everywhere, such as a flag or zeros, is
kept as that number: so what is closed costs nothing, and what is copied is not touched. A block
costs one to three products of matrices and a few passes over their entries, O(b d^2), whatever N.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from icgd.backends.chain_generator import AbstractGenerator, Row
from icgd.errors import ProgramError
from icgd.program.chain import FAR, NEAR, OUT, row_of
from icgd.program.chain_instructions import (
    ActivateWhere,
    CopyWhere,
    MarkFlat,
    MultiplyMatrices,
    PassBack,
)
from icgd.program.instructions import ONE, Combination, Instruction

Rows = Mapping[str, Row]


class FusedGenerator(AbstractGenerator[Rows]):
    """A block is its rows by name."""

    name: ClassVar[str] = "fused"

    def encode(self, rows: Rows) -> Rows:
        return {name: rows.get(name, 0.0) for name in self.program.rows.names}

    def step(self, near: Rows, far: Rows, number: int) -> Rows:
        stream: dict[str, Row] = {ONE: 1.0}
        stream |= {row_of(NEAR, name): row for name, row in near.items()}
        stream |= {row_of(FAR, name): row for name, row in far.items()}
        for layer in self.program.layers:
            for instruction in layer.instructions:
                value = result(instruction, stream)
                if isinstance(instruction, MultiplyMatrices) and isinstance(value, Tensor):
                    self.require_reach(instruction, value, number)
                (write,) = instruction.writes()
                stream[write] = _sum(stream.get(write, 0.0), value)
        return {name: stream.get(row_of(OUT, name), 0.0) for name in self.program.rows.names}

    def row(self, block: Rows, name: str) -> Tensor:
        return self.expanded(block[name], name)


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
    return any(stream[flag] != 0.0 for flag in closed_by)


@singledispatch
def result(instruction: Instruction, stream: Rows) -> Row:
    """What the instruction adds to the slot that it writes."""
    rule = "has no kernel in backends/chain_fused.py"
    raise ProgramError.broken(type(instruction).__name__, rule)


@result.register
def _(instruction: CopyWhere, stream: Rows) -> Row:
    if _is_closed(instruction.closed_by, stream):
        return 0.0
    source, bound = _combined(instruction.source, stream), instruction.bound
    if bound is None:
        return source
    if isinstance(source, float):
        return min(max(source, -bound), bound)
    return source.clamp(-bound, bound)


@result.register
def _(instruction: PassBack, stream: Rows) -> Row:
    """relu(up - B flat) - relu(-up - B flat) is up, drawn towards 0 by B flat."""
    if _is_closed(instruction.closed_by, stream):
        return 0.0
    upstream, flat = _combined(instruction.upstream, stream), stream[instruction.flat]
    if isinstance(upstream, float) or isinstance(flat, float):
        return upstream
    steep = torch.sub(upstream.abs(), flat, alpha=instruction.gate).relu_().copysign_(upstream)
    leak = instruction.leak
    return steep.mul_(1 - leak).add_(upstream, alpha=leak) if leak else steep


@result.register
def _(instruction: ActivateWhere, stream: Rows) -> Row:
    z = stream[instruction.argument]
    if isinstance(z, float) or _is_closed(instruction.closed_by, stream):
        return 0.0
    if stream[instruction.kinked] == 0.0:
        return z
    leak = instruction.leak
    return functional.leaky_relu(z, leak) if leak else torch.relu(z)


@result.register
def _(instruction: MarkFlat, stream: Rows) -> Row:
    z = stream[instruction.argument]
    if isinstance(z, float) or _is_closed((instruction.linear, *instruction.closed_by), stream):
        return 0.0
    return torch.rsub(z, instruction.width).relu_().mul_(1 / instruction.width)


@result.register
def _(instruction: MultiplyMatrices, stream: Rows) -> Row:
    left, right = stream[instruction.left], stream[instruction.right]
    if isinstance(left, float) or isinstance(right, float):
        return 0.0
    left = left.mT if instruction.left_transposed else left
    return left @ (right.mT if instruction.right_transposed else right)
