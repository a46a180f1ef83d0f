"""The rules that every chain program obeys; `check_chain` names the layer that breaks one."""

from __future__ import annotations

from functools import singledispatch

from icgd.errors import ProgramError
from icgd.program.chain import FAR, NEAR, OUT, ChainProgram, row_of
from icgd.program.chain_instructions import (
    ActivateWhere,
    CopyWhere,
    MarkFlat,
    MultiplyMatrices,
    PassBack,
)
from icgd.program.instructions import Instruction
from icgd.program.layout import Layout, Role
from icgd.program.program import Layer


def check_chain(program: ChainProgram) -> None:
    """Raise `ProgramError` or `LayoutError` unless every rule holds.

    The stream has the rows of three blocks; slots exist, shapes agree and flags are single numbers;
    a layer has instructions of one kind; nothing is read before it is written, or written after.
    """
    if not isinstance(program.n_steps, int) or program.n_steps < 0 or not program.shapes:
        raise ProgramError.broken("program", "needs layers and a whole number of rounds")
    if len(program.linear) != len(program.shapes):
        raise ProgramError.broken("program", "says of other layers whether they are linear")
    layout = program.layout
    for name in (row_of(block, row) for block in (NEAR, FAR, OUT) for row in program.rows.names):
        layout.slot(name)
    shown = {row_of(block, row) for block in (NEAR, FAR) for row in program.rows.names}
    filled = shown | {slot.name for slot in layout.having(Role.CONSTANT)}
    for number, layer in enumerate(program.layers, start=1):
        _check_layer(layer, layout, filled, f"layer {number} ({layer.title})")
        filled |= {name for part in layer.instructions for name in part.writes()}


def _check_layer(layer: Layer, layout: Layout, filled: set[str], where: str) -> None:
    if len({part.kind for part in layer.instructions}) != 1:
        raise ProgramError.broken(where, "needs instructions of one kind")
    for part in layer.instructions:
        for name in (*part.reads(), *part.writes()):
            layout.slot(name)
        if empty := [name for name in part.reads() if name not in filled]:
            raise ProgramError.broken(where, f"reads {', '.join(empty)} before it is written")
        if full := [name for name in part.writes() if name in filled]:
            raise ProgramError.broken(where, f"writes {', '.join(full)} once more")
        if problem := _shape_problem(part, layout):
            raise ProgramError.broken(where, problem)


@singledispatch
def _shape_problem(instruction: Instruction, layout: Layout) -> str | None:
    """What is wrong with the shapes of an instruction's slots, or None."""
    missing = "has no shape rule in program/chain_check.py"
    raise ProgramError.broken(type(instruction).__name__, missing)


def _unlike(
    layout: Layout, write: str, others: tuple[str, ...], flags: tuple[str, ...]
) -> str | None:
    shape = layout.slot(write).shape
    for name in others:
        if layout.slot(name).shape != shape:
            return f"{name} has shape {layout.slot(name).shape}, {write} has {shape}"
    for name in flags:
        if layout.slot(name).shape != (1,):
            return f"{name} has shape {layout.slot(name).shape}; a flag is one number"
    return None


@_shape_problem.register
def _(instruction: CopyWhere, layout: Layout) -> str | None:
    return _unlike(layout, instruction.write, instruction.source.slots, instruction.closed_by)


@_shape_problem.register
def _(instruction: PassBack, layout: Layout) -> str | None:
    others = (*instruction.upstream.slots, instruction.flat)
    return _unlike(layout, instruction.write, others, instruction.closed_by)


@_shape_problem.register
def _(instruction: ActivateWhere, layout: Layout) -> str | None:
    flags = (instruction.kinked, *instruction.closed_by)
    return _unlike(layout, instruction.write, (instruction.argument,), flags)


@_shape_problem.register
def _(instruction: MarkFlat, layout: Layout) -> str | None:
    flags = (instruction.linear, *instruction.closed_by)
    return _unlike(layout, instruction.write, (instruction.argument,), flags)


@_shape_problem.register
def _(instruction: MultiplyMatrices, layout: Layout) -> str | None:
    left, right = layout.slot(instruction.left).shape, layout.slot(instruction.right).shape
    left = left[::-1] if instruction.left_transposed else left
    right = right[::-1] if instruction.right_transposed else right
    write = layout.slot(instruction.write).shape
    if left[1:] == right[:1] and write == (*left[:1], *right[1:]):
        return None
    return f"multiplies shapes {left} and {right} into {instruction.write} of shape {write}"
