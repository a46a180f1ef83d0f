r"""Lowering of chain programs: the block's layers as numbers.

An instruction of an MLP becomes a few ReLUs for each coordinate. A product of matrices becomes one
head for each entry. Its query holds a row of one factor in the column. Its keys hold the other
factor in the grid tokens g = -half .. half, which are g / half times the column. So the scores are
(g a / spacing - g^2 / 2) / ratio^2 with a = entry / reach, and the head returns a. With other
values it returns any other function of the entry: each function has its own gain in the query, and
the grid is the same. Shares of classes are read from tokens of their own, one for each class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from torch import Tensor, nn

from icgd.errors import ProgramError
from icgd.layers.grid_attention import GridAttention
from icgd.layers.mlp import MLPLayer
from icgd.program import chain_instructions as chain
from icgd.program.chain import ChainProgram
from icgd.program.functions import LatticeFunction
from icgd.program.instructions import IDENTITY, ONE, Combination, Instruction, LayerKind
from icgd.program.layout import Layout
from icgd.program.program import Layer
from icgd.program.registers import MASKED, OFFSET, value_slot
from icgd.weights.heads import Heads, Units, coordinate_of, coordinates, joined, put

NO_CLASS_SCORE = 4 * MASKED
"""What grid tokens have less than classes: scores of these are at least -4096, where grids end."""


@dataclass(frozen=True)
class GatedRelu:
    """coefficient * relu(sum of slots + shift - gate * sum of flags), coordinate by coordinate."""

    coefficient: float
    slots: Combination
    shift: float
    closed_by: tuple[str, ...]
    gate: float


@singledispatch
def relus_of(instruction: Instruction) -> list[GatedRelu]:
    """The ReLUs whose sum an instruction of an MLP adds to each coordinate that it writes."""
    raise ProgramError(f"{type(instruction).__name__} has no rule in weights/chain_lowering.py")


def _times(factor: float, combination: Combination) -> Combination:
    return Combination(
        combination.slots, tuple(factor * coefficient for coefficient in combination.coefficients)
    )


def _line(
    factor: float, source: Combination, verb: chain.CopyWhere | chain.PassBack
) -> list[GatedRelu]:
    """The ReLUs of factor * s = factor * relu(s) - factor * relu(-s); a bound clips s."""
    relus = [
        GatedRelu(sign * factor, _times(sign, source), 0.0, verb.closed_by, verb.gate)
        for sign in (1.0, -1.0)
        if factor
    ]
    if verb.bound is None:
        return relus
    beyond = [replace(relu, coefficient=-relu.coefficient) for relu in relus]
    return relus + [replace(relu, shift=-verb.bound) for relu in beyond]


@relus_of.register
def _relus_of_copy_where(instruction: chain.CopyWhere) -> list[GatedRelu]:
    return _line(1.0, instruction.source, instruction)


@relus_of.register
def _relus_of_select_where(instruction: chain.SelectWhere) -> list[GatedRelu]:
    sums = (instruction.sum_of(number) for number in range(len(instruction.sources)))
    return [relu for part in sums for relu in relus_of(part)]


@relus_of.register
def _relus_of_pass_back(instruction: chain.PassBack) -> list[GatedRelu]:
    """The slot `flat` closes a ReLU as a flag does."""
    steep = [
        replace(relu, slots=_with_term(relu.slots, instruction.flat, -instruction.gate))
        for relu in _line(1 - instruction.leak, instruction.upstream, instruction)
    ]
    return _line(instruction.leak, instruction.upstream, instruction) + steep


def _with_term(combination: Combination, slot: str, coefficient: float) -> Combination:
    return Combination((*combination.slots, slot), (*combination.coefficients, coefficient))


@relus_of.register
def _relus_of_activate_where(instruction: chain.ActivateWhere) -> list[GatedRelu]:
    """The result is relu(z) - leak relu(-z), minus (1 - leak) relu(-z) if there is no kink."""
    closed_by, gate, leak = instruction.closed_by, instruction.gate, instruction.leak
    z, below = (Combination((instruction.argument,), (sign,)) for sign in (1.0, -1.0))
    kinked = (instruction.kinked, *closed_by)
    relus = [
        GatedRelu(1.0, z, 0.0, closed_by, gate),
        GatedRelu(leak - 1, below, 0.0, kinked, gate),
        GatedRelu(-leak, below, 0.0, closed_by, gate),
    ]
    return [relu for relu in relus if relu.coefficient]


@relus_of.register
def _relus_of_mark_flat(instruction: chain.MarkFlat) -> list[GatedRelu]:
    below = Combination((instruction.argument,), (-1.0,))
    closed_by, width = (instruction.linear, *instruction.closed_by), instruction.width
    return [GatedRelu(1 / width, below, width, closed_by, instruction.gate)]


def lower_chain(program: ChainProgram, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The block of layers with ordinary weights, the same for every step of the chain."""
    lower = {LayerKind.MLP: _mlp, LayerKind.SOFTMAX: _attention}
    return nn.Sequential(*(lower[layer.kind](layer, program, dtype) for layer in program.layers))


