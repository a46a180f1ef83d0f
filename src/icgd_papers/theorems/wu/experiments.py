r"""Appendix G: what its two yardsticks measure, on its own law.

Inputs are N(-2, I) in 20 dimensions, labels a ReLU network with standard normal weights (scaled by
its width, which changes no R^2), 50 examples and one query a prompt. R^2 is over all queries.
Hidden layers have 64 units, for teachers, whose width the paper does not give, and for the networks
trained on a prompt, which have 200 in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

import torch
from torch import Tensor

from icgd_papers.theorems.statement import Comparison, Finding, Statement

WIDTH_OF_X, N_EXAMPLES, HIDDEN = 20, 50, 64

EPOCHS, LEARNING_RATE = 100, 1e-2


def _normal(source: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=source)


def _forward(matrices: Sequence[Tensor], x: Tensor) -> Tensor:
    """The outputs of one network for each prompt."""
    for matrix in matrices[:-1]:
        x = torch.relu(x @ matrix)
    return (x @ matrices[-1])[..., 0]


def _networks(source: torch.Generator, n_prompts: int, depth: int) -> list[Tensor]:
    """Normal weights, divided by the root of the number of inputs, for each prompt."""
    widths = (WIDTH_OF_X, *[HIDDEN] * (depth - 1), 1)
    return [_normal(source, n_prompts, a, b) * sqrt(2 / a) for a, b in pairwise(widths)]


def prompts(n_prompts: int, depth: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels; the last ones are the query's."""
    source = torch.Generator().manual_seed(seed)
    x = _normal(source, n_prompts, N_EXAMPLES + 1, WIDTH_OF_X) - 2
    return x, _forward(_networks(source, n_prompts, depth), x)


def left(errors: Tensor, labels: Tensor) -> float:
    """1 - R^2: the share of the variance of the labels that the squared errors leave."""
    return float(errors.sum() / ((labels - labels.mean()) ** 2).sum())


def simple_baselines(depth: int, seed: int, n_prompts: int = 200) -> tuple[float, float]:
    """R^2 of the mean of a prompt's labels, and of ridge regression with penalty 1."""
    x, y = prompts(n_prompts, depth, seed)
    x, y = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1).double(), y.double()
    known, label = y[:, :-1], y[:, -1]
    design = x[:, :-1]
    penalty = torch.eye(x.shape[-1], dtype=torch.float64)
    weights = torch.linalg.solve(design.mT @ design + penalty, design.mT @ known[..., None])
    ridge = (x[:, -1:] @ weights)[:, 0, 0]
    return tuple(1 - left((p - label) ** 2, label) for p in (known.mean(1), ridge))  # type: ignore[return-value]


def direct_training(seed: int, n_prompts: int = 16, depth: int = 3) -> tuple[Tensor, Tensor]:
    """Squared errors on the queries after every epoch, and the labels: full-batch Adam."""
    x, y = prompts(n_prompts, depth, seed)
    source = torch.Generator().manual_seed(seed + 1)
    weights = [matrix.requires_grad_() for matrix in _networks(source, n_prompts, depth)]
    moments = [(torch.zeros_like(matrix), torch.zeros_like(matrix)) for matrix in weights]
    found = []
    for epoch in range(1, EPOCHS + 1):
        off = _forward(weights, x) - y
        slopes = torch.autograd.grad(off[:, :-1].square().mean(1).sum(), weights)
        for matrix, slope, moment in zip(weights, slopes, moments, strict=True):
            _adam(matrix, slope, moment, epoch)
        found.append(off[:, -1].detach() ** 2)
    return torch.stack(found), y[:, -1]


@torch.no_grad()
def _adam(matrix: Tensor, slope: Tensor, moments: tuple[Tensor, Tensor], epoch: int) -> None:
    """One step of Adam, with its usual constants."""
    mean, square = moments
    mean.lerp_(slope, 0.1)
    square.lerp_(slope**2, 0.001)
    scale = LEARNING_RATE * sqrt(1 - 0.999**epoch) / (1 - 0.9**epoch)
    matrix -= scale * mean / (square.sqrt() + 1e-8)


def best_epoch(seed: int) -> Finding:
    """What is left unexplained at the epoch that is best for each query, and at the last one."""
    errors, labels = direct_training(seed)
    best = left(errors.min(0).values, labels)
    fixed = left(errors[int(errors.sum(1).argmin())], labels)
    last = left(errors[-1], labels)
    case = "3 layers of width 64, 100 epochs of Adam on 50 examples, 16 prompts"
    return Finding(
        right=(
            Comparison(f"{case}: last epoch", last, 2 * fixed, "1 - R^2; best common epoch, x2"),
        ),
        printed=(Comparison(f"{case}: last epoch", last, 2 * best, "1 - R^2; best epoch, x2"),),
    )


def simple_lines(seed: int) -> Finding:
    """The R^2 of two predictors that descend on no network, for 3, 4 and 6 layers."""
    found = {depth: simple_baselines(depth, seed) for depth in (3, 4, 6)}
    words = {depth: f"{depth} layers, 200 prompts of 50 examples" for depth in found}
    printed = [
        Comparison(f"ridge regression, {words[d]}", ridge, 0.9, "R^2; less than near 0.95")
        for d, (_, ridge) in found.items()
    ]
    right = [
        Comparison(f"mean of the labels, {words[d]}", mean, ridge, "R^2; that of ridge regression")
        for d, (mean, ridge) in found.items()
    ]
    return Finding(right=tuple(right), printed=tuple(printed))


BEST_EPOCH = Statement(
    paper="wu",
    label="Appendix G, baseline",
    claim=(
        "The highest R^2 over 100 epochs on the test query measures what direct training on the"
        " prompt reaches."
    ),
    formula="baseline = mean over queries of max over epochs of R^2",
    check=best_epoch,
    correction=(
        "The epoch is chosen by the answer that it is tested on. Chosen once for all queries, or"
        " taken as the last, the network leaves many times as much unexplained; show both."
    ),
)

SIMPLE_LINES = Statement(
    paper="wu",
    label="Appendix G, R^2",
    claim=("An R^2 near 0.95 after 50 examples shows that the transformer descends on a network."),
    formula="R^2 about 0.95 only by descent on an N-layer network",
    check=simple_lines,
    correction=(
        "With inputs around -2 a prompt's labels lie around a mean of their own: the mean of the"
        " labels has an R^2 of about 0.85 and ridge regression about 0.96. Their lines belong in"
        " every panel."
    ),
)
