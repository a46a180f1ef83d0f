"""Fused runs of optimisers against the plain loop with torch.autograd and torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import icgd
from benchmarks.problems import problem_of, task_of
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.reproductions.timing import interleaved_medians

WIDTHS, N_EXAMPLES = (8, 64, 64, 1), 64
BOX = 3.0

Optimizer = Callable[[list[Tensor]], torch.optim.Optimizer]

OPTIMISERS: dict[str, tuple[Callable[[int], Any], Optimizer, dict[str, Any]]] = {
    "plain, biases": (
        lambda _: icgd.GradientStep(0.1, BOX),
        partial(torch.optim.SGD, lr=0.05),
        {"biases": True},
    ),
    "plain, batches of 16": (
        lambda _: icgd.GradientStep(0.1, BOX, batch_size=16),
        partial(torch.optim.SGD, lr=0.05),
        {},
    ),
    "momentum": (
        lambda _: icgd.MomentumStep(0.05, BOX, gradient_scale=2.0),
        partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        {},
    ),
    "nesterov, weight decay": (
        lambda _: icgd.MomentumStep(
            0.05, BOX, nesterov=True, weight_decay=0.01, gradient_scale=2.0
        ),
        partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
        {},
    ),
    "adam": (
        lambda _: icgd.AdamStep(0.001, BOX, gradient_scale=2.0),
        partial(torch.optim.Adam, lr=0.001, eps=1e-3),
        {},
    ),
    "rmsprop": (
        lambda _: icgd.RmspropStep(0.001, BOX, gradient_scale=2.0),
        partial(torch.optim.RMSprop, lr=0.001, eps=1e-3),
        {},
    ),
}
"""The update, the optimiser of torch that does the same, and options of the network."""

LIMITS = {"adam": {1: 2.0, 256: 2.0}, "rmsprop": {1: 2.0, 256: 2.0}}
DEFAULT_LIMITS = {1: 1.5, 256: 1.3}


def rows() -> list[dict[str, object]]:
    return [
        _row(name, activation, n_tasks)
        for name in OPTIMISERS
        for activation in ("tanh", "relu")
        for n_tasks in (1, 256)
    ]


def _row(name: str, activation: str, n_tasks: int) -> dict[str, object]:
    update, optimizer, options = OPTIMISERS[name]
    n_steps = 100 if n_tasks == 1 else 8
    plain = problem_of(WIDTHS, activation)
    target = replace(plain.target, **options)
    problem = replace(plain, target=target, update=update(n_steps))
    task = task_of(problem, N_EXAMPLES, None if n_tasks == 1 else n_tasks)
    compiled = icgd.compile(problem, "relu-stack", n_steps=n_steps)
    loop = partial(torch_loop, problem, task, optimizer, n_steps)
    n_weights = target.n_parameters
    off = compiled.run_task(task).parameters[..., -1, :n_weights] - loop()
    seconds = interleaved_medians(
        {"fused": lambda: compiled.run_task(task, history=False), "torch": loop}
    )
    return {
        "optimiser": name,
        "activation": activation,
        "tasks": n_tasks,
        "fused us/step": 1e6 * seconds["fused"] / n_steps,
        "torch.optim us/step": 1e6 * seconds["torch"] / n_steps,
        "ratio": seconds["fused"] / seconds["torch"],
        "limit": LIMITS.get(name, DEFAULT_LIMITS)[n_tasks],
        "largest weight difference": float(off.abs().max()),
    }


def torch_loop(problem: Problem, task: Task, optimizer: Optimizer, n_steps: int) -> Tensor:
    """The weights after a loop as people write it; all tasks of a batch are trained at once."""
    target, oracle = problem.network, problem.network_oracle
    activations = [
        getattr(torch, target.activation) if layer < target.depth else torch.nn.Identity()
        for layer in range(1, target.depth + 1)
    ]
    start = target.matrices(oracle.weights_of(task.initial))
    matrices = [matrix.clone().requires_grad_() for matrix in start]
    steps = optimizer(matrices)
    for number in range(n_steps):
        outputs, labels = oracle.examples(task, number)
        for matrix, activation in zip(matrices, activations, strict=True):
            outputs = activation(target.layer_inputs(outputs) @ matrix.mT)
        steps.zero_grad()
        (outputs - labels).square().mean((-2, -1)).sum().backward()
        steps.step()
    return torch.cat([matrix.detach().flatten(-2) for matrix in matrices], dim=-1)
