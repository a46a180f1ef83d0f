r"""Lowering of steps on linear models: heads over grid tokens, and heads that sum over examples.

A head of grid attention has the tokens points[g] times the first column for its keys, plus the
offsets as position codes, and values[g] times it for its values. All heads of a layer have as many
tokens as the largest grid. Tokens that a head does not need have a score that no softmax sees.
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
from icgd.program.momentum_instructions import MoveByVelocity
from icgd.program.program import Layer
from icgd.program.registers import MASKED
from icgd.program.stack import StackProgram
from icgd.weights.heads import Heads, coordinate_of, fill, joined, put
from icgd.weights.sizes import LayerSize


@dataclass(frozen=True)
class GridHead:
    """The coordinates that a head has in its query and key, that it reads and that it writes.

    Token g has the score points[g] * sum_j query_j key_scale_j key_j + offsets[g], where the key is
    taken from the first column. What is read there, times values[g] and the matrix `output` (read,
    write), is written.
    """

    grid: GridMean
    query: Tensor
    key: Tensor
    key_scale: Tensor
    read: Tensor
    write: Tensor
    output: Tensor

    @property
    def n_features(self) -> int:
        """The number of features of query and key: the terms of the score, and the offset."""
        return len(self.query) + 1

    @property
    def n_values(self) -> int:
        return len(self.read)

    @property
    def n_tokens(self) -> int:
        return len(self.grid.values)


ONE_TOKEN = GridMean("one token", 1.0, (0.0,), (0.0,), (1.0,), 0.0, 1.0, 0.0, 0.0)
"""The grid of a head that reads the first column itself."""


@singledispatch
def grid_head(instruction: Instruction, program: StackProgram) -> GridHead:
    """The head of an instruction of grid attention."""
    raise ProgramError.broken(type(instruction).__name__, "has no rule in weights/grid_heads.py")


@grid_head.register
def _head_of_predict_mean(instruction: PredictMean, program: StackProgram) -> GridHead:
    """Every column has its own inputs in the query, and meets the weights of the first."""
    layout = program.layout
    weights, inputs = joined(layout, *instruction.weights), joined(layout, *instruction.inputs)
    one, write = joined(layout, ONE), joined(layout, instruction.write)
    factors = [numbers(layout.width_of(name), factor) for name, _, factor in instruction.products()]
    grid = program.grid_mean(instruction.mean)
    return GridHead(grid, inputs, weights, torch.cat(factors), one, write, diagonal(1, 1.0))


@grid_head.register
def _head_of_decay_slot(instruction: DecaySlot, program: StackProgram) -> GridHead:
    """A head with one token, which is the first column itself."""
    slot = joined(program.layout, instruction.slot)
    return _copying_head(slot, slot, diagonal(len(slot), instruction.decay))


@grid_head.register
def _head_of_move_by_velocity(instruction: MoveByVelocity, program: StackProgram) -> GridHead:
    """It reads weights and velocity of the first column, and adds to both."""
    layout, kept, decay = program.layout, instruction.kept, instruction.decay
    both = joined(layout, instruction.slot, instruction.velocity)
    width = len(both) // 2
    gains = torch.tensor([[-decay, -decay], [kept, kept - 1]], dtype=torch.float64)
    return _copying_head(both, both, torch.kron(gains, diagonal(width, 1.0)))


def _copying_head(read: Tensor, write: Tensor, output: Tensor) -> GridHead:
    """A head with one token, which is the first column: it has no score to tell tokens apart."""
    none = read[:0]
    return GridHead(ONE_TOKEN, none, none, numbers(0, 1.0), read, write, output)


def numbers(n_entries: int, value: float) -> Tensor:
    """The same number so many times."""
    return torch.full((n_entries,), value, dtype=torch.float64)


def diagonal(width: int, value: float) -> Tensor:
    """The multiple of the unit matrix."""
    return numbers(width, value).diag()


@fill.register
def _fill_descend_examples(
    instruction: DescendExamples, program: StackProgram, weights: Heads
) -> None:
    """Query tokens, key +-(mean - label) - gate * is_query, value inputs."""
    layout = program.layout
    read, write = joined(layout, *instruction.inputs), joined(layout, *instruction.weights)
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
    size, one = grid_layer_size(layer, program), coordinate_of(program.layout, ONE)
    weights = Heads.zeros(size.units, size.d_model, size.width, dtype)
    key_map, value_map = (torch.zeros(size.units, size.n_grid, 1, dtype=dtype) for _ in range(2))
    positions = torch.zeros(size.units, size.n_grid, size.width, dtype=dtype)
    for number, head in enumerate(layer_heads(layer, program)):
        feature, entry, offset = torch.arange(len(head.query)), torch.arange(head.n_values), -1
        weights.query[number, head.query, feature] = 1.0
        weights.key[number, head.key, feature] = head.key_scale.to(dtype)
        weights.query[number, one, offset] = 1.0
        weights.value[number, head.read, entry] = 1.0
        weights.output[number, entry[:, None], head.write] = head.output.to(dtype)
        table = (head.grid.points, head.grid.values, head.grid.offsets)
        points, values, offsets = torch.tensor(table, dtype=torch.float64).to(dtype)
        key_map[number, : head.n_tokens, 0] = points
        value_map[number, : head.n_tokens, 0] = values
        positions[number, :, offset] = -MASKED
        positions[number, : head.n_tokens, offset] = offsets
    return SequenceAttention(*weights, key_map, value_map, positions)


def grid_layer_size(layer: Layer, program: StackProgram) -> LayerSize:
    """The size of the layer; all heads have as many features and tokens as the largest."""
    heads = layer_heads(layer, program)
    n_grid = max(head.n_tokens for head in heads)
    return LayerSize(
        title=layer.title,
        kind=layer.kind,
        d_model=program.layout.width,
        units=len(heads),
        width=max(max(head.n_features, head.n_values) for head in heads),
        nonzeros=sum(_nonzeros(head, n_grid) for head in heads),
        n_grid=n_grid,
    )


def _nonzeros(head: GridHead, n_grid: int) -> int:
    """Non-zeros of projections, of both maps, and of offsets, which also close unneeded tokens."""
    keys, written = (int(part.count_nonzero()) for part in (head.key_scale, head.output))
    projections = len(head.query) + keys + 1 + head.n_values + written
    n_closed = n_grid - head.n_tokens
    table = (*head.grid.points, *head.grid.values, *head.grid.offsets)
    return projections + sum(number != 0 for number in table) + n_closed
