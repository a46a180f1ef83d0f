"""Seconds until one can start: importing, compiling, and what a run takes besides its steps."""

import subprocess
import sys
from statistics import median

from sklearn.datasets import load_diabetes

import icgd
from benchmarks.problems import problem_of, task_of
from icgd.approximation import lattice, relu_sum
from icgd.environment import one_thread
from icgd.estimators import InContextRegressor
from icgd.timing import Job, interleaved_medians


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
        {
            "what": "a run of 8-16-16-1 besides its steps, n = 32",
            "seconds": _besides_steps(n_queries=0),
            "limit": 0.0003,
        },
        {
            "what": "the same with 32 queries",
            "seconds": _besides_steps(n_queries=32),
            "limit": 0.0003,
        },
        {
            "what": "fit and predict of InContextRegressor by 300 gradient steps, 442 x 10",
            "seconds": _fit_seconds(),
            "limit": 0.1,
        },
        {
            "what": "the same, the first time in a process",
            "seconds": _seconds_of(FIT, "fit_and_predict()"),
            "limit": 0.2,
        },
    ]


def _import_seconds(used: str = "") -> float:
    return _seconds_of("import torch", f"import icgd; {used}")


def _seconds_of(before: str, measured: str) -> float:
    """The seconds that some code takes in a new process, after other code."""
    script = (
        f"import time\n{before}\nstart = time.perf_counter(); {measured}\n"
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


@one_thread()
def _besides_steps(n_queries: int) -> float:
    """What a program takes for a run that it has taken before, on arrays, besides its steps."""
    problem = problem_of((8, 16, 16, 1), "tanh")
    task = task_of(problem, 32, None)
    x, y = task.x.numpy(), task.y.numpy()
    queries = x[:n_queries] if n_queries else None
    short, long, n_runs = 1, 101, 20

    def runs_of(n_steps: int) -> Job:
        compiled = icgd.compile(problem, "relu-stack", n_steps=n_steps, pieces=64)
        return lambda: [compiled.run(x, y, queries=queries) for _ in range(n_runs)]

    seconds = interleaved_medians({n: runs_of(n) for n in (short, long)}, rounds=25)
    step = (seconds[long] - seconds[short]) / (long - short)
    return (seconds[short] - short * step) / n_runs


FIT = """
import torch
from sklearn.datasets import load_diabetes
from icgd.estimators import InContextRegressor
torch.set_num_threads(1)
X, y = load_diabetes(return_X_y=True, scaled=False)
model = InContextRegressor(solver="gradient", alpha=0.0, random_state=0)
fit_and_predict = lambda: model.fit(X, y).predict(X)
"""


@one_thread()
def _fit_seconds() -> float:
    X, y = load_diabetes(return_X_y=True, scaled=False)

    def fit_and_predict() -> None:
        InContextRegressor(solver="gradient", alpha=0.0, random_state=0).fit(X, y).predict(X)

    return interleaved_medians({"fit": fit_and_predict})["fit"]
