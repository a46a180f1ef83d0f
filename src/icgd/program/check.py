"""Check that a program is well-formed when it is built."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from icgd.errors import ProgramError
from icgd.program.chain import FAR, IS_DATA, NEAR, OUT, ChainProgram, row_of
from icgd.program.functions import Function, GridMean, LatticeFunction, ReluSum, RidgeSum
from icgd.program.instructions import (
    IS_EXAMPLE,
    IS_QUERY,
    ONE,
    OUT_OF_BATCH,
    Instruction,
    LayerKind,
    MapSlots,
    WipeSlots,
)
from icgd.program.kernel_instructions import DescendFunction
from icgd.program.layout import Layout, Role
from icgd.program.network_instructions import ShareClasses
from icgd.program.program import AbstractProgram, Layer
from icgd.program.registers import IS_REGISTER, SCALE_SIZE
from icgd.program.shapes import Shapes
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import ByUnits, WipeByUnits
from icgd.program.uses import Use, names

# -----------------------------------------------------------------------------
# The numbers of a program, wherever they stand in its dataclasses.


def beyond(program: AbstractProgram, most: float) -> tuple[str, float] | None:
    """Find the first number that is NaN or larger in size than `most`, with a name for it."""
    schedule = chain.from_iterable(getattr(program, "schedule", ()))
    parts = [
        (f"{type(instruction).__name__} in layer {layer.title!r}", instruction)
        for layer in (*program.layers, *schedule)
        for instruction in layer.instructions
    ]
    parts += [(f"function {function.name!r}", function) for function in program.functions]
    for name, part in parts:
        for field, number in _numbers(part):
            if not abs(number) <= most:
                return f"{field} of {name}", number
    return None


def _numbers(part: object, field: str = "") -> Iterator[tuple[str, float]]:
    """Yield all floats in a dataclass, each after the name of the field that it stands in."""
    if isinstance(part, float):
        yield field, part
    elif isinstance(part, tuple):
        for entry in part:
            yield from _numbers(entry, field)
    elif is_dataclass(part):
        for name in _names(part.__class__):
            yield from _numbers(getattr(part, name), name)


@lru_cache
def _names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass; a schedule asks for those of the same few classes very often."""
    return tuple(field.name for field in fields(kind))


SCRATCH = (Role.SCRATCH, Role.SHARED)
"""Slots that hold something within a step alone."""

FIXED = (Role.INPUT, Role.CONSTANT)
"""Slots that stay as the prompt sets them."""


def check_program(program: AbstractProgram) -> None:
    """Raise `ProgramError` that names the first instruction that is not well-formed.

    Its slots and functions exist, and their shapes fit. All instructions of a layer are of its
    kind. A slot is read after it was written, and is not written while it holds something. A step
    leaves no scratch slot filled, and a chain leaves no row of the next block empty. All numbers
    are finite.
    """
    if found := beyond(program, sys.float_info.max):
        raise ProgramError(f"{found[0]} is {found[1]}; every number of a program must be finite.")
    shapes = Shapes(program.layout, is_chain=isinstance(program, ChainProgram))
    if isinstance(program, StackProgram):
        given = {slot.name for slot in program.layout.slots if slot.role not in SCRATCH}
        for stage, layers in (("block", program.block_of(0)), ("prediction", program.prediction)):
            if left := _check_layers(program, shapes, stage, layers, given) - given:
                raise ProgramError(
                    f"The {stage} leaves {', '.join(sorted(left))} filled at its end; wipe it."
                )
    if isinstance(program, ChainProgram):
        given = {row_of(block, row) for block in (NEAR, FAR) for row in program.rows.names}
        given |= {slot.name for slot in program.layout.having(Role.CONSTANT)}
        filled = _check_layers(program, shapes, "chain", program.layers, given)
        # No block that is written holds data, so nothing writes that flag.
        next_block = {row_of(OUT, row) for row in program.rows.names if row != IS_DATA}
        if missing := next_block - filled:
            raise ProgramError(f"The chain writes no {', '.join(sorted(missing))}.")


