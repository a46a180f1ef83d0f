r"""The product s r'(t) by a difference quotient of high order.

    s r'(t) = sum_k factor_k (r(t + shift_k s) - r(t - shift_k s)) + a small rest

The factors are found by least squares on the box, and r, a function of one variable, is replaced
by units. Only directions close to (0, 1) occur; with directions all around the plane, 200 units
come only within 1e-4. Where r itself is the activation, a unit for each direction is enough.

More directions make the quotient's own error small, more units that of r; larger shifts make the
factors small, by which the latter is multiplied. All combinations are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf

import torch

from icgd.approximation.lattice import chebyshev_points
from icgd.approximation.ridge_line import LARGEST_COEFFICIENT, LIKELY_ROUNDING, fit_line
from icgd.approximation.ridge_proof import Box, Profile, joined, proved_error, rounding
from icgd.problems.functions import SmoothFunction
from icgd.program.ridge import RidgeSum

SHIFTS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
"""Largest shifts that are compared; the functions' features are about 1 wide."""

TYPICAL_SHIFT = 0.3
"""The error of r is estimated for this shift."""

MOST_PAIRS = 6
"""The most pairs of directions; with six the quotient's own error is below 1e-10."""

FEWEST_ON_A_LINE = 4
"""With fewer units than this, no layout of them is worth trying."""

POINTS = 40
"""The points of the least squares along s; those along t are at most 0.3 apart."""

MOST_POINTS = 4000
"""The most points along t; on a wider box the quotient is worse, and its proof says so."""

MOST_EVALUATIONS = 1e8
"""The most evaluations of units in a proof, about a second; beyond it errors of parts add up."""


@dataclass(frozen=True)
class Quotient:
    """s r'(t) as sum_k factors[k] r(t + shifts[k] s), for |s| <= 1."""

    shifts: tuple[float, ...]
    factors: tuple[float, ...]
    error: float

    @property
    def amplification(self) -> float:
        return sum((abs(factor) for factor in self.factors), 0.0)


@lru_cache(maxsize=256)
def quotient_of(function: SmoothFunction, half_width: float, pairs: int, shift: float) -> Quotient:
    """The difference quotient of 2 `pairs` directions that fits best; its error is sampled."""
    near = shift * chebyshev_points(2 * pairs)[:pairs]
    n_points = min(POINTS + ceil(10 * half_width), MOST_POINTS)
    s, t = torch.cartesian_prod(chebyshev_points(POINTS), half_width * chebyshev_points(n_points)).T
    basis = function(t.unsqueeze(-1) + s.unsqueeze(-1) * near)
    basis = basis - function(t.unsqueeze(-1) - s.unsqueeze(-1) * near)
    wanted = (s * function.tower[1](t)).unsqueeze(-1)
    factors = torch.linalg.lstsq(basis, wanted, rcond=1e-15, driver="gelsd").solution
    error = float((basis @ factors - wanted).abs().max())
    one_side, listed = near.tolist(), factors.squeeze(-1).tolist()
    shifts = (*one_side, *(-number for number in one_side))
    return Quotient(shifts, (*listed, *(-number for number in listed)), error)


def _best_quotient(
    function: SmoothFunction, half_width: float, activation: str, units: int, *, roundoff: float
) -> tuple[Quotient, int]:
    """The quotient whose own error and that of its functions add up to the least."""
    found = []
    for pairs in range(1, MOST_PAIRS + 1):
        each = max(units // (2 * pairs), FEWEST_ON_A_LINE)
        line = fit_line(function, half_width + TYPICAL_SHIFT, activation, each, roundoff=roundoff)
        if 2 * pairs * line.n_units > units:
            continue
        error = line.error + roundoff * LIKELY_ROUNDING * line.size
        for shift in SHIFTS:
            quotient = quotient_of(function, half_width, pairs, shift)
            found.append((quotient.error + quotient.amplification * error, quotient, each))
    _, quotient, each = min(found, key=lambda one: one[0])
    return quotient, each


def by_quotient(
    function: SmoothFunction, half_widths: Box, activation: str, units: int, *, roundoff: float
) -> RidgeSum:
    """s r'(t) by the best quotient, with r by units; proved as a whole if that is affordable."""
    size, half_width = half_widths
    quotient, each = _best_quotient(function, half_width, activation, units, roundoff=roundoff)
    reach = half_width + max(quotient.shifts)
    steepest = size * max(abs(factor) for factor in quotient.factors)
    line = fit_line(
        function, reach, activation, each, LARGEST_COEFFICIENT / max(steepest, 1.0), roundoff
    )
    parts = [
        line.along((shift / size, 1.0), size * factor)
        for shift, factor in zip(quotient.shifts, quotient.factors, strict=True)
    ]
    target = Profile(function.derivative(), half_widths)
    fit = joined(f"s {function.name}'(t)", half_widths, parts, target)
    if (proved := proved_error(target, fit, MOST_EVALUATIONS)) < inf:
        return replace(fit, error=proved)
    own = size * _proved_quotient(function, half_width, quotient)
    return replace(fit, error=own + fit.error + rounding(target, fit))


def _proved_quotient(function: SmoothFunction, half_width: float, quotient: Quotient) -> float:
    """The error of a quotient of the function itself, proved on |s| <= 1."""
    unit = fit_line(function, half_width, function.name, 1)
    parts = [
        unit.along((shift, 1.0), factor)
        for shift, factor in zip(quotient.shifts, quotient.factors, strict=True)
    ]
    box = (1.0, half_width)
    target = Profile(function.derivative(), box)
    return proved_error(target, joined(function.name, box, parts, target))
