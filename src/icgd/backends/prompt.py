"""Prompt encoding: a task as slot values, and as the residual stream."""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.problems.task import Task
from icgd.program.instructions import IS_EXAMPLE, IS_QUERY, ONE, TOKENS_PER_EXAMPLE
from icgd.program.layout import Layout, Role
from icgd.shapes import Parameters, Predictions, Stream


def split_parameters(layout: Layout, parameters: Parameters) -> dict[str, Tensor]:
    """Views of the parameter vector as the layout's matrix slots."""
    slots = layout.having(Role.PARAMETER)
    parts = parameters.split([slot.width for slot in slots], dim=-1)
    return {
        slot.name: part.unflatten(-1, slot.shape) for slot, part in zip(slots, parts, strict=True)
    }


def encode(layout: Layout, task: Task) -> Stream:
    """The prompt: examples, then queries, a token each; all scratch is zero."""
    stream = task.x.new_zeros(*task.batch, task.n_tokens, layout.width)
    stream[..., layout.range_of("x")] = torch.cat([task.x, task.queries], dim=-2)
    stream[..., : task.n_examples, layout.range_of("y")] = task.y
    for name, matrix in split_parameters(layout, task.initial).items():
        stream[..., layout.range_of(name)] = matrix.flatten(-2).unsqueeze(-2)
    stream[..., layout.range_of(ONE)] = 1.0
    stream[..., : task.n_examples, layout.range_of(IS_EXAMPLE)] = 1.0
    stream[..., task.n_examples :, layout.range_of(IS_QUERY)] = 1.0
    stream[..., layout.range_of(TOKENS_PER_EXAMPLE)] = task.n_tokens / task.n_examples
    return stream


def read_parameters(layout: Layout, stream: Stream) -> Parameters:
    """The weights that the stream carries, equal in every token: those of the first."""
    parts = [stream[..., 0, layout.range_of(slot.name)] for slot in layout.having(Role.PARAMETER)]
    return torch.cat(parts, dim=-1)


def read_predictions(layout: Layout, stream: Stream, n_examples: int) -> Predictions:
    """The labels at the queries."""
    return stream[..., n_examples:, layout.range_of("y")].clone()
