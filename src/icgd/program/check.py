"""The rules that every program obeys; `check_program` names the layer that breaks one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import singledispatch
from math import isfinite

from icgd.errors import ProgramError
from icgd.program.chain import ChainProgram, Program
from icgd.program.chain_check import check_chain
from icgd.program.functions import Function, GridMean, LatticeFunction, ReluSum
from icgd.program.grid_instructions import DecaySlot, DescendExamples, PredictMean, ShrinkSlot
from icgd.program.instructions import (
    IS_EXAMPLE,
    IS_QUERY,
    N_TOKENS,
    ONE,
    TOKENS_PER_EXAMPLE,
    AccumulateOuterProduct,
    AddGradient,
    AddProduct,
    ApplyUnits,
    Argument,
    AverageExamples,
    ClipSlots,
    DescendFunction,
    Instruction,
    LayerKind,
    LookUp,
    LookUpStep,
    MapSlots,
    MultiplySlots,
    Project,
    PullBack,
    WipeSlots,
)
from icgd.program.layout import Layout, Role
from icgd.program.program import Layer, StackProgram
from icgd.program.registers import IS_REGISTER, LOG_EXAMPLES, SCALE_SIZE
from icgd.program.ridge import RidgeSum
from icgd.program.unit_instructions import (
    ActivateUnits,
    AddGatedJacobian,
    AddGatedProduct,
    AddJacobian,
    AddOuterProduct,
    ByUnits,
    ClipByUnits,
    CopyToQueries,
    PassOn,
    PushJacobian,
    SlopeOfLoss,
    StartJacobian,
    WipeByUnits,
)

CHANGE_IN_PLACE = (
    ClipSlots,
    WipeSlots,
    AccumulateOuterProduct,
    AddGradient,
    AddProduct,
    LookUpStep,
    AddOuterProduct,
    AddJacobian,
    AddGatedProduct,
    AddGatedJacobian,
    ClipByUnits,
    WipeByUnits,
    DescendExamples,
    DecaySlot,
    ShrinkSlot,
)
"""Instructions that add to what a slot holds, or replace it."""

ACCUMULATE = (
    AccumulateOuterProduct,
    AddGradient,
    AddOuterProduct,
    AddJacobian,
    AddGatedProduct,
    AddGatedJacobian,
)
"""Those that add to weights."""


def check_program(program: Program) -> None:
    """Raise `ProgramError` or `LayoutError` unless every rule holds.

    Slots and functions exist; shapes agree; a layer has instructions of one kind; nothing is
    read before it is written, and nothing written over what another instruction left; scratch
    is wiped when a block ends; what is accumulated is zero on queries; numbers are finite.
    """
    if isinstance(program, ChainProgram):
        check_chain(program)
        return _check_numbers(program)
    if not isinstance(program.n_steps, int) or program.n_steps < 0 or not program.block:
        raise ProgramError.broken("program", "needs a block and a whole number of steps")
    if program.n_steps % program.steps_per_block or len(program.block) % program.steps_per_block:
        steps = f"{program.n_steps} steps and {len(program.block)} layers"
        raise ProgramError.broken("program", f"has {steps} in blocks of {program.steps_per_block}")
    _check_numbers(program)
    for function in program.functions:
        if function_problem := _function_problem(function):
            raise ProgramError.broken(f"function {function.name!r}", function_problem)
        if isinstance(function, RidgeSum) and function.activation != program.activation:
            units = f"has {function.activation} units in a program of {program.activation}"
            raise ProgramError.broken(f"function {function.name!r}", units)
    names = Counter((type(function), function.name) for function in program.functions)
    for (_, name), times in names.items():
        if times > 1:
            raise ProgramError.broken(f"function {name!r}", f"is there {times} times, expected one")
    _check_registers(program)
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


def _check_numbers(program: Program) -> None:
    for name, value in constants(program):
        if not isfinite(value):
            raise ProgramError.broken(name, f"is {value}, expected a finite number")


def layers_of(program: Program) -> tuple[Layer, ...]:
    """Every layer of the program, once."""
    if isinstance(program, ChainProgram):
        return program.layers
    return (*program.block, *program.prediction)


def constants(program: Program) -> Iterator[tuple[str, float]]:
    """Every number that the program holds, with the name of what it belongs to."""
    for function in program.functions:
        for field in fields(function):
            value = getattr(function, field.name)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, float):
                    yield f"function {function.name!r}", number
        if isinstance(function, RidgeSum):
            for unit in function.units:
                for number in (*unit.direction, unit.offset, unit.coefficient):
                    yield f"function {function.name!r}", number
    for layer in layers_of(program):
        for instruction in layer.instructions:
            for name in (
                "scale",
                "gate",
                "bound",
                "reach",
                "factor_reach",
                "probe",
                "step_size",
                "noise",
                "sharpness",
                "width",
                "leak",
                "decay",
                "threshold",
            ):
                value = getattr(instruction, name, None)
                if isinstance(value, float):
                    yield name, value


@singledispatch
def _function_problem(function: Function) -> str | None:
    """What is wrong with a function, or None."""
    return "is of no known kind"


@_function_problem.register
def _(function: ReluSum) -> str | None:
    increasing = all(a < b for a, b in zip(function.knots, function.knots[1:], strict=False))
    if not increasing or len(function.slopes) != len(function.knots) + 1:
        return "needs increasing knots and one slope more than knots"
    if not function.grid > 0 or not all(
        (knot / function.grid).is_integer() for knot in function.knots
    ):
        return f"has knots off its grid {function.grid}"
    if len(function.errors) != len(function.slopes) or min(function.errors) < 0:
        return "needs one certified error a piece"
    return None


@_function_problem.register
def _(function: LatticeFunction) -> str | None:
    if len(function.values) % 2 == 0:
        return f"has {len(function.values)} values, expected an odd number"
    positive = (function.reach, function.spacing, function.ratio)
    if not min(positive) > 0 or min(function.error, function.size, function.sensitivity) < 0:
        return "needs a positive reach, spacing and ratio, and errors of at least 0"
    return None


@_function_problem.register
def _(function: GridMean) -> str | None:
    if not len(function.points) == len(function.offsets) == len(function.values) > 0:
        return "needs a point, an offset and a value for each token"
    sizes = (function.error, function.size, function.per_argument, function.per_offset)
    if not function.reach > 0 or min(sizes) < 0:
        return "needs a positive reach, and errors of at least 0"
    return None


@_function_problem.register
def _(function: RidgeSum) -> str | None:
    if any(len(unit.direction) != len(function.half_widths) for unit in function.units):
        return f"has units that do not take {len(function.half_widths)} arguments"
    if not min(function.half_widths) > 0 or not function.error >= 0:
        return "needs a positive box and an error of at least 0"
    return None


def _check_registers(program: StackProgram) -> None:
    """All look-ups share the registers, and the registers' constants have their slots."""
    halves = {function.half for function in program.lattice_functions}
    if len(halves) > 1:
        raise ProgramError.broken("program", f"has look-ups over grids of half {sorted(halves)}")
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
        for name in set(instruction.reads()) & written - set(instruction.writes()):
            raise ProgramError.broken(where, f"reads {name!r} after writing it in the same layer")
        _check_writes(program.layout, instruction, filled, written, where)
        if problem := shape_problem(instruction, program.layout):
            raise ProgramError.broken(where, problem)
        if isinstance(instruction, WipeSlots | WipeByUnits):
            wiped.update(instruction.slots)
    filled.update(name for name in written if program.layout.slot(name).role is Role.SCRATCH)
    filled.difference_update(wiped)


