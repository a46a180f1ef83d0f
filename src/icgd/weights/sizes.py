"""The sizes of instructions as heads or hidden units, counted without building them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch

from icgd.errors import ProgramError
from icgd.program import instructions as basic
from icgd.program import unit_instructions as by_units
from icgd.program.class_instructions import MapDifferences, MapRowSums, ShareClasses
from icgd.program.functions import ReluSum
from icgd.program.grid_instructions import DescendExamples, ShrinkSlot
from icgd.program.instructions import IS_QUERY, Argument, Instruction, LayerKind, stacked
from icgd.program.kernel_instructions import DescendFunction
from icgd.program.layout import Layout
from icgd.program.momentum_instructions import ShrinkMoved
from icgd.program.norm_instructions import Covary, ScaleCentred
from icgd.program.program import Layer
from icgd.program.registers import IS_REGISTER
from icgd.program.ridge import RidgeSum
from icgd.program.stack import StackProgram
from icgd.program.table_instructions import AverageExamples, LookUpStep
from icgd.program.update_instructions import OUT_OF_BATCH, Recombine, TakeTurns


@dataclass(frozen=True)
class Size:
    """The size of an instruction: `units` heads of `width` features each, or hidden units."""

    units: int
    width: int
    nonzeros: int


@dataclass(frozen=True)
class LayerSize:
    """The size of one layer of the transformer; a layer of grid attention has `n_grid` tokens."""

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
        """Multiplications and additions on `n_tokens` tokens; a chain's layers have one column."""
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
    """The size of a layer, whose heads share the width of the widest."""
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
def instruction_size(instruction: Instruction, program: StackProgram) -> Size:
    """The number of heads or hidden units, their width and their non-zero weights."""
    raise ProgramError.broken(type(instruction).__name__, "has no size rule in weights/sizes.py")


def _nonzero_inputs(function: ReluSum, n_arguments: int) -> int:
    """How many non-zero weights and biases read `n_arguments` features for all terms."""
    scaled, shifted = function.n_scaled_and_shifted
    return scaled * n_arguments + shifted


@instruction_size.register
def _size_of_apply_units(instruction: basic.ApplyUnits, program: StackProgram) -> Size:
    function = program.relu_sum(instruction.function)
    n_units, fan_in = program.layout.slot(instruction.weights).shape
    n_terms = len(function.terms())
    keys_values_outputs = n_terms * (fan_in + 3)
    nonzeros = n_units * (_nonzero_inputs(function, fan_in) + keys_values_outputs)
    return Size(n_units * n_terms, fan_in + 1, nonzeros)


@instruction_size.register
def _size_of_accumulate(instruction: basic.AccumulateOuterProduct, program: StackProgram) -> Size:
    rows, columns = program.layout.slot(instruction.write).shape
    return Size(2 * rows, columns, 2 * rows * (2 + 2 * columns))


@instruction_size.register
def _size_of_pull_back(instruction: basic.PullBack, program: StackProgram) -> Size:
    rows, _ = program.layout.slot(instruction.weights).shape
    columns, features = program.layout.width_of(instruction.write), rows + len(instruction.added)
    return Size(columns, features, columns * (2 * features + 2))


@instruction_size.register
def _size_of_multiply_slots(instruction: basic.MultiplySlots, program: StackProgram) -> Size:
    width = program.layout.width_of(instruction.write)
    return Size(width, 1, 4 * width)


@instruction_size.register
def _size_of_map_slots(instruction: basic.MapSlots, program: StackProgram) -> Size:
    width = program.layout.width_of(instruction.write)
    units, nonzeros = 0, 0
    for summand in instruction.summands:
        function = program.relu_sum(summand.function)
        n_terms = len(function.terms())
        units += width * n_terms
        inputs = _nonzero_inputs(function, summand.argument.n_nonzero)
        nonzeros += width * (inputs + n_terms * (len(instruction.never_where) + 1))
    return Size(units, 1, nonzeros)


@instruction_size.register
def _size_of_clip_slots(instruction: basic.ClipSlots, program: StackProgram) -> Size:
    width = program.layout.width_of(*instruction.slots)
    return Size(2 * width, 1, 6 * width)


@instruction_size.register
def _size_of_recombine(instruction: Recombine, program: StackProgram) -> Size:
    """Two units for each change of a coordinate, and two more for its bound."""
    units, nonzeros = 0, 0
    written = [(part, slot) for part in instruction.assignments for slot in part.shares]
    for part, write in written:
        width, change = program.layout.width_of(write), part.change(write)
        units += 2 * width * bool(change)
        nonzeros += 2 * width * (len(change) + 1) * bool(change)
        if part.bound is not None:
            units += 2 * width
            nonzeros += 2 * width * (part.value.n_nonzero + 2)
    return Size(units, 1, nonzeros)


