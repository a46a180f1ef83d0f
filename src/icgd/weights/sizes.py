"""How large an instruction becomes as heads or hidden units: counted, never built."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from icgd.errors import ProgramError
from icgd.program.functions import ReluSum
from icgd.program.grid_instructions import DescendExamples, ShrinkSlot
from icgd.program.instructions import (
    IS_QUERY,
    AccumulateOuterProduct,
    AddGradient,
    AddProduct,
    ApplyUnits,
    Argument,
    ClipSlots,
    Instruction,
    LayerKind,
    LookUp,
    MapSlots,
    MultiplySlots,
    Project,
    PullBack,
    WipeSlots,
)
from icgd.program.kernel_instructions import DescendFunction
from icgd.program.layout import Layout
from icgd.program.program import Layer
from icgd.program.registers import IS_REGISTER
from icgd.program.ridge import RidgeSum
from icgd.program.stack import StackProgram
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


@dataclass(frozen=True)
class InstructionSize:
    """`units` heads of `width` features each (all attention), or hidden units (MLP)."""

    units: int
    width: int
    nonzeros: int


@dataclass(frozen=True)
class LayerSize:
    """The size of one layer of the transformer; of grid attention, with its grid tokens."""

    title: str
    kind: LayerKind
    d_model: int
    units: int
    width: int
    nonzeros: int
    n_grid: int = 0

    @property
    def n_heads(self) -> int:
        return 0 if self.kind is LayerKind.MLP else self.units

    @property
    def parameters(self) -> int:
        if self.kind is LayerKind.MLP:
            return self.units * (2 * self.d_model + 1)
        if self.kind is LayerKind.GRID:
            maps = self.units * self.n_grid * (2 + self.width)  # each head has its own
            return 4 * self.units * self.d_model * self.width + maps
        grid = self.n_grid * (1 + self.d_model)  # its sequence map and its position codes
        return 4 * self.units * self.d_model * self.width + grid

    def flops(self, n_tokens: int) -> int:
        """Multiplications and additions of the dense layer on `n_tokens` tokens, or one column."""
        if self.kind is LayerKind.GRID:
            projected = 4 * self.units * self.d_model * self.width * (n_tokens + 1)
            maps = 4 * self.units * self.n_grid * self.width
            return projected + maps + 4 * self.units * n_tokens * self.n_grid * self.width
        if self.n_grid:
            features = 2 * self.units * self.d_model * self.width
            scores = 4 * self.units * self.n_grid * self.width
            return 2 * self.n_grid * self.d_model + (2 + 2 * self.n_grid) * features + scores
        projections = 2 * n_tokens * self.parameters
        if self.kind in (LayerKind.ATTENTION, LayerKind.SOFTMAX, LayerKind.KERNEL):
            return projections + 4 * self.units * n_tokens**2 * self.width
        if self.kind is LayerKind.PRODUCT:
            return projections + 3 * self.units * n_tokens * self.width
        return projections


def layer_size(layer: Layer, program: StackProgram) -> LayerSize:
    """Heads of one layer share the width of the widest."""
    sizes = [instruction_size(instruction, program) for instruction in layer.instructions]
    return LayerSize(
        title=layer.title,
        kind=layer.kind,
        d_model=program.layout.width,
        units=sum(size.units for size in sizes),
        width=max(size.width for size in sizes),
        nonzeros=sum(size.nonzeros for size in sizes),
    )


@singledispatch
def instruction_size(instruction: Instruction, program: StackProgram) -> InstructionSize:
    """Heads or hidden units, their width and their non-zero weights."""
    raise ProgramError.broken(type(instruction).__name__, "has no size rule in weights/sizes.py")


def _nonzero_inputs(function: ReluSum, n_arguments: int) -> int:
    """Non-zero weights and biases with which the terms read `n_arguments` features."""
    terms = function.terms()
    scaled = sum(term.scale != 0.0 for term in terms)
    shifted = sum(term.shift != 0.0 for term in terms)
    return scaled * n_arguments + shifted


@instruction_size.register
def _size_of_apply_units(instruction: ApplyUnits, program: StackProgram) -> InstructionSize:
    function = program.relu_sum(instruction.function)
    n_units, fan_in = program.layout.slot(instruction.weights).shape
    n_terms = len(function.terms())
    keys_values_outputs = n_terms * (fan_in + 3)
    nonzeros = n_units * (_nonzero_inputs(function, fan_in) + keys_values_outputs)
    return InstructionSize(n_units * n_terms, fan_in + 1, nonzeros)


@instruction_size.register
def _size_of_accumulate_outer_product(
    instruction: AccumulateOuterProduct, program: StackProgram
) -> InstructionSize:
    rows, columns = program.layout.slot(instruction.write).shape
    return InstructionSize(2 * rows, columns, 2 * rows * (2 + 2 * columns))


@instruction_size.register
def _size_of_pull_back(instruction: PullBack, program: StackProgram) -> InstructionSize:
    rows, columns = program.layout.slot(instruction.weights).shape
    return InstructionSize(columns, rows, columns * (2 * rows + 2))


@instruction_size.register
def _size_of_multiply_slots(instruction: MultiplySlots, program: StackProgram) -> InstructionSize:
    width = program.layout.slot(instruction.write).width
    return InstructionSize(width, 1, 4 * width)


@instruction_size.register
def _size_of_map_slots(instruction: MapSlots, program: StackProgram) -> InstructionSize:
    width = program.layout.slot(instruction.write).width
    units, nonzeros = 0, 0
    for summand in instruction.summands:
        function = program.relu_sum(summand.function)
        n_terms = len(function.terms())
        units += width * n_terms
        gates_and_outputs = n_terms * (len(instruction.never_where) + 1)
        nonzeros += width * (
            _nonzero_inputs(function, len(summand.argument.slots)) + gates_and_outputs
        )
    return InstructionSize(units, 1, nonzeros)


@instruction_size.register
def _size_of_clip_slots(instruction: ClipSlots, program: StackProgram) -> InstructionSize:
    width = sum(program.layout.slot(name).width for name in instruction.slots)
    return InstructionSize(2 * width, 1, 6 * width)


@instruction_size.register
def _size_of_shrink_slot(instruction: ShrinkSlot, program: StackProgram) -> InstructionSize:
    """Two units read the coordinate alone, four an offset too."""
    width = program.layout.slot(instruction.slot).width
    n_shifted = 2 + 2 * (instruction.threshold > 0)
    return InstructionSize(6 * width, 1, (6 * 2 + n_shifted) * width)


@instruction_size.register
def _size_of_descend_examples(
    instruction: DescendExamples, program: StackProgram
) -> InstructionSize:
    """Two heads: query 1, key 3, value and output as wide as the inputs."""
    width = sum(program.layout.slot(name).width for name in instruction.inputs)
    return InstructionSize(2, width, 2 * (4 + 2 * width))


@instruction_size.register
def _size_of_wipe_slots(instruction: WipeSlots, program: StackProgram) -> InstructionSize:
    width = sum(program.layout.slot(name).width for name in instruction.slots)
    return InstructionSize(2 * width, 1, 4 * width)


GRID_FEATURES = 2
"""Features of a head over the grid besides its argument: the offset, and the memory's own."""

