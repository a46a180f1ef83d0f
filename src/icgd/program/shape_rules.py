"""The shapes that an instruction of a stack asks of its slots: a rule for each instruction."""

from __future__ import annotations

from functools import singledispatch

from icgd.errors import ProgramError
from icgd.program import instructions as basic
from icgd.program import linear_instructions as grid
from icgd.program import linear_instructions as momentum
from icgd.program import network_instructions as classes
from icgd.program import network_instructions as norms
from icgd.program import network_instructions as update
from icgd.program import table_instructions as table
from icgd.program import unit_instructions as units
from icgd.program.instructions import IS_EXAMPLE, IS_QUERY, ONE, Argument, Instruction, stacked
from icgd.program.kernel_instructions import DescendFunction
from icgd.program.layout import Layout, Role
from icgd.program.registers import IS_REGISTER, SCALE_SIZE


@singledispatch
def shape_problem(instruction: Instruction, layout: Layout) -> str | None:
    """What is wrong with the shapes of an instruction's slots, or None."""
    raise ProgramError(f"{type(instruction).__name__} has no shape rule.")


@shape_problem.register
def _shape_of_units(instruction: basic.ApplyUnits, layout: Layout) -> str | None:
    columns = stacked(instruction.inputs, instruction.bias)
    return _matrix_problem(layout, instruction.weights, instruction.write, *columns)


@shape_problem.register
def _shape_of_outer_product(
    instruction: basic.AccumulateOuterProduct | units.AddOuterProduct | units.AddGatedProduct,
    layout: Layout,
) -> str | None:
    columns = stacked(instruction.right, instruction.bias)
    return _matrix_problem(layout, instruction.write, instruction.left, *columns)


@shape_problem.register
def _shape_of_pull_back(instruction: basic.PullBack, layout: Layout) -> str | None:
    rows, columns = layout.width_of(instruction.upstream), layout.width_of(instruction.write)
    has_bias = layout.slot(instruction.weights).shape == (rows, columns + 1)
    expected = (rows, columns + has_bias)
    slope = () if instruction.slope == ONE else (instruction.slope,)
    return _shape_unlike(expected, layout, instruction.weights) or _width_problem(
        layout, *slope, *instruction.added, instruction.write
    )


@shape_problem.register
def _shape_of_multiply_slots(instruction: basic.MultiplySlots, layout: Layout) -> str | None:
    return _width_problem(layout, instruction.left, instruction.right, instruction.write)


@shape_problem.register
def _shape_of_map_slots(instruction: basic.MapSlots, layout: Layout) -> str | None:
    flags = {instruction.only_where, *instruction.never_where}
    known = {IS_EXAMPLE, IS_QUERY, IS_REGISTER} & set(layout.names)
    if instruction.only_where == IS_EXAMPLE:
        known |= {update.OUT_OF_BATCH} & set(layout.names)
    if flags not in ({ONE}, known) or len(instruction.never_where) != len(flags) - 1:
        expected = f"{', '.join(sorted(known))}, or only {ONE}"
        return f"its flags are {', '.join(sorted(flags))}, expected {expected}"
    slots = [slot for summand in instruction.summands for slot in summand.argument.slots]
    if not instruction.summands:
        return "maps nothing, expected a summand"
    return _width_problem(layout, *slots, instruction.write)


@shape_problem.register
def _shape_of_look_up(instruction: basic.LookUp, layout: Layout) -> str | None:
    if len(instruction.lookups) != len(instruction.into):
        return f"looks up {len(instruction.lookups)} functions into {len(instruction.into)} slots"
    return _argument_problem(instruction.argument, layout, *instruction.into)


@shape_problem.register
def _shape_of_argument(
    instruction: basic.Project | units.ActivateUnits, layout: Layout
) -> str | None:
    return _argument_problem(instruction.argument, layout, instruction.write)


@shape_problem.register
def _shape_of_add_product(instruction: basic.AddProduct, layout: Layout) -> str | None:
    return _argument_problem(instruction.argument, layout, instruction.factor, instruction.write)


