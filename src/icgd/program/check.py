"""The rules that every program obeys; `check_program` names the layer that breaks one."""

from __future__ import annotations

from collections import Counter
from functools import singledispatch
from itertools import product

from icgd.errors import ProgramError
from icgd.program import instructions as basic
from icgd.program.chain import ChainProgram
from icgd.program.chain_check import check_chain
from icgd.program.functions import Function, GridMean, LatticeFunction, ReluSum
from icgd.program.instructions import IS_EXAMPLE, IS_QUERY, ONE, Instruction, LayerKind
from icgd.program.kernel_instructions import DescendFunction
from icgd.program.layout import Layout, Role
from icgd.program.norm_instructions import Covary, ScaleCentred
from icgd.program.numbers import require_finite
from icgd.program.program import AbstractProgram, Layer
from icgd.program.registers import LOG_EXAMPLES
from icgd.program.ridge import RidgeSum
from icgd.program.shape_rules import shape_problem
from icgd.program.stack import StackProgram
from icgd.program.unit_instructions import ByUnits, WipeByUnits
from icgd.program.uses import Use, names

FIXED = (Role.INPUT, Role.CONSTANT, Role.RESIDUAL)
"""Slots that must stay as the prompt sets them."""

DIVISORS = ("reach", "reaches", "factor_reach", "ranges", "probe")
"""Fields of instructions by which arguments are divided."""

BETWEEN_STEPS_0 = (Role.SCRATCH, Role.SHARED)
"""Slots that hold something within a step alone."""


def check_program(program: AbstractProgram) -> None:
    """Raise `ProgramError` or `LayoutError` unless every rule holds."""
    require_finite(program)
    _check_slots(program.layout)
    _check_all_functions(program)
    _check_divisors(program)
    _check_rules(program)


def _check_slots(layout: Layout) -> None:
    for slot in layout.slots:
        if len(slot.shape) not in (1, 2) or min(slot.shape) < 1:
            expected = "one or two axes, each at least 1 long"
            raise ProgramError.broken(
                f"slot {slot.name!r}", f"has {slot.shape}, expected {expected}"
            )


def _check_divisors(program: AbstractProgram) -> None:
    for layer, name in product(program.layers, DIVISORS):
        for value in (getattr(part, name, None) for part in layer.instructions):
            numbers = value if isinstance(value, tuple) else (value,)
            if value is not None and not min(numbers) > 0:
                problem = f"has {name} {value}, expected what is positive"
                raise ProgramError.broken(f"layer {layer.title!r}", problem)


@singledispatch
def _check_rules(program: AbstractProgram) -> None:
    """Raise unless the rules hold that programs of this kind obey, besides finite numbers."""
    raise ProgramError.broken(type(program).__name__, "has no rules in program/check.py")


_check_rules.register(ChainProgram, check_chain)


@_check_rules.register
def _check_stack(program: StackProgram) -> None:
    """Slots and functions exist. Shapes agree. A layer has instructions of one kind. Nothing is
    read before it is written, and no instruction writes over what another one left. Scratch slots
    are wiped when a block ends. What is accumulated is zero on queries.
    """
    _check_steps(program)
    _check_constants(program)
    _check_units(program)
    _check_registers(program)
    _check_schedule(program)
    for part, layers in (("block", program.block_of(0)), ("prediction", program.prediction)):
        filled: set[str] = set()
        example_only: set[str] = set()
        for number, layer in enumerate(layers, start=1):
            where = f"{part} layer {number} ({layer.title})"
            _check_layer(program, layer, filled, where)
            _check_accumulations(layer, example_only, where)
        if filled:
            left = ", ".join(sorted(filled))
            raise ProgramError.broken(part, f"leaves {left} unwiped at its end")


def _check_steps(program: StackProgram) -> None:
    if not isinstance(program.n_steps, int) or program.n_steps < 0 or not program.block:
        raise ProgramError.broken("program", "needs a block and a whole number of steps")
    if program.steps_per_block < 1:
        raise ProgramError.broken("program", f"has blocks of {program.steps_per_block} steps")
    if program.n_steps % program.steps_per_block or len(program.block) % program.steps_per_block:
        steps = f"{program.n_steps} steps and {len(program.block)} layers"
        raise ProgramError.broken("program", f"has {steps} in blocks of {program.steps_per_block}")