@instruction_size.register
def _size_of_share_classes(instruction: ShareClasses, program: StackProgram) -> Size:
    """One head: scores and one, classes, the mask of others, values, outputs; the memory's own."""
    n_classes = len(instruction.classes)
    return Size(1, n_classes + 2, 5 * n_classes + 4)


@instruction_size.register
def _size_of_covary(instruction: Covary, program: StackProgram) -> Size:
    """One head: all coordinates less their mean, twice; a value and an output."""
    width = program.layout.width_of(instruction.left)
    return Size(1, width, 2 * width**2 + 2)


@instruction_size.register
def _size_of_scale_centred(instruction: ScaleCentred, program: StackProgram) -> Size:
    """Heads that read all coordinates, a constant, the scale; and what is taken away besides."""
    width, more = program.layout.width_of(instruction.write), instruction.along is not None
    return Size(width, 1 + more, width * (width + 3 + 2 * more))


@instruction_size.register
def _size_of_map_differences(instruction: MapDifferences, program: StackProgram) -> Size:
    """A score less itself needs no weight."""
    function, pairs = program.relu_sum(instruction.function), instruction.write
    width, n_classes = program.layout.width_of(pairs), program.layout.width_of(instruction.source)
    n_terms, shifted = len(function.terms()), _nonzero_inputs(function, 0)
    n_reads = _nonzero_inputs(function, 2) - shifted
    nonzeros = width * (n_terms + shifted) + (width - n_classes) * n_reads
    return Size(width * n_terms, 1, nonzeros)


@instruction_size.register
def _size_of_map_row_sums(instruction: MapRowSums, program: StackProgram) -> Size:
    function, width = (
        program.relu_sum(instruction.function),
        program.layout.width_of(instruction.write),
    )
    n_terms = len(function.terms())
    return Size(width * n_terms, 1, width * (n_terms + _nonzero_inputs(function, width)))


TURN_UNITS = 10
"""Hidden units of `TakeTurns`: two for the place; for the batch two, and two for each bracket."""


@instruction_size.register
def _size_of_take_turns(instruction: TakeTurns, program: StackProgram) -> Size:
    # Reads: the flag; 4 slots; the flag; the slot; place, one and flag, and n in the last bracket.
    # The offset of every bracket, 0 or not, is part of its number of units of `one`.
    return Size(TURN_UNITS, 1, 1 + 4 + 1 + 1 + 6 * 3 + 2 + TURN_UNITS)


@instruction_size.register
def _size_of_shrink_slot(instruction: ShrinkSlot, program: StackProgram) -> Size:
    """Two units read the coordinate alone, and four read an offset too."""
    width = program.layout.width_of(instruction.slot)
    n_shifted = 2 + 2 * (instruction.threshold > 0)
    return Size(6 * width, 1, (6 * 2 + n_shifted) * width)


@instruction_size.register
def _size_of_shrink_moved(instruction: ShrinkMoved, program: StackProgram) -> Size:
    """Every unit reads the coordinate, and writes it and its velocity; some read an offset."""
    width, pieces = program.layout.width_of(instruction.slot), instruction.pieces()
    n_shifted = sum(begin > 0 for begin, _ in pieces)
    return Size(2 * len(pieces) * width, 1, 2 * (3 * len(pieces) + n_shifted) * width)


@instruction_size.register
def _size_of_descend_examples(instruction: DescendExamples, program: StackProgram) -> Size:
    """There are two heads: query 1, key 3, value and output as wide as the inputs."""
    width = program.layout.width_of(*instruction.inputs)
    return Size(2, width, 2 * (4 + 2 * width))


@instruction_size.register
def _size_of_wipe_slots(instruction: basic.WipeSlots, program: StackProgram) -> Size:
    width = program.layout.width_of(*instruction.slots)
    return Size(2 * width, 1, 4 * width)


LATTICE_FEATURES = 2
"""The features of a look-up's head besides its argument: the offset, and the memory's own."""

LATTICE_NONZEROS = 6
"""Their non-zeros: two in the query; the offset, two masks and the memory's flag in the key."""


def _look_up_size(argument: Argument, layout: Layout, n_values: int, n_more: int = 0) -> Size:
    """Heads that look up `n_values` functions; `n_more` slots are added to the argument."""
    heads, features = argument.width(layout), argument.features(layout)
    argument_nonzeros = features * (len(argument.inputs.slots) + 1) + 2 * n_more
    if argument.has_bias and not argument.transposed:
        argument_nonzeros -= len(argument.inputs.slots) - 1  # the constant is one slot
    nonzeros = argument_nonzeros + LATTICE_NONZEROS + 2 * n_values
    return Size(heads, max(features + n_more + LATTICE_FEATURES, n_values), heads * nonzeros)


