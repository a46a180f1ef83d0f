"""Compiled fused runs against jax.jit, torch.autograd and torch written by hand.

Each baseline keeps only the final weights, and so do the runs. Compiling is not counted: machine
code of icgd stays on disk, and jax compiles before the first round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

import icgd
from benchmarks.optimisers import OPTIMISERS, torch_loop
from benchmarks.problems import problem_of, task_of
from icgd.errors import MissingExtraError
from icgd.problems.data import Task
from icgd.problems.problem import Problem
from icgd.timing import descend, interleaved_medians

try:
    import jax
except ImportError:
    jax = None

SIZES = (((8, 16, 16, 1), 32), ((8, 64, 64, 1), 64))
N_STEPS = {1: 500, 256: 25}
LIMITS = {1: 1.0, 256: 0.5}
"""Times jax.jit for one task, and times torch.autograd for many."""

N_COMPARED = 10
"""After how many steps weights are compared; later on, differences of rounding grow."""

Job = Callable[[], Tensor]


def rows() -> list[dict[str, object]]:
    return [
        _row(widths, n, activation, n_tasks)
        for n_tasks in N_STEPS
        for activation in ("tanh", "relu")
        for widths, n in SIZES
    ]


def optimiser_rows() -> list[dict[str, object]]:
    """Adam beside the plain loop with torch.autograd and torch.optim."""
    return [
        _optimiser_row(widths, n, activation, n_tasks)
        for n_tasks in N_STEPS
        for activation in ("tanh", "relu")
        for widths, n in SIZES
    ]


def _row(widths: tuple[int, ...], n: int, activation: str, n_tasks: int) -> dict[str, object]:
    problem, n_steps = problem_of(widths, activation), N_STEPS[n_tasks]
    task = task_of(problem, n, None if n_tasks == 1 else n_tasks)
    jobs = _jobs(problem, task, n_steps)
    few = {name: job() for name, job in _jobs(problem, task, N_COMPARED).items()}
    off = {name: float((found - few["autograd"]).abs().max()) for name, found in few.items()}
    if max(off["jax.jit"], off["by hand"]) > 1e-12:
        raise AssertionError(f"the baselines disagree: {off}")
    seconds = interleaved_medians(jobs, rounds=7)
    baseline = "jax.jit" if n_tasks == 1 else "autograd"
    return {
        "widths": "-".join(map(str, widths)),
        "n": n,
        "activation": activation,
        "tasks": n_tasks,
        "steps": n_steps,
        **{f"{name} us/step": 1e6 * time / n_steps for name, time in seconds.items()},
        "baseline": baseline,
        "ratio": seconds["compiled"] / seconds[baseline],
        "limit": LIMITS[n_tasks],
        f"weight difference after {N_COMPARED} steps": off["compiled"],
    }


def _jobs(problem: Problem, task: Task, n_steps: int) -> dict[str, Job]:
    compiled = icgd.compile(problem, "relu-stack", n_steps=n_steps, pieces=64)
    return {
        "compiled": partial(_final, compiled, task, "compiled"),
        "torch": partial(_final, compiled, task, "torch"),
        "jax.jit": by_jax(problem, task, n_steps),
        "autograd": partial(descend, problem, task, n_steps),
        "by hand": partial(by_hand, problem, task, n_steps),
    }


def _optimiser_row(
    widths: tuple[int, ...], n: int, activation: str, n_tasks: int
) -> dict[str, object]:
    update, optimizer, _ = OPTIMISERS["adam"]
    n_steps = N_STEPS[n_tasks]
    problem = replace(problem_of(widths, activation), update=update(n_steps))
    task = task_of(problem, n, None if n_tasks == 1 else n_tasks)
    compiled = icgd.compile(problem, "relu-stack", n_steps=n_steps)
    jobs: dict[str, Job] = {
        engine: partial(_final, compiled, task, engine) for engine in ("compiled", "torch")
    }
    jobs["torch.optim"] = partial(torch_loop, problem, task, optimizer, n_steps)
    truth = jobs["torch.optim"]()
    off = jobs["compiled"]()[..., : truth.shape[-1]] - truth
    seconds = interleaved_medians(jobs, rounds=7)
    return {
        "optimiser": "adam",
        "widths": "-".join(map(str, widths)),
        "n": n,
        "activation": activation,
        "tasks": n_tasks,
        "steps": n_steps,
        **{f"{name} us/step": 1e6 * time / n_steps for name, time in seconds.items()},
        "ratio": seconds["compiled"] / seconds["torch.optim"],
        "limit": 1.0,
        "largest weight difference": float(off.abs().max()),
    }


def _final(compiled: icgd.Compiled, task: Task, engine: str) -> Tensor:
    return compiled.run_task(task, history=False, engine=engine).parameters[..., -1, :]


def by_hand(problem: Problem, task: Task, n_steps: int) -> Tensor:
    """Plain descent whose gradient is written down: matrix products, and nothing is recorded."""
    update, is_relu = problem.gradient_step, problem.network.activation == "relu"
    matrices = [matrix.clone() for matrix in problem.network.matrices(task.initial)]
    factor = 1.0 / task.n_examples  # the slope of the squared loss is 2 (p - y), the risk halves it
    for _ in range(n_steps):
        outputs = [task.x]
        for matrix in matrices[:-1]:
            z = outputs[-1] @ matrix.mT
            outputs.append(z.clamp_(min=0.0) if is_relu else z.tanh_())
        delta = (outputs[-1] @ matrices[-1].mT).sub_(task.y).mul_(factor)
        for place in reversed(range(len(matrices))):
            matrix, output = matrices[place], outputs[place]
            gradient = delta.mT @ output
            if place:
                slope = (output > 0).to(output) if is_relu else 1 - output * output
                delta = (delta @ matrix).mul_(slope)
            matrix.sub_(gradient, alpha=update.size_of(0)).clamp_(-update.box, update.box)
    return torch.cat([matrix.flatten(-2) for matrix in matrices], dim=-1)


def by_jax(problem: Problem, task: Task, n_steps: int) -> Job:
    """The same descent by jax: one compiled function that scans over all steps."""
    if jax is None:
        raise MissingExtraError(
            "This benchmark needs jax. Install it with: pip install 'icgd[jax]'"
        )
    jax.config.update("jax_enable_x64", True)
    update, numpy = problem.gradient_step, jax.numpy
    activation = jax.nn.relu if problem.network.activation == "relu" else numpy.tanh

    def risk(matrices: list, x: object, y: object) -> object:
        outputs = x
        for matrix in matrices[:-1]:
            outputs = activation(outputs @ matrix.T)
        return numpy.sum((outputs @ matrices[-1].T - y) ** 2) / (2 * task.n_examples)

    def descent(matrices: list, x: object, y: object) -> list:
        def step(now: list, _: None) -> tuple[list, None]:
            slopes = jax.grad(risk)(now, x, y)
            size, box = update.size_of(0), update.box
            pairs = zip(now, slopes, strict=True)
            return [numpy.clip(matrix - size * slope, -box, box) for matrix, slope in pairs], None

        return jax.lax.scan(step, matrices, None, length=n_steps)[0]

    matrices = [numpy.asarray(m.numpy()) for m in problem.network.matrices(task.initial)]
    data = [numpy.asarray(part.numpy()) for part in (task.x, task.y)]
    run = jax.jit(jax.vmap(descent) if task.batch else descent).lower(matrices, *data).compile()

    def job() -> Tensor:
        found = jax.block_until_ready(run(matrices, *data))
        parts = [torch.from_numpy(np.array(matrix)).flatten(-2) for matrix in found]
        return torch.cat(parts, dim=-1)

    return job