def _mlp(layer: Layer, program: ChainProgram, dtype: torch.dtype) -> nn.Module:
    layout = program.layout
    rows = [
        (relu, write)
        for instruction in layer.instructions
        for write in instruction.writes()
        for relu in relus_of(instruction)
    ]
    lengths = [layout.width_of(write) for _, write in rows]
    units, start = Units.zeros(sum(lengths), layout.width, dtype), 0
    for (relu, write), length in zip(rows, lengths, strict=True):
        _fill_relu(relu, write, layout, units.part(start, length))
        start += length
    return MLPLayer(units.reads.T.contiguous(), units.bias, units.writes)


def _fill_relu(relu: GatedRelu, write: str, layout: Layout, units: Units) -> None:
    """Fill a unit for each coordinate of `write`; a slot with one column is read by all columns."""
    unit, places = torch.arange(len(units.bias)), coordinates(layout, write)
    terms = (*relu.slots.terms(), *((flag, -relu.gate) for flag in relu.closed_by))
    for slot, factor in terms:
        read = coordinates(layout, slot).broadcast_to(places.shape)
        units.reads[unit, read.flatten()] += factor
    units.bias[:] = relu.shift
    units.writes[unit, places.flatten()] = relu.coefficient


def _attention(layer: Layer, program: ChainProgram, dtype: torch.dtype) -> nn.Module:
    parts = [heads_of(part, program, dtype) for part in layer.instructions]
    features = max(part.query.shape[-1] for part in parts)
    padded = [_padded(part, features) for part in parts]
    heads = Heads(*map(torch.cat, zip(*padded, strict=True)))
    tokens = (part.to(dtype) for part in _tokens(layer, program))
    return GridAttention(*heads, *tokens)


def _tokens(layer: Layer, program: ChainProgram) -> tuple[Tensor, Tensor]:
    """The sequence map and the position codes: those of the grid, then those of classes."""
    layout, half = program.layout, program.functions[0].half
    numbers = torch.arange(-half, half + 1, dtype=torch.float64)
    positions = torch.zeros(len(numbers), layout.width, dtype=torch.float64)
    positions[:, coordinate_of(layout, OFFSET)] = -(numbers**2) / 2
    for function in functions_of(layer, program):
        values = torch.tensor(function.values, dtype=torch.float64)
        positions[:, coordinate_of(layout, value_slot(function.name))] = values
    scales = (numbers / half).unsqueeze(-1)
    if not (classes := classes_of(layer)):
        return scales, positions
    positions[:, coordinate_of(layout, chain.NO_CLASS)] = -NO_CLASS_SCORE
    codes = _class_codes(classes, program)
    return torch.cat([scales, scales.new_zeros(len(codes), 1)]), torch.cat([positions, codes])


def classes_of(layer: Layer) -> tuple[str, ...]:
    """The slots of the classes whose tokens a layer has."""
    shares = (part for part in layer.instructions if isinstance(part, chain.ShareColumns))
    return next((part.classes for part in shares), ())


def _class_codes(classes: tuple[str, ...], program: ChainProgram) -> Tensor:
    """A token for each class; heads that read the grid, whose middle has the score 0, mask it."""
    codes = torch.zeros(len(classes), program.layout.width, dtype=torch.float64)
    codes[torch.arange(len(classes)), joined(program.layout, *classes)] = 1.0
    widest = max(function.ratio for function in program.functions)
    codes[:, coordinate_of(program.layout, OFFSET)] = -MASKED * widest**2
    return codes


def functions_of(layer: Layer, program: ChainProgram) -> list[LatticeFunction]:
    """The functions that a layer reads from its grid, each once."""
    names = {name for part in layer.instructions for name in part.functions()}
    return [function for function in program.functions if function.name in names]


