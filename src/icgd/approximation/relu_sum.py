r"""Fit functions of one variable as sums of ReLUs, with a certified error.

The best continuous piecewise-linear approximation with K free knots has an error of about

    (integral sqrt|f''|)^2 / (16 K^2),

attained if every piece has the same error and is shifted off the chord by half its sag.
`fit_relu_sum` spaces the knots by that integral, balances the errors by a few corrections, rounds
the knots to multiples of a power of two, and then proves the error from bounds on f''.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import ceil, floor, inf, log, log2, sqrt

import torch
from torch import Tensor

from icgd.approximation.marching import exact_lines, fit_by_marching, fit_together, unit_of
from icgd.errors import SettingError, UnknownNameError
from icgd.problems.functions import (
    RECIPROCAL,
    RELATIVE_ROUNDING,
    ROOT_ROUNDING,
    AbstractRoot,
    CappedExponential,
    KinkedFunction,
    SmoothFunction,
    StepFunction,
)
from icgd.problems.piecewise import Function
from icgd.problems.scalar import ScalarFunction
from icgd.problems.settings import count, power_of_two
from icgd.program.functions import ReluSum

CURVED_REACH = 40.0
"""Beyond this every smooth function here is linear up to rounding in float64."""

KNOT_FINENESS = 20
"""The length of the shortest piece in units of the knots: rounding changes it by at most 1/20."""

RAMP_SHARE = 2.0**-52
"""The width of the ramp that approximates a step, relative to the largest argument: the rounding
error of that argument is about as large."""

_ROUNDOFF = 2.0**-53
_NEGLIGIBLE = 1e-18  # an error for which no cell is halved


def fit_relu_sum(
    function: ScalarFunction,
    low: float,
    high: float,
    pieces: int = 64,
    kink_width: float | None = None,
) -> ReluSum:
    """Approximate `function` on [low, high] by a sum of ReLUs.

    A kinked function is exact and ignores `pieces`. A step function gets a ramp of width
    `kink_width` to the right of each step, and is exact elsewhere; the default width is
    `RAMP_SHARE` of the largest argument. A smooth function gets `pieces` pieces with near-optimal
    knots. Costs O(pieces).
    """
    count("pieces", pieces)
    if not -inf < low < high < inf:
        raise SettingError(f"An interval needs finite ends low < high, got [{low}, {high}].")
    if kink_width is None:
        kink_width = RAMP_SHARE * 2.0 ** floor(log2(max(-low, high)))
    power_of_two("kink_width", kink_width)
    return _fit(function, low, high, pieces, kink_width)


@lru_cache(maxsize=256)
def _fit(
    function: ScalarFunction, low: float, high: float, pieces: int, kink_width: float
) -> ReluSum:
    if isinstance(function, Function) and function.kind != "step":
        return _fit_by_balls(function, low, high, pieces)
    if isinstance(function, KinkedFunction):
        anchor = min(function.knots, key=abs, default=0.0)
        return ReluSum(
            name=function.name,
            low=low,
            high=high,
            knot_unit=unit_of(function.knots),
            knots=function.knots,
            slopes=function.slopes,
            anchor=anchor,
            anchor_value=float(function(torch.tensor(anchor, dtype=torch.float64))),
            errors=(0.0,) * len(function.slopes),
        )
    if isinstance(function, StepFunction | Function):
        # The anchor is the upper end of a ramp: for arguments above it all ReLUs of the ramp are
        # off, and nothing is rounded. Below the ramp two numbers of size |z| / width cancel, but
        # programs evaluate ramps at relu(z), which is never below.
        knots = function.knots
        home = min(range(len(knots)), key=lambda i: abs(knots[i]), default=None)
        jumps = [after - before for before, after in pairwise(function.levels)]
        return ReluSum(
            name=function.name,
            low=low,
            high=high,
            knot_unit=kink_width,
            knots=tuple(end for knot in knots for end in (knot, knot + kink_width)),
            slopes=(0.0, *(slope for jump in jumps for slope in (jump / kink_width, 0.0))),
            anchor=0.0 if home is None else knots[home] + kink_width,
            anchor_value=function.levels[0 if home is None else home + 1],
            errors=(0.0, *(error for jump in jumps for error in (abs(jump), 0.0))),
        )
    if isinstance(function, SmoothFunction):
        nodes = _balanced_nodes((function,), (1.0,), low, high, pieces)
        return _between(function, *_rounded(nodes))
    supported = [kind.__name__ for kind in (KinkedFunction, StepFunction, SmoothFunction)]
    raise UnknownNameError.of("kind of function", type(function).__name__, known=supported)


def _fit_by_balls(function: Function, low: float, high: float, pieces: int) -> ReluSum:
    """Fit a function defined by a text on the intersection of the interval with its domain."""
    low, high = max(low, function.low), min(high, function.high)
    if not low < high:
        raise SettingError(
            f"The interval lies outside the domain of {function}, [{function.low:g}, "
            f"{function.high:g}]."
        )
    if any(function.jumps):
        raise SettingError(
            f"{function} jumps, and a sum of ReLUs is continuous. Use a continuous function."
        )
    if function.kind == "kinked":
        return exact_lines(function, low, high)
    return fit_by_marching((function,), low, high, pieces)[0]


@lru_cache(maxsize=64)
def fit_with_common_knots(
    functions: tuple[ScalarFunction, ...], low: float, high: float, pieces: int
) -> tuple[ReluSum, ...]:
    """Approximate functions on [low, high] by sums of the same ReLUs, which share their heads.

    No error is larger than that of the function alone with `pieces` pieces. For an activation and
    its slope this takes 1.1 to 1.2 times as many. If common knots save nothing, knots differ.
    """
    written = tuple(function for function in functions if isinstance(function, Function))
    if written:
        inside = max(low, *(f.low for f in written)), min(high, *(f.high for f in written))
        return fit_together(written, *inside, pieces)
    alone = tuple(fit_relu_sum(function, low, high, pieces) for function in functions)
    goals, number = [fit.error for fit in alone], pieces
    smooth = tuple(function for function in functions if isinstance(function, SmoothFunction))
    while number < len(functions) * pieces:
        nodes, unit = _rounded(_balanced_nodes(smooth, goals, low, high, number))
        fits = tuple(_between(function, nodes, unit) for function in smooth)
        excess = max(fit.error / goal for fit, goal in zip(fits, goals, strict=True))
        if excess <= 1:
            return fits
        # Errors are proportional to 1 / pieces^2, unless they are rounding. An even number of
        # pieces puts a knot at 0, where odd functions are exactly 0.
        number = max(number + 1 + number // 100, floor(number * sqrt(excess)))
        number += number % 2
    return alone


def _rounded(nodes: Tensor) -> tuple[Tensor, float]:
    """Round inner nodes to multiples of a power of two; return also this unit."""
    if len(nodes) <= 2:
        return nodes, 1.0
    unit = 2.0 ** floor(log2(float(nodes.diff().min()) / KNOT_FINENESS))
    snapped = torch.round(nodes / unit) * unit
    return torch.cat([nodes[:1], snapped[1:-1], nodes[-1:]]), unit


def _between(function: SmoothFunction, nodes: Tensor, unit: float) -> ReluSum:
    """Fit by shifted chords between nodes, with a proved bound on the error of each piece.

    On a cell [u, v] the gap g = fit - f satisfies |g| <= max(|g(u)|, |g(v)|) + h^2 max|f''| / 8
    with h = v - u, because g'' = -f''. Cells are halved until the second term is at most 1% of the
    largest error; the rounding of every evaluation is added.
    """
    low, high = float(nodes[0]), float(nodes[-1])
    values = _chord_values(function, nodes)
    slopes = values.diff() / nodes.diff()
    knots = nodes[1:-1]
    anchor = int(knots.abs().argmin()) if len(knots) else None
    fit = ReluSum(
        name=function.name,
        low=low,
        high=high,
        knot_unit=unit,
        knots=tuple(knots.tolist()),
        slopes=tuple(slopes.tolist()),
        anchor=0.0 if anchor is None else float(knots[anchor]),
        anchor_value=float(values[0] - slopes[0] * low if anchor is None else values[anchor + 1]),
        errors=(0.0,) * len(slopes),  # not proved yet
    )
    intercepts = torch.tensor(fit.intercepts(), dtype=torch.float64)
    points = _samples(nodes)
    cells = torch.stack([points[:, :-1].flatten(), points[:, 1:].flatten()])
    piece = torch.arange(len(slopes)).repeat_interleave(points.shape[1] - 1)
    proved, slope = torch.zeros_like(slopes), function.derivative()
    least = 0.0
    while len(piece):
        straight = slopes[piece] * cells
        value = function(cells)
        rounding = 8 * _ROUNDOFF * (straight.abs() + intercepts[piece].abs() + value.abs())
        at_ends = ((straight + intercepts[piece] - value).abs() + rounding).amax(0)
        sag = cells.diff(dim=0)[0] ** 2 * slope.lipschitz(cells[0], cells[1]) / 8
        least = max(least, float(at_ends.max()))
        done = sag <= max(0.01 * least, _NEGLIGIBLE)
        proved.scatter_reduce_(0, piece[done], (at_ends + sag)[done], "amax")
        cells, piece = cells[:, ~done], piece[~done].repeat(2)
        middle = cells.mean(0)
        cells = torch.stack([torch.cat([cells[0], middle]), torch.cat([middle, cells[1]])])
    return replace(fit, errors=tuple(proved.tolist()))


def _balanced_nodes(
    functions: Sequence[SmoothFunction],
    goals: Sequence[float],
    low: float,
    high: float,
    pieces: int,
) -> Tensor:
    """Return the ends of pieces whose errors are nearly equal.

    The error of several functions is the largest of their errors relative to their goals.
    """
    reach = torch.linspace(
        max(low, -CURVED_REACH),
        min(high, CURVED_REACH),
        max(20_001, 16 * pieces),
        dtype=torch.float64,
    )
    pairs = [*zip(functions, goals, strict=True)]
    curvatures = [function.tower[2](reach).abs() / goal for function, goal in pairs]
    density = torch.stack(curvatures).amax(0).sqrt()
    mass = torch.cat([density.new_zeros(1), torch.cumulative_trapezoid(density, reach)])
    ends = torch.tensor([low, high], dtype=torch.float64)
    inner = _equal_masses(reach, mass, pieces)[1:-1].clamp(low, high)
    nodes: Tensor = torch.cat([ends, inner]).unique()
    best, least = nodes, float("inf")
    for _ in range(30):
        samples, relative_errors = _samples(nodes), list[Tensor]()
        for function, goal in pairs:
            gap = _samples(_chord_values(function, nodes)) - function(samples)
            relative_errors.append(gap.abs().amax(1) / goal)
        errors = torch.stack(relative_errors).amax(0)
        if float(errors.max()) < least:
            best, least = nodes, float(errors.max())
        if least <= 1.01 * float(errors.mean()):
            break
        # The error of a piece is proportional to the square of its length. Move nodes halfway to
        # the positions that would balance sqrt(error), to avoid oscillations.
        mass = torch.cat([errors.new_zeros(1), errors.sqrt().cumsum(0)])
        nodes = ((nodes + _equal_masses(nodes, mass, len(nodes) - 1)) / 2).unique()
    return best


def _equal_masses(points: Tensor, mass: Tensor, pieces: int) -> Tensor:
    """Return points that divide a cumulative mass, interpolated linearly, into equal parts."""
    targets = torch.linspace(0, 1, pieces + 1, dtype=torch.float64) * mass[-1]
    right = torch.searchsorted(mass, targets).clamp(1, len(mass) - 1)
    share = (targets - mass[right - 1]) / (mass[right] - mass[right - 1]).clamp_min(1e-300)
    cuts = torch.lerp(points[right - 1], points[right], share.clamp(0, 1))
    cuts[0], cuts[-1] = points[0], points[-1]
    return cuts


def _samples(nodes: Tensor) -> Tensor:
    """Return points of every piece, ends included: (piece, sample).

    Besides evenly spaced points there are points close to both ends, for the long outer pieces.
    """
    near_end = 2.0 ** -torch.arange(5, 13, dtype=torch.float64)
    even = torch.linspace(0, 1, 17, dtype=torch.float64)
    shares = torch.cat([even, near_end, 1 - near_end]).sort().values
    return torch.lerp(nodes[:-1, None], nodes[1:, None], shares)


def _chord_values(function: SmoothFunction, nodes: Tensor) -> Tensor:
    """Return the values at the nodes: f minus half the sag of the adjacent chords."""
    values = function(nodes)
    gap = _samples(values) - function(_samples(nodes))
    sag = gap.gather(1, gap.abs().argmax(1, keepdim=True)).squeeze(1)
    return values - torch.cat([sag[:1], (sag[:-1] + sag[1:]) / 2, sag[-1:]]) / 2


FEWEST_BITS = 6
"""The fewest bits of a knot after the leading one."""

CELLS = 64
"""The number of cells per piece in a proof."""


@lru_cache(maxsize=64)
def fit_reciprocal_root(function: AbstractRoot, high: float, error: float) -> ReluSum:
    """Approximate the reciprocal root on (-inf, high] to a relative error of about `error`.

    Values range over many powers of ten, and all need the same relative accuracy. On a piece from
    t to t rho the error of a chord is about (ln rho)^2 / 8 times the relative curvature, which is
    at most 3 / 4, and half of that if the chord is shifted by half its sag. So

        ln(high / low) sqrt(0.75 / (16 error))

    pieces suffice, where low is the end of the first piece, which starts at 0. For
    1 / (sqrt(t) + eps) it is (8 error eps)^2: below that the root is constant up to this error,
    however steep it is. For 1 / sqrt(t + eps) it is about 4 eps sqrt(error). The number of pieces
    grows only logarithmically with 1 / eps and `high`. The sum is anchored at the largest knot,
    below which all terms are positive, so no terms cancel.
    """
    # Nodes: 0, the end of the first piece, then points with equal errors in between, up to `high`.
    first = min(function.first_end(error), high / 4)
    log_t = torch.linspace(log(first), log(high), 4096, dtype=torch.float64)
    density = function.bend(log_t.exp())
    mass = torch.cat([density.new_zeros(1), torch.cumulative_trapezoid(density, log_t)])
    pieces = max(2, ceil(float(mass[-1]) / sqrt(16 * error)))
    targets = torch.linspace(0, float(mass[-1]), pieces + 1, dtype=torch.float64)
    place = torch.searchsorted(mass, targets).clamp(1, len(mass) - 1)
    share = (targets - mass[place - 1]) / (mass[place] - mass[place - 1])
    inner = torch.lerp(log_t[place - 1], log_t[place], share.clamp(0, 1)).exp()
    snapped, unit = _of_few_bits(inner[:-1])
    nodes = torch.cat([inner.new_zeros(1), snapped, inner.new_tensor([high])]).unique()
    fit = _falling_sum(function, nodes, unit, low=-high)
    # On a cell [u, v] the gap is at most that at the ends plus (v - u)^2 f''(u) / 8. On the first
    # piece f'' may be unbounded, but line and root both decrease, so their values at the ends of a
    # cell also bound the gap.
    points, line, root, rounding = _sampled(function, fit, ROOT_ROUNDING)
    gaps = (line - root).abs()
    sag = points.diff(dim=1) ** 2 * function.curvature(points[:, :-1], points[:, 1:]) / 8
    in_cells = torch.maximum(gaps[:, :-1], gaps[:, 1:]) + sag
    falling = torch.maximum((line[0, :-1] - root[0, 1:]).abs(), (line[0, 1:] - root[0, :-1]).abs())
    in_cells[0] = torch.minimum(in_cells[0], falling)
    proved = in_cells.amax(1) + rounding
    below = (fit.intercepts()[1] - function(points[0, 0])).abs() + rounding[0]
    return replace(fit, errors=(float(below), *proved.tolist()))


def _of_few_bits(nodes: Tensor) -> tuple[Tensor, float]:
    """Round increasing positive numbers to few bits, keeping gaps; return also their common unit.

    Then the exponent and the leading bits of an argument determine its piece.
    """
    closest = float((nodes[1:] / nodes[:-1]).min()) - 1
    bits = max(FEWEST_BITS, ceil(log2(16 / closest)))
    mantissa, exponent = torch.frexp(nodes)
    rounded = torch.ldexp((mantissa * 2.0 ** (bits + 1)).round() * 2.0 ** -(bits + 1), exponent)
    return rounded, 2.0 ** (int(exponent.min()) - bits - 1)


def _falling_sum(function: ScalarFunction, nodes: Tensor, unit: float, low: float) -> ReluSum:
    """Fit a decreasing convex function by shifted chords, constant before the first node.

    The errors are to be proved later.
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


