r"""What depth costs: Theorems 3 and 4, counted with all hidden constants 1.

Matrices are layers times heads. `icgd_papers.studies.resources` has the counts.
"""

from __future__ import annotations

from math import exp, log

from icgd_papers.studies.resources import indicator, smooth
from icgd_papers.theorems.statement import Comparison, Finding, Statement


def theorem_3(seed: int) -> Finding:
    """How the counts grow from eps = 0.1 to eps = 0.001."""
    del seed  # nothing is drawn
    coarse, fine = indicator(0.1), indicator(0.001)
    deep = exp(fine.deep.log_matrices - coarse.deep.log_matrices)
    shallow = fine.shallow.log_matrices - coarse.shallow.log_matrices
    case = "matrices for eps = 0.001 over eps = 0.1"
    case_a = f"{case}, 2 layers of width exp(eps^(-1/4)), logarithm"
    case_b = f"{case}, 3 layers of width 1/eps"
    room = 1 + 1e-9
    return Finding(
        right=(
            Comparison(case_a, shallow, room * 2 * (1000**0.25 - 10**0.25), "2 eps^(-1/4)"),
            Comparison(case_b, deep, room * 100.0**2, "times; eps^-2"),
        ),
        printed=(Comparison(case_b, deep, room * 100.0, "times; eps^-1"),),
    )


def theorem_4(seed: int) -> Finding:
    """Deep over shallow for d = 2, n = 6, L = 2, where 2 (L - 1) d < n."""
    del seed  # nothing is drawn

    def ratio(error: float) -> float:
        pair = smooth(error, dimension=2, smoothness=6, depth=2)
        return exp(pair.deep.log_matrices - pair.shallow.log_matrices)

    case, unit = "d = 2, n = 6, L = 2", "matrices of the deep network, of the shallow one's"
    printed = smooth(0.5, dimension=2, smoothness=6, depth=2).deep
    return Finding(
        right=(
            Comparison(f"{case}, eps = 1e-10", ratio(1e-10), 1.0, unit),
            Comparison(f"{case}, eps = 1e-20", ratio(1e-20), 1.0, unit),
            Comparison(
                f"{case}, eps = 0.5, deep",
                exp(printed.log_matrices),
                (1 + 1e-9) * (log(2) + 1) ** 3 * 2 ** (2 / 3),
                "matrices; (ln(1/eps) + 1)^3 eps^(-2d/n)",
            ),
        ),
        printed=(
            Comparison(f"{case}, eps = 0.001", ratio(1e-3), 1.0, unit),
            Comparison(
                f"{case}, eps = 0.5, deep",
                exp(printed.log_matrices),
                log(2) ** 3 * 2 ** (2 / 3),
                "matrices; ln(1/eps)^3 eps^(-2d/n)",
            ),
        ),
    )


THEOREM_3 = Statement(
    paper="wang",
    label="Theorem 3",
    claim=(
        "To learn the indicator of a ball to an error eps, a transformer needs O(exp(2 eps^(-1/4)))"
        " matrices through a network of 2 layers and O(eps^-1) through one of 3 layers."
    ),
    formula="TF_A: O(exp(2 eps^(-1/4))), TF_B: O(eps^-1), with widths exp(eps^(-1/4)) and eps^-1",
    check=theorem_3,
    correction=(
        "The width eps^-1 and the count n^2 K^2 of its proof give eps^-2 for 3 layers. The width of"
        " 2 layers comes from a lemma that says it is needed, not that it suffices."
    ),
)

THEOREM_4 = Statement(
    paper="wang",
    label="Theorem 4",
    claim=(
        "For a function with n derivatives in d variables a deep network costs a transformer"
        " O(ln(1/eps)^3 eps^(-2d/n)) matrices and one of L layers O(eps^(-1/(L-1))), so that the"
        " deep one is cheaper if 2 (L-1) d < n."
    ),
    formula="ln(1/eps)^3 eps^(-2d/n) < eps^(-1/(L-1)) if 2 (L-1) d < n, eps in (0, 1)",
    check=theorem_4,
    correction=(
        "For all small enough errors: below 2.9e-10 for d = 2, n = 6, L = 2. The depth is"
        " ln(1/eps) + 1, and its cube does not vanish as eps tends to 1. The shallow width is one"
        " that is needed, not one that suffices."
    ),
)