def _check_layers(
    program: AbstractProgram,
    shapes: Shapes,
    stage: str,
    layers: tuple[Layer, ...],
    given: set[str],
) -> set[str]:
    """Check layers one after the other; return the slots that are filled after the last one.

    Instructions of one layer of a chain may add to the same slot: their flags exclude each other.
    """
    layout, is_chain = program.layout, isinstance(program, ChainProgram)
    known = {(type(function), function.name) for function in program.functions}
    filled = set(given)
    for number, layer in enumerate(layers, start=1):
        if not layer.instructions:
            raise ProgramError(f"{stage} layer {number} ({layer.title}) has no instructions.")
        written: set[str] = set()
        wiped: set[str] = set()
        for part in layer.instructions:
            reads, writes = set(part.reads()), part.writes()
            kind = LatticeFunction if is_chain else _evaluated(part)
            # Where queries are, the slot of the labels is empty.
            at_queries = getattr(part, "only_where", None) == IS_QUERY
            problem: str | None
            if part.kind is not layer.kind:
                problem = f"is for {part.kind.value} layers, and the layer is {layer.kind.value}"
            elif unknown := {*reads, *writes} - set(layout.names):
                problem = f"uses {min(unknown)!r}, and the layout has no such slot"
            elif lacking := [name for name in part.functions() if (kind, name) not in known]:
                problem = f"needs a {kind.__name__} called {lacking[0]!r}, and there is none"
            elif empty := reads - filled:
                problem = f"reads {min(empty)!r} before it is written"
            elif changed := (reads - set(writes)) & written:
                problem = f"reads {min(changed)!r}, which the same layer writes"
            elif not is_chain and (twice := [name for name in writes if name in written]):
                problem = f"writes {twice[0]!r} a second time in one layer"
            elif not at_queries and (
                held := filled.intersection(names(part, Use.WRITE))
                | given.intersection(names(part, Use.ADD))
            ):
                problem = f"writes over {min(held)!r}, which still holds a value"
            elif not isinstance(part, DescendFunction) and (
                fixed := [name for name in writes if layout.slot(name).role in FIXED]
            ):
                problem = f"writes to {fixed[0]!r}, which must stay as the prompt sets it"
            else:
                problem = _unsuited(part, layout) or shapes.problem_with(part)
            if problem:
                verb = type(part).__name__
                raise ProgramError(f"{stage} layer {number} ({layer.title}), {verb}: {problem}.")
            written.update(writes)
            if isinstance(part, WipeSlots | WipeByUnits):
                wiped.update(part.slots)
        filled = (filled | written) - wiped
    return filled


def _evaluated(instruction: Instruction) -> type[Function]:
    """The kind of function that an instruction of a stack evaluates."""
    if isinstance(instruction, ByUnits):
        return RidgeSum
    if instruction.kind is LayerKind.GRID:
        return GridMean
    return LatticeFunction if instruction.kind is LayerKind.SOFTMAX else ReluSum


def _unsuited(instruction: Instruction, layout: Layout) -> str | None:
    """What is wrong with the flags, the unit or the classes that an instruction names, or None."""
    if isinstance(instruction, MapSlots):
        kinds = {IS_EXAMPLE, IS_QUERY, IS_REGISTER}
        if instruction.only_where == IS_EXAMPLE:
            kinds.add(OUT_OF_BATCH)
        flags = [instruction.only_where, *instruction.never_where]
        expected = sorted(kinds & {*layout.names})
        if flags != [ONE] and sorted(flags) != expected:
            return f"its flags are {', '.join(flags)}, expected {', '.join(expected)} or {ONE}"
    unit = getattr(instruction, "unit", ONE)
    if unit not in (ONE, SCALE_SIZE):
        return f"its unit is {unit!r}, expected {ONE} or {SCALE_SIZE}"
    if isinstance(instruction, ShareClasses):
        n_classes, n_scores = len(instruction.classes), layout.width_of(instruction.scores)
        if n_classes != n_scores:
            return f"shares {n_scores} scores {instruction.scores!r} among {n_classes} classes"
    return None


# -----------------------------------------------------------------------------
# All kinds of program. The kind that wrote a file's data reads them.


PROGRAMS: dict[str, type[AbstractProgram]] = {"block": StackProgram, "rows": ChainProgram}
"""The kinds, each under a key that only its own data have."""


def from_data(data: Mapping[str, Any]) -> AbstractProgram:
    """The program whose `to_data` these are."""
    for key, kind in PROGRAMS.items():
        if key in data:
            return kind.from_data(data)
    raise ProgramError(f"The data of a program lack a key of {', '.join(PROGRAMS)}.")