def shifted(function: ScalarFunction, nodes: Tensor) -> Tensor:
    """Return the values at the nodes, lowered by half the sag of the adjacent chords."""
    values, shares = function(nodes), _shares()
    inside = torch.lerp(nodes[:-1, None], nodes[1:, None], shares)
    chords = torch.lerp(values[:-1, None], values[1:, None], shares)
    sag = (chords - function(inside)).amax(1)
    smaller_sag = torch.cat([sag[:1], torch.minimum(sag[:-1], sag[1:]), sag[-1:]])
    return values - smaller_sag / 2


def _shares() -> Tensor:
    """Return relative positions in a piece, denser at the left end, where the root is steeper."""
    return torch.linspace(0, 1, CELLS + 1, dtype=torch.float64) ** 2


def _sampled(
    function: ScalarFunction, fit: ReluSum, relative: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return points of every piece except the first, fit and function there, and rounding errors.

    The relative rounding error of the function is less than `relative`.
    """
    ends = torch.tensor([*fit.knots, fit.high], dtype=torch.float64)
    slopes = torch.tensor(fit.slopes[1:], dtype=torch.float64)[:, None]
    constants = torch.tensor(fit.intercepts()[1:], dtype=torch.float64)[:, None]
    points = torch.lerp(ends[:-1, None], ends[1:, None], _shares())
    line, exact = slopes * points + constants, function(points)
    sizes = (slopes * points).abs() + constants.abs() + exact
    return points, line, exact, relative * (8 + fit.n_pieces) * sizes.amax(1)


EXPONENTIAL_CELLS = 8
"""The number of cells per piece in a proof for the exponential."""


@lru_cache(maxsize=64)
def fit_exponential(function: CappedExponential, reach: float, error: float) -> ReluSum:
    """Approximate exp(min(z, cap)) on [-reach, reach] to a relative error of about `error`.

    The relative error of a chord of exp of length h, shifted by half its sag, is h^2 / 16; the
    distance h of knots is a power of two. On a cell [u, v] the gap is at most that at the ends plus
    (v - u)^2 max |f''| / 8. Below -cap the fit is constant, with an error below exp(-cap).
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
    constants = torch.tensor(fit.intercepts(), dtype=torch.float64)
    inner, between = slopes[1:-1, None], constants[1:-1, None]
    positions = torch.linspace(0, 1, EXPONENTIAL_CELLS + 1, dtype=torch.float64)
    points = torch.lerp(knots[:-1, None], knots[1:, None], positions)
    line, exact = inner * points + between, function(points)
    sizes = (inner * points).abs() + between.abs() + exact
    rounding = RELATIVE_ROUNDING * (8 + fit.n_pieces) * sizes.amax(1)
    sag = points.diff(dim=1) ** 2 * points[:, 1:].exp() / 8
    gaps = (line - exact).abs()
    proved = (torch.maximum(gaps[:, :-1], gaps[:, 1:]) + sag).amax(1) + rounding
    lowest = max(float(constants[0]), float(function(knots[0])))
    end = abs(float(constants[-1]) - float(function(knots[-1]))) + float(rounding[-1])
    return replace(fit, errors=(lowest, *proved.tolist(), end))


@lru_cache(maxsize=64)
def fit_reciprocal(high: float, error: float) -> ReluSum:
    """Approximate 1 / z on [1 / 2, high] to a relative error of about `error`.

    The nodes have a constant ratio, and there are ln(2 high) sqrt(2 / (16 error)) pieces.
    """
    pieces = max(2, ceil(log(2 * high) * sqrt(2 / (16 * error))))
    nodes = torch.linspace(log(0.5), log(high), pieces + 1, dtype=torch.float64).exp()
    snapped, unit = _of_few_bits(nodes[:-1])
    nodes = torch.cat([snapped, nodes.new_tensor([high])])
    fit = _falling_sum(RECIPROCAL, nodes, unit, low=0.5)
    points, line, exact, rounding = _sampled(RECIPROCAL, fit, RELATIVE_ROUNDING)
    gaps = (line - exact).abs()
    sag = points.diff(dim=1) ** 2 * RECIPROCAL.curvature(points[:, :-1], points[:, 1:]) / 8
    proved = (torch.maximum(gaps[:, :-1], gaps[:, 1:]) + sag).amax(1) + rounding
    return replace(fit, errors=(float(proved[0]), *proved.tolist()))
