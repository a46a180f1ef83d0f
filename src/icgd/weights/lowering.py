r"""Lowering: each instruction spelt out as numbers in W_Q, W_K, W_V, W_O or W_in, b_in, W_out.

Instructions of one layer get consecutive heads (or hidden units). A rule fills the tensors of
its own heads, which arrive as zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor, nn

from icgd.errors import OverflowedRunError, ProgramError
from icgd.layers.kernel_attention import KernelAttention, Pattern
from icgd.layers.mlp import MLPLayer
from icgd.layers.product import ProductLayer
from icgd.layers.relu_attention import ReLUAttention
from icgd.layers.softmax_attention import SoftmaxAttention
from icgd.layers.transformer import Transformer
from icgd.problems.kernel_machine import as_matrix
from icgd.problems.kernels import kernel_named
from icgd.program.functions import LatticeFunction, ReluSum
from icgd.program.instructions import (
    IDENTITY,
    IS_EXAMPLE,
    IS_QUERY,
    ONE,
    SQUARE,
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
    KernelTerm,
    LayerKind,
    LookUp,
    LookUpStep,
    MapSlots,
    MultiplySlots,
    Project,
    PullBack,
    WipeSlots,
)
from icgd.program.layout import Layout
from icgd.program.program import Layer, StackProgram
from icgd.program.registers import (
    IS_MEMORY,
    IS_REGISTER,
    LOG_EXAMPLES,
    MASKED,
    OFFSET,
    SCALE,
    SHARE,
    SIGN,
    SINK,
    value_slot,
)
from icgd.weights.sizes import (
    PROBES,
    argument_features,
    argument_width,
    instruction_size,
    layer_size,
    other_tokens,
)


@dataclass(frozen=True)
class Heads:
    """Weights of some heads: three of shape (head, model, inner), output (head, inner, model)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor

    def part(self, start: int, length: int) -> Heads:
        """Views of `length` heads from `start` on."""
        return Heads(
            *(t.narrow(0, start, length) for t in (self.query, self.key, self.value, self.output))
        )


@dataclass(frozen=True)
class Units:
    """Weights of some hidden units, one row each: reads (unit, model), bias, writes."""

    reads: Tensor
    bias: Tensor
    writes: Tensor

    def part(self, start: int, length: int) -> Units:
        """Views of `length` units from `start` on."""
        return Units(*(t.narrow(0, start, length) for t in (self.reads, self.bias, self.writes)))


def lower_program(program: StackProgram, dtype: torch.dtype = torch.float64) -> Transformer:
    """The program as a transformer with ordinary weights."""
    return Transformer(
        block=[lower_layer(layer, program, dtype) for layer in program.block],
        n_repeats=program.n_repeats,
        final=[lower_layer(layer, program, dtype) for layer in program.prediction],
    )


def lower_layer(layer: Layer, program: StackProgram, dtype: torch.dtype) -> nn.Module:
    """One layer of the program as one layer of the transformer."""
    size = layer_size(layer, program)
    if layer.kind is LayerKind.MLP:
        units = Units(
            torch.zeros(size.units, size.d_model, dtype=dtype),
            torch.zeros(size.units, dtype=dtype),
            torch.zeros(size.units, size.d_model, dtype=dtype),
        )
        _fill_in_turn(layer, program, units)
        return MLPLayer(units.reads.T.contiguous(), units.bias, units.writes)
    shape = (size.units, size.d_model, size.width)
    query, key, value = (torch.zeros(shape, dtype=dtype) for _ in range(3))
    heads = Heads(query, key, value, torch.zeros(size.units, size.width, size.d_model, dtype=dtype))
    _fill_in_turn(layer, program, heads)
    if layer.kind is LayerKind.KERNEL:
        return _kernel_attention(layer, program.layout, heads)
    return HEADED_LAYERS[layer.kind](heads.query, heads.key, heads.value, heads.output)


HEADED_LAYERS = {
    LayerKind.ATTENTION: ReLUAttention,
    LayerKind.SOFTMAX: SoftmaxAttention,
    LayerKind.PRODUCT: ProductLayer,
}


