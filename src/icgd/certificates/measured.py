"""Measured errors against the reference algorithm."""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.problems import functional_reference, proximal_reference, reference
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.shapes import History, Inputs, Labels, Parameters


def stepwise_errors(problem: Problem, task: Task, history: History) -> Tensor:
    """For each step, the largest |w_l - step(w_{l-1})|, from the run's own weights."""
    history = history.double()
    if problem.trains_function:
        after = functional_reference.stepped(problem, task, history)
        return (history[..., 1:, :] - after).abs().amax(-1)
    x, y = task.x.double(), task.y.double()
    errors = [
        (history[..., step + 1, :] - _stepped(problem, step, history[..., step, :], x, y))
        .abs()
        .amax(-1)
        for step in range(history.shape[-2] - 1)
    ]
    return torch.stack(errors, dim=-1) if errors else history.new_zeros(*task.batch, 0)


def _stepped(problem: Problem, step: int, before: Parameters, x: Inputs, y: Labels) -> Parameters:
    """The weights after an exact step, from those before it."""
    if problem.trains_coefficients:
        return proximal_reference.step(problem.model, problem.proximal_step, before, x, y)
    return reference.step(problem, before, *reference.examples_of(problem, step, x, y))


def exact_run(problem: Problem, task: Task, n_steps: int) -> History:
    """The real algorithm in float64, on the same data from the same start."""
    if problem.trains_function:
        return functional_reference.train(problem, task, n_steps)
    if problem.trains_coefficients:
        model, update = problem.model, problem.proximal_step
        return proximal_reference.train(model, update, task.initial, task.x, task.y, n_steps)
    return reference.train(problem, task.initial, task.x, task.y, n_steps)


def trajectory_errors(history: History, real: History) -> Tensor:
    """For each step, the largest distance of a weight from the exact run."""
    return (history.double() - real).abs().amax(-1)[..., 1:]
