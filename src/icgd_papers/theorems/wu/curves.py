r"""Compiled runs beside real descent, step by step: Corollary 1.1, and the curve of Lemma 14."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from icgd.backends.registry import AUTO
from icgd.compiled import Compiled
from icgd.pipeline import compile
from icgd.problems.data import Domain, Task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.theorems.wu.network import draw, random_inputs


@dataclass(frozen=True)
class Followed:
    """A compiled run beside real descent: its own eps, the curvature, and the distances."""

    eps: float
    lipschitz: float
    distances: list[float]

    def share(self, rate: float) -> float:
        """The largest distance over L_f^-1 (1 + rate L_f)^l eps."""
        return max(
            distance * self.lipschitz / ((1 + rate * self.lipschitz) ** step * self.eps)
            for step, distance in enumerate(self.distances)
        )


def follow(compiled: Compiled, x: Tensor, y: Tensor, initial: Tensor, lipschitz: float) -> Followed:
    """Run it, and measure every step and the distance to real descent from the same weights."""
    task, oracle = compiled.task(x, y, initial=initial), compiled.problem.oracle
    path = compiled.run_task(task, backend=AUTO).parameters
    real = oracle.train(task, compiled.program.n_steps)
    step = oracle.exact_step(task)
    errors = [(path[i + 1] - step(path[i], i)).norm() for i in range(len(path) - 1)]
    eps = float(torch.stack(errors).max()) / compiled.problem.gradient_step.size_of(0)
    return Followed(eps, lipschitz, [float(d) for d in (path - real).norm(dim=-1)])


def one_weight(step: float, pieces: int, n_steps: int) -> Compiled:
    """A tanh network of one weight, compiled with few pieces so that it errs visibly."""
    target = MLP((1, 1), "tanh", "tanh")
    problem = Problem(target, "squared", GradientStep(step, box=4.0), Domain(1.0, 1.0))
    return compile(problem, "relu-stack", n_steps=n_steps, pieces=pieces)


def curvature_of_one_weight(x: Tensor, y: Tensor, box: float) -> float:
    """L_f: the largest |L_n''| on the box, for one tanh unit, at many sample points."""
    w = torch.linspace(-box, box, 200_001, dtype=torch.float64)[:, None]
    p = torch.tanh(w * x.flatten())
    slope = 1 - p**2
    bend = (slope * slope - 2 * (p - y.flatten()) * p * slope) * x.flatten() ** 2
    return float(bend.mean(1).abs().max())


def corollary_1_1(seed: int) -> Finding:
    """Runs of a compiled network of one weight, with a long and with a short step."""
    del seed  # nothing is drawn
    x = torch.tensor([[1.0]], dtype=torch.float64)
    y = torch.zeros(1, 1, dtype=torch.float64)
    lipschitz = curvature_of_one_weight(x, y, box=4.0)
    initial = torch.tensor([1e-3], dtype=torch.float64)

    def comparison(step: float, rate: float, words: str) -> Comparison:
        followed = follow(one_weight(step, 34, 4), x, y, initial, lipschitz)
        case = f"1-1 tanh, x = 1, y = 0, n = 1, eta = {step:g}, 4 steps"
        return Comparison(case, followed.share(rate), 1.0, f"of the bound with (1 + {words} L_f)^l")

    return Finding(
        right=(comparison(8.0, 8.0, "eta"), comparison(0.5, 0.5, "eta")),
        printed=(comparison(8.0, 1.0, "n"),),
    )


@dataclass(frozen=True)
class Convergence:
    """After `length` steps: the least and the mean squared gradient mapping, and the bound."""

    length: int
    least: float
    mean: float
    bound: float


CURVE_STEP, CURVE_BOX = 0.1, 2.0
"""A step below 1 / L_f: at random weights in the box no Hessian has a norm above 5."""


def convergence(seed: int, lengths: Sequence[int]) -> list[Convergence]:
    """Lemma 14 for a compiled 2-4-1 tanh network on 16 examples, by the printed constants.

    inf f is taken as 0, which makes the bound larger by what the best network leaves.
    """
    compiled, task = _curve_task(seed, max(lengths))
    path = compiled.run_task(task, backend=AUTO).parameters
    step = compiled.problem.oracle.exact_step(task)
    real = torch.stack([step(w, i) for i, w in enumerate(path[:-1])])
    eps = float((path[1:] - real).norm(dim=-1).max()) / CURVE_STEP
    sizes = ((path[:-1] - real) / CURVE_STEP).square().sum(-1)
    drop = float(compiled.problem.oracle.risk(task, path[0]))
    return [
        Convergence(
            length=n,
            least=float(sizes[:n].min()),
            mean=float(sizes[:n].mean()),
            bound=8 * drop / (CURVE_STEP * n) + 10 * eps**2,
        )
        for n in lengths
    ]


def _curve_task(seed: int, n_steps: int) -> tuple[Compiled, Task]:
    target = MLP((2, 4, 1), "tanh", "tanh")
    update = GradientStep(CURVE_STEP, box=CURVE_BOX)
    problem = Problem(target, "squared", update, Domain(1.0, 1.0))
    compiled = compile(problem, "relu-stack", n_steps=n_steps)
    x = random_inputs(16, 2, seed)
    return compiled, compiled.task(x, torch.tanh(x.sum(1, keepdim=True)), seed=seed)


def largest_curvature(seed: int, n_points: int) -> float:
    """The largest norm of the Hessian of that risk at random weights in the box."""
    compiled, task = _curve_task(seed, 1)
    source, target = draw(seed), compiled.problem.network

    def risk(w: Tensor) -> Tensor:
        first, second = w[:8].view(4, 2), w[8:].view(1, 4)
        outputs = torch.tanh(torch.tanh(task.x @ first.mT) @ second.mT)
        return ((outputs - task.y) ** 2).sum() / (2 * len(task.x))

    worst = 0.0
    for _ in range(n_points):
        uniform = torch.rand(target.n_parameters, generator=source, dtype=torch.float64)
        w = CURVE_BOX * (2 * uniform - 1)
        hessian = torch.autograd.functional.hessian(risk, w)
        worst = max(worst, float(torch.linalg.matrix_norm(hessian, ord=2)))
    return worst


COROLLARY_1_1 = Statement(
    paper="wu",
    label="Corollary 1.1",
    claim=(
        "The transformer of Theorem 1 stays within L_f^-1 (1 + n L_f)^l eps of real gradient"
        " descent after l steps, with L_f the Lipschitz constant of the risk."
    ),
    formula="|w^l - w_GD^l|_2 <= L_f^-1 (1 + n L_f)^l eps",
    check=corollary_1_1,
    correction=(
        "(1 + eta L_f)^l, with L_f the Lipschitz constant of the gradient, for real descent that is"
        " projected as well. With eta <= n the printed bound is true and weaker."
    ),
)