def _kernel_attention(layer: Layer, layout: Layout, heads: Heads) -> KernelAttention:
    """Attention whose heads know their kernels; the last head of a noisy step has none."""
    patterns: list[Pattern] = []
    for instruction in layer.instructions:
        if isinstance(instruction, DescendFunction):
            patterns += [kernel_named(term.kernel, term.shape).matrix for term in instruction.terms]
            patterns += [None] * (instruction.noise > 0)
    weights = (heads.query, heads.key, heads.value, heads.output)
    return KernelAttention(*weights, patterns, _at(layout, IS_EXAMPLE))


def _fill_in_turn(layer: Layer, program: StackProgram, weights: Heads | Units) -> None:
    start = 0
    for instruction in layer.instructions:
        length = instruction_size(instruction, program).units
        fill(instruction, program, weights.part(start, length))
        start += length


@singledispatch
def fill(instruction: Instruction, program: StackProgram, weights: Heads | Units) -> None:
    """Write the instruction's numbers into the zero tensors of its own heads or units."""
    raise ProgramError.broken(type(instruction).__name__, "has no rule in weights/lowering.py")


def _coordinates(layout: Layout, name: str) -> Tensor:
    """Coordinates of a slot, in its own shape."""
    place = layout.range_of(name)
    return torch.arange(place.start, place.stop).view(layout.slot(name).shape)


