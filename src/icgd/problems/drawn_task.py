"""Data drawn over the domain of a problem, where nobody gives any."""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.memory import require_memory
from icgd.problems.data import as_task
from icgd.problems.losses import CROSS_ENTROPY
from icgd.problems.problem import Problem
from icgd.problems.settings import count
from icgd.problems.task import Task


def drawn_task(problem: Problem, n_examples: int, *, seed: int) -> Task:
    """Draw inputs over the whole domain, and labels between 0 and 1; those of classes add up to 1.

    Raise `SizeError` if so many examples do not fit into memory.
    """
    target = problem.target
    n_numbers = n_examples * (target.input_width + target.output_width)
    require_memory(f"{n_examples:,} examples", 8 * n_numbers, "Give fewer examples.")
    generator = torch.Generator().manual_seed(count("seed", seed, least=0))
    x = problem.domain.x * (2 * _uniform(n_examples, target.input_width, generator) - 1)
    y = _uniform(n_examples, target.output_width, generator) * min(1.0, problem.domain.y)
    if problem.loss == CROSS_ENTROPY.name:
        y = y / y.sum(-1, keepdim=True)
    return as_task(problem, x, y, seed=seed)


def _uniform(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.rand((rows, columns), generator=generator, dtype=torch.float64)
