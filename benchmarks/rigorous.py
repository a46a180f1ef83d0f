"""Proofs of whole runs: what they cost beside torch.autograd, and how tight they are.

`verify` is the whole of `icgd.verify(backend="fused")`: the run, real training, all bounds and the
proof by balls. Its time is compared with that of the same steps by torch.autograd, on one thread.
"""

from time import process_time

import torch

import icgd
from benchmarks.problems import problem_of, task_of
from icgd.certificates.balls import rigorous_trajectory
from icgd.environment import one_thread
from icgd.timing import descend, interleaved_medians

SMALL, WIDE = (8, 16, 16, 1), (8, 64, 64, 1)
RANDOM, SMOOTH = "random", "smooth"
CASES = (
    (SMALL, 32, RANDOM, 100, "relu-stack", 40.0),
    (SMALL, 32, RANDOM, 100, "softmax-stack", 40.0),
    (SMALL, 32, RANDOM, 400, "softmax-stack", None),
    (SMALL, 32, RANDOM, 1600, "softmax-stack", None),
    (SMALL, 32, SMOOTH, 100, "relu-stack", 40.0),
    (SMALL, 32, SMOOTH, 100, "softmax-stack", 40.0),
    (SMALL, 32, SMOOTH, 200, "softmax-stack", None),
    (SMALL, 32, SMOOTH, 400, "softmax-stack", None),
    (SMALL, 32, SMOOTH, 800, "softmax-stack", None),
    (SMALL, 32, SMOOTH, 1600, "softmax-stack", None),
    (WIDE, 64, RANDOM, 20, "relu-stack", None),
    (WIDE, 64, RANDOM, 20, "softmax-stack", None),
    (WIDE, 64, RANDOM, 80, "softmax-stack", None),
)
"""Widths, examples, labels, steps, construction, and the largest time of verify over autograd's.

Inputs and labels are normal numbers, or inputs from -1 to 1 with the mean of their sines."""


def rows() -> list[dict[str, object]]:
    with one_thread():
        return [_row(*case) for case in CASES]


def _row(
    widths: tuple[int, ...],
    n: int,
    labels: str,
    n_steps: int,
    construction: str,
    limit: float | None,
) -> dict[str, object]:
    problem = problem_of(widths, "tanh")
    task = task_of(problem, n, None)
    if labels == SMOOTH:
        generator = torch.Generator().manual_seed(0)
        x = 2 * torch.rand(n, widths[0], generator=generator, dtype=torch.float64) - 1
        task = icgd.as_task(problem, x, x.sin().mean(1), seed=0)
    compiled = icgd.compile(problem, construction, n_steps=n_steps)
    run, real = compiled.run_task(task), problem.oracle.train(task, n_steps)
    start = {"initial": task.initial, "backend": "fused", "rigorous": True}
    seconds = interleaved_medians(
        {
            "autograd": lambda: descend(problem, task, n_steps),
            "verify": lambda: icgd.verify(compiled, task.x, task.y, **start),
        },
        rounds=5 if n_steps <= 100 else 1,
    )
    before = process_time()
    proved = rigorous_trajectory(problem, task, run.parameters, run.predictions, real)
    proof = process_time() - before
    measured = (run.parameters - real).abs().amax(-1)[1:]
    return {
        "widths": "-".join(map(str, widths)),
        "n": n,
        "labels": labels,
        "steps": n_steps,
        "construction": construction,
        "measured": float(measured.max()),
        "proved": float(proved.distances.max()),
        "proved / measured, at most": float(torch.max(proved.distances / measured)),
        "method": proved.method,
        "bits": proved.bits,
        "proof, CPU s": proof,
        "verify, s": seconds["verify"],
        "ratio": seconds["verify"] / seconds["autograd"],
        "limit": limit,
    }
