"""The rules that every program obeys; `check_program` names the layer that breaks one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from math import isfinite

from icgd.errors import ProgramError
from icgd.program.instructions import (
    IS_EXAMPLE,
    IS_QUERY,
    AccumulateOuterProduct,
    ApplyUnits,
    ClipSlots,
    Instruction,
    MapSlots,
    MultiplySlots,
    PullBack,
    WipeSlots,
)
from icgd.program.layout import Layout, Role
from icgd.program.program import Layer, StackProgram


def check_program(program: StackProgram) -> None:
    """Raise `ProgramError` or `LayoutError` unless every rule holds.

    Slots and functions exist; shapes agree; a layer has instructions of one kind; nothing is
    read before it is written, and nothing written over what another instruction left; scratch
    is wiped when a block ends; what is accumulated is zero on queries; numbers are finite.
    """
    if not isinstance(program.n_steps, int) or program.n_steps < 0 or not program.block:
        raise ProgramError.broken("program", "needs a block and a whole number of steps")
    for name, value in constants(program):
        if not isfinite(value):
            raise ProgramError.broken(name, f"is {value}, expected a finite number")
    for function in program.functions:
        _check_function_shape(program, function.name)
    for part, layers in (("block", program.block), ("prediction", program.prediction)):
        filled: set[str] = set()
        example_only: set[str] = set()
        for number, layer in enumerate(layers, start=1):
            where = f"{part} layer {number} ({layer.title})"
            _check_layer(program, layer, filled, where)
            _check_accumulations(layer, example_only, where)
        if filled:
            raise ProgramError.broken(
                part, f"leaves {', '.join(sorted(filled))} unwiped at its end"
            )


def constants(program: StackProgram) -> Iterator[tuple[str, float]]:
    """Every number that the program holds, with the name of what it belongs to."""
    for function in program.functions:
        numbers = (function.grid, function.anchor, function.anchor_value)
        for value in (*numbers, *function.knots, *function.slopes, *function.errors):
            yield f"function {function.name!r}", value
    for layer in (*program.block, *program.prediction):
        for instruction in layer.instructions:
            for name in ("scale", "gate", "bound"):
                if hasattr(instruction, name):
                    yield name, getattr(instruction, name)


def _check_function_shape(program: StackProgram, name: str) -> None:
    function = program.function(name)
    increasing = all(a < b for a, b in zip(function.knots, function.knots[1:], strict=False))
    if not increasing or len(function.slopes) != len(function.knots) + 1:
        raise ProgramError.broken(
            f"function {name!r}", "needs increasing knots and one slope more than knots"
        )
    if not function.grid > 0 or not all(
        (knot / function.grid).is_integer() for knot in function.knots
    ):
        raise ProgramError.broken(f"function {name!r}", f"has knots off its grid {function.grid}")
    if len(function.errors) != len(function.slopes) or min(function.errors) < 0:
        raise ProgramError.broken(f"function {name!r}", "needs one certified error a piece")


def _check_layer(program: StackProgram, layer: Layer, filled: set[str], where: str) -> None:
    """Check one layer and update `filled`, the scratch slots that hold something."""
    if len({instruction.kind for instruction in layer.instructions}) != 1:
        raise ProgramError.broken(where, "needs instructions of exactly one kind of layer")
    written: set[str] = set()
    wiped: set[str] = set()
    for instruction in layer.instructions:
        for name in instruction.functions():
            program.function(name)
        _check_reads(program.layout, instruction, filled, where)
        for name in set(instruction.reads()) & written - set(instruction.writes()):
            raise ProgramError.broken(where, f"reads {name!r} after writing it in the same layer")
        _check_writes(program.layout, instruction, filled, written, where)
        if problem := shape_problem(instruction, program.layout):
            raise ProgramError.broken(where, problem)
        if isinstance(instruction, WipeSlots):
            wiped.update(instruction.slots)
    filled.update(name for name in written if program.layout.slot(name).role is Role.SCRATCH)
    filled.difference_update(wiped)


def _check_accumulations(layer: Layer, example_only: set[str], where: str) -> None:
    """Attention sums over all tokens: what it accumulates must be zero on queries.

    `example_only` holds the slots that are: gated ones, and products with them.
    """
    for instruction in layer.instructions:
        match instruction:
            case MapSlots(only_where="is_example", write=write):
                example_only.add(write)
            case MultiplySlots(left=left, right=right, write=write):
                example_only.update({write} if {left, right} & example_only else ())
            case PullBack(upstream=upstream, write=write):
                example_only.update({write} if upstream in example_only else ())
            case AccumulateOuterProduct(left=left) if left not in example_only:
                raise ProgramError.broken(where, f"accumulates {left!r}, not zero on queries")


def _check_reads(layout: Layout, instruction: Instruction, filled: set[str], where: str) -> None:
    for name in instruction.reads():
        if layout.slot(name).role is Role.SCRATCH and name not in filled:
            raise ProgramError.broken(where, f"reads {name!r} before anything was written to it")


def _check_writes(
    layout: Layout, instruction: Instruction, filled: set[str], written: set[str], where: str
) -> None:
    changes_in_place = isinstance(instruction, ClipSlots | WipeSlots | AccumulateOuterProduct)
    for name in instruction.writes():
        role = layout.slot(name).role
        if role in (Role.INPUT, Role.CONSTANT):
            raise ProgramError.broken(where, f"writes to {name!r}, which must stay as it is")
        if role is Role.SCRATCH and isinstance(instruction, AccumulateOuterProduct):
            raise ProgramError.broken(where, f"accumulates into scratch slot {name!r}")
        if role is Role.LABEL and getattr(instruction, "only_where", None) != IS_QUERY:
            raise ProgramError.broken(where, f"writes over {name!r}, the examples' labels")
        if name in written:
            raise ProgramError.broken(where, f"writes {name!r} twice in one layer")
        if not changes_in_place and (name in filled or role is Role.PARAMETER):
            raise ProgramError.broken(where, f"writes over {name!r}, which still holds a value")
        written.add(name)


@singledispatch
def shape_problem(instruction: Instruction, layout: Layout) -> str | None:
    """What is wrong with the shapes of an instruction's slots, or None."""
    raise ProgramError.broken(type(instruction).__name__, "has no shape rule in program/check.py")


