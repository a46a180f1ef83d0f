"""Small runs of every rule and every kind, each with all that its update can have.

A state that an optimiser remembers does not start from 0 here, so that every coefficient of the
first step counts.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import icgd
from icgd.problems.data import Task

N_STEPS = 3
WIDE_BOX = 2.0  # no weight comes so far
TURNED = ((0.6, 0.8), (-0.3, 0.5))
KEYS = ((0.2, -0.4), (0.7, 0.1))


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).clamp(-2.5, 2.5)


@dataclass(frozen=True)
class WholeRun:
    """A problem, its task, and which numbers of its certificate may be any."""

    problem: icgd.Problem
    task: Task
    free: frozenset[str]


def network(
    update: Any, target: icgd.MLP | None = None, loss: str = "squared", rates: Any = None
) -> WholeRun:
    """A 2-2-1 network of tanh units on four examples, unless another target is given."""
    target = target or icgd.MLP((2, 2, 1))
    domain = icgd.Domain(2.5, 2.5, rate=None if rates is None else 2.0)
    problem, n = icgd.Problem(target, loss, update, domain), target.n_parameters
    y = normal(4, target.output_width, seed=1)
    if loss in ("logistic", "cross_entropy"):
        y = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    parts = [normal(n, seed=2).clamp(-1.0, 1.0)]
    parts += [normal(n, seed=3 + place).abs() / 8 for place in range(len(update.remembered))]
    queries, initial = normal(2, 2, seed=7), torch.cat(parts)
    task = icgd.as_task(problem, normal(4, 2), y, queries=queries, initial=initial, rates=rates)
    free = set() if target.norms else {"problem.norm_eps"}
    if update.box == WIDE_BOX:
        free.add("problem.box")
    if update.average is not None:  # the first step starts the average
        free |= {f"data.initial.{len(initial) - 1 - place}" for place in range(n)}
    return WholeRun(problem, task, frozenset(free))


def linear(link: str = "identity", *, intercept: bool = True, **settings: Any) -> WholeRun:
    """Two coefficients, an intercept and six examples, whose labels suit every link."""
    model = icgd.LinearModel(2, link, intercept)
    update = icgd.ProximalStep(0.2, **settings)
    problem = icgd.Problem(model, "matching", update, icgd.Domain(2.5, 1.0))
    initial = torch.tensor([0.3, -0.3, 0.2][: model.n_parameters], dtype=torch.float64)
    y = normal(6, 1, seed=1).abs().clamp(max=1.0)
    queries = normal(2, 2, seed=7)
    task = icgd.as_task(problem, normal(6, 2), y, queries=queries, initial=initial)
    return WholeRun(problem, task, first_share(update))


def function(heads: Any, update: Any, free: Any = ()) -> WholeRun:
    """A function of two inputs and two labels, on three examples and two queries."""
    problem = icgd.Problem(
        icgd.KernelMachine(2, heads, 2), "squared", update, icgd.Domain(2.5, 2.5)
    )
    x, y = 0.4 * normal(3, 2), normal(3, 2, seed=1)
    task = icgd.as_task(problem, x, y, queries=0.4 * normal(2, 2, seed=7))
    last = f"problem.transforms.{N_STEPS - 1}"  # nothing is read after the last move
    moves = {f"{last}.{entry}" for entry in ("0.0", "0.1", "1.0", "1.1") if update.transforms}
    return WholeRun(problem, task, first_share(update) | moves | set(free))


def first_share(update: icgd.ProximalStep | icgd.FunctionalStep) -> frozenset[str]:
    """The momentum of the first step if it has its own: there is no last change yet."""
    return frozenset({"problem.momenta.0"} if isinstance(update.momentum, tuple) else ())


SHAPES = ("problem.heads.0.0.shape",)
RBF = icgd.KernelHead("rbf", TURNED, 1.5)

CASES = {
    "plain": network(icgd.GradientStep(0.3, WIDE_BOX)),
    "box": network(icgd.GradientStep(0.3, 1.0)),
    "batches": network(icgd.GradientStep(0.3, WIDE_BOX, batch_size=3)),
    "schedule": network(icgd.GradientStep((0.3, 0.2, 0.4), WIDE_BOX)),
    "momentum": network(icgd.MomentumStep(0.3, WIDE_BOX, momentum=0.7)),
    "dampening": network(icgd.MomentumStep(0.3, WIDE_BOX, momentum=0.7, dampening=0.4)),
    "Nesterov": network(icgd.MomentumStep(0.3, WIDE_BOX, momentum=0.7, nesterov=True)),
    "decay": network(icgd.MomentumStep(0.3, WIDE_BOX, weight_decay=0.2, gradient_scale=2.0)),
    "average": network(icgd.GradientStep(0.3, WIDE_BOX, average=0.6)),
    "Adam": network(icgd.AdamStep(0.1, WIDE_BOX, betas=(0.8, 0.9), eps=0.1, weight_decay=0.2)),
    "AdamW": network(
        icgd.AdamStep((0.1, 0.2, 0.1), WIDE_BOX, 3, eps=0.1, weight_decay=0.2, decoupled=True)
    ),
    "averaged Adam": network(
        icgd.AdamStep(0.1, WIDE_BOX, eps=0.1, gradient_scale=2.0, average=0.6)
    ),
    "RMSprop": network(icgd.RmspropStep(0.1, WIDE_BOX, alpha=0.9, eps=0.1, weight_decay=0.2)),
    "groups": network(
        icgd.AdamStep(
            0.1,
            WIDE_BOX,
            eps=0.1,
            weight_decay=0.2,
            average=0.6,
            groups={"bias_1": {"weight_decay": 0.0}, "weights_2": {"step_size": 0.3}},
        ),
        icgd.MLP((2, 2, 1), biases=True),
    ),
    "classes": network(icgd.GradientStep(0.3, WIDE_BOX), icgd.MLP((2, 2, 2)), "cross_entropy"),
    "logistic": network(icgd.GradientStep(0.3, WIDE_BOX), icgd.MLP((2, 2, 2), "gelu"), "logistic"),
    "smooth l1": network(icgd.GradientStep(0.3, WIDE_BOX), None, "smooth_l1_1.5"),
    "biases": network(icgd.GradientStep(0.3, WIDE_BOX), icgd.MLP((2, 2, 1), biases=True)),
    "norms": network(
        icgd.GradientStep(0.3, WIDE_BOX), icgd.MLP((2, 3, 3, 1), "silu", norms=(1, 2), norm_eps=0.1)
    ),
    "shortcuts": network(
        icgd.GradientStep(0.3, WIDE_BOX),
        icgd.MLP((2, 2, 2, 2, 2), shortcuts=((0, 2), (1, 2), (2, 4))),
    ),
    "rates": network(icgd.GradientStep(0.3, WIDE_BOX), rates=[[0.5], [1.0], [1.5], [0.75]]),
    "all at once": network(
        icgd.AdamStep(0.1, WIDE_BOX, 3, eps=0.1, weight_decay=0.2, average=0.6),
        icgd.MLP((2, 2, 2, 1), "softplus", biases=True, shortcuts=((0, 2),), norms=(2,)),
        rates=[[0.5], [1.0], [1.5], [0.75]],
    ),
    "ridge": linear(l2=0.3, intercept=False),
    "lasso": linear("logistic", l1=0.05),
    "boxed": linear("poisson", box=0.31),
    "heavy ball": linear("probit", l2=0.3, momentum=(0.1, 0.5, 0.7)),
    "FISTA": linear("softplus", l2=0.1, l1=0.05, momentum=0.6, nesterov=True),
    "kernel": function(RBF, icgd.FunctionalStep((0.2, 0.3, 0.1)), SHAPES),
    "noise": function("laplace", icgd.FunctionalStep(0.2, 0.3), SHAPES),
    "kernel momentum": function("matern", icgd.FunctionalStep(0.2, momentum=(0.1, 0.4, 0.6))),
    "kernel Nesterov": function(
        "exp", icgd.FunctionalStep(0.1, 0.1, momentum=0.5, nesterov=True), SHAPES
    ),
    "two heads": function(
        (RBF, icgd.KernelHead("polynomial", None, 0.2, 3.0)),
        icgd.FunctionalStep(0.2),
        SHAPES,
    ),
    "heads of steps": function(
        RBF,
        icgd.FunctionalStep(
            0.1,
            heads=(
                (RBF, icgd.KernelHead("linear")),
                (icgd.KernelHead("softmax", TURNED),),
                (icgd.KernelHead("relu", KEYS), icgd.KernelHead("rbf")),
            ),
        ),
        {f"problem.heads.{place}.shape" for place in ("0.0", "0.1", "1.0", "2.0", "2.1")},
    ),
    "keys": function(
        icgd.KernelHead("exp", TURNED, 0.5, None, KEYS),
        icgd.FunctionalStep(0.1),
        SHAPES,
    ),
    "moved": function(
        "rbf",
        icgd.FunctionalStep(0.2, 0.1, (0.1, TURNED, KEYS), momentum=0.4, nesterov=True),
        SHAPES,
    ),
}
