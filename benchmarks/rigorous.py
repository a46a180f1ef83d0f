"""Rigorous trajectories: their time beside that of the fused run, and how tight they are."""

import torch

import icgd
from benchmarks.problems import problem_of, task_of
from icgd.certificates.balls import rigorous_trajectory
from icgd.reproductions.timing import interleaved_medians

CASES = (
    ((8, 16, 16, 1), 32, 100, "softmax-stack", 120.0),
    ((8, 16, 16, 1), 32, 100, "relu-stack", 120.0),
    ((8, 16, 16, 1), 32, 200, "softmax-stack", None),
    ((8, 64, 64, 1), 64, 20, "softmax-stack", None),
)
"""Widths, examples, steps, construction, and the largest time over that of the fused run."""


def rows() -> list[dict[str, object]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row(*case) for case in CASES]
    finally:
        torch.set_num_threads(threads)


def _row(
    widths: tuple[int, ...], n: int, n_steps: int, construction: str, limit: float | None
) -> dict[str, object]:
    problem = problem_of(widths, "tanh")
    task = task_of(problem, n, None)
    compiled = icgd.compile(problem, construction, n_steps=n_steps)
    run = compiled.run_task(task).parameters
    seconds = interleaved_medians(
        {
            "fused": lambda: compiled.run_task(task),
            "rigorous": lambda: rigorous_trajectory(problem, task, run),
        },
        rounds=3,
    )
    proved = rigorous_trajectory(problem, task, run)
    measured = (run - problem.oracle.train(task, n_steps)).abs().amax(-1)[1:]
    return {
        "widths": "-".join(map(str, widths)),
        "n": n,
        "steps": n_steps,
        "construction": construction,
        "measured": float(measured[-1]),
        "proved": float(proved.distances[-1]),
        "proved / measured, all steps": float((proved.distances / measured).max()),
        "bits": proved.bits,
        "s": seconds["rigorous"],
        "ratio": seconds["rigorous"] / seconds["fused"],
        "limit": limit,
    }