def _check_schedule(program: StackProgram) -> None:
    """Steps that end in layers of their own all read and write the same slots there."""
    if not program.schedule:
        return
    if len(program.schedule) != program.n_steps and program.n_steps > 0:
        found = f"{len(program.schedule)} ends for {program.n_steps} steps"
        raise ProgramError.broken("program", f"has {found}, expected one for each")
    if program.steps_per_block != 1:
        raise ProgramError.broken("program", "has a schedule and blocks of several steps")
    if program.block[len(program.common) :] != program.schedule[0]:
        raise ProgramError.broken("program", "has a block that is not its first step")
    first = _outline(program.schedule[0])
    for step, layers in enumerate(program.schedule, start=1):
        if _outline(layers) != first:
            raise ProgramError.broken(f"step {step}", "does not end in the layers of the first")


def _outline(layers: tuple[Layer, ...]) -> tuple[object, ...]:
    """The instructions of layers by what they read and write, whatever their numbers are."""
    parts = (part for layer in layers for part in layer.instructions)
    return tuple((type(part), part.reads(), part.writes(), part.functions()) for part in parts)


def _check_constants(program: StackProgram) -> None:
    for slot in program.layout.having(Role.CONSTANT):
        if slot.shape != (1,):
            where = f"slot {slot.name!r}"
            raise ProgramError.broken(where, f"has shape {slot.shape}; a constant is one number")


def _check_units(program: StackProgram) -> None:
    for function in program.functions:
        if isinstance(function, RidgeSum) and function.activation != program.activation:
            problem = f"has {function.activation} units in a program of {program.activation}"
            raise ProgramError.broken(f"function {function.name!r}", problem)


def _check_all_functions(program: AbstractProgram) -> None:
    times = Counter((type(function), function.name) for function in program.functions)
    for function in program.functions:
        problem = _function_problem(function)
        if (count := times[type(function), function.name]) > 1:
            problem = problem or f"is there {count} times, expected one"
        if problem:
            raise ProgramError.broken(f"function {function.name!r}", problem)


@singledispatch
def _function_problem(function: Function) -> str | None:
    """What is wrong with a function; None if nothing is."""
    return "is of no known kind"


@_function_problem.register
def _problem_of_relu_sum(function: ReluSum) -> str | None:
    increasing = all(a < b for a, b in zip(function.knots, function.knots[1:], strict=False))
    if not increasing or len(function.slopes) != len(function.knots) + 1:
        return "needs increasing knots and one slope more than knots"
    if not function.knot_unit > 0 or not all(
        (knot / function.knot_unit).is_integer() for knot in function.knots
    ):
        return f"has knots that are no multiples of its knot_unit {function.knot_unit}"
    if len(function.errors) != len(function.slopes) or min(function.errors) < 0:
        return "needs one certified error a piece"
    return None


@_function_problem.register
def _problem_of_lattice_function(function: LatticeFunction) -> str | None:
    if len(function.values) % 2 == 0:
        return f"has {len(function.values)} values, expected an odd number"
    positive = (function.reach, function.spacing, function.ratio)
    if not min(positive) > 0 or min(function.error, function.size, function.sensitivity) < 0:
        return "needs a positive reach, spacing and ratio, and errors of at least 0"
    return None


@_function_problem.register
def _problem_of_grid_mean(function: GridMean) -> str | None:
    if not len(function.points) == len(function.offsets) == len(function.values) > 0:
        return "needs a point, an offset and a value for each token"
    sizes = (function.error, function.size, function.per_argument, function.per_offset)
    if not function.reach > 0 or min(sizes) < 0:
        return "needs a positive reach, and errors of at least 0"
    return None


@_function_problem.register
def _problem_of_ridge_sum(function: RidgeSum) -> str | None:
    if any(len(unit.direction) != len(function.half_widths) for unit in function.units):
        return f"has units that do not take {len(function.half_widths)} arguments"
    if not min(function.half_widths) > 0 or not function.error >= 0:
        return "needs a positive box and an error of at least 0"
    return None


def _check_registers(program: StackProgram) -> None:
    """All look-ups share the registers, and the registers' constants have their slots."""
    halves = {function.half for function in program.lattice_functions}
    if len(halves) > 1:
        raise ProgramError.broken("program", f"has look-ups over lattices of half {sorted(halves)}")
    shared = (ONE, IS_EXAMPLE, IS_QUERY, LOG_EXAMPLES) if halves else ()
    for name in (*program.registers(), *shared):
        if program.layout.slot(name).role is not Role.CONSTANT:
            raise ProgramError.broken("program", f"keeps register constants in {name!r}")


