"""Fused runs of optimisers against the plain loop with torch.autograd and torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor

import icgd
from benchmarks.problems import problem_of, task_of
from icgd.problems.data import Task
from icgd.problems.functions import reciprocal_root
from icgd.problems.problem import Problem
from icgd.timing import interleaved_medians

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
        used = oracle.examples(task, number)
        outputs, labels = used.x, used.y
        for matrix, activation in zip(matrices, activations, strict=True):
            outputs = activation(target.layer_inputs(outputs) @ matrix.mT)
        steps.zero_grad()
        (outputs - labels).square().mean((-2, -1)).sum().backward()
        steps.step()
    return torch.cat([matrix.detach().flatten(-2) for matrix in matrices], dim=-1)


def root_rows() -> list[dict[str, object]]:
    """What `eps` of Adam costs: the pieces of its reciprocal root, 4-8-1 tanh, 64 pieces."""
    return [_root_row(eps) for eps in (1e-1, 1e-3, 1e-5, 1e-8)]


def _root_row(eps: float) -> dict[str, object]:
    target = icgd.MLP((4, 8, 1), "tanh", biases=True)
    update, domain = icgd.AdamStep(0.01, 2.0, eps=eps), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(target, "squared", update, domain)
    program = icgd.compile(problem, "relu-stack", n_steps=1).program
    root = program.relu_sum(reciprocal_root(eps).name)
    return {"eps": eps, "pieces": root.n_pieces, "layers": len(program.block)}


def accuracy_rows() -> list[dict[str, object]]:
    """Compiled Adam on real tables beside torch's own run from the same weights."""
    return [_accuracy_row(name) for name in ("breast cancer", "digits, 3 against 8")]


def _accuracy_row(name: str) -> dict[str, object]:
    (x, y), (test_x, test_y) = _table(name)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], 16, dtype=torch.float64),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 1, dtype=torch.float64),
    )
    loss, optimizer = torch.nn.BCEWithLogitsLoss(), torch.optim.Adam(model.parameters(), eps=1e-3)
    domain = icgd.Domain(x=float(max(x.abs().max(), test_x.abs().max())), y=1.0)
    problem = icgd.from_torch(model, loss, optimizer, domain=domain)
    compiled = icgd.compile(problem, "relu-stack", n_steps=N_STEPS)
    run = compiled.run(x, y, queries=test_x, history=False)
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        answers = {"compiled": run.predictions, "torch": model(test_x)}
    found = {who: float(((p > 0) == (test_y > 0.5)).double().mean()) for who, p in answers.items()}
    return {
        "data": name,
        "examples": len(x),
        "steps": N_STEPS,
        "accuracy, compiled": found["compiled"],
        "accuracy, torch": found["torch"],
        "difference": abs(found["compiled"] - found["torch"]),
        "limit": 0.005,
        "largest prediction difference": float(
            (answers["compiled"] - answers["torch"]).abs().max()
        ),
    }


N_STEPS = 300


def _table(name: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Standardised inputs and labels 0 and 1: two thirds to learn from, one third to test."""
    if name == "breast cancer":
        x, y = load_breast_cancer(return_X_y=True)
    else:
        x, y = load_digits(return_X_y=True)
        x, y = x[(y == 3) | (y == 8)], (y[(y == 3) | (y == 8)] == 8)
    inputs, labels = torch.tensor(x).double(), torch.tensor(y).double().unsqueeze(-1)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    known, new = order[: 2 * len(order) // 3], order[2 * len(order) // 3 :]
    spread = inputs[known].std(0).clamp(min=1e-9)
    scaled = ((inputs - inputs[known].mean(0)) / spread).clamp(-4.0, 4.0)
    return (scaled[known], labels[known]), (scaled[new], labels[new])
