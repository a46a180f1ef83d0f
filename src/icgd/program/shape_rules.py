"""The shapes that an instruction of a stack asks of its slots: a rule for each instruction."""

from __future__ import annotations

from functools import singledispatch

from icgd.errors import ProgramError
from icgd.program.grid_instructions import DecaySlot, DescendExamples, PredictMean, ShrinkSlot
from icgd.program.instructions import (
    IS_EXAMPLE,
    IS_QUERY,
    ONE,
    AccumulateOuterProduct,
    AddGradient,
    AddProduct,
    ApplyUnits,
    Argument,
    ClipSlots,
    Instruction,
    LookUp,
    MapSlots,
    MultiplySlots,
    Project,
    PullBack,
    WipeSlots,
)
from icgd.program.kernel_instructions import DescendFunction
from icgd.program.layout import Layout, Role
from icgd.program.registers import IS_REGISTER, SCALE_SIZE
from icgd.program.table_instructions import AverageExamples, LookUpStep
from icgd.program.unit_instructions import (
    ActivateUnits,
    AddGatedJacobian,
    AddGatedProduct,
    AddJacobian,
    AddOuterProduct,
    ClipByUnits,
    CopyToQueries,
    PassOn,
    PushJacobian,
    SlopeOfLoss,
    StartJacobian,
    WipeByUnits,
)


@singledispatch
def shape_problem(instruction: Instruction, layout: Layout) -> str | None:
    """What is wrong with the shapes of an instruction's slots, or None."""
    raise ProgramError.broken(
        type(instruction).__name__, "has no shape rule in program/shape_rules.py"
    )


@shape_problem.register
def _shape_of_apply_units(instruction: ApplyUnits, layout: Layout) -> str | None:
    expected = (layout.slot(instruction.write).width, layout.slot(instruction.inputs).width)
    return _expect_shape(layout, instruction.weights, expected)


@shape_problem.register
def _shape_of_accumulate_outer_product(
    instruction: AccumulateOuterProduct, layout: Layout
) -> str | None:
    expected = (layout.slot(instruction.left).width, layout.slot(instruction.right).width)
    return _expect_shape(layout, instruction.write, expected)


@shape_problem.register
def _shape_of_pull_back(instruction: PullBack, layout: Layout) -> str | None:
    expected = (layout.slot(instruction.upstream).width, layout.slot(instruction.write).width)
    return _expect_shape(layout, instruction.weights, expected) or _expect_equal_widths(
        layout, instruction.slope, instruction.write
    )


@shape_problem.register
def _shape_of_multiply_slots(instruction: MultiplySlots, layout: Layout) -> str | None:
    return _expect_equal_widths(layout, instruction.left, instruction.right, instruction.write)


@shape_problem.register
def _shape_of_map_slots(instruction: MapSlots, layout: Layout) -> str | None:
    flags = {instruction.only_where, *instruction.never_where}
    known = {IS_EXAMPLE, IS_QUERY, IS_REGISTER} & set(layout.names)
    if flags not in ({ONE}, known) or len(instruction.never_where) != len(flags) - 1:
        expected = f"{', '.join(sorted(known))}, or only {ONE}"
        return f"its flags are {', '.join(sorted(flags))}, expected {expected}"
    slots = [slot for summand in instruction.summands for slot in summand.argument.slots]
    return _expect_equal_widths(layout, *slots, instruction.write)


@shape_problem.register
def _shape_of_look_up(instruction: LookUp, layout: Layout) -> str | None:
    if len(instruction.lookups) != len(instruction.into):
        return f"looks up {len(instruction.lookups)} functions into {len(instruction.into)} slots"
    return _argument_problem(instruction.argument, layout, *instruction.into)


@shape_problem.register
def _shape_of_project(instruction: Project, layout: Layout) -> str | None:
    return _argument_problem(instruction.argument, layout, instruction.write)


@shape_problem.register
def _shape_of_add_product(instruction: AddProduct, layout: Layout) -> str | None:
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
def _shape_of_add_gradient(instruction: AddGradient, layout: Layout) -> str | None:
    expected = (layout.slot(instruction.left.slots[0]).width, layout.slot(instruction.right).width)
    return _expect_equal_widths(layout, *instruction.left.slots) or _expect_shape(
        layout, instruction.write, expected
    )


@shape_problem.register
def _shape_of_average_examples(instruction: AverageExamples, layout: Layout) -> str | None:
    wide = [name for name in instruction.score.slots if layout.slot(name).width != 1]
    if wide:
        return f"its scores {', '.join(wide)} have more than one coordinate"
    return _expect_equal_widths(layout, *instruction.value.slots, instruction.write)


