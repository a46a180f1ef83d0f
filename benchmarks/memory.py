"""Peak memory of a fused run beside direct training, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

import icgd
from benchmarks.problems import problem_of, task_of
from icgd.timing import descend

CASES = (((8, 64, 64, 1), 64, 256), ((8, 256, 256, 1), 4096, None))
N_STEPS = 5


def rows() -> list[dict[str, object]]:
    return [_row(case) for case in range(len(CASES))]


def _row(case: int) -> dict[str, object]:
    widths, n, n_tasks = CASES[case]
    fused, direct = _peak("fused", case), _peak("autograd", case)
    return {
        "widths": "-".join(map(str, widths)),
        "n": n,
        "tasks": n_tasks or 1,
        "fused MiB": fused / 1024,
        "autograd MiB": direct / 1024,
        "ratio": fused / direct,
        "limit": 3.0,
    }


def _peak(variant: str, case: int) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", variant, str(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


def _measure(variant: str, case: int) -> int:
    """KiB by which the resident set grows at its peak, inputs not counted; Linux only."""
    widths, n, n_tasks = CASES[case]
    problem = problem_of(widths, "tanh")
    compiled = icgd.compile(problem, "relu-stack", n_steps=N_STEPS)
    small, task = task_of(problem, 2, n_tasks and 2), task_of(problem, n, n_tasks)

    def run(task: icgd.Task) -> object:
        if variant == "fused":
            return compiled.run_task(task, history=False)
        return descend(problem, task, N_STEPS)

    run(small)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    run(task)
    return status("VmHWM") - before


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    print(_measure(sys.argv[1], int(sys.argv[2])))
