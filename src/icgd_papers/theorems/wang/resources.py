r"""What depth costs: wang's Theorems 3 and 4, counted with every hidden constant equal to 1.

Parameter matrices are layers times heads, n^3 K^2 by Theorem 2 and Remark 2, where the proof of
Theorem 3 writes n^2 K^2. Counts can exceed every float, so their logarithms are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log

from icgd_papers.studies.resources import indicator, smooth
from icgd_papers.theorems.statement import Comparison, at_most, in_proof, printed, statement

ROUNDING = 1 + 1e-9


@statement("wang", "Theorem 3")
def depth_saves_matrices_for_a_ball(seed: int) -> Iterator[Comparison]:
    """Compare the growth of the counts from eps = 0.1 on with the printed orders."""
    del seed  # nothing is drawn
    coarse = indicator(0.1)
    for error in (1e-2, 1e-3, 1e-6):
        fine, ratio = indicator(error), log(0.1 / error)
        shallow = fine.shallow.log_matrices - coarse.shallow.log_matrices
        deep = fine.deep.log_matrices - coarse.deep.log_matrices
        case = f"matrices for eps = {error:g} over eps = 0.1"
        allowed = ROUNDING * 2 * (error**-0.25 - 0.1**-0.25)
        yield at_most(shallow, allowed, f"{case}, 2 layers", "logarithm; exp(2 eps^(-1/4))")
        yield at_most(deep, ROUNDING * 2 * ratio, f"{case}, 3 layers", "logarithm; eps^-2")
        yield in_proof(deep, ROUNDING * ratio, f"{case}, 3 layers", "logarithm; eps^-1")


@statement("wang", "Theorem 4")
def depth_saves_matrices_for_smooth_functions(seed: int) -> Iterator[Comparison]:
    """Follow the ratio of both counts as the error falls, for 2 (L-1) d < n."""
    del seed  # nothing is drawn
    unit = "matrices of the deep network over those of the shallow one"
    for dimension, smoothness, depth in ((1, 3, 2), (2, 6, 2), (1, 5, 3), (3, 20, 4)):
        moderate, small, smaller = (
            exp(pair.deep.log_matrices - pair.shallow.log_matrices)
            for pair in (
                smooth(error, dimension=dimension, smoothness=smoothness, depth=depth)
                for error in (1e-3, 1e-100, 1e-200)
            )
        )
        names = f"d = {dimension}, n = {smoothness}, L = {depth}, constants 1"
        yield at_most(smaller, 1, f"{names}, eps = 1e-200", unit)
        yield at_most(smaller, small, f"{names}, eps = 1e-200 beside eps = 1e-100", unit)
        yield printed(moderate, 1, f"{names}, eps = 0.001", unit)
