r"""Functions of one variable as sums of ReLUs, with a certified error.

The best continuous piecewise-linear approximation with K free knots has an error of about

    (integral sqrt|f''|)^2 / (16 K^2),

reached when every piece carries the same error and is shifted off the chord by half its sag.
`fit_relu_sum` spaces the knots by that integral, evens out what is left by a few corrections,
rounds the knots to multiples of a power of two, and then proves the error from bounds on f''.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import floor, inf, log2

import torch
from torch import Tensor

from icgd.errors import SettingError, UnknownNameError
from icgd.problems.functions import KinkedFunction, ScalarFunction, SmoothFunction, StepFunction
from icgd.problems.settings import count, power_of_two
from icgd.program.functions import ReluSum

CURVED_REACH = 40.0
"""Beyond this every smooth function here is a straight line to within float64."""

KNOT_FINENESS = 20
"""Multiples in the shortest piece: rounding a knot changes a piece by 1/20 at most."""

RAMP_SHARE = 2.0**-52
"""Width of the ramp that stands in for a step, as a share of the largest argument: beside that
argument float64 cannot tell anything smaller from 0."""

_ROUNDOFF = 2.0**-53
_NEGLIGIBLE = 1e-18  # an error that is added, but not worth halving a cell for


def fit_relu_sum(
    function: ScalarFunction,
    low: float,
    high: float,
    pieces: int = 64,
    kink_width: float | None = None,
) -> ReluSum:
    """Approximate `function` on [low, high] by a sum of ReLUs.

    A kinked function is exact and ignores `pieces`. A stepped one becomes a ramp of width
    `kink_width` to the right of each step and is wrong only on the ramps; if it is None, they are
    as narrow as `narrow_ramp` says. A smooth one gets `pieces` pieces with near-optimal knots.
    Costs O(pieces).
    """
    count("pieces", pieces)
    if not -inf < low < high < inf:
        raise SettingError(f"An interval needs finite ends low < high, got [{low}, {high}].")
    width = narrow_ramp(max(-low, high)) if kink_width is None else kink_width
    power_of_two("kink_width", width)
    return _fit(function, low, high, pieces, width)


def narrow_ramp(reach: float) -> float:
    """The width of a ramp for arguments up to `reach`: a power of two, `RAMP_SHARE` of it."""
    return RAMP_SHARE * 2.0 ** floor(log2(reach))


@lru_cache(maxsize=256)
def _fit(
    function: ScalarFunction, low: float, high: float, pieces: int, kink_width: float
) -> ReluSum:
    if isinstance(function, KinkedFunction):
        return _exact(function, low, high)
    if isinstance(function, StepFunction):
        return _ramps(function, low, high, kink_width)
    if isinstance(function, SmoothFunction):
        return _fit_smooth(function, low, high, pieces)
    known = [kind.__name__ for kind in (KinkedFunction, StepFunction, SmoothFunction)]
    raise UnknownNameError.of("kind of function", type(function).__name__, known=known)


def _exact(function: KinkedFunction, low: float, high: float) -> ReluSum:
    anchor = min(function.knots, key=abs, default=0.0)
    return ReluSum(
        name=function.name,
        low=low,
        high=high,
        knot_unit=1.0,
        knots=function.knots,
        slopes=function.slopes,
        anchor=anchor,
        anchor_value=float(function(torch.tensor(anchor, dtype=torch.float64))),
        errors=(0.0,) * len(function.slopes),
    )


def _ramps(function: StepFunction, low: float, high: float, width: float) -> ReluSum:
    """A step as a ramp, counted from its upper end: arguments above it meet no ReLU that is on.

    So nothing is rounded there. Below the ramp two numbers of size |z| / width cancel; programs
    evaluate ramps at relu(z), which is never below.
    """
    home = min(range(len(function.knots)), key=lambda i: abs(function.knots[i]), default=None)
    jumps = [
        after - before
        for before, after in zip(function.levels[:-1], function.levels[1:], strict=True)
    ]
    return ReluSum(
        name=function.name,
        low=low,
        high=high,
        knot_unit=width,
        knots=tuple(end for knot in function.knots for end in (knot, knot + width)),
        slopes=(0.0, *(slope for jump in jumps for slope in (jump / width, 0.0))),
        anchor=0.0 if home is None else function.knots[home] + width,
        anchor_value=function.levels[0 if home is None else home + 1],
        errors=(0.0, *(error for jump in jumps for error in (abs(jump), 0.0))),
    )


def _fit_smooth(function: SmoothFunction, low: float, high: float, pieces: int) -> ReluSum:
    nodes = _balanced_nodes(function, low, high, pieces)
    nodes, unit = _snap(nodes)
    values = function(nodes) - _shifts(function, nodes)
    slopes = values.diff() / nodes.diff()
    knots = nodes[1:-1]
    anchor = int(knots.abs().argmin()) if len(knots) else None
    unproved = ReluSum(
        name=function.name,
        low=low,
        high=high,
        knot_unit=unit,
        knots=tuple(knots.tolist()),
        slopes=tuple(slopes.tolist()),
        anchor=0.0 if anchor is None else float(knots[anchor]),
        anchor_value=float(values[0] - slopes[0] * low)
        if anchor is None
        else float(values[anchor + 1]),
        errors=(0.0,) * len(slopes),
    )
    return _with_proved_errors(function, unproved)


def _balanced_nodes(function: SmoothFunction, low: float, high: float, pieces: int) -> Tensor:
    """Ends of the pieces, such that all pieces have nearly the same error."""
    reach = torch.linspace(
        max(low, -CURVED_REACH),
        min(high, CURVED_REACH),
        max(20_001, 16 * pieces),
        dtype=torch.float64,
    )
    density = function.tower[2](reach).abs().sqrt()
    mass = torch.cat([density.new_zeros(1), torch.cumulative_trapezoid(density, reach)])
    ends = torch.tensor([low, high], dtype=torch.float64)
    inner = _equal_masses(reach, mass, pieces)[1:-1].clamp(low, high)
    nodes: Tensor = torch.cat([ends, inner]).unique()
    best, least = nodes, float("inf")
    for _ in range(30):
        errors = _sampled_errors(function, nodes)
        if float(errors.max()) < least:
            best, least = nodes, float(errors.max())
        if least <= 1.01 * float(errors.mean()):
            break
        # A piece's error grows with the square of its length.
        mass = torch.cat([errors.new_zeros(1), errors.sqrt().cumsum(0)])
        nodes = ((nodes + _equal_masses(nodes, mass, len(nodes) - 1)) / 2).unique()
    return best


def _equal_masses(points: Tensor, mass: Tensor, pieces: int) -> Tensor:
    """Points that cut the mass, piecewise linear in between, into equal parts."""
    wanted = torch.linspace(0, 1, pieces + 1, dtype=torch.float64) * mass[-1]
    right = torch.searchsorted(mass, wanted).clamp(1, len(mass) - 1)
    share = (wanted - mass[right - 1]) / (mass[right] - mass[right - 1]).clamp_min(1e-300)
    cuts = torch.lerp(points[right - 1], points[right], share.clamp(0, 1))
    cuts[0], cuts[-1] = points[0], points[-1]
    return cuts


def _shares() -> Tensor:
    """Where pieces are sampled: evenly, and ever closer to both ends for the long outer pieces."""
    near_end = 2.0 ** -torch.arange(5, 13, dtype=torch.float64)
    even = torch.linspace(0, 1, 17, dtype=torch.float64)
    return torch.cat([even, near_end, 1 - near_end]).sort().values


def _samples(nodes: Tensor) -> Tensor:
    """Points of every piece, ends included: (piece, sample)."""
    return torch.lerp(nodes[:-1, None], nodes[1:, None], _shares())


def _shifts(function: SmoothFunction, nodes: Tensor) -> Tensor:
    """How far the approximation lies below f at every node: half the sag of the chords there."""
    values = function(nodes)
    gap = _samples(values) - function(_samples(nodes))
    sag = gap.gather(1, gap.abs().argmax(1, keepdim=True)).squeeze(1)
    return torch.cat([sag[:1], (sag[:-1] + sag[1:]) / 2, sag[-1:]]) / 2


def _sampled_errors(function: SmoothFunction, nodes: Tensor) -> Tensor:
    values = function(nodes) - _shifts(function, nodes)
    return (_samples(values) - function(_samples(nodes))).abs().amax(1)


def _snap(nodes: Tensor) -> tuple[Tensor, float]:
    """Inner nodes, rounded to multiples of a power of two so small that pieces hardly change."""
    if len(nodes) == 2:
        return nodes, 1.0
    unit = 2.0 ** floor(log2(float(nodes.diff().min()) / KNOT_FINENESS))
    snapped = torch.round(nodes / unit) * unit
    return torch.cat([nodes[:1], snapped[1:-1], nodes[-1:]]), unit


def _with_proved_errors(function: SmoothFunction, fit: ReluSum) -> ReluSum:
    """`fit` with an upper bound on its error on every piece.

    On a cell [u, v] the gap g = fit - f satisfies |g| <= max(|g(u)|, |g(v)|) + h^2 max|f''| / 8
    with h = v - u, because g has no curvature but that of f. Cells are halved until the second
    term is at most 1% of the largest error; each evaluation's own rounding is added.
    """
    ends = torch.tensor([fit.low, *fit.knots, fit.high], dtype=torch.float64)
    slopes = torch.tensor(fit.slopes, dtype=torch.float64)
    intercepts = torch.tensor(fit.intercepts(), dtype=torch.float64)
    points = _samples(ends)
    cells = torch.stack([points[:, :-1].flatten(), points[:, 1:].flatten()])
    piece = torch.arange(len(slopes)).repeat_interleave(points.shape[1] - 1)
    proved = torch.zeros_like(slopes)
    least = 0.0
    while len(piece):
        straight = slopes[piece] * cells
        value = function(cells)
        rounding = 8 * _ROUNDOFF * (straight.abs() + intercepts[piece].abs() + value.abs())
        at_ends = ((straight + intercepts[piece] - value).abs() + rounding).amax(0)
        sag = cells.diff(dim=0)[0] ** 2 * function.curvature(cells[0], cells[1]) / 8
        least = max(least, float(at_ends.max()))
        done = sag <= max(0.01 * least, _NEGLIGIBLE)
        proved.scatter_reduce_(0, piece[done], (at_ends + sag)[done], "amax")
        cells, piece = _halved(cells[:, ~done], piece[~done])
    return replace(fit, errors=tuple(proved.tolist()))


def _halved(cells: Tensor, piece: Tensor) -> tuple[Tensor, Tensor]:
    middle = cells.mean(0)
    left, right = torch.stack([cells[0], middle]), torch.stack([middle, cells[1]])
    return torch.cat([left, right], dim=1), piece.repeat(2)
