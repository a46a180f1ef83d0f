"""The rules that every chain program obeys; `check_chain` names the layer that breaks one."""

from __future__ import annotations

from functools import singledispatch
from itertools import product

from icgd.errors import ProgramError
from icgd.program import chain_instructions as chain
from icgd.program.chain import FAR, IS_DATA, NEAR, OUT, ChainProgram, row_of
from icgd.program.instructions import Instruction
from icgd.program.layout import Layout, Role
from icgd.program.program import Layer
from icgd.program.registers import value_slot
from icgd.program.uses import Use, names


def check_chain(program: ChainProgram) -> None:
    """Raise `ProgramError` or `LayoutError` unless every rule holds.

    The stream has the rows of three blocks. Slots and functions exist. Shapes agree, and a flag is
    one number, or one for each unit. A layer has instructions of one kind. A slot is written once,
    before it is read. Every row of the next block is written, but for the flag of data.
    """
    if not isinstance(program.n_steps, int) or program.n_steps < 0 or not program.shapes:
        raise ProgramError.broken("program", "needs layers and a whole number of rounds")
    layout = program.layout
    if len(program.kinds) != len(program.shapes) or not set(program.kinds) <= set(layout.names):
        raise ProgramError.broken("program", "needs a flag for the kind of every layer")
    if program.batch_size < 1:
        raise ProgramError.broken("program", f"has rounds on {program.batch_size} examples")
    if (largest := max(size for shape in program.shapes for size in shape)) > program.width:
        problem = f"pads to width {program.width}, and a layer has {largest} units"
        raise ProgramError.broken("program", problem)
    _check_rules(program)
    _check_grid(program)
    for slot, block in product(program.rows.slots, (NEAR, FAR, OUT)):
        if (shape := layout.slot(row_of(block, slot.name)).shape) != slot.shape:
            problem = f"has shape {slot.shape} in a block, {shape} in the stream"
            raise ProgramError.broken(f"row {slot.name!r}", problem)
    shown = {row_of(block, row) for block in (NEAR, FAR) for row in program.rows.names}
    filled = shown | {slot.name for slot in layout.having(Role.CONSTANT)}
    for number, layer in enumerate(program.layers, start=1):
        _check_layer(layer, layout, filled, f"layer {number} ({layer.title})")
        filled |= {name for part in layer.instructions for name in part.writes()}
    written = filled | {row_of(OUT, IS_DATA)}  # no block that is written holds data
    if lost := [name for name in program.rows.names if row_of(OUT, name) not in written]:
        raise ProgramError.broken("program", f"writes no {', '.join(lost)} into the next block")


def _check_rules(program: ChainProgram) -> None:
    """Every round has a rule, and every rule a sum."""
    if not (rules := program.rules):
        return
    select = program.first(chain.SelectWhere)
    if len(rules) != program.n_steps:
        problem = f"has rules for {len(rules)} rounds, but {program.n_steps} rounds"
    elif select is None:
        problem = "has numbers of rules, but selects no sum by them"
    elif not 0 <= min(rules) <= max(rules) < len(select.sources):
        wrong = max(rules) if min(rules) >= 0 else min(rules)
        problem = f"has a round of rule {wrong}, and selects one of {len(select.sources)} sums"
    else:
        return
    raise ProgramError.broken("program", problem)


def _check_grid(program: ChainProgram) -> None:
    """All functions have a value at each lattice point, and functions that are read exist."""
    known = {function.name for function in program.functions}
    if len({len(function.values) for function in program.functions}) != 1:
        raise ProgramError.broken("functions", "need the same number of lattice points")
    for name in known:
        program.layout.slot(value_slot(name))
    parts = [part for layer in program.layers for part in layer.instructions]
    if missing := {name for part in parts for name in part.functions()} - known:
        raise ProgramError.broken("functions", f"lack {', '.join(sorted(missing))}")


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


@_shape_problem.register
def _shape_of_gated(instruction: chain.Gated, layout: Layout) -> str | None:
    shape = layout.slot(instruction.write).shape
    alike = (shape, (*shape[:-1], 1), (1,))  # a number for all entries, for each unit, for all
    for name in names(instruction, Use.READ):
        if (found := layout.slot(name).shape) not in alike:
            return f"{name} has shape {found}, {instruction.write} has {shape}"
    for name in names(instruction, Use.FLAG):
        if (found := layout.slot(name).shape) not in alike[1:]:
            return f"{name} has shape {found}; a flag is one number, or one for each unit"
    return None


@_shape_problem.register
def _shape_of_select_where(instruction: chain.SelectWhere, layout: Layout) -> str | None:
    n_sums, n_bits = len(instruction.sources), len(instruction.ones)
    if n_bits != len(instruction.zeros) or not 0 < n_sums <= 2**n_bits:
        return f"selects one of {n_sums} sums by {n_bits} and {len(instruction.zeros)} flags"
    problems = (_shape_problem(instruction.sum_of(rule), layout) for rule in range(n_sums))
    return next((problem for problem in problems if problem), None)


@_shape_problem.register
def _shape_of_multiply_matrices(instruction: chain.MultiplyMatrices, layout: Layout) -> str | None:
    left, right = layout.slot(instruction.left).shape, layout.slot(instruction.right).shape
    left = left[::-1] if instruction.left_transposed else left
    right = right[::-1] if instruction.right_transposed else right
    return _product_problem(left, right, instruction.write, layout)


def _product_problem(
    left: tuple[int, ...], right: tuple[int, ...], write: str, layout: Layout
) -> str | None:
    shape = layout.slot(write).shape
    if left[1:] == right[:1] and shape == (*left[:1], *right[1:]):
        return None
    return f"multiplies shapes {left} and {right} into {write} of shape {shape}"


@_shape_problem.register
def _shape_of_look_up_product(instruction: chain.LookUpProduct, layout: Layout) -> str | None:
    left, right = layout.slot(instruction.left).shape, layout.slot(instruction.right).shape
    written = (instruction.write, instruction.product)
    problems = (_product_problem(left, right, write, layout) for write in written)
    return next((problem for problem in problems if problem), None)


@_shape_problem.register
def _shape_of_share_columns(instruction: chain.ShareColumns, layout: Layout) -> str | None:
    layout.slot(chain.NO_CLASS)
    scores, write = (layout.slot(name).shape for name in (instruction.scores, instruction.write))
    if not 0 < len(instruction.classes) <= scores[0]:
        return f"shares {len(instruction.classes)} classes among {scores[0]} scores"
    return None if scores == write else f"shares scores of {scores} into {write}"


@_shape_problem.register
def _shape_of_multiply_entries(instruction: chain.MultiplyEntries, layout: Layout) -> str | None:
    shapes = {layout.slot(name).shape for name in (*instruction.reads(), instruction.write)}
    return None if len(shapes) == 1 else f"multiplies entries of {sorted(shapes)}"
