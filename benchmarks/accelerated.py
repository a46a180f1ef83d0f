"""Layers until functional descent predicts to 1e-6: descent, Chebyshev, momentum, Newton-Schulz."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import icgd
from icgd.problems.steps import best_constant_step

TOLERANCE = 1e-6
MOST_LAYERS = 2**18
MOST_DENSE = 2000
CHEBYSHEV = "Chebyshev steps"
METHODS = (
    "descent",
    "Nesterov, FISTA's momenta",
    "Nesterov",
    "heavy ball",
    CHEBYSHEV,
    "Chebyshev momentum",
    "preconditioned",
    "Newton-Schulz",
)
Steps = Callable[[int], icgd.FunctionalStep]
"""The update of a run of so many layers."""


@dataclass(frozen=True)
class Case:
    """A kernel, its noise and a task for it; `whitening` turns the inputs' covariance into I."""

    name: str
    machine: icgd.KernelMachine
    noise: float
    x: Tensor
    y: Tensor
    queries: Tensor
    whitening: Tensor | None = None

    def spectrum(self, machine: icgd.KernelMachine) -> tuple[float, float]:
        """The outermost eigenvalues but 0: nothing of the function lies along the others."""
        values = torch.linalg.eigvalsh(machine.gram(self.x)) + self.noise
        return float(values[values > 1e-9 * values.max()].min()), float(values.max())

    def problem(self, update: icgd.FunctionalStep, machine: icgd.KernelMachine) -> icgd.Problem:
        domain = icgd.Domain.of(torch.cat([self.x, self.queries]), self.y)
        return icgd.Problem(machine, "squared", update, domain)


def of_distances(kernel: str, noise: float, reach: float) -> Case:
    """Points in a square, and labels of a smooth function."""
    draw = torch.Generator().manual_seed(0)
    x, queries = (
        reach * (2 * torch.rand(n, 2, generator=draw, dtype=torch.float64) - 1) for n in (40, 10)
    )
    return Case(kernel, icgd.KernelMachine(2, kernel), noise, x, x.sin().sum(-1), queries)


def linear(condition: float) -> Case:
    """Inputs whose covariance has this condition number, and labels of a linear function."""
    draw, width = torch.Generator().manual_seed(1), 8
    scales = torch.logspace(0, -0.5, width, base=condition, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64)).Q
    x, queries = (
        torch.randn(n, width, generator=draw, dtype=torch.float64) * scales @ turn.mT
        for n in (64, 10)
    )
    y = x @ (turn @ (1 / scales)) + torch.randn(64, generator=draw, dtype=torch.float64)
    machine = icgd.KernelMachine(width, "linear")
    return Case("linear", machine, 0.0, x, y, queries, (turn / scales) @ turn.mT)


def cases() -> list[Case]:
    return [
        of_distances("rbf", 0.3, 3.0),
        of_distances("rbf", 1e-3, 3.0),
        of_distances("matern", 0.01, 3.0),
        linear(30.0),
        linear(3000.0),
    ]


def methods(case: Case) -> dict[str, tuple[Steps, icgd.KernelMachine]]:
    """The update of each method for a number of layers, and the kernel that it runs with."""
    ends = case.spectrum(case.machine)
    high, noise, step = ends[1], case.noise, icgd.FunctionalStep

    def fista(n_layers: int) -> icgd.FunctionalStep:
        return step(1 / high, noise, momentum=icgd.fista_momenta(n_layers), nesterov=True)

    updates: dict[str, Steps] = {
        "descent": lambda n: step(best_constant_step(*ends), noise),
        "Nesterov, FISTA's momenta": fista,
        "Nesterov": lambda n: icgd.nesterov(*ends, noise),
        "heavy ball": lambda n: icgd.heavy_ball(*ends, noise),
        CHEBYSHEV: lambda n: step(icgd.chebyshev_steps(*ends, n), noise),
        "Chebyshev momentum": lambda n: icgd.chebyshev_momentum(*ends, n, noise),
    }
    found = {name: (update, case.machine) for name, update in updates.items()}
    if case.whitening is None:
        return found
    head = icgd.KernelHead("linear", case.whitening)
    machine = icgd.KernelMachine(case.machine.input_width, head)
    whitened = case.spectrum(machine)
    return found | {
        "preconditioned": (lambda n: step(best_constant_step(*whitened)), machine),
        "Newton-Schulz": (lambda n: icgd.newton_schulz(high, n), case.machine),
    }


def layers_to(case: Case, name: str) -> int | None:
    """The least number of layers whose predictions are as close to the limit as asked for.

    Errors of some methods rise and fall. So the number is the first after which, up to twice as
    many layers, no error is too large. Chebyshev steps are others for every number of layers.
    """
    n_layers = 8
    while n_layers <= MOST_LAYERS:
        least = _least_of_any(case, n_layers) if name == CHEBYSHEV else _least(case, name, n_layers)
        if least is not None:
            return least
        n_layers *= 2
    return None


def _least(case: Case, name: str, n_layers: int) -> int | None:
    wrong = (_errors(case, name, n_layers, "fused") > TOLERANCE).nonzero()
    least = int(wrong.max()) + 1
    return least if 2 * least <= n_layers else None


def _least_of_any(case: Case, n_layers: int) -> int | None:
    """What Chebyshev steps leave falls with their number, so that halving finds the least."""
    low, high = n_layers // 2, n_layers
    if _errors(case, CHEBYSHEV, high, "fused")[-1] > TOLERANCE:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        is_enough = _errors(case, CHEBYSHEV, middle, "fused")[-1] <= TOLERANCE
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def _errors(case: Case, name: str, n_layers: int, backend: str) -> Tensor:
    """The largest distance of a prediction from its limit after every layer, relatively."""
    update, machine = methods(case)[name]
    compiled = icgd.compile(case.problem(update(n_layers), machine), n_steps=n_layers)
    task = compiled.task(case.x, case.y, queries=case.queries)
    limit = case.problem(update(n_layers), case.machine).function_oracle.limit(task).flatten()
    values = compiled.run_task(task, backend=backend).parameters[:, task.n_examples :]
    return (values - limit).abs().amax(-1) / limit.abs().max()


def rows() -> list[dict[str, object]]:
    """For every case its condition number and each method's layers; the dense transformer's error.

    `largest error` is that of the dense transformers with these numbers of layers, as long as they
    have at most 2,000.
    """
    return [_row(case) for case in cases()]


def _row(case: Case) -> dict[str, object]:
    low, high = case.spectrum(case.machine)
    layers = {name: layers_to(case, name) for name in methods(case)}
    dense = [
        float(_errors(case, name, n_layers, "dense")[-1])
        for name, n_layers in layers.items()
        if n_layers is not None and n_layers <= MOST_DENSE
    ]
    known = {name: "none" if n is None else n for name, n in layers.items()}
    return {
        "kernel": case.name,
        "condition": high / low,
        **{name: known.get(name, "") for name in METHODS},
        "largest error": max(dense),
    }
