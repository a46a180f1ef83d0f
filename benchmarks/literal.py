"""The literal transformer: a step's time and memory, and its distance from the other backends."""

import json
import subprocess
import sys
from statistics import median
from time import perf_counter

import torch

import icgd
from benchmarks.memory import status
from benchmarks.problems import problem_of, task_of
from icgd.backends.registry import BACKENDS
from icgd.weights.sizes import summarise

CASES = (
    ("relu-stack", (8, 16, 16, 1), "tanh", None),
    ("relu-stack", (8, 64, 64, 1), "tanh", 1.0),
    ("relu-stack", (8, 64, 64, 1), "relu", 0.02),
    ("softmax-stack", (8, 64, 64, 1), "tanh", 1.5),
    ("relu-stack", (8, 256, 256, 1), "tanh", 5.0),
)
N_EXAMPLES, N_ROUNDS = 64, 5
FASTER_THAN_DENSE = 20.0


def rows() -> list[dict[str, object]]:
    """One step on 64 examples, each case in a process of its own; the limit of memory is 1 GiB."""
    found = []
    for number, (construction, widths, activation, limit) in enumerate(CASES):
        command = [sys.executable, "-m", "benchmarks.literal", str(number)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(
            {
                "construction": construction,
                "widths": "-".join(map(str, widths)),
                "activation": activation,
                **json.loads(done.stdout),
                "limit": limit,
            }
        )
    return found


def _measure(number: int) -> dict[str, float | None]:
    construction, widths, activation, limit = CASES[number]
    problem = problem_of(widths, activation)
    compiled = icgd.compile(problem, construction, n_steps=1)
    task = task_of(problem, N_EXAMPLES, None)
    literal = _seconds(compiled, task, "literal")
    peak = status("VmHWM") / 1024
    dense = _seconds(compiled, task, "dense") if limit is None else None
    return {
        "heads": summarise(compiled.program, N_EXAMPLES).n_heads,
        "s": literal,
        "peak MiB": peak,
        "dense s": dense,
        "times faster": None if dense is None else dense / literal,
    }


def _seconds(compiled: icgd.Compiled, task: icgd.Task, backend: str) -> float:
    """The median time of the first step; making its weights is not counted."""
    make = BACKENDS[backend].executors[type(compiled.program)]
    times = []
    with torch.no_grad():
        for _ in range(N_ROUNDS):
            executor = make(compiled.program, task, icgd.backends.run.PLAIN)
            start = perf_counter()
            executor.step()
            times.append(perf_counter() - start)
            del executor  # and its weights, before the next are made
    return median(times)


def distances() -> list[dict[str, object]]:
    """The largest distance of any weight or prediction of other backends from literal runs."""
    found = []
    for construction, name, problem in _problems():
        compiled = icgd.compile(problem, construction, n_steps=5)
        generator = torch.Generator().manual_seed(0)
        x = 2 * torch.rand(8, 3, generator=generator, dtype=torch.float64) - 1
        y = torch.rand(8, problem.target.output_width, generator=generator, dtype=torch.float64)
        runs = {
            backend: compiled.run(x, y, queries=x / 2, backend=backend)
            for backend in ("literal", "dense", "fused")
        }
        literal = runs["literal"]
        off = {
            backend: max(
                float((run.parameters - literal.parameters).abs().max()),
                float((run.predictions - literal.predictions).abs().max()),
            )
            for backend, run in runs.items()
        }
        errors = {
            backend: float(icgd.verify(compiled, x, y, backend=backend).step_errors.max())
            for backend in ("literal", "fused")
        }
        found.append(
            {
                "construction": construction,
                "target": name,
                "dense off": off["dense"],
                "fused off": off["fused"],
                "literal step error": errors["literal"],
                "fused step error": errors["fused"],
            }
        )
    return found


def _problems() -> list[tuple[str, str, icgd.Problem]]:
    step, domain = icgd.GradientStep(0.1, box=2.0), icgd.Domain(x=2.0, y=2.0)
    batches = icgd.GradientStep(0.1, box=2.0, batch_size=8)
    tanh, relu = (icgd.MLP((3, 4, 4, 2), activation) for activation in ("tanh", "relu"))
    linear = {
        link: icgd.Problem(
            icgd.LinearModel(3, link),
            "matching",
            icgd.ProximalStep(0.2, box=1.0),
            icgd.Domain(x=1.0, y=1.0),
        )
        for link in ("identity", "logistic", "softplus", "poisson")
    }
    kernel = icgd.Problem(icgd.KernelMachine(3, "rbf"), "squared", icgd.FunctionalStep(0.1), domain)
    return [
        ("relu-stack", "3-4-4-2 tanh", icgd.Problem(tanh, "squared", step, domain)),
        ("relu-stack", "3-4-4-2 relu", icgd.Problem(relu, "squared", step, domain)),
        ("softmax-stack", "3-4-4-2 tanh", icgd.Problem(tanh, "squared", step, domain)),
        ("recursion", "3-4-4-2 tanh", icgd.Problem(tanh, "squared", step, domain)),
        ("cot-network", "3-4-4-2 tanh", icgd.Problem(tanh, "squared", batches, domain)),
        ("functional", "rbf kernel", kernel),
        ("linear-stack", "identity link", linear["identity"]),
        ("linear-stack", "logistic link", linear["logistic"]),
        ("linear-stack", "softplus link", linear["softplus"]),
        ("linear-stack", "poisson link", linear["poisson"]),
    ]


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]))))
