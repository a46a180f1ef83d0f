r"""Lemma 5: sums of n units approximate functions of bounded Barron norm like n^(-1/2).

Its proof is a lottery, which `icgd_papers.studies.lottery` runs.
"""

from __future__ import annotations

from math import sqrt

from icgd_papers.studies.lottery import Lottery
from icgd_papers.theorems.statement import Comparison, Finding, Statement

LOTTERY = Lottery(dimension=1)


def lemma_5(seed: int) -> Finding:
    """The lottery with few and with many units."""
    found = []
    for n, repeats in ((1, 500), (16, 100), (256, 20), (40_000, 2)):
        case = f"f = exp(-x^2/2) on [-1, 1], {n} Gaussian units, {repeats} lotteries"
        off, allowed = LOTTERY.drawn_distance(n, repeats, seed), LOTTERY.constant / sqrt(n)
        found.append(Comparison(case, off, allowed, "|f - f_n| in L^2"))
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
