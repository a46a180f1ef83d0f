"""A task: the data of one training run, or of a batch of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from icgd.shapes import Inputs, Labels, Parameters, Points, Queries


@dataclass(frozen=True)
class Task:
    """Examples (x, y), queries and initial weights; with a leading axis for many tasks.

    A task of a kernel machine has, for weights, the values of the function at all tokens.
    """

    x: Inputs
    y: Labels
    queries: Queries
    initial: Parameters

    @property
    def n_examples(self) -> int:
        return self.x.shape[-2]

    @property
    def n_queries(self) -> int:
        return self.queries.shape[-2]

    @property
    def n_tokens(self) -> int:
        return self.n_examples + self.n_queries

    @property
    def points(self) -> Points:
        """The inputs of examples and queries, in float64."""
        return torch.cat([self.x, self.queries], dim=-2).double()

    @property
    def batch(self) -> tuple[int, ...]:
        """() for one task, (n_tasks,) for a batch."""
        return tuple(self.x.shape[:-2])
