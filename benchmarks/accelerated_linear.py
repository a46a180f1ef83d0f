"""Steps until coefficients of linear models are known to 1e-6: descent, FISTA, Nesterov."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import torch
from torch import Tensor

import icgd
from benchmarks.linear import Fit, _fits
from icgd.problems.minimiser import hessian, minimise

TOLERANCE = 1e-6
MOST_STEPS = {"descent": 2**17, "FISTA": 2**14, "Nesterov": 2**17, "heavy ball": 2**17}
"""FISTA's steps all differ, so that their programs are long."""

MOST_DENSE = 200
LAYERS = 3
"""Of a step, with momentum or without."""


class Goal:
    """A fit with its step size, the minimiser, and the least curvature there."""

    def __init__(self, fit: Fit) -> None:
        self.fit, self.problem = fit, icgd.sized_problem(fit.problem, fit.x)
        oracle = self.problem.linear_oracle
        self.task = icgd.as_task(self.problem, fit.x, fit.y)
        self.minimiser = minimise(oracle, self.task)
        update, penalised = oracle.update, oracle.target.penalised(self.minimiser)
        moves = (self.minimiser != 0) | (update.l1 * penalised == 0)
        values = torch.linalg.eigvalsh(hessian(oracle, self.task, self.minimiser)[moves][:, moves])
        self.step_size = update.step_size or 1.0
        self.share = float(values[0]) * self.step_size
        """The least curvature times the step: the inverse of the condition number."""

    def errors(self, name: str, n_steps: int, backend: str = "fused") -> Tensor:
        """The largest error of a coefficient after every step, relative to the largest."""
        update = replace(self.problem.proximal_step, **self.momentum(name, n_steps))
        problem = replace(self.problem, update=update)
        compiled = icgd.compile(problem, "linear-stack", n_steps=n_steps)
        run = compiled.run_task(self.task, backend=backend)
        return (run.parameters - self.minimiser).abs().amax(-1) / self.minimiser.abs().max()

    def momentum(self, name: str, n_steps: int) -> dict[str, object]:
        """The momentum of a method; critical damping is the best for a constant step."""
        root = sqrt(self.share)
        return {
            "descent": {},
            "FISTA": {"momentum": icgd.fista_momenta(n_steps), "nesterov": True},
            "Nesterov": {"momentum": icgd.nesterov_momentum(self.share, 1.0), "nesterov": True},
            "heavy ball": {"momentum": (1 - root) ** 2},
        }[name]

    def steps_to(self, name: str) -> int | None:
        """The first step after which, up to twice as many, no error is too large."""
        n_steps = 16
        while n_steps <= MOST_STEPS[name]:
            wrong = (self.errors(name, n_steps) > TOLERANCE).nonzero()
            least = int(wrong.max()) + 1
            if 2 * least <= n_steps:
                return least
            n_steps *= 2
        return None


METHODS = tuple(MOST_STEPS)


def rows() -> list[dict[str, object]]:
    """For every fit the steps of each method, and the layers of the best."""
    return [_row(Goal(fit)) for fit in _fits()]


def _row(goal: Goal) -> dict[str, object]:
    steps = {name: goal.steps_to(name) for name in METHODS}
    known = {name: n for name, n in steps.items() if n is not None}
    best = min(known, key=known.__getitem__)
    dense = goal.errors(best, known[best], "dense")[-1] if known[best] <= MOST_DENSE else None
    return {
        "fit": goal.fit.name,
        "condition": 1 / goal.share,
        **{name: f"> {MOST_STEPS[name] // 2}" if n is None else n for name, n in steps.items()},
        "layers of the best": LAYERS * known[best],
        "its dense error": "" if dense is None else float(dense),
    }
