"""How the cost of a fused step grows: linear in depth, examples and steps, flat in pieces."""

import icgd
from benchmarks.problems import problem_of, task_of
from icgd.timing import interleaved_medians

BASE = {"depth": 3, "n": 1024, "steps": 20, "pieces": 64}
RANGES = {
    "depth": (2, 4, 8, 16),
    "n": (512, 1024, 2048, 4096),
    "steps": (10, 20, 40, 80),
    "pieces": (16, 64, 256, 1024),
}
WIDTH = 32


def rows() -> list[dict[str, object]]:
    return [row for name in RANGES for row in _along(name)]


def _along(name: str) -> list[dict[str, object]]:
    """Times along one axis; linear growth shows as a constant cost of each added unit."""
    values = RANGES[name]
    runs = {str(value): _run({**BASE, name: value}) for value in values}
    ms = {key: 1e3 * seconds for key, seconds in interleaved_medians(runs, rounds=9).items()}
    rows: list[dict[str, object]] = []
    for before, value in zip((None, *values), values, strict=False):
        added = "" if before is None else (ms[str(value)] - ms[str(before)]) / (value - before)
        growth = ms[str(value)] / ms[str(values[0])]
        row = {"axis": name, "value": value, "ms": ms[str(value)], "ms per added unit": added}
        rows.append({**row, "times the first": growth})
    return rows


def _run(setting: dict[str, int]):
    widths = (8, *(WIDTH for _ in range(setting["depth"] - 1)), 1)
    problem = problem_of(widths, "tanh")
    task = task_of(problem, setting["n"], None)
    compiled = icgd.compile(
        problem, "relu-stack", n_steps=setting["steps"], pieces=setting["pieces"]
    )
    return lambda: compiled.run_task(task)