@instruction_size.register
def _size_of_look_up(instruction: basic.LookUp | basic.Project, program: StackProgram) -> Size:
    return _look_up_size(instruction.argument, program.layout, len(instruction.functions()))


@instruction_size.register
def _size_of_add_product(instruction: basic.AddProduct, program: StackProgram) -> Size:
    half = _look_up_size(instruction.argument, program.layout, 1, n_more=1)
    return Size(2 * half.units, half.width, 2 * half.nonzeros)


PROBES = ((1.0, 3 / 2), (2.0, -3 / 5), (3.0, 1 / 10))
"""Multiples k of the probe in `AddGradient` and shares c of them: sum_k c_k sinh(k e) / k is e up
to a seventh power."""

GRADIENT_FEATURES = 4
"""The features of a head of `AddGradient`: the probe, the sink, and two masks."""

GRADIENT_NONZEROS = 11
"""Non-zeros of query and key besides `left`: probe; log n, sink, flag; 3 flags; one, 3 flags."""


@instruction_size.register
def _size_of_add_gradient(instruction: basic.AddGradient, program: StackProgram) -> Size:
    rows, columns = program.layout.slot(instruction.write).shape
    waits = OUT_OF_BATCH in program.layout.names
    nonzeros = GRADIENT_NONZEROS + len(instruction.left.slots) + 2 * columns + waits
    heads = 2 * len(PROBES) * rows
    return Size(heads, max(columns, GRADIENT_FEATURES), heads * nonzeros)


@instruction_size.register
def _size_of_average_examples(instruction: AverageExamples, program: StackProgram) -> Size:
    width = program.layout.width_of(instruction.write)
    scores = 1 + len(instruction.score.slots) + len(other_tokens(program.layout))
    return Size(1, width, scores + width * (len(instruction.value.slots) + 1))


def other_tokens(layout: Layout) -> tuple[str, ...]:
    """The flags of tokens that are no examples."""
    return tuple(flag for flag in (IS_QUERY, IS_REGISTER) if flag in layout.names)


@instruction_size.register
def _size_of_look_up_step(instruction: LookUpStep, program: StackProgram) -> Size:
    added = instruction_size(instruction.addition, program)
    wiped = instruction_size(basic.WipeSlots((instruction.write,)), program)
    return Size(added.units + wiped.units, 1, added.nonzeros + wiped.nonzeros)


@instruction_size.register
def _size_of_descend_function(instruction: DescendFunction, program: StackProgram) -> Size:
    """There is a head for each kernel, one for the noise, and one for the velocity."""
    inputs = program.layout.width_of(instruction.inputs)
    labels = program.layout.width_of(instruction.residual)
    moved = instruction.transform or ()
    transforms = [matrix for term in instruction.terms for matrix in term.matrices]
    n_moved = inputs * bool(moved)
    width = max(inputs, labels + n_moved, *(len(matrix or ()) for matrix in transforms))
    change = (len(instruction.read_at_examples()) + len(instruction.learnt)) * labels
    values = change + n_moved + _nonzero_entries(moved)  # W_V and W_O
    scores = [inputs if matrix is None else _nonzero_entries(matrix) for matrix in transforms]
    n_terms, n_noise = len(instruction.terms), int(instruction.noise > 0)
    nonzeros = sum(scores) + n_terms * values + n_noise * change
    if instruction.velocity is None:
        return Size(n_terms + n_noise, width, nonzeros)
    factors = (1.0, instruction.momentum, instruction.momentum - 1)
    kept = labels * sum(factor != 0 for factor in factors)
    return Size(n_terms + n_noise + 1, width, nonzeros + kept)


def _nonzero_entries(matrix: tuple[tuple[float, ...], ...]) -> int:
    return sum(entry != 0 for row in matrix for entry in row)


def offset_feature(argument: Argument, layout: Layout) -> int:
    """The feature in which a head by units has the offset; without weights it is the only one."""
    return 0 if argument.weights is None else argument.features(layout)


def _nonzero_numbers(fit: RidgeSum) -> tuple[int, ...]:
    """How many units have a non-zero entry for each argument, and a non-zero offset."""
    rows = [(*unit.direction, unit.offset) for unit in fit.units]
    return tuple(sum(number != 0 for number in column) for column in zip(*rows, strict=True))


Argued = by_units.ActivateUnits | by_units.PassOn | by_units.StartJacobian | by_units.PushJacobian
"""Instructions by units that have an argument."""