def _argument_problem(argument: Argument, layout: Layout, *same_width: str) -> str | None:
    """What is wrong with the shape of an argument, or of slots that are as wide as it is."""
    first = argument.inputs.slots[0]
    if problem := _width_problem(layout, *argument.inputs.slots):
        return problem
    if argument.weights is None:
        return _width_problem(layout, first, *same_width)
    sides = (first, same_width[0]) if argument.transposed else (same_width[0], first)
    columns = stacked(sides[1], argument.bias)
    return _width_problem(layout, *same_width) or _matrix_problem(
        layout, argument.weights, sides[0], *columns
    )


def _inputs_problem(argument: Argument, layout: Layout) -> str | None:
    """What is wrong with the inputs of an argument, which its matrix has a column for each of."""
    if (problem := _width_problem(layout, *argument.inputs.slots)) or argument.weights is None:
        return problem
    shape, width = layout.slot(argument.weights).shape, layout.width_of(argument.inputs.slots[0])
    expected = (width, shape[-1]) if argument.transposed else (shape[0], width + argument.has_bias)
    return _shape_unlike(expected, layout, argument.weights)


@shape_problem.register
def _shape_of_add_gradient(instruction: basic.AddGradient, layout: Layout) -> str | None:
    left = instruction.left.slots
    return _width_problem(layout, *left) or _matrix_problem(
        layout, instruction.write, left[0], *stacked(instruction.right, instruction.bias)
    )


@shape_problem.register
def _shape_of_average_examples(instruction: table.AverageExamples, layout: Layout) -> str | None:
    wide = [name for name in instruction.score.slots if layout.width_of(name) != 1]
    if wide:
        return f"its scores {', '.join(wide)} have more than one coordinate"
    return _width_problem(layout, *instruction.value.slots, instruction.write)


@shape_problem.register
def _shape_of_look_up_step(instruction: table.LookUpStep, layout: Layout) -> str | None:
    if instruction.n_examples < 1:
        return f"its table is made for {instruction.n_examples} examples"
    slots = (*instruction.key.slots, *instruction.levels, instruction.write)
    return _shape_unlike((1, 1), layout, instruction.write) or _width_problem(layout, *slots)


@shape_problem.register
def _shape_of_clip_slots(instruction: basic.ClipSlots, layout: Layout) -> str | None:
    if instruction.unit in (ONE, SCALE_SIZE):
        return None
    return f"its unit is {instruction.unit!r}, expected {ONE} or {SCALE_SIZE}"


@shape_problem.register
def _shape_of_share_classes(instruction: classes.ShareClasses, layout: Layout) -> str | None:
    expected = (len(instruction.classes),)
    return _shape_unlike(expected, layout, instruction.scores, instruction.write)


@shape_problem.register
def _shape_of_pairs(
    instruction: classes.MapDifferences | classes.MapRowSums, layout: Layout
) -> str | None:
    pairs, single = instruction.write, instruction.source
    if isinstance(instruction, classes.MapRowSums):
        pairs, single = single, pairs
    return _shape_unlike((layout.width_of(single) ** 2,), layout, pairs)


@shape_problem.register
def _shape_of_covary(instruction: norms.Covary, layout: Layout) -> str | None:
    return _width_problem(layout, instruction.left, instruction.right) or _shape_unlike(
        (1,), layout, instruction.write
    )


@shape_problem.register
def _shape_of_scale_centred(instruction: norms.ScaleCentred, layout: Layout) -> str | None:
    if (instruction.along is None) != (instruction.share is None):
        return "has one of `along` and `share`, expected both or neither"
    if instruction.reach is not None and (instruction.share or not instruction.reach > 0):
        return f"promises a reach of {instruction.reach:g}, which only a norm has"
    wide = [name for name in (instruction.source, instruction.along) if name is not None]
    single = [name for name in (instruction.scale, instruction.share) if name is not None]
    return _width_problem(layout, *wide, instruction.write) or _shape_unlike((1,), layout, *single)


