r"""Lemma 19: the score of a diffusion by a ReLU network of x and t.

For one law this can be computed. Let x_0 be -1 or 1, and x_t = m x_0 + s z with m = exp(-t/2),
s^2 = 1 - m^2. Then

    score(x, t) = (m tanh(m x / s^2) - x) / s^2.

On a mesh of x and log t, divided into triangles, the interpolation of the score is a sum of hats
relu(1 - max(|a|, |b|, |a - b|)), each a ReLU network of a few layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log, pi, sqrt

import torch
from torch import Tensor

from icgd_papers.theorems.statement import Comparison, at_most, statement

FIRST, LAST = 0.2, 2.0
"""T_0 and T."""

REACH = 6.0
TIMES = (0.2, 0.31, 0.57, 1.1, 2.0)

MESHES = {0.1: (65, 11), 0.01: (193, 33)}
"""The number of points in x and in t for each error."""


def score(x: Tensor, time: Tensor) -> Tensor:
    """Return the gradient of log p_t."""
    mean = torch.exp(-time / 2)
    variance = 1 - mean**2
    return (mean * torch.tanh(mean * x / variance) - x) / variance


def network(x: Tensor, time: float, n_x: int, n_t: int) -> Tensor:
    """Return the ReLU network at points x and one time: a sum of hats."""
    nodes = torch.linspace(-REACH, REACH, n_x, dtype=torch.float64)
    logs = torch.linspace(log(FIRST), log(LAST), n_t, dtype=torch.float64)
    heights = score(nodes[:, None], torch.exp(logs)[None, :])
    a = (x[:, None, None] - nodes[:, None]) * (n_x - 1) / (2 * REACH)
    b = (log(time) - logs) * (n_t - 1) / (log(LAST) - log(FIRST))
    # |z| = relu(z) + relu(-z) and max(u, v) = u + relu(v - u), so all of it is made of ReLUs.
    sizes = [torch.relu(z) + torch.relu(-z) for z in (a, b, a - b)]
    peak = sizes[0] + torch.relu(sizes[1] - sizes[0])
    peak = peak + torch.relu(sizes[2] - peak)
    return (heights * torch.relu(1 - peak)).sum((1, 2))


def distance(time: float, n_x: int, n_t: int) -> float:
    """Return |network - score| in L^2(P_t), by a sum over many sample points."""
    x = torch.linspace(-REACH, REACH, 251, dtype=torch.float64)
    mean = exp(-time / 2)
    spread = sqrt(1 - mean**2)
    bells = [torch.exp(-(((x - c) / spread) ** 2) / 2) for c in (-mean, mean)]
    density = (bells[0] + bells[1]) / (2 * spread * sqrt(2 * pi))
    error = network(x, time, n_x, n_t) - score(x, torch.tensor(time, dtype=torch.float64))
    return sqrt(float((density * error**2).sum() * (x[1] - x[0])))


@statement("wu", "Lemma 19")
def two_point_law(seed: int) -> Iterator[Comparison]:
    """Measure the distance for the two-point law, at times on and off the mesh."""
    del seed  # nothing is drawn
    for eps, (n_x, n_t) in MESHES.items():
        worst = max(distance(time, n_x, n_t) for time in TIMES)
        case = f"x_0 = -1 or 1, {n_x * n_t} hats, T_0 = 0.2, T = 2, worst of {len(TIMES)} times"
        yield at_most(worst, eps, case, "distance in L^2(P_t)")