def _check_layer(program: StackProgram, layer: Layer, filled: set[str], where: str) -> None:
    """Check one layer and update `filled`, the scratch slots that hold something."""
    if len({instruction.kind for instruction in layer.instructions}) != 1:
        raise ProgramError.broken(where, "needs instructions of exactly one kind of layer")
    written: set[str] = set()
    wiped: set[str] = set()
    for instruction in layer.instructions:
        _check_functions(program, instruction, where)
        _check_reads(program.layout, instruction, filled, where)
        for name in (set(instruction.reads()) - set(instruction.writes())) & written:
            raise ProgramError.broken(where, f"reads {name!r} after writing it in the same layer")
        _check_writes(program.layout, instruction, filled, written, where)
        if problem := shape_problem(instruction, program.layout):
            raise ProgramError.broken(where, problem)
        if isinstance(instruction, basic.WipeSlots | WipeByUnits):
            wiped.update(instruction.slots)
    filled.update(name for name in written if program.layout.slot(name).role in BETWEEN_STEPS_0)
    filled.difference_update(wiped)


EVALUATED: dict[LayerKind, type[Function]] = {
    LayerKind.GRID: GridMean,
    LayerKind.SOFTMAX: LatticeFunction,
}
"""The kinds of function that layers evaluate; all other layers evaluate sums of ReLUs."""


def _check_functions(program: StackProgram, instruction: Instruction, where: str) -> None:
    """Functions exist, and those of one look-up have values at the same lattice points."""
    by_units = isinstance(instruction, ByUnits)
    kind: type[Function] = RidgeSum if by_units else EVALUATED.get(instruction.kind, ReluSum)
    functions = [program.function(name, kind) for name in instruction.functions()]
    lattices = {(f.spacing, f.ratio) for f in functions if isinstance(f, LatticeFunction)}
    if len(lattices) > 1:
        found = ", ".join(function.name for function in functions)
        raise ProgramError.broken(where, f"looks up {found} at once, which have different lattices")


def _check_accumulations(layer: Layer, example_only: set[str], where: str) -> None:
    """Attention sums over all tokens: what it accumulates must be zero on queries.

    `example_only` collects the slots that are zero there: gated ones, and products with them.
    """
    for instruction in layer.instructions:
        match instruction:
            case basic.MapSlots(only_where="is_example", write=write):
                example_only.add(write)
            case basic.MultiplySlots(left=left, right=right, write=write):
                example_only.update({write} if {left, right} & example_only else ())
            case basic.PullBack(upstream=upstream, added=added, write=write):
                example_only.update({write} if {upstream, *added} <= example_only else ())
            case Covary(left=left, right=right, write=write):
                example_only.update({write} if {left, right} & example_only else ())
            case ScaleCentred(source=source, share=share, write=write):
                read = {source} if share is None else {source, share}
                example_only.update({write} if read <= example_only else ())
            case basic.AccumulateOuterProduct(left=left) if left not in example_only:
                raise ProgramError.broken(where, f"accumulates {left!r}, not zero on queries")


def _check_reads(layout: Layout, instruction: Instruction, filled: set[str], where: str) -> None:
    for name in instruction.reads():
        if layout.slot(name).role in BETWEEN_STEPS_0 and name not in filled:
            raise ProgramError.broken(where, f"reads {name!r} before anything was written to it")


def _check_writes(
    layout: Layout, instruction: Instruction, filled: set[str], written: set[str], where: str
) -> None:
    if isinstance(instruction, DescendFunction):
        written.update(instruction.writes())
        return
    for name in instruction.writes():
        role = layout.slot(name).role
        if role in FIXED:
            raise ProgramError.broken(where, f"writes to {name!r}, which must stay as it is")
        if role is Role.SCRATCH and name in names(instruction, Use.ACCUMULATE):
            raise ProgramError.broken(where, f"accumulates into scratch slot {name!r}")
        if role is Role.LABEL and getattr(instruction, "only_where", None) != IS_QUERY:
            raise ProgramError.broken(where, f"writes over {name!r}, the examples' labels")
        if name in written:
            raise ProgramError.broken(where, f"writes {name!r} twice in one layer")
        is_held = name in filled or role is Role.PARAMETER
        is_added = role is Role.PARAMETER and name in names(instruction, Use.ADD)
        if (is_held and name in names(instruction, Use.WRITE)) or is_added:
            raise ProgramError.broken(where, f"writes over {name!r}, which still holds a value")
        written.add(name)
