r"""Lowering of chain programs: the block's three layers as numbers.

An instruction of an MLP is a few ReLUs for each coordinate, and a product of matrices one head for
each entry: its query holds a row of one factor in the column, its keys the other factor in the grid
tokens g = -half .. half, which are g / half times the column. So the scores are (g a / spacing -
g^2 / 2) / ratio^2 with a = entry / reach, and the grid returns a.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from torch import nn

from icgd.errors import ProgramError
from icgd.layers.grid_attention import GridAttention
from icgd.layers.mlp import MLPLayer
from icgd.program.chain import ChainProgram
from icgd.program.chain_instructions import (
    ActivateWhere,
    CopyWhere,
    MarkFlat,
    MultiplyMatrices,
    PassBack,
)
from icgd.program.functions import LatticeFunction
from icgd.program.instructions import ONE, Combination, Instruction, LayerKind
from icgd.program.layout import Layout
from icgd.program.program import Layer
from icgd.program.registers import OFFSET, value_slot
from icgd.weights.heads import Heads, Units, coordinate_of, coordinates


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
    rule = "has no rule in weights/chain_lowering.py"
    raise ProgramError.broken(type(instruction).__name__, rule)


def _times(factor: float, combination: Combination) -> Combination:
    return Combination(
        combination.slots, tuple(factor * coefficient for coefficient in combination.coefficients)
    )


def _line(factor: float, source: Combination, verb: CopyWhere | PassBack) -> list[GatedRelu]:
    """factor * s = factor * relu(s) - factor * relu(-s)."""
    return [
        GatedRelu(sign * factor, _times(sign, source), 0.0, verb.closed_by, verb.gate)
        for sign in (1.0, -1.0)
        if factor
    ]


@relus_of.register
def _(instruction: CopyWhere) -> list[GatedRelu]:
    relus = _line(1.0, instruction.source, instruction)
    if instruction.bound is not None:
        beyond = [replace(relu, coefficient=-relu.coefficient) for relu in relus]
        relus += [replace(relu, shift=-instruction.bound) for relu in beyond]
    return relus


@relus_of.register
def _(instruction: PassBack) -> list[GatedRelu]:
    """Where it is flat, the slot `flat` closes a ReLU as a flag does."""
    steep = [
        replace(relu, slots=_with_term(relu.slots, instruction.flat, -instruction.gate))
        for relu in _line(1 - instruction.leak, instruction.upstream, instruction)
    ]
    return _line(instruction.leak, instruction.upstream, instruction) + steep


def _with_term(combination: Combination, slot: str, coefficient: float) -> Combination:
    return Combination((*combination.slots, slot), (*combination.coefficients, coefficient))


@relus_of.register
def _(instruction: ActivateWhere) -> list[GatedRelu]:
    """relu(z) - leak relu(-z), and the rest of -relu(-z) unless there is a kink."""
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
def _(instruction: MarkFlat) -> list[GatedRelu]:
    below = Combination((instruction.argument,), (-1.0,))
    closed_by, width = (instruction.linear, *instruction.closed_by), instruction.width
    return [GatedRelu(1 / width, below, width, closed_by, instruction.gate)]


def lower_chain(program: ChainProgram, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The block of layers with ordinary weights, the same for every step of the chain."""
    return nn.Sequential(
        *(
            _mlp(layer, program.layout, dtype)
            if layer.kind is LayerKind.MLP
            else _attention(layer, program, dtype)
            for layer in program.layers
        )
    )


def _mlp(layer: Layer, layout: Layout, dtype: torch.dtype) -> MLPLayer:
    rows = [
        (relu, write)
        for instruction in layer.instructions
        for write in instruction.writes()
        for relu in relus_of(instruction)
    ]
    lengths = [layout.slot(write).width for _, write in rows]
    n_units = sum(lengths)
    reads, writes = (torch.zeros(n_units, layout.width, dtype=dtype) for _ in range(2))
    units = Units(reads, torch.zeros(n_units, dtype=dtype), writes)
    start = 0
    for (relu, write), length in zip(rows, lengths, strict=True):
        _fill_relu(relu, write, layout, units.part(start, length))
        start += length
    return MLPLayer(units.reads.T.contiguous(), units.bias, units.writes)