def _check_functions(program: StackProgram, instruction: Instruction, where: str) -> None:
    """Functions exist, and those of one look-up are on one grid."""
    if isinstance(instruction, ByUnits):
        for name in instruction.functions():
            program.ridge_sum(name)
        return
    if instruction.kind is LayerKind.GRID:
        for name in instruction.functions():
            program.grid_mean(name)
        return
    if instruction.kind is not LayerKind.SOFTMAX:
        for name in instruction.functions():
            program.relu_sum(name)
        return
    look_ups = [program.look_up(name) for name in instruction.functions()]
    if len({(function.spacing, function.ratio) for function in look_ups}) > 1:
        names = ", ".join(function.name for function in look_ups)
        raise ProgramError.broken(where, f"looks up {names} at once, which are on different grids")


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
    if isinstance(instruction, DescendFunction):
        written.update(instruction.writes())
        return
    changes_in_place = isinstance(instruction, CHANGE_IN_PLACE)
    for name in instruction.writes():
        role = layout.slot(name).role
        if role in (Role.INPUT, Role.CONSTANT, Role.RESIDUAL):
            raise ProgramError.broken(where, f"writes to {name!r}, which must stay as it is")
        if role is Role.SCRATCH and isinstance(instruction, ACCUMULATE):
            raise ProgramError.broken(where, f"accumulates into scratch slot {name!r}")
        if role is Role.LABEL and getattr(instruction, "only_where", None) != IS_QUERY:
            raise ProgramError.broken(where, f"writes over {name!r}, the examples' labels")
        if name in written:
            raise ProgramError.broken(where, f"writes {name!r} twice in one layer")
        held = name in filled or role is Role.PARAMETER
        adds_to_weights = role is Role.PARAMETER and isinstance(instruction, AddProduct)
        if (held and not changes_in_place) or adds_to_weights:
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
    flags = {instruction.only_where, *instruction.never_where}
    known = {IS_EXAMPLE, IS_QUERY, IS_REGISTER} & set(layout.names)
    if flags not in ({ONE}, known) or len(instruction.never_where) != len(flags) - 1:
        expected = f"{', '.join(sorted(known))}, or only {ONE}"
        return f"its flags are {', '.join(sorted(flags))}, expected {expected}"
    slots = [slot for summand in instruction.summands for slot in summand.argument.slots]
    return _expect_equal_widths(layout, *slots, instruction.write)