@shape_problem.register
def _shape_of_recombine(instruction: update.Recombine, layout: Layout) -> str | None:
    if instruction.unit not in (ONE, SCALE_SIZE):
        return f"its unit is {instruction.unit!r}, expected {ONE} or {SCALE_SIZE}"
    for part in instruction.assignments:
        if problem := _width_problem(layout, *part.value.slots, *part.shares):
            return problem
        if not 0 <= part.keeps < 1:
            return f"keeps {part.keeps:g} of an average, expected 0 to below 1"
        if part.bound is not None and not part.bound > 0:
            return f"clips {part.write!r} to a bound of {part.bound:g}"
    return None


@shape_problem.register
def _shape_of_take_turns(instruction: update.TakeTurns, layout: Layout) -> str | None:
    if instruction.batch_size < 1:
        return f"has batches of {instruction.batch_size} examples"
    slots = (instruction.place, instruction.waits, instruction.n_examples)
    return _shape_unlike((1,), layout, *slots)


@shape_problem.register
def _shape_of_any_slots(
    instruction: basic.WipeSlots | units.WipeByUnits | grid.DecaySlot, layout: Layout
) -> str | None:
    return None


@shape_problem.register
def _shape_of_clip_by_units(instruction: units.ClipByUnits, layout: Layout) -> str | None:
    return None if instruction.slots else "clips no slot, expected at least one"


@shape_problem.register
def _shape_of_descend_function(instruction: DescendFunction, layout: Layout) -> str | None:
    if layout.slot(instruction.residual).role is not Role.RESIDUAL:
        return f"descends on {instruction.residual!r}, which is no residual"
    if not instruction.terms:
        return "needs at least one kernel"
    if problem := _velocity_problem(instruction, layout):
        return problem
    width = layout.width_of(instruction.inputs)
    matrices = [matrix for term in instruction.terms for matrix in term.matrices]
    if () in matrices:
        return f"transforms {instruction.inputs!r} by a matrix without rows"
    if any(len(row) != width for matrix in matrices for row in matrix or ()):
        return f"transforms {instruction.inputs!r} by a matrix without {width} columns"
    moved = instruction.transform
    if moved is not None and {len(moved), *map(len, moved)} != {width}:
        return f"moves {instruction.inputs!r} by a matrix that is not {width} x {width}"
    return None


def _velocity_problem(instruction: DescendFunction, layout: Layout) -> str | None:
    velocity = instruction.velocity
    if velocity is None:
        kept = instruction.momentum or instruction.ahead
        return f"has momentum {kept:g}, but no slot for the velocity" if kept else None
    if layout.slot(velocity).role is not Role.VELOCITY:
        return f"keeps its last change in {velocity!r}, which is no velocity"
    return _width_problem(layout, instruction.residual, velocity)


@shape_problem.register
def _shape_of_descend_examples(instruction: grid.DescendExamples, layout: Layout) -> str | None:
    if problem := _pairs_problem(instruction, layout):
        return problem
    if instruction.tokens not in (basic.TOKENS_PER_EXAMPLE, basic.N_TOKENS):
        return f"reads the share of an example in {instruction.tokens!r}, which has none"
    return _shape_unlike((1,), layout, instruction.label, instruction.mean)


def _pairs_problem(
    instruction: grid.DescendExamples | grid.PredictMean, layout: Layout
) -> str | None:
    """What is wrong with weights and what each of them multiplies, or None."""
    weights, inputs = instruction.weights, instruction.inputs
    if len(weights) != len(inputs):
        return f"has {len(weights)} weights for {len(inputs)} inputs"
    for name in inputs:
        if name != ONE and layout.slot(name).role is not Role.INPUT:
            return f"multiplies weights by {name!r}, which is no input"
    problems = (_width_problem(layout, *pair) for pair in zip(weights, inputs, strict=True))
    return next(filter(None, problems), None)


@shape_problem.register
def _shape_of_predict_mean(instruction: grid.PredictMean, layout: Layout) -> str | None:
    if instruction.checked not in (IS_EXAMPLE, IS_QUERY):
        return f"checks scores where {instruction.checked!r}, expected {IS_EXAMPLE} or {IS_QUERY}"
    if instruction.factors and len(instruction.factors) != len(instruction.weights):
        return f"has {len(instruction.factors)} factors for {len(instruction.weights)} weights"
    return _pairs_problem(instruction, layout) or _shape_unlike((1,), layout, instruction.write)


