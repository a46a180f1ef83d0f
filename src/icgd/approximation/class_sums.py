r"""The exponential and the reciprocal of shares of classes, as sums of ReLUs.

Both have a certified relative error. A chord of exp over a length h errs by h^2 / 16 of its value
if it is shifted by half its sag; knots are h apart, a power of two. The reciprocal on [1 / 2, high]
has pieces whose ends have a constant ratio: ln(2 high) sqrt(2 / (16 error)) of them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil, floor, log, log2, sqrt

import torch

from icgd.approximation.root_sum import falling_sum, of_few_bits, sampled
from icgd.problems.class_functions import (
    RECIPROCAL,
    RELATIVE_ROUNDING,
    CappedExponential,
)
from icgd.program.functions import ReluSum

CELLS = 8
"""The cells of a piece of the exponential in each of which its error is proved."""


@lru_cache(maxsize=64)
def fit_exponential(function: CappedExponential, reach: float, error: float) -> ReluSum:
    """Approximate exp(min(z, cap)) on [-reach, reach] to a relative error of about `error`.

    Below -cap it is taken as constant, which errs by less than exp(-cap).
    """
    unit = 2.0 ** floor(log2(sqrt(16 * error)))
    n_knots = 2 * ceil(function.cap / unit) + 1
    knots = unit * torch.arange(-(n_knots // 2), n_knots // 2 + 1, dtype=torch.float64)
    values = knots.clamp(max=function.cap).exp() * (1 - unit**2 / 16)
    flat = values.new_zeros(1)
    slopes = torch.cat([flat, values.diff() / unit, flat])
    fit = ReluSum(
        name=function.name,
        low=-reach,
        high=reach,
        knot_unit=unit,
        knots=tuple(knots.tolist()),
        slopes=tuple(slopes.tolist()),
        anchor=float(knots[0]),
        anchor_value=float(values[0]),
        errors=(0.0,) * len(slopes),
    )
    return replace(fit, errors=_proved_exponential(function, fit))


def _proved_exponential(function: CappedExponential, fit: ReluSum) -> tuple[float, ...]:
    """On a cell [u, v] the gap is at most that at its ends and (v - u)^2 exp(v) / 8."""
    knots = torch.tensor(fit.knots, dtype=torch.float64)
    slopes = torch.tensor(fit.slopes[1:-1], dtype=torch.float64)[:, None]
    constants = torch.tensor(fit.intercepts(), dtype=torch.float64)
    parts = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64)
    points = torch.lerp(knots[:-1, None], knots[1:, None], parts)
    line, exact = slopes * points + constants[1:-1, None], function(points)
    sizes = (slopes * points).abs() + constants[1:-1, None].abs() + exact
    rounding = RELATIVE_ROUNDING * (8 + fit.n_pieces) * sizes.amax(1)
    sag = points.diff(dim=1) ** 2 * points[:, 1:].exp() / 8
    gaps = (line - exact).abs()
    proved = (torch.maximum(gaps[:, :-1], gaps[:, 1:]) + sag).amax(1) + rounding
    lowest = max(float(constants[0]), float(function(knots[0])))
    end = abs(float(constants[-1]) - float(function(knots[-1]))) + float(rounding[-1])
    return (lowest, *proved.tolist(), end)


@lru_cache(maxsize=64)
def fit_reciprocal(high: float, error: float) -> ReluSum:
    """Approximate 1 / z on [1 / 2, high] to a relative error of about `error`."""
    pieces = max(2, ceil(log(2 * high) * sqrt(2 / (16 * error))))
    nodes = torch.linspace(log(0.5), log(high), pieces + 1, dtype=torch.float64).exp()
    snapped, unit = of_few_bits(nodes[:-1])
    nodes = torch.cat([snapped, nodes.new_tensor([high])])
    fit = falling_sum(RECIPROCAL, nodes, unit, low=0.5)
    return replace(fit, errors=_proved_reciprocal(fit))


def _proved_reciprocal(fit: ReluSum) -> tuple[float, ...]:
    """On a cell [u, v] the gap is at most that at its ends and (v - u)^2 f''(u) / 8."""
    points, line, exact, rounding = sampled(RECIPROCAL, fit, RELATIVE_ROUNDING)
    gaps = (line - exact).abs()
    sag = points.diff(dim=1) ** 2 * RECIPROCAL.curvature(points[:, :-1]) / 8
    proved = (torch.maximum(gaps[:, :-1], gaps[:, 1:]) + sag).amax(1) + rounding
    return (float(proved[0]), *proved.tolist())
