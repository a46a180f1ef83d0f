r"""Lowering of grid attention: heads whose tokens are multiples of one column.

Head h has the tokens points[g] times column c for its keys, plus the offsets as position codes, and
values[g] times it for its values. All heads of a layer have as many tokens as the largest grid;
those that are left over have a score that no softmax sees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from torch import Tensor

from icgd.errors import ProgramError
from icgd.layers.sequence_attention import SequenceAttention
from icgd.program.functions import GridMean
from icgd.program.grid_instructions import LABEL, DescendExamples, PredictMean
from icgd.program.instructions import ONE, Instruction
from icgd.program.layout import Layout
from icgd.program.program import Layer
from icgd.program.registers import MASKED
from icgd.program.stack import StackProgram
from icgd.weights.heads import coordinate_of, coordinates


@dataclass(frozen=True)
class GridHead:
    """Heads that are alike, one for each column: what meets in the score, is read and written.

    Token g has the score points[g] * sum_j factor_j query_j key_j + offsets[g], where the key is
    that of the head's column, and the value output_scale * values[g] * what is read there.
    """

    columns: range
    grid: GridMean | None
    query: Tensor
    key: Tensor
    factors: Tensor
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
        return 1 if self.grid is None else len(self.grid.values)


@singledispatch
def grid_heads(instruction: Instruction, program: StackProgram) -> list[GridHead]:
    """The heads of an instruction of grid attention, those that are alike together."""
    raise ProgramError.broken(type(instruction).__name__, "has no rule in weights/grid_heads.py")


def _joined(layout: Layout, names: tuple[str, ...]) -> Tensor:
    return torch.cat([coordinates(layout, name).flatten() for name in names])


@grid_heads.register
def _heads_of_descend_examples(
    instruction: DescendExamples, program: StackProgram
) -> list[GridHead]:
    layout = program.layout
    weights, inputs = _joined(layout, instruction.weights), _joined(layout, instruction.inputs)
    one, label = (_joined(layout, (name,)) for name in (ONE, instruction.label))
    mean = GridHead(
        columns=range(instruction.n_examples),
        grid=program.grid_mean(instruction.mean),
        query=weights,
        key=inputs,
        factors=torch.ones(len(weights)),
        read=inputs,
        write=weights,
        output_scale=instruction.scale,
    )
    if instruction.joins_label:
        factors = torch.cat([mean.factors, -torch.ones(1)])
        left = replace(
            mean, query=torch.cat([weights, one]), key=torch.cat([inputs, label]), factors=factors
        )
        return [left, *_decay(instruction, layout)]
    labels = replace(
        mean,
        grid=program.grid_mean(LABEL),
        query=one,
        key=label,
        factors=torch.ones(1),
        output_scale=-instruction.scale,
    )
    return [mean, labels, *_decay(instruction, layout)]


def _decay(instruction: DescendExamples, layout: Layout) -> list[GridHead]:
    """A head with one token, which is a column itself."""
    if not instruction.decay:
        return []
    slot = coordinates(layout, instruction.weights[0]).flatten()
    nothing = slot[:0]
    unscored = (nothing, nothing, torch.ones(0))
    return [GridHead(range(1), None, *unscored, slot, slot, instruction.decay)]


@grid_heads.register
def _heads_of_predict_mean(instruction: PredictMean, program: StackProgram) -> list[GridHead]:
    layout = program.layout
    weights, inputs = _joined(layout, instruction.weights), _joined(layout, instruction.inputs)
    one, write = _joined(layout, (ONE,)), _joined(layout, (instruction.write,))
    grid, factors = program.grid_mean(instruction.mean), torch.ones(len(weights))
    return [GridHead(range(1), grid, inputs, weights, factors, one, write, 1.0)]


def layer_heads(layer: Layer, program: StackProgram) -> list[GridHead]:
    """All heads of a layer, in order, those that are alike together."""
    return [head for part in layer.instructions for head in grid_heads(part, program)]


def lower_grid_attention(
    layer: Layer, program: StackProgram, dtype: torch.dtype
) -> SequenceAttention:
    """The layer with ordinary weights, for prompts of the program's number of examples."""
    heads, one = layer_heads(layer, program), coordinate_of(program.layout, ONE)
    n_heads, width = sum(len(head.columns) for head in heads), program.layout.width
    n_features = max(max(head.n_features, head.n_values) for head in heads)
    n_grid, n_columns = (
        max(head.n_tokens for head in heads),
        max(head.columns.stop for head in heads),
    )
    query, key, value = (torch.zeros(n_heads, width, n_features, dtype=dtype) for _ in range(3))
    output = torch.zeros(n_heads, n_features, width, dtype=dtype)
    key_map, value_map = (torch.zeros(n_heads, n_grid, n_columns, dtype=dtype) for _ in range(2))
    positions = torch.zeros(n_heads, n_grid, n_features, dtype=dtype)
    columns = [(head, column) for head in heads for column in head.columns]
    for number, (head, column) in enumerate(columns):
        feature, entry, offset = torch.arange(len(head.query)), torch.arange(head.n_values), -1
        query[number, head.query, feature] = head.factors.to(dtype)
        key[number, head.key, feature] = 1.0
        query[number, one, offset] = 1.0
        value[number, head.read, entry] = 1.0
        output[number, entry, head.write] = head.output_scale
        positions[number, head.n_tokens :, offset] = -MASKED
        value_map[number, : head.n_tokens, column] = 1.0
        if head.grid is not None:
            points, offsets, values = (
                torch.tensor(part, dtype=torch.float64).to(dtype)
                for part in (head.grid.points, head.grid.offsets, head.grid.values)
            )
            key_map[number, : head.n_tokens, column] = points
            value_map[number, : head.n_tokens, column] = values
            positions[number, : head.n_tokens, offset] = offsets
    return SequenceAttention(query, key, value, output, key_map, value_map, positions)