def _terms(function: ReluSum, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Scales, shifts and coefficients of the function's terms."""
    rows = [(term.scale, term.shift, term.coefficient) for term in function.terms()]
    scale, shift, coefficient = torch.tensor(rows, dtype=dtype).reshape(-1, 3).T
    return scale, shift, coefficient


@fill.register
def _(instruction: ApplyUnits, program: StackProgram, weights: Heads) -> None:
    """Query [scale * inputs; shift], key [weights[k, :]; 1], value coefficient."""
    layout = program.layout
    function = program.relu_sum(instruction.function)
    scale, shift, coefficient = _terms(function, weights.query.dtype)
    n_units, fan_in = layout.slot(instruction.weights).shape
    n_terms = len(scale)
    unit = torch.arange(n_units).repeat_interleave(n_terms)
    head = torch.arange(n_units * n_terms)
    entry = torch.arange(fan_in)
    one = int(_coordinates(layout, ONE))
    inputs = _coordinates(layout, instruction.inputs).flatten()
    weights.query[:, inputs, entry] = scale.repeat(n_units)[:, None].expand(-1, fan_in)
    weights.query[:, one, fan_in] = shift.repeat(n_units)
    weights.key[head[:, None], _coordinates(layout, instruction.weights)[unit], entry] = 1.0
    weights.key[:, one, fan_in] = 1.0
    weights.value[:, one, 0] = 1.0
    write = _coordinates(layout, instruction.write)[unit]
    weights.output[head, 0, write] = coefficient.repeat(n_units)


@fill.register
def _(instruction: AccumulateOuterProduct, program: StackProgram, weights: Heads) -> None:
    """Query +-tokens_per_example, key left[k], value +-scale * right: two heads for each row k."""
    layout = program.layout
    write = _coordinates(layout, instruction.write)
    rows, columns = write.shape
    head = torch.arange(rows)
    entry = torch.arange(columns)
    gain = int(_coordinates(layout, TOKENS_PER_EXAMPLE))
    right = _coordinates(layout, instruction.right).flatten()
    for start, sign in ((0, 1.0), (rows, -1.0)):
        part = weights.part(start, rows)
        part.query[:, gain, 0] = sign
        part.key[head, _coordinates(layout, instruction.left), 0] = 1.0
        part.value[:, right, entry] = 1.0
        part.output[head[:, None], entry, write] = sign * instruction.scale


@fill.register
def _(instruction: MultiplySlots, program: StackProgram, weights: Heads) -> None:
    """Query left[k], key right[k], value 1: one head for each k."""
    layout = program.layout
    left = _coordinates(layout, instruction.left)
    head = torch.arange(len(left))
    weights.query[head, left, 0] = 1.0
    weights.key[head, _coordinates(layout, instruction.right), 0] = 1.0
    weights.value[:, int(_coordinates(layout, ONE)), 0] = 1.0
    weights.output[head, 0, _coordinates(layout, instruction.write)] = 1.0


@fill.register
def _(instruction: PullBack, program: StackProgram, weights: Heads) -> None:
    """Query weights[:, k], key upstream, value slope[k]: one head for each k."""
    layout = program.layout
    matrix = _coordinates(layout, instruction.weights)
    rows, columns = matrix.shape
    head = torch.arange(columns)
    entry = torch.arange(rows)
    weights.query[head[:, None], matrix.T, entry] = 1.0
    weights.key[:, _coordinates(layout, instruction.upstream), entry] = 1.0
    weights.value[head, _coordinates(layout, instruction.slope), 0] = 1.0
    weights.output[head, 0, _coordinates(layout, instruction.write)] = 1.0


@fill.register
def _(instruction: MapSlots, program: StackProgram, weights: Units) -> None:
    """Unit relu(scale * sum_i c_i slot_i[k] + shift - gate * never_where) for each k and term."""
    layout = program.layout
    write = _coordinates(layout, instruction.write).flatten()
    width = len(write)
    start = 0
    for summand in instruction.summands:
        function = program.relu_sum(summand.function)
        scale, shift, coefficient = _terms(function, weights.reads.dtype)
        coordinate = torch.arange(width).repeat_interleave(len(scale))
        unit = torch.arange(len(coordinate))
        part = weights.part(start, len(unit))
        for slot, factor in summand.argument.terms():
            read = _coordinates(layout, slot).flatten()[coordinate]
            part.reads[unit, read] += factor * scale.repeat(width)
        for flag in instruction.never_where:
            part.reads[:, int(_coordinates(layout, flag))] = -instruction.gate
        part.bias[:] = shift.repeat(width)
        part.writes[unit, write[coordinate]] = coefficient.repeat(width)
        start += len(unit)


@fill.register
def _(instruction: ClipSlots, program: StackProgram, weights: Units) -> None:
    """-relu(w - bound * unit) + relu(-w - bound * unit)."""
    _fill_pairs(instruction.slots, program.layout, weights)
    weights.reads[:, int(_coordinates(program.layout, instruction.unit))] = -instruction.bound


@fill.register
def _(instruction: WipeSlots, program: StackProgram, weights: Units) -> None:
    """-relu(h) + relu(-h)."""
    _fill_pairs(instruction.slots, program.layout, weights)


def _fill_pairs(slots: tuple[str, ...], layout: Layout, weights: Units) -> None:
    """Two units for every coordinate h of the slots: -relu(h) and +relu(-h)."""
    coordinate = torch.cat([_coordinates(layout, name).flatten() for name in slots])
    unit = torch.arange(len(coordinate))
    for start, sign in ((0, 1.0), (len(coordinate), -1.0)):
        part = weights.part(start, len(coordinate))
        part.reads[unit, coordinate] = sign
        part.writes[unit, coordinate] = -sign


def _fill_grid_scores(
    argument: Argument,
    function: LatticeFunction,
    reach: float,
    layout: Layout,
    heads: Heads,
) -> None:
    """Scores (g a / spacing - g^2 / 2) / ratio^2 at grid register g, with a = argument / reach.

    Features: the argument's own, then the offset, then one by which the memory reads itself.
    Other tokens are masked; a register's scale is g / half.
    """
    n_features = argument_features(argument, layout)
    head, feature = torch.arange(len(heads.query)), torch.arange(n_features)
    gain = function.half / (function.spacing * function.ratio**2 * reach)
    for slot, factor in argument.inputs.terms():
        read = _coordinates(layout, slot)
        if argument.weights is None:
            heads.query[head, read, 0] += gain * factor
        else:
            heads.query[:, read, feature] += gain * factor
    if argument.weights is None:
        heads.key[:, _at(layout, SCALE), 0] = 1.0
    else:
        matrix = _coordinates(layout, argument.weights)
        rows = matrix.T if argument.transposed else matrix
        heads.key[head[:, None], rows, feature] = 1.0
    offset, memory = n_features, n_features + 1
    heads.query[:, _at(layout, ONE), offset] = 1 / function.ratio**2
    heads.key[:, _at(layout, OFFSET), offset] = 1.0
    heads.key[:, _at(layout, IS_EXAMPLE), offset] = -MASKED
    heads.key[:, _at(layout, IS_QUERY), offset] = -MASKED
    below = (MASKED + function.half**2 / 2) / function.ratio**2  # the memory's own offset
    heads.query[:, _at(layout, IS_MEMORY), memory] = below + MASKED
    heads.key[:, _at(layout, IS_MEMORY), memory] = 1.0


def _at(layout: Layout, name: str) -> int:
    """The coordinate of a slot that has only one."""
    return int(layout.range_of(name).start)


@fill.register
def _(instruction: LookUp, program: StackProgram, weights: Heads) -> None:
    """Head k reads the grid at coordinate k of the argument: a value for each function."""
    layout = program.layout
    functions = [program.look_up(name) for name in instruction.lookups]
    _fill_grid_scores(instruction.argument, functions[0], 1.0, layout, weights)
    head = torch.arange(len(weights.query))
    for number, (function, write) in enumerate(zip(functions, instruction.into, strict=True)):
        weights.value[:, _at(layout, value_slot(function.name)), number] = 1.0
        weights.output[head, number, _coordinates(layout, write)] = 1.0


@fill.register
def _(instruction: Project, program: StackProgram, weights: Heads) -> None:
    """Head k reads the grid at coordinate k of argument / reach; the value is the identity."""
    layout, reach = program.layout, instruction.reach
    _fill_grid_scores(instruction.argument, program.look_up(IDENTITY), reach, layout, weights)
    head = torch.arange(len(weights.query))
    weights.value[:, _at(layout, value_slot(IDENTITY)), 0] = 1.0
    weights.output[head, 0, _coordinates(layout, instruction.write)] = reach


@fill.register
def _(instruction: AddProduct, program: StackProgram, weights: Heads) -> None:
    """Heads k and width + k read the square at argument / reach +- factor / factor_reach."""
    layout, reach, square = program.layout, instruction.reach, program.look_up(SQUARE)
    width = argument_width(instruction.argument, layout)
    head = torch.arange(width)
    last = argument_features(instruction.argument, layout) + 2
    gain = square.half / (square.spacing * square.ratio**2 * instruction.factor_reach)
    for start, sign in ((0, 1.0), (width, -1.0)):
        part = weights.part(start, width)
        _fill_grid_scores(instruction.argument, square, reach, layout, part)
        part.query[head, _coordinates(layout, instruction.factor), last] = sign * gain
        part.key[:, _at(layout, SCALE), last] = 1.0
        part.value[:, _at(layout, value_slot(SQUARE)), 0] = 1.0
        product = sign * reach * instruction.factor_reach / 4
        part.output[head, 0, _coordinates(layout, instruction.write)] = product


@fill.register
def _(instruction: AddGradient, program: StackProgram, weights: Heads) -> None:
    """For each multiple of the probe and each sign a head for each row; see the instruction.

    Scores of a register: probe * left[k] at examples, log n - log(share) at the memory, whose
    value is 0. All other tokens are masked, and other queries read only the memory.
    """
    layout = program.layout
    write = _coordinates(layout, instruction.write)
    rows, columns = write.shape
    row, entry = torch.arange(rows), torch.arange(columns)
    start = 0
    for multiple, coefficient in PROBES:
        for sign in (1.0, -1.0):
            probe = sign * multiple * instruction.probe
            part = weights.part(start, rows)
            _fill_share_scores(probe, layout, part)
            for slot, factor in instruction.left.terms():
                part.key[row, _coordinates(layout, slot), 0] += factor
            part.value[:, _coordinates(layout, instruction.right), entry] = 1.0
            gain = coefficient * instruction.scale / (2 * probe * SHARE)
            part.output[row[:, None], entry, write] = _in_range(gain, part.output.dtype)
            start += rows


def _in_range(gain: float, dtype: torch.dtype) -> float:
    """The gain of a gradient head, which is 1 / SHARE times as large as its step."""
    if not abs(gain) <= torch.finfo(dtype).max:
        name = str(dtype).removeprefix("torch.")
        raise OverflowedRunError.constant("output weight of a gradient head", gain, name)
    return gain


def _fill_share_scores(probe: float, layout: Layout, heads: Heads) -> None:
    """The part of the scores of `AddGradient` that does not depend on its slots."""
    heads.query[:, _at(layout, SIGN), 0] = probe
    heads.query[:, _at(layout, LOG_EXAMPLES), 1] = 1.0
    heads.query[:, _at(layout, SINK), 1] = 1.0
    heads.key[:, _at(layout, IS_MEMORY), 1] = 1.0
    heads.query[:, _at(layout, IS_EXAMPLE), 2] = -MASKED
    heads.query[:, _at(layout, IS_QUERY), 2] = -MASKED
    heads.key[:, _at(layout, IS_EXAMPLE), 2] = 1.0
    heads.query[:, _at(layout, ONE), 3] = -MASKED
    heads.key[:, _at(layout, IS_QUERY), 3] = 1.0
    heads.key[:, _at(layout, IS_REGISTER), 3] = 1.0
    heads.key[:, _at(layout, IS_MEMORY), 3] = -1.0


@fill.register
def _(instruction: AverageExamples, program: StackProgram, weights: Heads) -> None:
    """Query 1, key the score, lowered at other tokens; every coordinate of the value."""
    layout = program.layout
    write = _coordinates(layout, instruction.write).flatten()
    entry = torch.arange(len(write))
    weights.query[:, _at(layout, ONE), 0] = 1.0
    for slot, factor in instruction.score.terms():
        weights.key[:, _at(layout, slot), 0] += factor
    for flag in other_tokens(layout):
        weights.key[:, _at(layout, flag), 0] = -MASKED
    for slot, factor in instruction.value.terms():
        weights.value[:, _coordinates(layout, slot).flatten(), entry] += factor
    weights.output[:, entry, write] = 1.0


@fill.register
def _(instruction: LookUpStep, program: StackProgram, weights: Units) -> None:
    """The table's units, and two that take away what the weight was."""
    n_terms = len(weights.bias) - 2
    fill(instruction.addition, program, weights.part(0, n_terms))
    _fill_pairs((instruction.write,), program.layout, weights.part(n_terms, 2))


@fill.register
def _(instruction: DescendFunction, program: StackProgram, weights: Heads) -> None:
    """V = diag(A, -step_size), weighted, for every kernel; the noise moves labels alone."""
    layout = program.layout
    inputs = _coordinates(layout, instruction.inputs).flatten()
    labels = _coordinates(layout, instruction.residual).flatten()
    for head, term in enumerate(instruction.terms):
        _fill_kernel_scores(term, inputs, weights.part(head, 1))
        _copy(labels, -instruction.step_size * term.weight, weights.part(head, 1))
        if instruction.transform is not None:
            moved = term.weight * as_matrix(instruction.transform, weights.output.double())
            features = len(labels) + torch.arange(len(inputs))
            weights.value[head, inputs, features] = 1.0
            weights.output[head, features[:, None], inputs] = moved.mT.to(weights.output)
    if instruction.noise > 0:
        scale = -instruction.step_size * instruction.noise
        _copy(labels, scale, weights.part(len(instruction.terms), 1))


def _fill_kernel_scores(term: KernelTerm, inputs: Tensor, head: Heads) -> None:
    """Queries and keys are G x."""
    matrix = torch.eye(len(inputs), dtype=torch.float64)
    if term.transform is not None:
        matrix = as_matrix(term.transform, matrix)
    for weights in (head.query, head.key):
        weights[0, inputs, : len(matrix)] = matrix.mT.to(weights)


def _copy(slot: Tensor, scale: float, head: Heads) -> None:
    """Every token gets `scale` times the slot of the tokens that it reads."""
    features = torch.arange(len(slot))
    head.value[0, slot, features] = 1.0
    head.output[0, features, slot] = scale
