"""The numbers in heads and hidden units: a rule for each instruction.

A rule fills the tensors of its instruction's heads (or hidden units), which arrive as zeros. The
rules of instructions by units of any activation are in `unit_heads.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from icgd.errors import OverflowedRunError, ProgramError
from icgd.problems.kernel_machine import as_matrix
from icgd.program import instructions as basic
from icgd.program import registers
from icgd.program.functions import LatticeFunction, ReluSum
from icgd.program.grid_instructions import ShrinkSlot
from icgd.program.instructions import IS_EXAMPLE, IS_QUERY, ONE, SQUARE, Instruction, stacked
from icgd.program.kernel_instructions import DescendFunction, KernelTerm
from icgd.program.layout import Layout
from icgd.program.momentum_instructions import ShrinkMoved
from icgd.program.registers import IS_MEMORY, IS_REGISTER, MASKED, value_slot
from icgd.program.stack import StackProgram
from icgd.program.table_instructions import AverageExamples, LookUpStep
from icgd.program.update_instructions import OUT_OF_BATCH
from icgd.weights.sizes import PROBES, other_tokens


class Heads(NamedTuple):
    """The weights of some heads: (head, model, inner), and output (head, inner, model)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor

    @classmethod
    def zeros(cls, n_heads: int, d_model: int, width: int, dtype: torch.dtype) -> Heads:
        """Heads that do nothing yet."""
        query, key, value = (torch.zeros(n_heads, d_model, width, dtype=dtype) for _ in range(3))
        return cls(query, key, value, torch.zeros(n_heads, width, d_model, dtype=dtype))

    def part(self, start: int, length: int) -> Heads:
        """Views of `length` heads from `start` on."""
        return Heads(*(weights.narrow(0, start, length) for weights in self))


class Units(NamedTuple):
    """The weights of some hidden units, a row for each: reads (unit, model), bias, writes."""

    reads: Tensor
    bias: Tensor
    writes: Tensor

    @classmethod
    def zeros(cls, n_units: int, d_model: int, dtype: torch.dtype) -> Units:
        """Units that do nothing yet."""
        reads, writes = (torch.zeros(n_units, d_model, dtype=dtype) for _ in range(2))
        return cls(reads, torch.zeros(n_units, dtype=dtype), writes)

    def part(self, start: int, length: int) -> Units:
        """Views of `length` units from `start` on."""
        return Units(*(weights.narrow(0, start, length) for weights in self))


@singledispatch
def fill(instruction: Instruction, program: StackProgram, weights: Heads | Units) -> None:
    """Write the instruction's numbers into the zero tensors of its own heads or units."""
    raise ProgramError.broken(type(instruction).__name__, "has no rule in weights/heads.py")


def coordinates(layout: Layout, name: str) -> Tensor:
    """The coordinates of a slot, in the shape of the slot."""
    place = layout.range_of(name)
    return torch.arange(place.start, place.stop).view(layout.slot(name).shape)


def joined(layout: Layout, *names: str) -> Tensor:
    """The coordinates of several slots, one after the other."""
    return torch.cat([coordinates(layout, name).flatten() for name in names])


def coordinate_of(layout: Layout, name: str) -> int:
    """The coordinate of a slot that has only one."""
    return int(layout.range_of(name).start)


def put(
    weights: Tensor, layout: Layout, feature: int, numbers: Mapping[str, float | Tensor]
) -> None:
    """Let a feature of all heads read slots of one coordinate, each times its number."""
    for name, number in numbers.items():
        weights[:, coordinate_of(layout, name), feature] = number


