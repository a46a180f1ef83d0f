"""How far a step of a compiled transformer is from the exact one, in the norm of Theorem 1."""

from __future__ import annotations

import torch

from icgd.backends.registry import AUTO
from icgd.compiled import Compiled
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem

STEP, BOX = 0.1, 0.5
N_TASKS = 16


def tanh_problem(widths: tuple[int, ...]) -> Problem:
    """A small tanh network, the squared loss, and data in [-1, 1]."""
    return Problem(MLP(widths, "tanh"), "squared", GradientStep(STEP, box=BOX), Domain(1.0, 1.0))


def worst_step(compiled: Compiled, seed: int, backend: str = AUTO) -> float:
    """The largest |eps(w)|_2 of some random tasks in the domain."""
    target, source = compiled.problem.network, torch.Generator().manual_seed(seed)
    shapes = ((5, target.input_width), (5, 1), (target.n_parameters,))
    drawn = [torch.rand(N_TASKS, *s, generator=source, dtype=torch.float64) for s in shapes]
    x, y, w = (2 * numbers - 1 for numbers in drawn)
    task = compiled.task(x, y, initial=BOX * w)
    path = compiled.run_task(task, backend=backend).parameters
    step = compiled.problem.oracle.exact_step(task)
    steps = range(path.shape[-2] - 1)
    errors = [(path[..., i + 1, :] - step(path[..., i, :], i)).norm(dim=-1) for i in steps]
    return float(torch.stack(errors).max())