def _heads_by_units(
    instruction: Argued, program: StackProgram, rows: int, n_others: int = 1
) -> Size:
    """Heads of `rows` values for every coordinate of the argument and `n_others` other numbers."""
    argument, layout = instruction.argument, program.layout
    fit = program.ridge_sum(instruction.function)
    *others, own, offset = _nonzero_numbers(fit)
    terms = argument.features(layout) * len(argument.inputs.slots)
    key = 1 if argument.weights is None else argument.features(layout) + 1
    each = own * terms + offset + sum(others) + fit.n_units * (key + 2 * rows)
    heads = argument.width(layout) * n_others
    features = max(offset_feature(argument, layout) + 1, rows)
    return Size(heads * fit.n_units, features, heads * each)


@instruction_size.register
def _size_of_activate_units(instruction: by_units.ActivateUnits, program: StackProgram) -> Size:
    return _heads_by_units(instruction, program, rows=1)


@instruction_size.register
def _size_of_pass_on(instruction: by_units.PassOn, program: StackProgram) -> Size:
    rows = program.layout.width_of(instruction.write)
    own = _heads_by_units(instruction, program, rows)
    if instruction.bias is None:
        return own
    return Size(own.units + 1, own.width, own.nonzeros + 2 + 2 * rows)


@instruction_size.register
def _size_of_start_jacobian(instruction: by_units.StartJacobian, program: StackProgram) -> Size:
    """Where the bias stands in for an input, its number and the offset are one."""
    layout, (rows, _) = program.layout, program.layout.slot(instruction.write).shape
    n_inputs = layout.width_of(*stacked(instruction.inputs, instruction.bias))
    size = _heads_by_units(instruction, program, rows, n_inputs)
    if instruction.bias is None:
        return size
    merged = _merged(program.ridge_sum(instruction.function), 0, instruction.reach)
    return replace(size, nonzeros=size.nonzeros - instruction.argument.width(layout) * merged)


def _merged(fit: RidgeSum, place: int, reach: float) -> int:
    """How many non-zeros fewer there are if a constant takes the place of an argument."""
    numbers = [(unit.direction[place], unit.offset) for unit in fit.units]
    return sum((a != 0) + (b != 0) - (a / reach + b != 0) for a, b in numbers)


@instruction_size.register
def _size_of_push_jacobian(instruction: by_units.PushJacobian, program: StackProgram) -> Size:
    return _heads_by_units(instruction, program, *program.layout.slot(instruction.write).shape)


@instruction_size.register
def _size_of_add_outer(instruction: by_units.AddOuterProduct, program: StackProgram) -> Size:
    """There is a head for each entry and each unit."""
    size = _units_for_each((instruction.write,), 3, instruction.function, program)
    if instruction.bias is None:
        return size
    merged = _merged(program.ridge_sum(instruction.function), 1, instruction.reaches[1])
    n_rows = program.layout.width_of(instruction.left)
    return replace(size, nonzeros=size.nonzeros - n_rows * merged)


@instruction_size.register
def _size_of_add_jacobian(instruction: by_units.AddJacobian, program: StackProgram) -> Size:
    """There is a head for each entry of the Jacobian and each unit."""
    return _units_for_each((instruction.jacobian,), 3, instruction.function, program)


@instruction_size.register
def _size_of_hidden_unit(
    instruction: by_units.SlopeOfLoss | by_units.CopyToQueries, program: StackProgram
) -> Size:
    return _units_for_each((instruction.write,), 1, instruction.function, program)


@instruction_size.register
def _size_of_hidden_units(
    instruction: by_units.ClipByUnits | by_units.WipeByUnits, program: StackProgram
) -> Size:
    return _units_for_each(instruction.slots, 1, instruction.function, program)


def _units_for_each(
    slots: tuple[str, ...], n_fixed: int, function: str, program: StackProgram
) -> Size:
    """All units of a function for every coordinate; each has `n_fixed` other non-zeros."""
    fit, width = program.ridge_sum(function), program.layout.width_of(*slots)
    nonzeros = n_fixed * fit.n_units + sum(_nonzero_numbers(fit))
    return Size(width * fit.n_units, 1, width * nonzeros)


@instruction_size.register
def _size_of_gated_product(instruction: by_units.AddGatedProduct, program: StackProgram) -> Size:
    row = stacked(instruction.right, instruction.bias)
    return _gated_size(instruction.left, row, program.layout)


@instruction_size.register
def _size_of_gated_jacobian(instruction: by_units.AddGatedJacobian, program: StackProgram) -> Size:
    return _gated_size(instruction.left, (instruction.write,), program.layout)


def _gated_size(left: str, row: tuple[str, ...], layout: Layout) -> Size:
    """There are two heads a row: query 1, key 2, value and output as wide as the row."""
    rows, columns = layout.width_of(left), layout.width_of(*row)
    return Size(2 * rows, columns, 2 * rows * (3 + 2 * columns))