@shape_problem.register
def _(instruction: ApplyUnits, layout: Layout) -> str | None:
    expected = (layout.slot(instruction.write).width, layout.slot(instruction.inputs).width)
    return _expect_shape(layout, instruction.weights, expected)


@shape_problem.register
def _(instruction: AccumulateOuterProduct, layout: Layout) -> str | None:
    expected = (layout.slot(instruction.left).width, layout.slot(instruction.right).width)
    return _expect_shape(layout, instruction.write, expected)


@shape_problem.register
def _(instruction: PullBack, layout: Layout) -> str | None:
    expected = (layout.slot(instruction.upstream).width, layout.slot(instruction.write).width)
    return _expect_shape(layout, instruction.weights, expected) or _expect_equal_widths(
        layout, instruction.slope, instruction.write
    )


@shape_problem.register
def _(instruction: MultiplySlots, layout: Layout) -> str | None:
    return _expect_equal_widths(layout, instruction.left, instruction.right, instruction.write)


@shape_problem.register
def _(instruction: MapSlots, layout: Layout) -> str | None:
    flags = {instruction.only_where, instruction.never_where}
    if flags != {IS_EXAMPLE, IS_QUERY}:
        return f"its flags are {', '.join(sorted(flags))}, expected {IS_EXAMPLE} and {IS_QUERY}"
    slots = [slot for summand in instruction.summands for slot in summand.slots]
    return _expect_equal_widths(layout, *slots, instruction.write)


@shape_problem.register(ClipSlots)
@shape_problem.register(WipeSlots)
def _(instruction: Instruction, layout: Layout) -> str | None:
    return None


def _expect_shape(layout: Layout, name: str, expected: tuple[int, int]) -> str | None:
    shape = layout.slot(name).shape
    return None if shape == expected else f"{name!r} has shape {shape}, expected {expected}"


def _expect_equal_widths(layout: Layout, *names: str) -> str | None:
    widths = {name: layout.slot(name).width for name in names}
    if len(set(widths.values())) == 1:
        return None
    return f"widths differ: {', '.join(f'{name} {width}' for name, width in widths.items())}"
