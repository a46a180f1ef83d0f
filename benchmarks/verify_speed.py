"""What bounds (b) of a run cost beside the fused run itself, in time and in memory.

The time is that of the bounds of all steps over that of the run, both on one thread; beside it
stands that of the whole of `verify`: the run, real training, all bounds, and near-kink events.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import icgd
from benchmarks.memory import status
from benchmarks.problems import problem_of, task_of
from icgd.environment import one_thread
from icgd.timing import interleaved_medians

WIDTHS, N, ACTIVATION = (8, 16, 16, 1), 32, "tanh"
N_STEPS = (50, 100, 200, 400)
CONSTRUCTIONS = ("relu-stack", "softmax-stack")
ROUNDS = 5
LIMIT = 5.0


def rows() -> list[dict[str, object]]:
    with one_thread():
        return [row for name in CONSTRUCTIONS for row in _rows_of(name)]


def _rows_of(construction: str) -> list[dict[str, object]]:
    jobs = {
        (job, n_steps): run
        for n_steps in N_STEPS
        for job, run in _jobs(construction, n_steps).items()
    }
    seconds = interleaved_medians(jobs, rounds=ROUNDS)
    return [
        {
            "construction": construction,
            "n_steps": n_steps,
            "fused ms": 1e3 * seconds["fused", n_steps],
            "bounds ms": 1e3 * seconds["bounds", n_steps],
            "bounds us/step": 1e6 * seconds["bounds", n_steps] / n_steps,
            "ratio": seconds["bounds", n_steps] / seconds["fused", n_steps],
            "limit": LIMIT,
            "whole verify": seconds["verify", n_steps] / seconds["fused", n_steps],
            "peak MiB": _peak(construction, n_steps) / 1024,
        }
        for n_steps in N_STEPS
    ]


def _jobs(construction: str, n_steps: int) -> dict[str, Callable[[], object]]:
    problem = problem_of(WIDTHS, ACTIVATION)
    task = task_of(problem, N, None)
    compiled = icgd.compile(problem, construction, n_steps=n_steps)
    history, bounds = compiled.run_task(task).parameters, compiled.bounds_for(task, "fused")
    return {
        "fused": lambda: compiled.run_task(task),
        "bounds": lambda: bounds.steps(task, history),
        "verify": lambda: icgd.verify(compiled, task.x, task.y, initial=task.initial),
    }


def _peak(construction: str, n_steps: int) -> int:
    command = [sys.executable, "-m", "benchmarks.verify_speed", construction, str(n_steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


def _measure(construction: str, n_steps: int) -> int:
    """KiB by which the resident set grows at its peak while steps are bounded; Linux only."""
    with one_thread():
        bound = _jobs(construction, n_steps)["bounds"]
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = status("VmRSS")
        bound()
    return status("VmHWM") - before


if __name__ == "__main__":
    print(_measure(sys.argv[1], int(sys.argv[2])))