GRID_NONZEROS = 6
"""What they take: two in the query; the offset, two masks and the memory's flag in the key."""


def _argument_nonzeros(argument: Argument, layout: Layout) -> int:
    """Of query and key: the inputs with their coefficients, the weights or the scale."""
    return argument.features(layout) * (len(argument.inputs.slots) + 1)


@instruction_size.register
def _size_of_look_up(instruction: LookUp, program: StackProgram) -> InstructionSize:
    argument, layout = instruction.argument, program.layout
    heads, n_functions = argument.width(layout), len(instruction.lookups)
    width = max(argument.features(layout) + GRID_FEATURES, n_functions)
    nonzeros = _argument_nonzeros(argument, layout) + GRID_NONZEROS + 2 * n_functions
    return InstructionSize(heads, width, heads * nonzeros)


@instruction_size.register
def _size_of_project(instruction: Project, program: StackProgram) -> InstructionSize:
    argument, layout = instruction.argument, program.layout
    heads = argument.width(layout)
    nonzeros = _argument_nonzeros(argument, layout) + GRID_NONZEROS + 2
    return InstructionSize(heads, argument.features(layout) + GRID_FEATURES, heads * nonzeros)


@instruction_size.register
def _size_of_add_product(instruction: AddProduct, program: StackProgram) -> InstructionSize:
    argument, layout = instruction.argument, program.layout
    heads = 2 * argument.width(layout)
    nonzeros = _argument_nonzeros(argument, layout) + GRID_NONZEROS + 4
    width = argument.features(layout) + 1 + GRID_FEATURES
    return InstructionSize(heads, width, heads * nonzeros)


