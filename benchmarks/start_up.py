"""Seconds until one can start: importing and compiling."""

import subprocess
import sys
from statistics import median

import icgd
from benchmarks.problems import problem_of
from icgd.approximation import lattice, relu_sum
from icgd.reproductions.timing import interleaved_medians


def rows() -> list[dict[str, object]]:
    return [
        {"what": "import icgd beyond torch", "seconds": _import_seconds(), "limit": 0.2},
        {
            "what": "the same, and what compile and verify need",
            "seconds": _import_seconds("icgd.compile"),
            "limit": 0.3,
        },
        {"what": "compile 8-64-64-1", "seconds": _compile_seconds(), "limit": 1.0},
        {
            "what": "compile 3-4-4-2 softmax-stack and build its weights",
            "seconds": _dense_softmax_seconds(),
            "limit": 2.0,
        },
    ]


def _import_seconds(used: str = "") -> float:
    script = (
        f"import time, torch; start = time.perf_counter(); import icgd; {used}\n"
        "print(time.perf_counter() - start)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        for _ in range(5)
    ]
    return median(float(run.stdout) for run in runs)


def _compile_seconds() -> float:
    problem = problem_of((8, 64, 64, 1), "tanh")

    def compile_anew() -> None:
        relu_sum._fit.cache_clear()
        icgd.compile(problem, "relu-stack", n_steps=20)

    return interleaved_medians({"compile": compile_anew}, rounds=5)["compile"]


def _dense_softmax_seconds() -> float:
    problem = problem_of((3, 4, 4, 2), "tanh")

    def compile_anew() -> None:
        for cached in (lattice.fit_to_accuracy, lattice.fit_on_lattice, lattice._fit_all):
            cached.cache_clear()
        icgd.compile(problem, n_steps=20, construction="softmax-stack").transformer()

    return interleaved_medians({"compile": compile_anew}, rounds=5)["compile"]
