"""Linear models on data that are hard to fit: extreme scales, flat directions, boxes that bind."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from icgd.problems.convergence import sized_problem
from icgd.problems.data import Domain, Task
from icgd.problems.linear_model import LINKS, LinearModel
from icgd.problems.minimiser import minimise
from icgd.problems.oracles import LinearOracle
from icgd.problems.problem import Problem
from icgd.problems.steps import ProximalStep

N_EXAMPLES, WIDTH = 12, 4


@dataclass(frozen=True)
class Hostile:
    """A model, its penalties and box, and its data."""

    oracle: LinearOracle
    task: Task


def _drawn(seed: int, n: int = N_EXAMPLES, width: int = WIDTH) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, width, generator=draw, dtype=torch.float64)


def _labels(link: str, scores: Tensor, seed: int) -> Tensor:
    noise = _drawn(seed + 1000, len(scores), 1)
    if link == "identity":
        return scores + noise
    if link in ("logistic", "probit", "cauchit", "cloglog"):
        return (scores + 2 * noise > 0).double()
    if link == "tanh":
        return (scores + 2 * noise).sign()
    return (scores.clamp(-3, 3) / 2 + noise / 2).exp().round()


def _mixed(x: Tensor) -> Tensor:
    return x * torch.tensor([1e-5, 1.0, 1e3, 1e5], dtype=torch.float64)


def _shifted(x: Tensor) -> Tensor:
    return x + torch.tensor([1e3, 0.0, 0.0, -50.0], dtype=torch.float64)


def _with_copy(x: Tensor) -> Tensor:
    return torch.cat([x[:, :3], x[:, :1]], -1)


def _with_near_copy(x: Tensor) -> Tensor:
    return torch.cat([x[:, :3], x[:, :1] + 1e-5 * x[:, 3:]], -1)


def _with_constants(x: Tensor) -> Tensor:
    return torch.cat([x[:, :2], torch.zeros_like(x[:, :1]), torch.ones_like(x[:, :1])], -1)


@dataclass(frozen=True)
class _Kind:
    update: ProximalStep
    inputs: Callable[[Tensor], Tensor] = torch.clone
    intercept: bool = True
    n_examples: int = N_EXAMPLES
    reduction: str = "mean"


RIDGE, LASSO = ProximalStep(l2=0.05), ProximalStep(l1=0.05)
KINDS = {
    "ridge": _Kind(RIDGE),
    "lasso": _Kind(LASSO, reduction="sum"),
    "both": _Kind(ProximalStep(l2=0.02, l1=0.02), intercept=False),
    "mixed scales, ridge": _Kind(RIDGE, _mixed, intercept=False),
    "mixed scales, lasso": _Kind(LASSO, _mixed, intercept=False),
    "shifted inputs": _Kind(RIDGE, _shifted),
    "nearly collinear": _Kind(ProximalStep(l2=1e-6, box=50.0), _with_near_copy),
    "collinear, ridge": _Kind(RIDGE, _with_copy),
    "collinear, lasso": _Kind(ProximalStep(l1=0.02, box=5.0), _with_copy),
    "constant columns, ridge": _Kind(RIDGE, _with_constants, intercept=False),
    "constant columns, lasso": _Kind(LASSO, _with_constants, intercept=False),
    "more columns than rows, ridge": _Kind(RIDGE, n_examples=3, intercept=False),
    "more columns than rows, lasso": _Kind(ProximalStep(l1=0.1, box=9.0), n_examples=3),
    "all coefficients 0": _Kind(ProximalStep(l1=1e3), intercept=False),
    "all coefficients but the intercept 0": _Kind(ProximalStep(l1=1e3, box=9.0)),
    "a box that binds": _Kind(ProximalStep(box=0.05)),
    "a box that binds, with penalties": _Kind(ProximalStep(l2=0.01, l1=0.01, box=0.1)),
    "one example": _Kind(RIDGE, n_examples=1, intercept=False),
    "one example, lasso": _Kind(ProximalStep(l1=0.01, box=9.0), n_examples=1, intercept=False),
    "hardly any penalty": _Kind(ProximalStep(l2=1e-9, box=1e3), intercept=False),
}
"""What is hard about each."""

FLAT = {"collinear, lasso"}
"""Those with a line of minimisers."""


def hostile(name: str, link: str, seed: int = 0) -> Hostile:
    """One case with labels that suit the link."""
    kind = KINDS[name]
    raw = _drawn(seed, kind.n_examples)
    scores = raw @ torch.tensor([[0.9], [-0.6], [0.3], [0.0]], dtype=torch.float64)
    x, y = kind.inputs(raw), _labels(link, scores, seed)
    model = LinearModel(WIDTH, link, kind.intercept, kind.reduction)
    oracle = LinearOracle(model, "matching", kind.update, Domain(1e9, 1e9))
    return Hostile(oracle, Task(x, y, x[:0], model.initial_parameters()))


CASES = [(name, link) for name in KINDS for link in LINKS]


def hostile_problem(name: str, link: str, seed: int = 0) -> tuple[Problem, Task]:
    """The case as a problem that can be compiled: with a box, a step size, a range of scores."""
    case = hostile(name, link, seed)
    x, y, model = case.task.x, case.task.y, case.oracle.target
    best = minimise(case.oracle, case.task)
    reach = 2.0 + 1.5 * float(case.oracle.scores(best, x).abs().max())
    domain = Domain(float(x.abs().max()), max(1.0, float(y.abs().max())), score=reach)
    update = case.oracle.update
    if update.box is None:
        update = replace(update, box=1.0 + 2 * float(best.abs().max()))
    return sized_problem(Problem(model, "matching", update, domain), x), case.task
