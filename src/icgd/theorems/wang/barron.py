r"""Lemma 5: sums of n units approximate functions of bounded Barron norm like n^(-1/2).

Its proof is a lottery. With f(x) = integral e^(iwx) F(w) dw, sigma(t) = e^(-t^2/2), a = 1, p = 2,

    f(x) = E [ J cos(b) sigma(w x + b) ],   (w, b) of density h(b, w) F(w) / I,
    h(b, w) = (1 + max(0, |b| - R |w|))^(-2),   J = I / (2 pi S h),   S = e^(-1/2) / sqrt(2 pi),

and the mean of n drawn units is off by at most C / sqrt(n) in L^2, in root mean square, with
C = |Omega|^(1/2) I C_p / (2 pi S). For f = e^(-x^2/2) on [-1, 1] all of it is explicit.
"""

from __future__ import annotations

from math import exp, pi, sqrt

import torch
from torch import Tensor

from icgd.theorems.statement import Comparison, Finding, Statement

REACH = 1.0
"""R, and half of |Omega|."""

UNIT = exp(-0.5) / sqrt(2 * pi)
"""The Fourier transform of the activation at 1."""

DECAY = 4 * exp(-0.5)
"""C_p for p = 2: the largest (1 + t)^2 e^(-t^2/2), at t = 1."""

BARRON = 1 + sqrt(2 / pi)
"""The Barron norm of f: the integral of (1 + |w|) F(w)."""

TOTAL = 2 * BARRON
"""I: the integral of h F is that of (2 R |w| + 2) F."""

CONSTANT = sqrt(2 * REACH) * TOTAL * DECAY / (2 * pi * UNIT)

POINTS = torch.linspace(-1, 1, 201, dtype=torch.float64)


def draw_units(n: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """n pairs (w, b) of the density h F / I."""
    uniform = torch.rand(3, n, generator=source, dtype=torch.float64)
    normal = torch.randn(n, generator=source, dtype=torch.float64)
    # |w| F is Rayleigh's law, with weight sqrt(2 / pi) beside that of F itself.
    rayleigh = torch.sqrt(-2 * torch.log1p(-uniform[0]))
    w = torch.where(uniform[1] * BARRON < sqrt(2 / pi), rayleigh, normal.abs())
    position = (2 * uniform[2] - 1) * (REACH * w + 1)  # flat to R |w|, then 1 / (1 + t)^2
    beyond = (position.abs() - REACH * w).clamp_min(0.0)
    b = torch.where(beyond > 0, position.sign() * (REACH * w + beyond / (1 - beyond)), position)
    return w, b


def mean_of_units(n: int, source: torch.Generator) -> Tensor:
    """The mean of n drawn units, at the points; the sign of w is drawn by that of b."""
    w, b = draw_units(n, source)
    h = (1 + (b.abs() - REACH * w).clamp_min(0.0)) ** -2
    size = TOTAL / (2 * pi * UNIT) / h * torch.cos(b)
    total = torch.zeros_like(POINTS)
    for part in torch.arange(n).split(20_000):
        total += torch.exp(-((w[part] * POINTS[:, None] + b[part]) ** 2) / 2) @ size[part]
    return total / n


def distance(n: int, repeats: int, seed: int) -> float:
    """The root mean square of |f - f_n| in L^2(-1, 1) over lotteries."""
    source, real = torch.Generator().manual_seed(seed), torch.exp(-(POINTS**2) / 2)
    gaps = [(mean_of_units(n, source) - real).square().mean() * 2 for _ in range(repeats)]
    return sqrt(float(torch.stack(gaps).mean()))


def lemma_5(seed: int) -> Finding:
    """The lottery with few and with many units."""
    found = []
    for n, repeats in ((1, 500), (16, 100), (256, 20), (40_000, 2)):
        case = f"f = exp(-x^2/2) on [-1, 1], {n} Gaussian units, {repeats} lotteries"
        found.append(
            Comparison(case, distance(n, repeats, seed), CONSTANT / sqrt(n), "|f - f_n| in L^2")
        )
    return Finding(right=tuple(found))


LEMMA_5 = Statement(
    paper="wang",
    label="Lemma 5",
    claim=(
        "With an activation of polynomial decay n units come within C n^(-1/2) of a function of"
        " bounded Barron norm. Here m = 0, one function, and the proof's own units and constant."
    ),
    formula="inf |f - f_n|_{H^m(Omega)} <= |Omega|^(1/2) sqrt(n_0) C n^(-1/2) |f|_{B^(m+1)}",
    check=lemma_5,
)