PROBES = ((1.0, 3 / 2), (2.0, -3 / 5), (3.0, 1 / 10))
"""Multiples k of the probe in `AddGradient` and shares c of them: sum_k c_k sinh(k e) / k is e up
to a seventh power."""

GRADIENT_FEATURES = 4
"""Features of a head of `AddGradient`: the probe, the sink, and two masks."""

GRADIENT_NONZEROS = 11
"""Non-zeros of query and key besides `left`: probe; log n, sink, flag; 3 flags; one, 3 flags."""


@instruction_size.register
def _size_of_add_gradient(instruction: AddGradient, program: StackProgram) -> InstructionSize:
    rows, columns = program.layout.slot(instruction.write).shape
    nonzeros = GRADIENT_NONZEROS + len(instruction.left.slots) + 2 * columns
    heads = 2 * len(PROBES) * rows
    return InstructionSize(heads, max(columns, GRADIENT_FEATURES), heads * nonzeros)


@instruction_size.register
def _size_of_average_examples(
    instruction: AverageExamples, program: StackProgram
) -> InstructionSize:
    width = program.layout.slot(instruction.write).width
    masks = len(other_tokens(program.layout))
    scores = 1 + len(instruction.score.slots) + masks
    return InstructionSize(1, width, scores + width * (len(instruction.value.slots) + 1))


def other_tokens(layout: Layout) -> tuple[str, ...]:
    """Flags of the tokens that are no examples."""
    return tuple(flag for flag in (IS_QUERY, IS_REGISTER) if flag in layout.names)


@instruction_size.register
def _size_of_look_up_step(instruction: LookUpStep, program: StackProgram) -> InstructionSize:
    added = instruction_size(instruction.addition, program)
    wiped = instruction_size(WipeSlots((instruction.write,)), program)
    return InstructionSize(added.units + wiped.units, 1, added.nonzeros + wiped.nonzeros)


@instruction_size.register
def _size_of_descend_function(
    instruction: DescendFunction, program: StackProgram
) -> InstructionSize:
    """A head for each kernel, and one for the noise."""
    inputs = program.layout.slot(instruction.inputs).width
    labels = program.layout.slot(instruction.residual).width
    moved = instruction.transform or ()
    width = max(inputs, *(len(term.transform or ()) for term in instruction.terms))
    width = max(width, labels + inputs * bool(moved))
    entries = sum(value != 0 for row in moved for value in row)
    values = 2 * labels + inputs * bool(moved) + entries  # W_V and W_O
    scores = [
        2
        * (inputs if term.transform is None else sum(g != 0 for row in term.transform for g in row))
        for term in instruction.terms
    ]
    n_noise = int(instruction.noise > 0)
    nonzeros = sum(scores) + len(scores) * values + n_noise * 2 * labels
    return InstructionSize(len(scores) + n_noise, width, nonzeros)


def offset_feature(argument: Argument, layout: Layout) -> int:
    """The feature in which a head by units has the offset: a slot itself shares it."""
    return 0 if argument.weights is None else argument.features(layout)


def _nonzero_numbers(fit: RidgeSum) -> tuple[int, ...]:
    """How many units have a non-zero entry for each argument, and a non-zero offset."""
    rows = [(*unit.direction, unit.offset) for unit in fit.units]
    return tuple(sum(number != 0 for number in column) for column in zip(*rows, strict=True))


def _heads_by_units(
    argument: Argument, layout: Layout, fit: RidgeSum, n_others: int, rows: int
) -> InstructionSize:
    """Heads for every coordinate of the argument and `n_others` other numbers, each of `rows`."""
    *others, own, offset = _nonzero_numbers(fit)
    width = argument.width(layout)
    terms = argument.features(layout) * len(argument.inputs.slots)
    key = 1 if argument.weights is None else argument.features(layout) + 1
    each = own * terms + offset + sum(others) + fit.n_units * (key + 2 * rows)
    heads = width * n_others
    features = max(offset_feature(argument, layout) + 1, rows)
    return InstructionSize(heads * fit.n_units, features, heads * each)