def relu_terms(function: ReluSum, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The scales, shifts and coefficients of the function's terms."""
    rows = [(term.scale, term.shift, term.coefficient) for term in function.terms()]
    scale, shift, coefficient = torch.tensor(rows, dtype=dtype).reshape(-1, 3).T
    return scale, shift, coefficient


@fill.register
def _fill_apply_units(instruction: basic.ApplyUnits, program: StackProgram, weights: Heads) -> None:
    """Query [scale * inputs; shift], key [weights[k, :]; 1], value coefficient."""
    layout = program.layout
    function = program.relu_sum(instruction.function)
    scale, shift, coefficient = relu_terms(function, weights.query.dtype)
    n_units, fan_in = layout.slot(instruction.weights).shape
    n_terms = len(scale)
    unit = torch.arange(n_units).repeat_interleave(n_terms)
    head = torch.arange(n_units * n_terms)
    entry = torch.arange(fan_in)
    one = coordinate_of(layout, ONE)
    inputs = joined(layout, *stacked(instruction.inputs, instruction.bias))
    weights.query[:, inputs, entry] = scale.repeat(n_units)[:, None].expand(-1, fan_in)
    weights.query[:, one, fan_in] = shift.repeat(n_units)
    weights.key[head[:, None], coordinates(layout, instruction.weights)[unit], entry] = 1.0
    weights.key[:, one, fan_in] = 1.0
    weights.value[:, one, 0] = 1.0
    write = coordinates(layout, instruction.write)[unit]
    weights.output[head, 0, write] = coefficient.repeat(n_units)


@fill.register
def _fill_accumulate_outer_product(
    instruction: basic.AccumulateOuterProduct, program: StackProgram, weights: Heads
) -> None:
    """Query +-tokens_per_example, key left[k], value +-scale * right: two heads for each row k."""
    layout = program.layout
    write = coordinates(layout, instruction.write)
    rows, columns = write.shape
    head = torch.arange(rows)
    entry = torch.arange(columns)
    gain = coordinate_of(layout, basic.TOKENS_PER_EXAMPLE)
    right = joined(layout, *stacked(instruction.right, instruction.bias))
    for start, sign in ((0, 1.0), (rows, -1.0)):
        part = weights.part(start, rows)
        part.query[:, gain, 0] = sign
        part.key[head, coordinates(layout, instruction.left), 0] = 1.0
        part.value[:, right, entry] = 1.0
        part.output[head[:, None], entry, write] = sign * instruction.scale


@fill.register
def _fill_multiply_slots(
    instruction: basic.MultiplySlots, program: StackProgram, weights: Heads
) -> None:
    """Query left[k], key right[k], value 1: one head for each k."""
    layout = program.layout
    left = joined(layout, instruction.left)
    head = torch.arange(len(left))
    weights.query[head, left, 0] = 1.0
    weights.key[head, joined(layout, instruction.right), 0] = 1.0
    weights.value[:, coordinate_of(layout, ONE), 0] = 1.0
    weights.output[head, 0, joined(layout, instruction.write)] = 1.0


@fill.register
def _fill_pull_back(instruction: basic.PullBack, program: StackProgram, weights: Heads) -> None:
    """Query [weights[:, k]; plus[k]], key [upstream; 1], value slope[k]: one head for each k."""
    layout = program.layout
    columns = layout.width_of(instruction.write)
    matrix = coordinates(layout, instruction.weights)[:, :columns]
    head = torch.arange(columns)
    entry = torch.arange(len(matrix))
    weights.query[head[:, None], matrix.T, entry] = 1.0
    weights.key[:, coordinates(layout, instruction.upstream), entry] = 1.0
    for feature, name in enumerate(instruction.added, start=len(matrix)):
        weights.query[head, coordinates(layout, name), feature] = 1.0
        weights.key[:, coordinate_of(layout, ONE), feature] = 1.0
    weights.value[head, coordinates(layout, instruction.slope), 0] = 1.0
    weights.output[head, 0, coordinates(layout, instruction.write)] = 1.0


@fill.register
def _fill_map_slots(instruction: basic.MapSlots, program: StackProgram, weights: Units) -> None:
    """Unit relu(scale * sum_i c_i slot_i[k] + shift - gate * never_where) for each k and term."""
    layout = program.layout
    write = joined(layout, instruction.write)
    width = len(write)
    start = 0
    for summand in instruction.summands:
        function = program.relu_sum(summand.function)
        scale, shift, coefficient = relu_terms(function, weights.reads.dtype)
        coordinate = torch.arange(width).repeat_interleave(len(scale))
        unit = torch.arange(len(coordinate))
        part = weights.part(start, len(unit))
        for slot, factor in summand.argument.terms():
            read = joined(layout, slot)[coordinate]
            part.reads[unit, read] += factor * scale.repeat(width)
        for flag in instruction.never_where:
            part.reads[:, coordinate_of(layout, flag)] = -instruction.gate
        part.bias[:] = shift.repeat(width)
        part.writes[unit, write[coordinate]] = coefficient.repeat(width)
        start += len(unit)


@fill.register
def _fill_clip_slots(instruction: basic.ClipSlots, program: StackProgram, weights: Units) -> None:
    """-relu(w - bound * unit) + relu(-w - bound * unit)."""
    _fill_pairs(instruction.slots, program.layout, weights)
    weights.reads[:, coordinate_of(program.layout, instruction.unit)] = -instruction.bound


@fill.register
def _fill_wipe_slots(instruction: basic.WipeSlots, program: StackProgram, weights: Units) -> None:
    """-relu(h) + relu(-h)."""
    _fill_pairs(instruction.slots, program.layout, weights)


@fill.register
def _fill_shrink_slot(instruction: ShrinkSlot, program: StackProgram, weights: Units) -> None:
    """-relu(w) + relu(-w), then +-relu(+-w - threshold), then -+relu(+-w - threshold - bound)."""
    width = program.layout.slot(instruction.slot).width
    one = coordinate_of(program.layout, ONE)
    beyond = (0.0, instruction.threshold, instruction.threshold + instruction.bound)
    for number, (shift, sign) in enumerate(zip(beyond, (1.0, -1.0, 1.0), strict=True)):
        part = weights.part(2 * number * width, 2 * width)
        _fill_pairs((instruction.slot,), program.layout, part)
        part.reads[:, one] = -shift
        part.writes.mul_(sign)


@fill.register
def _fill_shrink_moved(instruction: ShrinkMoved, program: StackProgram, weights: Units) -> None:
    """The units of a soft threshold and of a clip; what they write, they write to the velocity."""
    slot, velocity = (joined(program.layout, name) for name in instruction.writes())
    one = coordinate_of(program.layout, ONE)
    for number, (begin, sign) in enumerate(instruction.pieces()):
        part = weights.part(2 * number * len(slot), 2 * len(slot))
        _fill_pairs((instruction.slot,), program.layout, part)
        part.reads[:, one] = -begin
        part.writes.mul_(sign)
        part.writes[:, velocity] = part.writes[:, slot]


def _fill_pairs(slots: tuple[str, ...], layout: Layout, weights: Units) -> None:
    """Two units for every coordinate h of the slots: -relu(h) and +relu(-h)."""
    coordinate = joined(layout, *slots)
    unit = torch.arange(len(coordinate))
    for start, sign in ((0, 1.0), (len(coordinate), -1.0)):
        part = weights.part(start, len(coordinate))
        part.reads[unit, coordinate] = sign
        part.writes[unit, coordinate] = -sign


def _fill_lattice_scores(
    argument: basic.Argument, function: LatticeFunction, reach: float, layout: Layout, heads: Heads
) -> None:
    """Scores (g a / spacing - g^2 / 2) / ratio^2 at register g, with a = argument / reach.

    The features are the argument's own, then the offset, then one by which the memory reads itself.
    Other tokens are masked. A register's scale is g / half.
    """
    n_features = argument.features(layout)
    head, feature = torch.arange(len(heads.query)), torch.arange(n_features)
    gain = function.half / (function.spacing * function.ratio**2 * reach)
    every = head if argument.weights is None else slice(None)
    for slot, factor in argument.inputs.terms():
        read = coordinates(layout, slot)
        heads.query[every, read, feature[: len(read)]] += gain * factor
    if argument.bias is not None and not argument.transposed:
        put(heads.query, layout, n_features - 1, {argument.bias: gain})
    if argument.weights is None:
        put(heads.key, layout, 0, {registers.SCALE: 1.0})
    else:
        matrix = coordinates(layout, argument.weights)
        rows = matrix.T[: len(head)] if argument.transposed else matrix
        heads.key[head[:, None], rows, feature] = 1.0
    offset, memory = n_features, n_features + 1
    keys = {registers.OFFSET: 1.0, IS_EXAMPLE: -MASKED, IS_QUERY: -MASKED}
    put(heads.query, layout, offset, {ONE: 1 / function.ratio**2})
    put(heads.key, layout, offset, keys)
    below = (MASKED + function.half**2 / 2) / function.ratio**2  # the memory's own offset
    put(heads.query, layout, memory, {IS_MEMORY: below + MASKED})
    put(heads.key, layout, memory, {IS_MEMORY: 1.0})


@fill.register
def _fill_look_up(
    instruction: basic.LookUp | basic.Project, program: StackProgram, weights: Heads
) -> None:
    """Head k looks up all functions at coordinate k of argument / reach."""
    layout, reach, looked_up = program.layout, instruction.reach, instruction.functions()
    first = program.look_up(looked_up[0])
    _fill_lattice_scores(instruction.argument, first, reach, layout, weights)
    head = torch.arange(len(weights.query))
    for number, (name, write) in enumerate(zip(looked_up, instruction.writes(), strict=True)):
        put(weights.value, layout, number, {value_slot(name): 1.0})
        weights.output[head, number, coordinates(layout, write)] = reach


@fill.register
def _fill_add_product(instruction: basic.AddProduct, program: StackProgram, weights: Heads) -> None:
    """Heads k and width + k read the square at argument / reach +- factor / factor_reach."""
    layout, reach, square = program.layout, instruction.reach, program.look_up(SQUARE)
    width = instruction.argument.width(layout)
    head = torch.arange(width)
    last = instruction.argument.features(layout) + 2
    gain = square.half / (square.spacing * square.ratio**2 * instruction.factor_reach)
    for start, sign in ((0, 1.0), (width, -1.0)):
        part = weights.part(start, width)
        _fill_lattice_scores(instruction.argument, square, reach, layout, part)
        part.query[head, coordinates(layout, instruction.factor), last] = sign * gain
        part.key[:, coordinate_of(layout, registers.SCALE), last] = 1.0
        part.value[:, coordinate_of(layout, value_slot(SQUARE)), 0] = 1.0
        product = sign * reach * instruction.factor_reach / 4
        part.output[head, 0, coordinates(layout, instruction.write)] = product


@fill.register
def _fill_add_gradient(
    instruction: basic.AddGradient, program: StackProgram, weights: Heads
) -> None:
    """There is a head for each multiple of the probe, each sign and each row: see `AddGradient`.

    A register has the scores probe * left[k] at examples and log n - log(share) at the memory,
    whose value is 0. All other tokens are masked, and tokens that are no registers read the memory.
    """
    layout = program.layout
    write = coordinates(layout, instruction.write)
    rows, columns = write.shape
    row, entry = torch.arange(rows), torch.arange(columns)
    start = 0
    for multiple, coefficient in PROBES:
        for sign in (1.0, -1.0):
            probe = sign * multiple * instruction.probe
            part = weights.part(start, rows)
            _fill_share_scores(probe, layout, part)
            if OUT_OF_BATCH in layout.names:
                put(part.key, layout, 3, {OUT_OF_BATCH: 1.0})
            for slot, factor in instruction.left.terms():
                part.key[row, coordinates(layout, slot), 0] += factor
            right = joined(layout, *stacked(instruction.right, instruction.bias))
            part.value[:, right, entry] = 1.0
            gain = coefficient * instruction.scale / (2 * probe * registers.SHARE)
            part.output[row[:, None], entry, write] = _in_range(gain, part.output.dtype)
            start += rows


def _in_range(gain: float, dtype: torch.dtype) -> float:
    """The gain of a gradient head, if the dtype can hold it: it is 1 / SHARE times its step."""
    if not abs(gain) <= torch.finfo(dtype).max:
        name = str(dtype).removeprefix("torch.")
        raise OverflowedRunError.constant("output weight of a gradient head", gain, name)
    return gain


def _fill_share_scores(probe: float, layout: Layout, heads: Heads) -> None:
    """The part of the scores of `AddGradient` that does not depend on its slots."""
    put(heads.query, layout, 0, {registers.SIGN: probe})
    put(heads.query, layout, 1, {registers.LOG_EXAMPLES: 1.0, registers.SINK: 1.0})
    put(heads.key, layout, 1, {IS_MEMORY: 1.0})
    put(heads.query, layout, 2, {IS_EXAMPLE: -MASKED, IS_QUERY: -MASKED})
    put(heads.key, layout, 2, {IS_EXAMPLE: 1.0})
    put(heads.query, layout, 3, {ONE: -MASKED})
    put(heads.key, layout, 3, {IS_QUERY: 1.0, IS_REGISTER: 1.0, IS_MEMORY: -1.0})


@fill.register
def _fill_average_examples(
    instruction: AverageExamples, program: StackProgram, weights: Heads
) -> None:
    """Query 1, key the score, which is lowered at other tokens, value every coordinate."""
    layout = program.layout
    write = joined(layout, instruction.write)
    entry = torch.arange(len(write))
    put(weights.query, layout, 0, {ONE: 1.0})
    for slot, factor in instruction.score.terms():
        weights.key[:, coordinate_of(layout, slot), 0] += factor
    put(weights.key, layout, 0, dict.fromkeys(other_tokens(layout), -MASKED))
    for slot, factor in instruction.value.terms():
        weights.value[:, joined(layout, slot), entry] += factor
    weights.output[:, entry, write] = 1.0


@fill.register
def _fill_look_up_step(instruction: LookUpStep, program: StackProgram, weights: Units) -> None:
    """The table's units, and two units that take the old weight away."""
    n_terms = len(weights.bias) - 2
    fill(instruction.addition, program, weights.part(0, n_terms))
    _fill_pairs((instruction.write,), program.layout, weights.part(n_terms, 2))


@fill.register
def _fill_descend_function(
    instruction: DescendFunction, program: StackProgram, weights: Heads
) -> None:
    """A weighted V = diag(A, -step_size) for every kernel; the noise changes labels alone.

    Where there is a velocity, all of them write it too; the last head, in which every token reads
    itself, turns it into the kept part of the change.
    """
    layout = program.layout
    inputs = joined(layout, instruction.inputs)
    labels = joined(layout, instruction.residual)
    for head, term in enumerate(instruction.terms):
        _fill_kernel_scores(term, inputs, weights.part(head, 1))
        scale = -instruction.step_size * term.weight
        _fill_change(instruction, layout, scale, weights.part(head, 1))
        if instruction.transform is not None:
            moved = term.weight * as_matrix(instruction.transform, weights.output.double())
            features = len(labels) + torch.arange(len(inputs))
            weights.value[head, inputs, features] = 1.0
            weights.output[head, features[:, None], inputs] = moved.mT.to(weights.output)
    if instruction.noise > 0:
        scale = -instruction.step_size * instruction.noise
        _fill_change(instruction, layout, scale, weights.part(len(instruction.terms), 1))
    if instruction.velocity is not None:
        kept = {instruction.residual: instruction.momentum, instruction.velocity: -1.0}
        kept[instruction.velocity] += instruction.momentum
        _carry(layout, {instruction.velocity: 1.0}, kept, weights.part(len(weights.query) - 1, 1))


def _fill_kernel_scores(term: KernelTerm, inputs: Tensor, head: Heads) -> None:
    """Queries are G x, and keys too, or H x."""
    unit = torch.eye(len(inputs), dtype=torch.float64)
    for rows, weights in zip(term.matrices, (head.query, head.key), strict=True):
        matrix = unit if rows is None else as_matrix(rows, unit)
        weights[0, inputs, : len(matrix)] = matrix.mT.to(weights)


def _fill_change(step: DescendFunction, layout: Layout, scale: float, head: Heads) -> None:
    """Every token gets `scale` times what is left at the tokens that it reads."""
    _carry(layout, step.read_at_examples(), dict.fromkeys(step.learnt, scale), head)


def _carry(
    layout: Layout, read: Mapping[str, float], write: Mapping[str, float], head: Heads
) -> None:
    """Every token gets the sum of the slots read, each times its number, into the slots written."""
    for name, number in read.items():
        slot = joined(layout, name)
        head.value[0, slot, torch.arange(len(slot))] = number
    for name, number in write.items():
        slot = joined(layout, name)
        head.output[0, torch.arange(len(slot)), slot] = number
