"""Time jobs fairly on a noisy machine, and train in plain torch, the baseline of timings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import singledispatch
from math import inf
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch

from icgd.problems.data import Task
from icgd.problems.linear_model import LinearModel
from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem
from icgd.shapes import Parameters

Job = Callable[[], object]
Clock = Callable[[], float]
Name = TypeVar("Name")


def interleaved_medians(jobs: Mapping[Name, Job], *, rounds: int = 15) -> dict[Name, float]:
    """Return the median seconds of every job; interleaving spreads slow moments over all jobs."""
    seconds = interleaved_seconds(jobs, rounds, perf_counter)
    return {name: median(turn[name] for turn in seconds) for name in jobs}


def interleaved_seconds(
    jobs: Mapping[Name, Job], rounds: int, clock: Clock, *, patience: float = inf
) -> list[dict[Name, float]]:
    """Return the seconds of every job in every round; each round runs all jobs in order.

    No further round starts once the rounds have taken more than `patience` seconds.
    """
    for job in jobs.values():
        job()  # untimed, to fill caches
    turns: list[dict[Name, float]] = []
    while len(turns) < rounds and sum(sum(turn.values()) for turn in turns) <= patience:
        turns.append({name: _seconds(job, clock) for name, job in jobs.items()})
    return turns


def _seconds(job: Job, clock: Clock) -> float:
    start = clock()
    job()
    return clock() - start


def descend(problem: Problem, task: Task, n_steps: int) -> Parameters:
    """Return the weights after `n_steps` steps of plain training; a batch is trained at once."""
    return _descend(problem.target, problem, task, n_steps)


@singledispatch
def _descend(target: object, problem: Problem, task: Task, n_steps: int) -> Parameters:
    """Train other targets with the oracle."""
    return problem.oracle.train(task, n_steps)[..., -1, :]


@_descend.register
def _descend_weights(target: MLP, problem: Problem, task: Task, n_steps: int) -> Parameters:
    """Train a network with torch.autograd."""
    update, oracle = problem.gradient_step, problem.network_oracle
    is_plain, box = update.is_plain and target.is_chain, oracle.sets.bound
    if not is_plain or box is None or task.rates is not None:
        return oracle.train(task, n_steps)[..., -1, :]
    activations = [target.layer_activation(layer).value for layer in range(1, target.depth + 1)]
    matrices = [matrix.clone().requires_grad_() for matrix in target.matrices(task.initial)]
    for number in range(n_steps):
        used = oracle.examples(task, number)
        outputs, labels = used.x, used.y
        n_examples = outputs.shape[-2]
        for matrix, activation in zip(matrices, activations, strict=True):
            outputs = activation(target.layer_inputs(outputs) @ matrix.mT)
        risk = problem.loss_function.value(outputs, labels).sum() / (2 * n_examples)
        gradients = torch.autograd.grad(risk, matrices)
        with torch.no_grad():
            for matrix, gradient in zip(matrices, gradients, strict=True):
                matrix.sub_(gradient, alpha=update.size_of(0)).clamp_(-box, box)
    return torch.cat([matrix.detach().flatten(-2) for matrix in matrices], dim=-1)


@_descend.register
def _descend_coefficients(
    model: LinearModel, problem: Problem, task: Task, n_steps: int
) -> Parameters:
    """Train a linear model without momentum by its closed-form gradient."""
    update = problem.proximal_step
    if update.momentum is not None:
        return problem.oracle.train(task, n_steps)[..., -1, :]
    mean, x, box = model.link_function.mean, model.design(task.x), update.box or inf
    weights, scale = task.initial.double().unsqueeze(-1), model.loss_scale(task.n_examples)
    step_size, penalised = update.step_size or 0.0, model.penalised(x)[:, None]
    for _ in range(n_steps):
        gradient = scale * (x.mT @ (mean(x @ weights) - task.y)) + update.l2 * penalised * weights
        weights = weights - step_size * gradient
        if update.l1:
            magnitude = (weights.abs() - step_size * update.l1 * penalised).clamp(min=0.0)
            weights = weights.sign() * magnitude  # soft-thresholding, the proximal map of l1
        weights = weights.clamp(-box, box)
    return weights.squeeze(-1)