def _fill_relu(relu: GatedRelu, write: str, layout: Layout, units: Units) -> None:
    """A unit for each coordinate of slot `write`."""
    unit = torch.arange(len(units.bias))
    for slot, factor in relu.slots.terms():
        units.reads[unit, coordinates(layout, slot).flatten()] += factor
    for flag in relu.closed_by:
        units.reads[:, coordinate_of(layout, flag)] -= relu.gate
    units.bias[:] = relu.shift
    units.writes[unit, coordinates(layout, write).flatten()] = relu.coefficient


def _attention(layer: Layer, program: ChainProgram, dtype: torch.dtype) -> GridAttention:
    products = [part for part in layer.instructions if isinstance(part, MultiplyMatrices)]
    (grid,) = program.functions
    parts = [_heads(product, grid, program.layout, dtype) for product in products]
    features = max(part.query.shape[-1] for part in parts)
    padded = [_padded(part, features) for part in parts]
    query, key, value, output = (
        torch.cat(weights)
        for weights in zip(
            *((part.query, part.key, part.value, part.output) for part in padded), strict=True
        )
    )
    scales = torch.arange(-grid.half, grid.half + 1, dtype=torch.float64) / grid.half
    positions = torch.zeros(len(scales), program.layout.width, dtype=torch.float64)
    positions[:, coordinate_of(program.layout, OFFSET)] = -((scales * grid.half) ** 2) / 2
    positions[:, coordinate_of(program.layout, value_slot(grid.name))] = torch.tensor(
        grid.values, dtype=torch.float64
    )
    sequence_map = scales.unsqueeze(-1)
    return GridAttention(query, key, value, output, sequence_map.to(dtype), positions.to(dtype))


def _heads(
    product: MultiplyMatrices, grid: LatticeFunction, layout: Layout, dtype: torch.dtype
) -> Heads:
    """Head (i, j) returns sum_s left[i, s] right[s, j]."""
    left, right = coordinates(layout, product.left), coordinates(layout, product.right)
    left = left.T if product.left_transposed else left
    right = right if product.right_transposed else right.T  # a row for each column of the result
    (rows, n_terms), columns = left.shape, len(right)
    n_heads = rows * columns
    shape = (n_heads, layout.width, n_terms + 1)
    query, key, value = (torch.zeros(shape, dtype=dtype) for _ in range(3))
    output = torch.zeros(n_heads, n_terms + 1, layout.width, dtype=dtype)
    head, term = torch.arange(n_heads), torch.arange(n_terms)
    gain = grid.half / (grid.spacing * grid.ratio**2 * product.reach)
    query[head[:, None], left.repeat_interleave(columns, 0), term] = gain
    key[head[:, None], right.repeat(rows, 1), term] = 1.0
    query[:, coordinate_of(layout, ONE), n_terms] = 1 / grid.ratio**2
    key[:, coordinate_of(layout, OFFSET), n_terms] = 1.0
    value[:, coordinate_of(layout, value_slot(grid.name)), 0] = 1.0
    output[head, 0, coordinates(layout, product.write).flatten()] = product.reach
    return Heads(query, key, value, output)


def _padded(heads: Heads, features: int) -> Heads:
    """With features of zeros, so that all heads have as many."""
    missing = features - heads.query.shape[-1]
    query, key, value = (
        nn.functional.pad(weights, (0, missing))
        for weights in (heads.query, heads.key, heads.value)
    )
    return Heads(query, key, value, nn.functional.pad(heads.output, (0, 0, 0, missing)))
