"""Measured errors against the reference algorithm."""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.problems import reference
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.shapes import History


def stepwise_errors(problem: Problem, task: Task, history: History) -> Tensor:
    """For each step, the largest |w_l - step(w_{l-1})|, from the run's own weights."""
    history = history.double()
    x, y = task.x.double(), task.y.double()
    errors = [
        (history[..., step + 1, :] - reference.step(problem, history[..., step, :], x, y))
        .abs()
        .amax(-1)
        for step in range(history.shape[-2] - 1)
    ]
    return torch.stack(errors, dim=-1) if errors else history.new_zeros(*task.batch, 0)


def trajectory_errors(history: History, real: History) -> Tensor:
    """For each step, the largest distance of a weight from the exact run."""
    return (history.double() - real).abs().amax(-1)[..., 1:]
