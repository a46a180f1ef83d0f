r"""Reciprocal roots as sums of ReLUs, with a certified relative error.

Their values range over many powers of ten, and all are wanted to the same relative error. On a
piece from t to t rho a chord errs by about (ln rho)^2 / 8 times the relative curvature, which is at
most 3 / 4, and half of that if the chord is shifted by half its sag. So

    ln(high / low) sqrt(0.75 / (16 error))

pieces do, where low is the end of the first piece, which starts at 0. For 1 / (sqrt(t) + eps) it is
(8 error eps)^2: below it the root is constant to that error, however steep it is. For
1 / sqrt(t + eps) it is about 4 eps sqrt(error). Smaller `eps` and larger arguments cost pieces only
by their logarithm. The sum is anchored at the largest knot, below which all its terms are positive:
no term cancels another.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil, log, log2, sqrt

import torch
from torch import Tensor

from icgd.problems.functions import ScalarFunction
from icgd.problems.roots import RELATIVE_ROUNDING, AbstractRoot
from icgd.program.functions import ReluSum

FEWEST_BITS = 6
"""Knots have at least so many bits after the first."""

CELLS = 64
"""The cells of a piece in each of which its error is proved."""


@lru_cache(maxsize=64)
def fit_reciprocal_root(function: AbstractRoot, high: float, error: float) -> ReluSum:
    """Approximate the root on (-inf, high] to a relative error of about `error`."""
    nodes, unit = _nodes(function, high, error)
    fit = falling_sum(function, nodes, unit, low=-high)
    return _proved(function, fit)


def _nodes(function: AbstractRoot, high: float, error: float) -> tuple[Tensor, float]:
    """0, the end of the first piece, and points between which pieces err alike, up to `high`."""
    first = min(function.first_end(error), high / 4)
    log_t = torch.linspace(log(first), log(high), 4096, dtype=torch.float64)
    density = function.bend(log_t.exp())
    mass = torch.cat([density.new_zeros(1), torch.cumulative_trapezoid(density, log_t)])
    pieces = max(2, ceil(float(mass[-1]) / sqrt(16 * error)))
    wanted = torch.linspace(0, float(mass[-1]), pieces + 1, dtype=torch.float64)
    place = torch.searchsorted(mass, wanted).clamp(1, len(mass) - 1)
    share = (wanted - mass[place - 1]) / (mass[place] - mass[place - 1])
    inner = torch.lerp(log_t[place - 1], log_t[place], share.clamp(0, 1)).exp()
    snapped, unit = of_few_bits(inner[:-1])
    return torch.cat([inner.new_zeros(1), snapped, inner.new_tensor([high])]).unique(), unit


def falling_sum(function: ScalarFunction, nodes: Tensor, unit: float, low: float) -> ReluSum:
    """A falling convex function by shifted chords between nodes, level before the first of them.

    Its errors are not proved yet.
    """
    values = shifted(function, nodes)
    slopes = torch.cat([nodes.new_zeros(1), values.diff() / nodes.diff()])
    return ReluSum(
        name=function.name,
        low=low,
        high=float(nodes[-1]),
        knot_unit=unit,
        knots=tuple(nodes[:-1].tolist()),
        slopes=tuple(slopes.tolist()),
        anchor=float(nodes[-2]),
        anchor_value=float(values[-2]),
        errors=(0.0,) * len(slopes),
    )


def sampled(
    function: ScalarFunction, fit: ReluSum, relative: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points of every piece but the first, the fit and the function there, and their rounding.

    A value of the function is off by less than its `relative` part.
    """
    ends = torch.tensor([*fit.knots, fit.high], dtype=torch.float64)
    slopes = torch.tensor(fit.slopes[1:], dtype=torch.float64)[:, None]
    constants = torch.tensor(fit.intercepts()[1:], dtype=torch.float64)[:, None]
    points = torch.lerp(ends[:-1, None], ends[1:, None], shares())
    line, exact = slopes * points + constants, function(points)
    sizes = (slopes * points).abs() + constants.abs() + exact
    return points, line, exact, relative * (8 + fit.n_pieces) * sizes.amax(1)


def of_few_bits(nodes: Tensor) -> tuple[Tensor, float]:
    """Rising positive numbers rounded to so few bits that gaps hardly change; and their unit.

    Then a number's exponent and its first bits tell between which of them it lies.
    """
    closest = float((nodes[1:] / nodes[:-1]).min()) - 1
    bits = max(FEWEST_BITS, ceil(log2(16 / closest)))
    mantissa, exponent = torch.frexp(nodes)
    rounded = torch.ldexp((mantissa * 2.0 ** (bits + 1)).round() * 2.0 ** -(bits + 1), exponent)
    return rounded, 2.0 ** (int(exponent.min()) - bits - 1)


def shifted(function: ScalarFunction, nodes: Tensor) -> Tensor:
    """The values at the nodes, lower by half the sag of the chords beside them."""
    values = function(nodes)
    inside = torch.lerp(nodes[:-1, None], nodes[1:, None], shares())
    chords = torch.lerp(values[:-1, None], values[1:, None], shares())
    sag = (chords - function(inside)).amax(1)
    around = torch.cat([sag[:1], torch.minimum(sag[:-1], sag[1:]), sag[-1:]])
    return values - around / 2


def shares() -> Tensor:
    """Points of a piece, denser at its left end, where the root is steeper."""
    return torch.linspace(0, 1, CELLS + 1, dtype=torch.float64) ** 2


def _proved(function: AbstractRoot, fit: ReluSum) -> ReluSum:
    """The fit with a bound on its error on every piece, its own rounding included.

    On a cell [u, v] the gap is at most that at its ends and (v - u)^2 f''(u) / 8. On the first
    piece, where f'' may have no bound, line and root both fall, so that their values at the ends of
    a cell also bound the gap in it.
    """
    points, line, root, rounding = sampled(function, fit, RELATIVE_ROUNDING)
    gaps = (line - root).abs()
    sag = points.diff(dim=1) ** 2 * function.curvature(points[:, :-1]) / 8
    in_cells = torch.maximum(gaps[:, :-1], gaps[:, 1:]) + sag
    falling = torch.maximum((line[0, :-1] - root[0, 1:]).abs(), (line[0, 1:] - root[0, :-1]).abs())
    in_cells[0] = torch.minimum(in_cells[0], falling)
    proved = in_cells.amax(1) + rounding
    below = (fit.intercepts()[1] - function(points[0, 0])).abs() + rounding[0]
    return replace(fit, errors=(float(below), *proved.tolist()))