@singledispatch
def heads_of(instruction: Instruction, program: ChainProgram, dtype: torch.dtype) -> Heads:
    """The heads of an instruction of attention, one for each entry that it writes."""
    raise ProgramError(f"{type(instruction).__name__} has no heads in weights/chain_lowering.py")


@heads_of.register
def _heads_of_multiply_matrices(
    instruction: chain.MultiplyMatrices, program: ChainProgram, dtype: torch.dtype
) -> Heads:
    left, right = _factors(instruction, program.layout)
    left = left.T if instruction.left_transposed else left
    right = right.T if instruction.right_transposed else right
    reading = _Reading(program.look_up(IDENTITY), instruction.reach, instruction.write)
    return _heads(*_rows_and_columns(left, right), reading, program.layout, dtype)


@heads_of.register
def _heads_of_look_up_product(
    instruction: chain.LookUpProduct, program: ChainProgram, dtype: torch.dtype
) -> Heads:
    rows, columns = _rows_and_columns(*_factors(instruction, program.layout))
    reading = _Reading(program.look_up(instruction.function), 1.0, instruction.write)
    return _heads(rows, columns, reading, program.layout, dtype)


@heads_of.register
def _heads_of_multiply_entries(
    instruction: chain.MultiplyEntries, program: ChainProgram, dtype: torch.dtype
) -> Heads:
    left, right = (entries.reshape(-1, 1) for entries in _factors(instruction, program.layout))
    reading = _Reading(program.look_up(IDENTITY), instruction.reach, instruction.write)
    return _heads(left, right, reading, program.layout, dtype)


@heads_of.register
def _heads_of_share_columns(
    instruction: chain.ShareColumns, program: ChainProgram, dtype: torch.dtype
) -> Heads:
    """Query [scores of a column; 1], key [class; mask], value the class."""
    layout, n_classes = program.layout, len(instruction.classes)
    scores, write = (
        coordinates(layout, name)[:n_classes].T for name in (instruction.scores, instruction.write)
    )
    heads = Heads.zeros(len(scores), layout.width, n_classes + 1, dtype)
    head, feature = torch.arange(len(scores))[:, None], torch.arange(n_classes)
    classes = joined(layout, *instruction.classes)
    heads.query[head, scores, feature] = 1.0
    heads.key[:, classes, feature] = 1.0
    put(heads.query, layout, n_classes, {ONE: 1.0})
    put(heads.key, layout, n_classes, {chain.NO_CLASS: 1.0})
    heads.value[:, classes, feature] = 1.0
    heads.output[head, feature, write] = 1.0
    return heads


def _factors(
    instruction: chain.Product | chain.LookUpProduct, layout: Layout
) -> tuple[Tensor, Tensor]:
    return coordinates(layout, instruction.left), coordinates(layout, instruction.right)


def _rows_and_columns(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """For each entry of left @ right the row and the column whose product it is."""
    columns = right.shape[1]
    return left.repeat_interleave(columns, 0), right.T.repeat(len(left), 1)


@dataclass(frozen=True)
class _Reading:
    """What heads write to slot `write`: scale * function(entry / scale)."""

    function: LatticeFunction
    scale: float
    write: str


def _heads(
    left: Tensor, right: Tensor, reading: _Reading, layout: Layout, dtype: torch.dtype
) -> Heads:
    """Head h reads the sum over s of coordinate left[h, s] times coordinate right[h, s]."""
    n_heads, n_terms = left.shape
    grid = reading.function
    heads = Heads.zeros(n_heads, layout.width, n_terms + 1, dtype)
    head, term = torch.arange(n_heads), torch.arange(n_terms)
    heads.query[head[:, None], left, term] = grid.half / (
        grid.spacing * grid.ratio**2 * reading.scale
    )
    heads.key[head[:, None], right, term] = 1.0
    put(heads.query, layout, n_terms, {ONE: 1 / grid.ratio**2})
    put(heads.key, layout, n_terms, {OFFSET: 1.0})
    put(heads.value, layout, 0, {value_slot(grid.name): 1.0})
    heads.output[head, 0, coordinates(layout, reading.write).flatten()] = reading.scale
    return heads


def _padded(heads: Heads, features: int) -> Heads:
    """The heads with features of zeros added, so that all have as many."""
    missing = features - heads.query.shape[-1]
    query, key, value = (nn.functional.pad(weights, (0, missing)) for weights in heads[:3])
    return Heads(query, key, value, nn.functional.pad(heads.output, (0, 0, 0, missing)))
