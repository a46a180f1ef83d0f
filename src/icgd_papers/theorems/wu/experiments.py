r"""Appendix G: what its two yardsticks measure, on its own law.

Inputs are N(-2, I) in 20 dimensions, labels a ReLU network with normal weights (divided by the root
of its width, which changes no R^2), 50 examples and one query a prompt. R^2 is over all queries.
Hidden layers have 64 units, for teachers, whose width the paper does not give, and for the networks
trained on a prompt, which have 200 in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import sqrt

import torch
from torch import Tensor

from icgd_papers.theorems.statement import Comparison, at_most, statement

WIDTH_OF_X, N_EXAMPLES, HIDDEN, EPOCHS = 20, 50, 64, 100


def outputs(matrices: Sequence[Tensor], x: Tensor) -> Tensor:
    """Return the outputs of one network for each prompt."""
    for matrix in matrices[:-1]:
        x = torch.relu(x @ matrix)
    return (x @ matrices[-1])[..., 0]


def networks(source: torch.Generator, n_prompts: int, depth: int) -> list[Tensor]:
    """Normal weights, scaled by the number of inputs, for each prompt."""
    widths = (WIDTH_OF_X, *[HIDDEN] * (depth - 1), 1)
    return [
        torch.randn(n_prompts, a, b, generator=source) * sqrt(2 / a) for a, b in pairwise(widths)
    ]


def prompts(n_prompts: int, depth: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs and labels; the last of each prompt are the query's."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(n_prompts, N_EXAMPLES + 1, WIDTH_OF_X, generator=source) - 2
    return x, outputs(networks(source, n_prompts, depth), x)


def unexplained(errors: Tensor, labels: Tensor) -> float:
    """Return 1 - R^2: the share of the variance of the labels that squared errors leave."""
    return float(errors.sum() / ((labels - labels.mean()) ** 2).sum())


def simple_baselines(depth: int, seed: int, n_prompts: int = 200) -> tuple[float, float]:
    """Return 1 - R^2 of the mean of a prompt's labels, and of ridge regression with penalty 1."""
    x, y = prompts(n_prompts, depth, seed)
    x, y = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1).double(), y.double()
    design, known, label = x[:, :-1], y[:, :-1], y[:, -1]
    penalty = torch.eye(x.shape[-1], dtype=torch.float64)
    weights = torch.linalg.solve(design.mT @ design + penalty, design.mT @ known[..., None])
    ridge = (x[:, -1:] @ weights)[:, 0, 0]
    mean_error, ridge_error = ((p - label) ** 2 for p in (known.mean(1), ridge))
    return unexplained(mean_error, label), unexplained(ridge_error, label)


@statement("wu", "Appendix G, baseline")
def best_epoch(seed: int) -> Iterator[Comparison]:
    """Train 3-layer networks on 16 prompts by Adam, and compare two choices of the epoch."""
    n_prompts, depth = 16, 3
    x, y = prompts(n_prompts, depth, seed)
    source = torch.Generator().manual_seed(seed + 1)
    weights = [matrix.requires_grad_() for matrix in networks(source, n_prompts, depth)]
    optimiser, history = torch.optim.Adam(weights, lr=1e-2), []
    for _ in range(EPOCHS):
        error = outputs(weights, x) - y
        optimiser.zero_grad()
        error[:, :-1].square().mean(1).sum().backward()
        optimiser.step()
        history.append(error[:, -1].detach() ** 2)
    errors, labels = torch.stack(history), y[:, -1]
    best = unexplained(errors.min(0).values, labels)
    common = unexplained(errors[int(errors.sum(1).argmin())], labels)
    last = unexplained(errors[-1], labels)
    case = "3 layers of width 64, 100 epochs of Adam on 50 examples, 16 prompts"
    unit = "1 - R^2; four times the best common epoch's"
    yield at_most(last, 4 * common, f"{case}: last epoch", unit)
    unit = "1 - R^2; half the last epoch's"
    yield at_most(best, last / 2, f"{case}: best epoch of each query", unit)


@statement("wu", "Appendix G, objective 1")
def simple_lines(seed: int) -> Iterator[Comparison]:
    """Measure what two predictors that train no network leave unexplained."""
    for depth in (3, 4, 6):
        mean, ridge = simple_baselines(depth, seed)
        case = f"{depth}-layer teachers, 200 prompts of 50 examples"
        yield at_most(ridge, 0.1, f"ridge regression, {case}", "1 - R^2")
        yield at_most(mean, 0.3, f"the mean of the labels, {case}", "1 - R^2")