@shape_problem.register
def _(instruction: LookUp, layout: Layout) -> str | None:
    if len(instruction.lookups) != len(instruction.into):
        return f"looks up {len(instruction.lookups)} functions into {len(instruction.into)} slots"
    return _argument_problem(instruction.argument, layout, *instruction.into)


@shape_problem.register
def _(instruction: Project, layout: Layout) -> str | None:
    return _argument_problem(instruction.argument, layout, instruction.write)


@shape_problem.register
def _(instruction: AddProduct, layout: Layout) -> str | None:
    return _argument_problem(instruction.argument, layout, instruction.factor, instruction.write)


def _argument_problem(argument: Argument, layout: Layout, *same_width: str) -> str | None:
    """What is wrong with the shape of an argument, or of slots that are as wide as it is."""
    if problem := _expect_equal_widths(layout, *argument.inputs.slots):
        return problem
    if argument.weights is None:
        return _expect_equal_widths(layout, argument.inputs.slots[0], *same_width)
    if problem := _expect_equal_widths(layout, *same_width):
        return problem
    rows, columns = (layout.slot(same_width[0]).width, layout.slot(argument.inputs.slots[0]).width)
    expected = (columns, rows) if argument.transposed else (rows, columns)
    return _expect_shape(layout, argument.weights, expected)


@shape_problem.register
def _(instruction: AddGradient, layout: Layout) -> str | None:
    expected = (layout.slot(instruction.left.slots[0]).width, layout.slot(instruction.right).width)
    return _expect_equal_widths(layout, *instruction.left.slots) or _expect_shape(
        layout, instruction.write, expected
    )


@shape_problem.register
def _(instruction: AverageExamples, layout: Layout) -> str | None:
    wide = [name for name in instruction.score.slots if layout.slot(name).width != 1]
    if wide:
        return f"its scores {', '.join(wide)} have more than one coordinate"
    return _expect_equal_widths(layout, *instruction.value.slots, instruction.write)


@shape_problem.register
def _(instruction: LookUpStep, layout: Layout) -> str | None:
    if instruction.n_examples < 1:
        return f"its table is made for {instruction.n_examples} examples"
    slots = (*instruction.key.slots, *instruction.levels)
    return _expect_shape(layout, instruction.write, (1, 1)) or _expect_equal_widths(
        layout, *slots, instruction.write
    )


@shape_problem.register
def _(instruction: ClipSlots, layout: Layout) -> str | None:
    if instruction.unit in (ONE, SCALE_SIZE):
        return None
    return f"its unit is {instruction.unit!r}, expected {ONE} or {SCALE_SIZE}"


@shape_problem.register(WipeSlots)
@shape_problem.register(DecaySlot)
def _(instruction: WipeSlots | DecaySlot, layout: Layout) -> str | None:
    return None


@shape_problem.register
def _(instruction: DescendFunction, layout: Layout) -> str | None:
    if layout.slot(instruction.residual).role is not Role.RESIDUAL:
        return f"descends on {instruction.residual!r}, which is no residual"
    if not instruction.terms:
        return "needs at least one kernel"
    width = layout.slot(instruction.inputs).width
    matrices = [term.transform for term in instruction.terms]
    if any(len(row) != width for matrix in matrices for row in matrix or ()):
        return f"transforms {instruction.inputs!r} by a matrix without {width} columns"
    moved = instruction.transform
    if moved is not None and {len(moved), *map(len, moved)} != {width}:
        return f"moves {instruction.inputs!r} by a matrix that is not {width} x {width}"
    return None


