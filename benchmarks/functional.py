"""Functional descent: its distance from the real algorithm, its limit, its rate, its time."""

import warnings

import torch

import icgd
from icgd.errors import DivergenceWarning
from icgd.problems.spectrum import growth
from icgd.problems.steps import best_constant_step, chebyshev_steps
from icgd.timing import interleaved_medians

KERNELS = ("linear", "relu", "exp", "rbf", "laplace", "matern", "polynomial", "softmax")
N_EXAMPLES, N_QUERIES, WIDTH, N_LAYERS = 30, 10, 5, 40


def _case(kernel: str, n_layers: int = N_LAYERS) -> tuple[icgd.Compiled, icgd.Task]:
    """Points on the unit sphere, labels of size 1, and the longest step that is safe for them."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(N_EXAMPLES + N_QUERIES, WIDTH, generator=generator, dtype=torch.float64)
    points = points / points.norm(dim=-1, keepdim=True)
    y = torch.rand(N_EXAMPLES, 1, generator=generator, dtype=torch.float64)
    machine = icgd.KernelMachine(WIDTH, kernel)
    gram = machine.matrix(points[:N_EXAMPLES], points[:N_EXAMPLES])
    step = 1.0 / float(torch.linalg.matrix_norm(gram, ord=2))
    problem = icgd.Problem(machine, "squared", icgd.FunctionalStep(step), icgd.Domain(1.0, 1.0))
    compiled = icgd.compile(problem, n_steps=n_layers)
    return compiled, compiled.task(points[:N_EXAMPLES], y, queries=points[N_EXAMPLES:])


def rows() -> list[dict[str, object]]:
    """For every kernel, the largest difference at any token after any layer, and times."""
    results: list[dict[str, object]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)  # relu has negative eigenvalues
        for kernel in KERNELS:
            results.append(_row(kernel))
    return results


def _row(kernel: str) -> dict[str, object]:
    compiled, task = _case(kernel)
    real = compiled.problem.oracle.train(task, N_LAYERS)
    errors = {
        f"{backend} error": float((_values(compiled, task, backend) - real).abs().max())
        for backend in ("dense", "fused")
    }
    seconds = interleaved_medians(
        {
            "fused": lambda: compiled.run_task(task, history=False),
            "real": lambda: compiled.problem.oracle.train(task, N_LAYERS),
        }
    )
    return {"kernel": kernel, **errors, "fused over real": seconds["fused"] / seconds["real"]}


def _values(compiled: icgd.Compiled, task: icgd.Task, backend: str) -> torch.Tensor:
    return compiled.run_task(task, backend=backend).parameters


def schedules() -> list[dict[str, object]]:
    """What 40 layers leave at worst over a spectrum in [1, condition], by the run itself."""
    return [_schedule(condition) for condition in (10.0, 100.0, 1000.0)]


def _schedule(condition: float) -> dict[str, object]:
    eigenvalues = torch.linspace(1.0, condition, 129, dtype=torch.float64)
    left = {
        name: _left(eigenvalues, steps)
        for name, steps in {
            "constant": (best_constant_step(1.0, condition),) * N_LAYERS,
            "chebyshev": chebyshev_steps(1.0, condition, N_LAYERS),
        }.items()
    }
    smallest = torch.ones(1, dtype=torch.float64)
    steps = best_constant_step(1.0, condition), chebyshev_steps(1.0, condition, N_LAYERS)
    constant, best = (growth(icgd.FunctionalStep(step), smallest, N_LAYERS) for step in steps)
    theory = float(constant / best)
    times = left["constant"] / left["chebyshev"]
    return {"condition": condition, "layers": N_LAYERS, **left, "times": times, "theory": theory}


def _left(eigenvalues: torch.Tensor, steps: tuple[float, ...]) -> float:
    """The largest component that is left of labels along all eigenvectors."""
    reach = float(eigenvalues.max().sqrt())
    problem = icgd.Problem(
        icgd.KernelMachine(len(eigenvalues), "linear"),
        "squared",
        icgd.FunctionalStep(steps),
        icgd.Domain(reach, 1.0),
    )
    compiled = icgd.compile(problem, n_steps=len(steps))
    y = torch.ones(len(eigenvalues), dtype=torch.float64)
    run = compiled.run(torch.diag(eigenvalues.sqrt()), y, backend="dense")
    return float((y - run.parameters[-1]).abs().max())