@shape_problem.register
def _shape_of_look_up_step(instruction: LookUpStep, layout: Layout) -> str | None:
    if instruction.n_examples < 1:
        return f"its table is made for {instruction.n_examples} examples"
    slots = (*instruction.key.slots, *instruction.levels)
    return _expect_shape(layout, instruction.write, (1, 1)) or _expect_equal_widths(
        layout, *slots, instruction.write
    )


@shape_problem.register
def _shape_of_clip_slots(instruction: ClipSlots, layout: Layout) -> str | None:
    if instruction.unit in (ONE, SCALE_SIZE):
        return None
    return f"its unit is {instruction.unit!r}, expected {ONE} or {SCALE_SIZE}"


@shape_problem.register
def _shape_of_wipe_slots(instruction: WipeSlots, layout: Layout) -> str | None:
    return None


@shape_problem.register
def _shape_of_descend_function(instruction: DescendFunction, layout: Layout) -> str | None:
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
def _shape_of_descend_examples(instruction: DescendExamples, layout: Layout) -> str | None:
    problems = [_expect_shape(layout, name, (1,)) for name in (instruction.label, instruction.mean)]
    if layout.slot(instruction.tokens).role is not Role.CONSTANT:
        problems.append(f"has the share of an example in {instruction.tokens!r}, no constant slot")
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
def _shape_of_predict_mean(instruction: PredictMean, layout: Layout) -> str | None:
    return _pairs_problem(instruction.weights, instruction.inputs, layout) or _expect_shape(
        layout, instruction.write, (1,)
    )


@shape_problem.register
def _shape_of_decay_slot(instruction: DecaySlot, layout: Layout) -> str | None:
    return None


@shape_problem.register
def _shape_of_shrink_slot(instruction: ShrinkSlot, layout: Layout) -> str | None:
    return None if instruction.threshold >= 0 else f"shrinks by {instruction.threshold:g}"


@shape_problem.register
def _shape_of_activate_units(instruction: ActivateUnits, layout: Layout) -> str | None:
    return _argument_problem(instruction.argument, layout, instruction.write)


@shape_problem.register
def _shape_of_pass_on(instruction: PassOn, layout: Layout) -> str | None:
    columns = instruction.argument.width(layout)
    return _expect_shape(
        layout, instruction.weights, (layout.slot(instruction.write).width, columns)
    )


@shape_problem.register
def _shape_of_start_jacobian(instruction: StartJacobian, layout: Layout) -> str | None:
    rows, columns = layout.slot(instruction.weights).shape
    if problem := _expect_shape(
        layout, instruction.weights, (rows, instruction.argument.width(layout))
    ):
        return problem
    entries = columns * layout.slot(instruction.inputs).width
    return _expect_shape(layout, instruction.write, (rows, entries))


@shape_problem.register
def _shape_of_push_jacobian(instruction: PushJacobian, layout: Layout) -> str | None:
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
def _shape_of_add_outer_product_or_add_gated_product(
    instruction: AddOuterProduct | AddGatedProduct, layout: Layout
) -> str | None:
    expected = (layout.slot(instruction.left).width, layout.slot(instruction.right).width)
    return _expect_shape(layout, instruction.write, expected)


@shape_problem.register(AddJacobian)
@shape_problem.register(AddGatedJacobian)
def _shape_of_add_jacobian_or_add_gated_jacobian(
    instruction: AddJacobian | AddGatedJacobian, layout: Layout
) -> str | None:
    expected = (layout.slot(instruction.left).width, layout.slot(instruction.write).width)
    return _expect_shape(layout, instruction.jacobian, expected)


@shape_problem.register
def _shape_of_slope_of_loss(instruction: SlopeOfLoss, layout: Layout) -> str | None:
    return _expect_equal_widths(
        layout, instruction.prediction, instruction.label, instruction.write
    )


@shape_problem.register
def _shape_of_copy_to_queries(instruction: CopyToQueries, layout: Layout) -> str | None:
    return _expect_equal_widths(layout, instruction.source, instruction.write)


@shape_problem.register(ClipByUnits)
@shape_problem.register(WipeByUnits)
def _shape_of_clip_by_units_or_wipe_by_units(
    instruction: ClipByUnits | WipeByUnits, layout: Layout
) -> str | None:
    return None


def _expect_shape(layout: Layout, name: str, expected: tuple[int, ...]) -> str | None:
    shape = layout.slot(name).shape
    return None if shape == expected else f"{name!r} has shape {shape}, expected {expected}"


def _expect_equal_widths(layout: Layout, *names: str) -> str | None:
    widths = {name: layout.slot(name).width for name in names}
    if len(set(widths.values())) == 1:
        return None
    return f"widths differ: {', '.join(f'{name} {width}' for name, width in widths.items())}"
