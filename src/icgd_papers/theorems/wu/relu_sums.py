r"""Lemma 7: smooth functions by sums of ReLUs, for one variable.

On [-R, R], R >= 1, let |g| <= L_0, |g'| <= L_1 and |g''| <= L_2. The interpolation with pieces of
length h is within h^2 L_2 / 8, and its coefficients add up to at most

    |g(-R)| + R L_1 + 2 L_1 + (1 + R) 2 R L_2 <= 8 max(L_0, L_1 R, L_2 R^2),

so the lemma holds with the constant 8 if C_l contains the second derivative. It cannot without:
the slopes of sin(m z) / m turn about 2 m / pi times from 1 to -1, whatever comes near must turn as
often, and the total turn of a sum of ReLUs is at most the sum of its coefficients.
"""

from __future__ import annotations

from math import ceil, floor, log, pi, sin, sqrt

import torch
from torch import Tensor

from icgd_papers.theorems.statement import Comparison, Finding, Statement
from icgd_papers.theorems.wu.sums import SumOfRelus

CONSTANT = 8.0
"""C(1), by the proof above."""

WAVES = (1, 10, 100)
REACHES = (1.0, 2.0)
ERRORS = (1e-2, 1e-4)


def lemma_7(seed: int) -> Finding:
    """Waves sin(m z) / m, which all have a slope of 1 at most."""
    del seed  # nothing is drawn
    cases = [(m, reach, eps) for m in WAVES for reach in REACHES for eps in ERRORS]
    shares = torch.tensor([_shares(*case) for case in cases]).amax(0).tolist()
    waves = "sin(m z) / m, m = 1, 10, 100, R = 1, 2, eps = 0.01, 0.0001"
    m = 10_000
    needed, turn = least_coefficients(m), "coefficients that sin(m z) / m needs, m = 10000"
    return Finding(
        right=(
            Comparison(f"error of {waves}", shares[0], 1.0, "of eps"),
            Comparison(f"coefficients of {waves}", shares[1], CONSTANT, "of C_l"),
            Comparison(f"terms of {waves}", shares[2], CONSTANT, "of C_l^2 log(1 + C_l/eps)/eps^2"),
            Comparison(turn, needed, CONSTANT * m, "sum of |c|, with L_2 = m in C_l"),
        ),
        printed=(Comparison(turn, needed, CONSTANT, "sum of |c|, with C_l = max(L_0, L_1) = 1"),),
    )


def _shares(m: int, reach: float, eps: float) -> tuple[float, float, float]:
    """The error over eps, C over C_l, and H over C_l^2 log(1 + C_l / eps) / eps^2."""

    def wave(z: Tensor) -> Tensor:
        return torch.sin(m * z) / m

    size = max(1 / m, reach, m * reach**2)  # C_l with L_0 = 1 / m, L_1 = 1 and L_2 = m
    fit = SumOfRelus(wave, reach, ceil(2 * reach * sqrt(m / (8 * eps))))
    terms = size**2 * log(1 + size / eps) / eps**2
    return fit.error / eps, fit.total / size, fit.n_terms / terms


def least_coefficients(m: int) -> float:
    """A lower bound on sum |c| for whatever is within 1 / 4m of sin(m z) / m on [-1, 1].

    At neighbouring peaks it differs by 3 / 2m, so that its slope turns by 3 / pi between pairs.
    """
    peaks = [(pi / 2 + k * pi) / m for k in range(-floor(m / pi) - 1, floor(m / pi) + 1)]
    peaks = [z for z in peaks if abs(z) <= 1 and abs(sin(m * z)) > 0.99]
    return (len(peaks) - 2) * 2 * (3 / (2 * m)) / (pi / m)


LEMMA_7 = Statement(
    paper="wu",
    label="Lemma 7",
    claim=(
        "A function of k variables with s = ceil((k-1)/2) + 1 bounded derivatives is approximable"
        " by a sum of ReLUs whose coefficients add up to C(k) C_l at most, however small the error."
    ),
    formula=(
        "H <= C(k) C_l^2 log(1 + C_l/eps) / eps^2, C <= C(k) C_l,"
        " C_l = max_{i<=s} L_i R^i, s = ceil((k-1)/2) + 1"
    ),
    check=lemma_7,
    correction=(
        "s = ceil((k-1)/2) + 2, as in the proposition that it modifies. For k = 1, which is all"
        " that is measured here, two derivatives are needed, and C(1) = 8 will do."
    ),
)
