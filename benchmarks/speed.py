"""Fused runs against plain torch.autograd gradient descent of the same network.

The baseline keeps only the final weights, so the ratio is that of a run without history; beside
it stands the ratio of a run that keeps the weights of every step, as runs do by default.
"""

import icgd
from benchmarks.problems import problem_of, task_of
from icgd.timing import descend, interleaved_medians

SIZES = (((8, 16, 16, 1), 32), ((8, 64, 64, 1), 64))
LIMITS = {("tanh", None): 1.3, ("tanh", 256): 1.7, ("relu", None): 1.0, ("relu", 256): 1.2}


def rows() -> list[dict[str, object]]:
    return [
        _row(widths, n, activation, n_tasks, limit)
        for (activation, n_tasks), limit in LIMITS.items()
        for widths, n in SIZES
    ]


def softmax_rows() -> list[dict[str, object]]:
    """Fused softmax-stack over fused relu-stack on the same sizes; full accuracy, 64 pieces."""
    return [
        _softmax_row(widths, n, activation, n_tasks)
        for activation in ("tanh", "relu", "gelu")
        for n_tasks in (None, 256)
        for widths, n in SIZES
    ]


def _softmax_row(
    widths: tuple[int, ...], n: int, activation: str, n_tasks: int | None
) -> dict[str, object]:
    problem = problem_of(widths, activation)
    task = task_of(problem, n, n_tasks)
    n_steps = 100 if n_tasks is None else 8
    runs = {
        construction: icgd.compile(problem, n_steps=n_steps, construction=construction)
        for construction in ("relu-stack", "softmax-stack")
    }
    seconds = interleaved_medians(
        {
            name: lambda compiled=compiled: compiled.run_task(task, history=False)
            for name, compiled in runs.items()
        }
    )
    return {
        "widths": "-".join(map(str, widths)),
        "n": n,
        "activation": activation,
        "tasks": n_tasks or 1,
        "registers": runs["softmax-stack"].program.n_registers,
        "softmax-stack us/step": 1e6 * seconds["softmax-stack"] / n_steps,
        "relu-stack us/step": 1e6 * seconds["relu-stack"] / n_steps,
        "ratio": seconds["softmax-stack"] / seconds["relu-stack"],
        "limit": 5.0,
    }


def _row(
    widths: tuple[int, ...], n: int, activation: str, n_tasks: int | None, limit: float
) -> dict[str, object]:
    problem = problem_of(widths, activation)
    task = task_of(problem, n, n_tasks)
    n_steps = 100 if n_tasks is None else 8
    compiled = icgd.compile(problem, "relu-stack", n_steps=n_steps, pieces=64)
    difference = compiled.run_task(task).parameters[..., -1, :] - descend(problem, task, n_steps)
    seconds = interleaved_medians(
        {
            "fused": lambda: compiled.run_task(task, history=False),
            "with history": lambda: compiled.run_task(task),
            "autograd": lambda: descend(problem, task, n_steps),
        }
    )
    return {
        "widths": "-".join(map(str, widths)),
        "n": n,
        "activation": activation,
        "tasks": n_tasks or 1,
        "fused us/step": 1e6 * seconds["fused"] / n_steps,
        "autograd us/step": 1e6 * seconds["autograd"] / n_steps,
        "ratio": seconds["fused"] / seconds["autograd"],
        "ratio, all steps kept": seconds["with history"] / seconds["autograd"],
        "limit": limit,
        "largest weight difference": float(difference.abs().max()),
    }