@shape_problem.register
def _(instruction: DescendExamples, layout: Layout) -> str | None:
    problems = [_expect_shape(layout, name, (1,)) for name in (instruction.label, instruction.mean)]
    if instruction.tokens not in (TOKENS_PER_EXAMPLE, N_TOKENS):
        problems.append(f"reads the share of an example in {instruction.tokens!r}, which has none")
    pairs = _pairs_problem(instruction.weights, instruction.inputs, layout)
    return next((problem for problem in (pairs, *problems) if problem), None)


def _pairs_problem(weights: tuple[str, ...], inputs: tuple[str, ...], layout: Layout) -> str | None:
    """What is wrong with weights and what each of them multiplies, or None."""
    if len(weights) != len(inputs):
        return f"has {len(weights)} weights for {len(inputs)} inputs"
    for pair in zip(weights, inputs, strict=True):
        if problem := _expect_equal_widths(layout, *pair):
            return problem
    return None


@shape_problem.register
def _(instruction: PredictMean, layout: Layout) -> str | None:
    return _pairs_problem(instruction.weights, instruction.inputs, layout) or _expect_shape(
        layout, instruction.write, (1,)
    )


@shape_problem.register
def _(instruction: ShrinkSlot, layout: Layout) -> str | None:
    return None if instruction.threshold >= 0 else f"shrinks by {instruction.threshold:g}"


@shape_problem.register
def _(instruction: ActivateUnits, layout: Layout) -> str | None:
    return _argument_problem(instruction.argument, layout, instruction.write)


@shape_problem.register
def _(instruction: PassOn, layout: Layout) -> str | None:
    columns = instruction.argument.width(layout)
    return _expect_shape(
        layout, instruction.weights, (layout.slot(instruction.write).width, columns)
    )


@shape_problem.register
def _(instruction: StartJacobian, layout: Layout) -> str | None:
    rows, columns = layout.slot(instruction.weights).shape
    if problem := _expect_shape(
        layout, instruction.weights, (rows, instruction.argument.width(layout))
    ):
        return problem
    entries = columns * layout.slot(instruction.inputs).width
    return _expect_shape(layout, instruction.write, (rows, entries))


@shape_problem.register
def _(instruction: PushJacobian, layout: Layout) -> str | None:
    rows, columns = layout.slot(instruction.weights).shape
    width = instruction.argument.width(layout)
    if problem := _expect_shape(layout, instruction.weights, (rows, width)):
        return problem
    entries = layout.slot(instruction.write).shape[-1]
    return _expect_shape(layout, instruction.jacobian, (columns, entries)) or _expect_shape(
        layout, instruction.write, (rows, entries)
    )


@shape_problem.register(AddOuterProduct)
@shape_problem.register(AddGatedProduct)
def _(instruction: AddOuterProduct | AddGatedProduct, layout: Layout) -> str | None:
    expected = (layout.slot(instruction.left).width, layout.slot(instruction.right).width)
    return _expect_shape(layout, instruction.write, expected)


@shape_problem.register(AddJacobian)
@shape_problem.register(AddGatedJacobian)
def _(instruction: AddJacobian | AddGatedJacobian, layout: Layout) -> str | None:
    expected = (layout.slot(instruction.left).width, layout.slot(instruction.write).width)
    return _expect_shape(layout, instruction.jacobian, expected)


@shape_problem.register
def _(instruction: SlopeOfLoss, layout: Layout) -> str | None:
    return _expect_equal_widths(
        layout, instruction.prediction, instruction.label, instruction.write
    )


@shape_problem.register
def _(instruction: CopyToQueries, layout: Layout) -> str | None:
    return _expect_equal_widths(layout, instruction.source, instruction.write)


@shape_problem.register(ClipByUnits)
@shape_problem.register(WipeByUnits)
def _(instruction: ClipByUnits | WipeByUnits, layout: Layout) -> str | None:
    return None


def _expect_shape(layout: Layout, name: str, expected: tuple[int, ...]) -> str | None:
    shape = layout.slot(name).shape
    return None if shape == expected else f"{name!r} has shape {shape}, expected {expected}"


def _expect_equal_widths(layout: Layout, *names: str) -> str | None:
    widths = {name: layout.slot(name).width for name in names}
    if len(set(widths.values())) == 1:
        return None
    return f"widths differ: {', '.join(f'{name} {width}' for name, width in widths.items())}"
