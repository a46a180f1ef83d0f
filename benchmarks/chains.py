"""cot-network: trained weights beside exact descent, what a block costs, and plain torch."""

from collections.abc import Callable
from functools import partial

import torch

import icgd
from icgd.environment import one_thread
from icgd.timing import descend, interleaved_medians
from icgd_papers.studies.cot_cost import fitted_exponent

DEPTHS = (2, 4, 8, 16, 32, 64)


NETWORKS = {
    "tanh": {"activation": "tanh"},
    "relu, logistic loss": {"loss": "logistic"},
    "softplus, biases": {"activation": "softplus", "biases": True},
}
"""What lies beyond the paper, which has relu layers without biases and the squared loss."""


def compiled_of(
    depth: int,
    width: int,
    n_rounds: int,
    activation: str = "relu",
    loss: str = "squared",
    biases: bool = False,
) -> icgd.Compiled:
    """Square layers, one example a round."""
    problem = icgd.Problem(
        target=icgd.MLP((width,) * (depth + 1), activation, biases=biases),
        loss=loss,
        update=icgd.GradientStep(step_size=0.05, box=10.0, batch_size=1),
        domain=icgd.Domain(x=4.0, y=4.0),
    )
    return icgd.compile(problem, n_steps=n_rounds, construction="cot-network")


def task_for(compiled: icgd.Compiled) -> icgd.problems.data.Task:
    """An example for each round."""
    target = compiled.problem.target
    generator = torch.Generator().manual_seed(target.depth)
    shape = (compiled.program.n_steps, target.widths[0])
    x, y = (torch.randn(shape, generator=generator).double().clamp(-4, 4) for _ in range(2))
    if compiled.problem.loss == "logistic":
        y = (y > 0).double()
    return compiled.task(x, y, seed=0)


def weights() -> list[dict[str, object]]:
    """The sizes (N, d, rounds) at which 1e-8 is asked, and other networks at the first of them."""
    sizes = ((3, 5, 20), (6, 5, 20), (9, 10, 20), (4, 8, 200))
    runs = [(size, "relu", {}) for size in sizes]
    runs += [(sizes[0], name, settings) for name, settings in NETWORKS.items()]
    return [_weights(*run, backend) for run in runs for backend in ("dense", "fused")]


def _weights(
    size: tuple[int, int, int], name: str, settings: dict, backend: str
) -> dict[str, object]:
    compiled = compiled_of(*size, **settings)
    task = task_for(compiled)
    ours = compiled.run_task(task, backend=backend).parameters
    real = compiled.problem.oracle.train(task, size[-1])
    return {
        "N, d, rounds": str(size),
        "network": name,
        "backend": backend,
        "largest weight error": float((ours - real).abs().max()),
        "weights moved": float((real[-1] - real[0]).abs().max()),
    }


def blocks() -> list[dict[str, object]]:
    """Microseconds a block in runs of 32 rounds, and the exponent that fits them."""
    runs = {depth: compiled_of(depth, 8, 32) for depth in DEPTHS}
    tasks = {depth: task_for(run) for depth, run in runs.items()}
    jobs = {
        depth: lambda depth=depth: runs[depth].run_task(tasks[depth], history=False)
        for depth in DEPTHS
    }
    with one_thread():
        seconds = interleaved_medians(jobs)
    costs = {n: 1e6 * seconds[n] / runs[n].program.n_blocks for n in DEPTHS}
    exponent = fitted_exponent(list(costs), list(costs.values()))
    return [{"N": n, "us/block": cost, "fitted exponent": exponent} for n, cost in costs.items()]


def speed() -> list[dict[str, object]]:
    """The chain of (3, 5, 20) beside the same descent by torch.autograd, a deep one by a stack."""
    short = compiled_of(3, 5, 20)
    task = task_for(short)
    rows = [_speed(short, task, "torch", lambda: descend(short.problem, task, 20), 5.0)]
    problem = icgd.Problem(
        target=icgd.MLP((8,) * 65),
        loss="squared",
        update=icgd.GradientStep(step_size=0.05, box=0.12, batch_size=1),  # no layer outgrows it
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    deep, stack = (
        icgd.compile(problem, construction, n_steps=64)
        for construction in ("cot-network", "relu-stack")
    )
    generator = torch.Generator().manual_seed(0)
    x, y = (2 * torch.rand(64, 8, generator=generator).double() - 1 for _ in range(2))
    of_stack = stack.task(x, y, seed=0)
    job = partial(stack.run_task, of_stack, history=False)
    return [*rows, _speed(deep, deep.task(x, y, seed=0), "relu-stack", job, 3.0)]


def _speed(
    compiled: icgd.Compiled,
    task: icgd.problems.data.Task,
    beside: str,
    job: Callable[[], object],
    limit: float,
) -> dict[str, object]:
    jobs = {"chain": lambda: compiled.run_task(task, history=False), beside: job}
    with one_thread():
        seconds = interleaved_medians(jobs)
    size = (len(compiled.program.shapes), compiled.program.width, compiled.program.n_steps)
    return {
        "N, d, rounds": str(size),
        "beside": beside,
        "chain ms": 1e3 * seconds["chain"],
        "other ms": 1e3 * seconds[beside],
        "ratio": seconds["chain"] / seconds[beside],
        "limit": limit,
    }
