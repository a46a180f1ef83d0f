"""A small compiled run of every construction, with data for it."""

from __future__ import annotations

from functools import cache

import torch

import icgd

DOMAIN = icgd.Domain(x=1.0, y=1.0)
X = torch.tensor([[0.5, -0.25], [0.75, 1.0], [-1.0, 0.125]], dtype=torch.float64)
Y = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)


def network(update, widths=(2, 3, 1), activation="tanh"):
    return icgd.Problem(icgd.MLP(widths, activation), "squared", update, DOMAIN)


def linear(link, **penalties):
    step = icgd.ProximalStep(0.1, box=2.0, **penalties)
    return icgd.Problem(icgd.LinearModel(2, link), "matching", step, DOMAIN)


STEP = icgd.GradientStep(0.1, box=2.0)
KERNEL = icgd.Problem(icgd.KernelMachine(2, "rbf"), "squared", icgd.FunctionalStep(0.1), DOMAIN)

ORDERS = {
    "relu-stack": (network(STEP), {"pieces": 8}),
    "relu-stack, kinks": (network(STEP, activation="relu"), {}),
    "relu-stack, adam": (network(icgd.AdamStep(0.05, box=2.0, eps=0.1)), {"pieces": 8}),
    "relu-stack, momentum": (
        network(icgd.MomentumStep((0.1, 0.2), momentum=0.9, box=2.0)),
        {"pieces": 8},
    ),
    "softmax-stack": (network(STEP), {"registers": 64}),
    "universal": (network(icgd.GradientStep(0.1, box=1.0), (1, 1)), {"n_examples": 2, "levels": 3}),
    "recursion": (network(STEP), {"units": 40}),
    "cot-network": (network(icgd.GradientStep(0.1, box=2.0, batch_size=1)), {}),
    "functional": (KERNEL, {}),
    "linear-stack": (linear("identity", l2=0.1), {}),
    "linear-stack, lasso": (linear("identity", l1=0.1), {}),
    "linear-stack, logistic": (linear("logistic"), {}),
    "cot-ridge": (linear("identity", l2=0.1), {"n_examples": 3}),
    "cot-lasso": (linear("identity", l1=0.1), {"n_examples": 3}),
    "cot-glm": (linear("logistic"), {"n_examples": 3}),
}


@cache
def compiled(name: str) -> icgd.Compiled:
    problem, settings = ORDERS[name]
    return icgd.compile(problem, name.partition(",")[0], n_steps=2, **settings)


def data_for(run: icgd.Compiled) -> tuple[torch.Tensor, torch.Tensor]:
    """Examples of the right width."""
    width = run.problem.target.input_width
    x = X.repeat(1, width)[:, :width]
    n = run.program.n_examples or len(x)
    return x[:n], Y[:n, None].repeat(1, run.problem.target.output_width)