@instruction_size.register
def _size_of_activate_units(instruction: ActivateUnits, program: StackProgram) -> InstructionSize:
    fit = program.ridge_sum(instruction.function)
    return _heads_by_units(instruction.argument, program.layout, fit, 1, rows=1)


@instruction_size.register
def _size_of_pass_on(instruction: PassOn, program: StackProgram) -> InstructionSize:
    fit, rows = (
        program.ridge_sum(instruction.function),
        program.layout.slot(instruction.write).width,
    )
    return _heads_by_units(instruction.argument, program.layout, fit, 1, rows)


@instruction_size.register
def _size_of_start_jacobian(instruction: StartJacobian, program: StackProgram) -> InstructionSize:
    fit, n_inputs = (
        program.ridge_sum(instruction.function),
        program.layout.slot(instruction.inputs).width,
    )
    rows, _ = program.layout.slot(instruction.write).shape
    return _heads_by_units(instruction.argument, program.layout, fit, n_inputs, rows)


@instruction_size.register
def _size_of_push_jacobian(instruction: PushJacobian, program: StackProgram) -> InstructionSize:
    fit = program.ridge_sum(instruction.function)
    rows, entries = program.layout.slot(instruction.write).shape
    return _heads_by_units(instruction.argument, program.layout, fit, entries, rows)


@instruction_size.register
def _size_of_add_outer_product(
    instruction: AddOuterProduct, program: StackProgram
) -> InstructionSize:
    return _products(program.ridge_sum(instruction.function), program, instruction.write)


@instruction_size.register
def _size_of_add_jacobian(instruction: AddJacobian, program: StackProgram) -> InstructionSize:
    return _products(program.ridge_sum(instruction.function), program, instruction.jacobian)


def _products(fit: RidgeSum, program: StackProgram, slot: str) -> InstructionSize:
    """A head for each coordinate of the slot and each unit: query, value, output and the key."""
    width = program.layout.slot(slot).width
    nonzeros = 3 * fit.n_units + sum(_nonzero_numbers(fit))
    return InstructionSize(width * fit.n_units, 1, width * nonzeros)


@instruction_size.register(AddGatedProduct)
@instruction_size.register(AddGatedJacobian)
def _size_of_add_gated_product_or_add_gated_jacobian(
    instruction: AddGatedProduct | AddGatedJacobian, program: StackProgram
) -> InstructionSize:
    """Two heads for each row; query 1, key 2, value and output as wide as the row."""
    rows = program.layout.slot(instruction.left).width
    columns = _columns(instruction, program.layout)
    return InstructionSize(2 * rows, columns, 2 * rows * (3 + 2 * columns))


def _columns(instruction: AddGatedProduct | AddGatedJacobian, layout: Layout) -> int:
    if isinstance(instruction, AddGatedProduct):
        return layout.slot(instruction.right).width
    return layout.slot(instruction.write).width


@instruction_size.register(SlopeOfLoss)
@instruction_size.register(CopyToQueries)
def _size_of_slope_of_loss_or_copy_to_queries(
    instruction: SlopeOfLoss | CopyToQueries, program: StackProgram
) -> InstructionSize:
    return _hidden_units(instruction.function, (instruction.write,), program)


@instruction_size.register(ClipByUnits)
@instruction_size.register(WipeByUnits)
def _size_of_clip_by_units_or_wipe_by_units(
    instruction: ClipByUnits | WipeByUnits, program: StackProgram
) -> InstructionSize:
    return _hidden_units(instruction.function, instruction.slots, program)


def _hidden_units(function: str, slots: tuple[str, ...], program: StackProgram) -> InstructionSize:
    """The units of a function for every coordinate of the slots."""
    fit = program.ridge_sum(function)
    width = sum(program.layout.slot(name).width for name in slots)
    nonzeros = fit.n_units + sum(_nonzero_numbers(fit))
    return InstructionSize(width * fit.n_units, 1, width * nonzeros)
