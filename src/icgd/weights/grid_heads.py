r"""Lowering of steps on linear models: heads over grid tokens, and heads that sum over examples.

A head of grid attention has the tokens points[g] times the first column for its keys, plus the
offsets as position codes, and values[g] times it for its values. All heads of a layer have as many
tokens as the largest grid; those that are left over have a score that no softmax sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from icgd.errors import ProgramError
from icgd.layers.sequence_attention import SequenceAttention
from icgd.program.functions import GridMean
from icgd.program.grid_instructions import DecaySlot, DescendExamples, PredictMean
from icgd.program.instructions import IS_QUERY, ONE, Instruction
from icgd.program.layout import Layout
from icgd.program.program import Layer
from icgd.program.registers import MASKED
from icgd.program.stack import StackProgram
from icgd.weights.heads import Heads, coordinate_of, coordinates, fill, put


@dataclass(frozen=True)
class GridHead:
    """What meets in the score of a head, what is read and what is written.

    Token g has the score points[g] * sum_j query_j key_j + offsets[g], where the key is that of the
    first column, and the value output_scale * values[g] * what is read there.
    """

    grid: GridMean
    query: Tensor
    key: Tensor
    read: Tensor
    write: Tensor
    output_scale: float

    @property
    def n_features(self) -> int:
        """Features of query and key: the terms of the score, and the offset."""
        return len(self.query) + 1

    @property
    def n_values(self) -> int:
        return len(self.read)

    @property
    def n_tokens(self) -> int:
        return len(self.grid.values)


ONE_TOKEN = GridMean("one token", 1.0, (0.0,), (0.0,), (1.0,), 0.0, 1.0, 0.0, 0.0)
"""What a head has in place of a grid that reads the first column itself."""


@singledispatch
def grid_head(instruction: Instruction, program: StackProgram) -> GridHead:
    """The head of an instruction of grid attention."""
    raise ProgramError.broken(type(instruction).__name__, "has no rule in weights/grid_heads.py")


def _joined(layout: Layout, names: tuple[str, ...]) -> Tensor:
    return torch.cat([coordinates(layout, name).flatten() for name in names])


@grid_head.register
def _head_of_predict_mean(instruction: PredictMean, program: StackProgram) -> GridHead:
    """Every column has its own inputs in the query, and meets the weights of the first."""
    layout = program.layout
    weights, inputs = _joined(layout, instruction.weights), _joined(layout, instruction.inputs)
    one, write = _joined(layout, (ONE,)), _joined(layout, (instruction.write,))
    return GridHead(program.grid_mean(instruction.mean), inputs, weights, one, write, 1.0)


@grid_head.register
def _head_of_decay_slot(instruction: DecaySlot, program: StackProgram) -> GridHead:
    """A head with one token, which is the first column itself."""
    slot = _joined(program.layout, (instruction.slot,))
    return GridHead(ONE_TOKEN, slot[:0], slot[:0], slot, slot, instruction.decay)


@fill.register
def _fill_descend_examples(
    instruction: DescendExamples, program: StackProgram, weights: Heads
) -> None:
    """Query tokens, key +-(mean - label) - gate * is_query, value inputs."""
    layout = program.layout
    read, write = _joined(layout, instruction.inputs), _joined(layout, instruction.weights)
    feature, sign = torch.arange(len(read)), torch.tensor([1.0, -1.0]).to(weights.key)
    put(weights.query, layout, 0, {instruction.tokens: 1.0})
    put(weights.key, layout, 0, {instruction.mean: sign, instruction.label: -sign})
    put(weights.key, layout, 0, {IS_QUERY: -instruction.gate})
    weights.value[:, read, feature] = 1.0
    weights.output[:, feature, write] = instruction.scale * sign[:, None]


def layer_heads(layer: Layer, program: StackProgram) -> list[GridHead]:
    """All heads of a layer, in order."""
    return [grid_head(part, program) for part in layer.instructions]


def lower_grid_attention(
    layer: Layer, program: StackProgram, dtype: torch.dtype
) -> SequenceAttention:
    """The layer with ordinary weights, for prompts of any length."""
    heads, one = layer_heads(layer, program), coordinate_of(program.layout, ONE)
    n_heads, width = len(heads), program.layout.width
    n_features = max(max(head.n_features, head.n_values) for head in heads)
    n_grid = max(head.n_tokens for head in heads)
    weights = Heads.zeros(n_heads, width, n_features, dtype)
    query, key, value, output = weights
    key_map, value_map = (torch.zeros(n_heads, n_grid, 1, dtype=dtype) for _ in range(2))
    positions = torch.zeros(n_heads, n_grid, n_features, dtype=dtype)
    for number, head in enumerate(heads):
        feature, entry, offset = torch.arange(len(head.query)), torch.arange(head.n_values), -1
        query[number, head.query, feature] = 1.0
        key[number, head.key, feature] = 1.0
        query[number, one, offset] = 1.0
        value[number, head.read, entry] = 1.0
        output[number, entry, head.write] = head.output_scale
        positions[number, head.n_tokens :, offset] = -MASKED
        points, offsets, values = (
            torch.tensor(part, dtype=torch.float64).to(dtype)
            for part in (head.grid.points, head.grid.offsets, head.grid.values)
        )
        key_map[number, : head.n_tokens, 0] = points
        value_map[number, : head.n_tokens, 0] = values
        positions[number, : head.n_tokens, offset] = offsets
    return SequenceAttention(*weights, key_map, value_map, positions)