@shape_problem.register
def _shape_of_moved_slot(
    instruction: momentum.MoveByVelocity | momentum.ShrinkMoved, layout: Layout
) -> str | None:
    if getattr(instruction, "threshold", 0.0) < 0:
        return "shrinks by less than 0"
    if layout.slot(instruction.velocity).role is not Role.VELOCITY:
        return f"keeps its last change in {instruction.velocity!r}, which is no velocity"
    return _shape_unlike(layout.slot(instruction.slot).shape, layout, instruction.velocity)


@shape_problem.register
def _shape_of_shrink_slot(instruction: grid.ShrinkSlot, layout: Layout) -> str | None:
    return None if instruction.threshold >= 0 else f"shrinks by {instruction.threshold:g}"


@shape_problem.register
def _shape_of_pass_on(instruction: units.PassOn, layout: Layout) -> str | None:
    if problem := _inputs_problem(instruction.argument, layout):
        return problem
    columns = instruction.argument.width(layout) + (instruction.bias is not None)
    expected = (layout.width_of(instruction.write), columns)
    return _shape_unlike(expected, layout, instruction.weights)


@shape_problem.register
def _shape_of_start_jacobian(instruction: units.StartJacobian, layout: Layout) -> str | None:
    if problem := _inputs_problem(instruction.argument, layout):
        return problem
    rows, width = layout.slot(instruction.weights).shape[0], instruction.argument.width(layout)
    has_bias = instruction.bias is not None
    entries = width * layout.width_of(*stacked(instruction.inputs, instruction.bias))
    expected = (rows, width + has_bias)
    return _shape_unlike(expected, layout, instruction.weights) or _shape_unlike(
        (rows, entries), layout, instruction.write
    )


@shape_problem.register
def _shape_of_push_jacobian(instruction: units.PushJacobian, layout: Layout) -> str | None:
    if problem := _inputs_problem(instruction.argument, layout):
        return problem
    rows, width = layout.slot(instruction.weights).shape[0], instruction.argument.width(layout)
    entries = layout.slot(instruction.write).shape[-1]
    has_bias = layout.slot(instruction.weights).shape == (rows, width + 1)
    return (
        _shape_unlike((rows, width + has_bias), layout, instruction.weights)
        or _shape_unlike((width, entries), layout, instruction.jacobian)
        or _shape_unlike((rows, entries), layout, instruction.write)
    )


@shape_problem.register
def _shape_of_jacobian(
    instruction: units.AddJacobian | units.AddGatedJacobian, layout: Layout
) -> str | None:
    return _matrix_problem(layout, instruction.jacobian, instruction.left, instruction.write)


@shape_problem.register
def _shape_of_slope_of_loss(instruction: units.SlopeOfLoss, layout: Layout) -> str | None:
    return _width_problem(layout, instruction.prediction, instruction.label, instruction.write)


@shape_problem.register
def _shape_of_copy_to_queries(instruction: units.CopyToQueries, layout: Layout) -> str | None:
    return _width_problem(layout, instruction.source, instruction.write)


def _matrix_problem(layout: Layout, name: str, rows: str, *columns: str) -> str | None:
    """A matrix has a row for each coordinate of slot `rows`, and a column for each of `columns`."""
    return _shape_unlike((layout.width_of(rows), layout.width_of(*columns)), layout, name)


def _shape_unlike(expected: tuple[int, ...], layout: Layout, *names: str) -> str | None:
    for name in names:
        if (shape := layout.slot(name).shape) != expected:
            return f"{name!r} has shape {shape}, expected {expected}"
    return None


def _width_problem(layout: Layout, *names: str) -> str | None:
    widths = {name: layout.width_of(name) for name in names}
    if len(set(widths.values())) == 1:
        return None
    return f"widths differ: {', '.join(f'{name} {width}' for name, width in widths.items())}"
