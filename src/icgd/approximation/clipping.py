r"""Fit the change clip(w) - w that clipping to [-bound, bound] makes, by units of any activation.

Units that bend like relu use  clip(w) - w = relu(-w - bound) - relu(w - bound).  Others use a clip
with soft corners minus a line,

    clip(w) - w ~ soft_clip(w) - line(w),

whose error is largest at +-bound and decays fast on both sides; `bands` bound it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil, erfc, exp, floor, inf, log, log1p, log2, pi, sin, sqrt

import torch
from torch import Tensor

from icgd.approximation.ridge import (
    DOUBLE_ROUNDOFF,
    Profile,
    by_bends,
    check_box,
    fit_line,
    proved_error,
)
from icgd.errors import SettingError
from icgd.problems.functions import IDENTITY_FUNCTION, KinkedFunction, unit_activation_named
from icgd.problems.piecewise import Function
from icgd.problems.settings import positive
from icgd.program.functions import Band, RidgeSum, RidgeUnit

SPREAD = 2.0
"""The largest half-width of a bump, for coefficients below 40 and errors down to 1e-11."""

EDGE = 40.0
"""Beyond this both sides of the fit of F are below 1e-15: exp(-40) is 4e-18."""

_ZERO = KinkedFunction("zero", torch.zeros_like, (), (0.0,))
_DAMPING = 1e-15  # damping of singular values, relative to the largest


@dataclass(frozen=True)
class Halving:
    """The coefficients of a function F that halves the width of a corner, with a proved error.

    A soft ramp is an infinite staircase of sigmoids,

        P(x) = d sum_{k >= 0} sigmoid(x - (k + 1/2) d).

    With steps in both directions it would equal x up to a periodic error of at most 2 pi sum_k 1 /
    sinh(2 pi^2 k / d), by Poisson summation. The missing steps lie in the convex part of sigmoid,
    so their sum is below its integral: apart from the periodic error, P(x) exceeds relu(x) by at
    most log(1 + exp(-|x|)). P(2 x) / 2 has a corner half as wide, and

        F(x) = sum_k before_k bump_k(x) + after_k bump_k(2 x) ~ P(2 x) / 2 - P(x),
        bump_k(x) = sigmoid(x + place_k) - sigmoid(x - place_k),

    is the difference. Both sides decay like exp(-|x|) and are even, the right one up to the
    periodic error, so F is fitted for x >= 0, by least squares. `error` bounds the distance of both
    sides for all x.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    error: float

    @property
    def places(self) -> tuple[float, ...]:
        return places_of(len(self.before))


def places_of(n_bumps: int) -> tuple[float, ...]:
    """Return the half-width of each bump, which has a sigmoid on either side."""
    return tuple(SPREAD * (k + 1) / n_bumps for k in range(n_bumps))


def step_distance(decay: float) -> float:
    """Return the step distance d for a periodic error of about exp(-decay)."""
    return 2 * pi**2 / decay


def periodic_error(decay: float) -> float:
    """Bound the periodic error of P at the step distance of `decay`."""
    return 13 * exp(-decay)  # 4 pi / (1 - exp(-decay))^2 < 13 for decay > 5


@lru_cache(maxsize=16)
def halving_of(decay: float, n_bumps: int) -> Halving:
    """Fit F by `n_bumps` bumps at either scale, for a periodic error of about exp(-decay)."""
    ends = ((0, 6, 400), (6, EDGE, 200))
    x = torch.cat([torch.linspace(*end, dtype=torch.float64) for end in ends])
    bumps = torch.cat([_bumps_at(x, n_bumps), _bumps_at(2 * x, n_bumps)], dim=1)
    target = _corner(2 * x, decay) / 2 - _corner(x, decay)
    left, sizes, right = torch.linalg.svd(bumps, full_matrices=False)
    damped = sizes / (sizes**2 + (_DAMPING * sizes[0]) ** 2)
    coefficients = (right.T @ (damped * (left.T @ target))).tolist()
    before, after = tuple(coefficients[:n_bumps]), tuple(coefficients[n_bumps:])
    # The error of F: up to the edge proved like any ridge sum, beyond by its decay.
    distance, places = step_distance(decay), places_of(n_bumps)
    units = [
        RidgeUnit((slope,), sign * place, sign * coefficient)
        for slope, heights in ((1.0, before), (2.0, after))
        for place, coefficient in zip(places, heights, strict=True)
        for sign in (1.0, -1.0)
    ]
    units += [
        RidgeUnit((slope,), -(k + 0.5) * distance, factor * distance)
        for slope, factor in ((1.0, 1.0), (2.0, -0.5))
        for k in range(ceil(3 * EDGE / distance))
    ]
    gap = RidgeSum("F + P(x) - P(2 x) / 2", "sigmoid", (EDGE,), tuple(units), inf)
    total = sum((abs(number) for number in (*before, *after)), 0.0)
    beyond = 2 * periodic_error(decay) + (total + 2) * exp(SPREAD - EDGE)
    proved = proved_error(Profile(_ZERO, (EDGE,)), gap) + 2 * exp(-EDGE)
    return Halving(before, after, max(proved, beyond))


def _bumps_at(x: Tensor, n_bumps: int) -> Tensor:
    places = torch.tensor(places_of(n_bumps), dtype=torch.float64)
    return torch.sigmoid(x.unsqueeze(-1) + places) - torch.sigmoid(x.unsqueeze(-1) - places)


def _corner(x: Tensor, decay: float) -> Tensor:
    """Return P(-x), the excess of P(x) over x for x >= 0."""
    distance = step_distance(decay)
    middles = distance * (torch.arange(ceil(EDGE / distance)).double() + 0.5)
    return distance * torch.sigmoid(-x.unsqueeze(-1) - middles).sum(-1)


# Clipping with soft corners, for units without corners.
#
# A soft clip differs from clip(w) by an error that is negligible everywhere, and by the excess of
# its two corners, which depends on the distance to them.


FAR = 1e-12
"""The error away from corners, relative to the width of a corner."""

BELOW_ROUNDOFF = 1 / 32
"""In coarse arithmetic that error is at least this multiple of the unit roundoff, because bounds on
rounding are loose."""

SAFE = 1.0 + 1e-9
"""A factor that covers the rounding of the bounds themselves."""

_ROUNDINGS = 4.0  # rounding errors in computing a number of a unit


@dataclass(frozen=True)
class SoftClip:
    """Units whose sum differs from clip(w) by at most error + near(distance to a corner).

    `corner` is the excess of a corner of width 1, negligible beyond the distance `fades`.
    """

    units: tuple[RidgeUnit, ...]
    error: float
    width: float
    corner: Callable[[float], float]
    fades: float

    def near(self, distance: float) -> float:
        """Bound the excess of a corner at this distance from it."""
        return self.width * self.corner(distance / self.width) * SAFE


def decay_for(roundoff: float) -> float:
    """Return -log of the relative error away from corners that suits this arithmetic."""
    return -log(max(FAR, BELOW_ROUNDOFF * roundoff))


def logistic_corner(x: float) -> float:
    """Return softplus(x) - relu(x) = log(1 + exp(-x)) for x >= 0."""
    return log1p(exp(-x))


def normal_corner(x: float) -> float:
    """Return phi(x) - x Phi(-x), the excess of relu averaged over a normal distribution."""
    density = exp(-x * x / 2) / sqrt(2 * pi)
    return max(density - x * erfc(x / sqrt(2)) / 2, 0.0) + _ROUNDINGS * DOUBLE_ROUNDOFF * density


def moved_by_rounding(activation: str, half_width: float, units: Sequence[RidgeUnit]) -> float:
    """Bound the change of a sum of units on [-half_width, half_width] by rounding its numbers."""
    fit = RidgeSum("clip", activation, (half_width,), tuple(units), 0.0)
    return _ROUNDINGS * DOUBLE_ROUNDOFF * fit.size


def clip_wave(bound: float, reach: float, units: int, decay: float) -> SoftClip:
    """Fit clip(w) for |w| <= reach by a Fourier series, with terms damped down to exp(-decay).

        clip(w) ~ sum_k (2 / quarter) sin(bound f_k) / f_k^2 exp(-(width f_k)^2 / 2) sin(f_k w),

    with f_k = (2 k + 1) pi / (2 quarter), is the periodic continuation of the clip averaged over a
    normal distribution, so that the series converges fast. The corners lie at +-bound + 2 j
    quarter, and a corner at distance d has the excess width (phi(x) - x Phi(-x)), x = d / width.
    The terms from the n-th on sum to at most 2 quarter / (pi^2 n) exp(-(width f_n)^2 / 2), because
    sum_{k >= n} (2 k + 1)^-2 <= 1 / (4 n).
    """
    quarter = max(reach, 2 * bound)  # no other corner is closer than bound
    *frequencies, next_one = [(2 * k + 1) * pi / (2 * quarter) for k in range(units + 1)]
    width = min(sqrt(2 * decay) / next_one, bound / 2)
    waves = []
    for frequency in frequencies:
        size = 2 / quarter * sin(bound * frequency) / frequency**2
        damped = size * exp(-((width * frequency) ** 2) / 2)
        waves.append(RidgeUnit((frequency,), -pi / 2, damped))
    truncation = 2 * quarter / (pi**2 * units) * exp(-((width * next_one) ** 2) / 2)
    # All corners but the nearest: one at distance >= bound, four at >= (2 j - 1) bound for each j.
    other_corners = 6 * width * normal_corner(bound / width)
    error = (truncation + other_corners) * SAFE + moved_by_rounding("cos", quarter, waves)
    return SoftClip(tuple(waves), error, width, normal_corner, sqrt(2 * decay))


BUMPS = 6
"""The number of bumps of F at either scale, for an error of 1e-10."""

FEW_BUMPS = 4
"""The number in coarse arithmetic, for an error of 4e-7."""

FEWEST_STEPS = 8
"""The fewest steps: errors of F are relative to the width of a corner, which must be narrow."""

ENOUGH_STEPS = 64
"""From 48 steps on, the units of a halving gain more than as many further steps."""

NARROW_ENOUGH = 2.0**8
"""The least width of a corner in units of exp(-decay); narrower corners gain nothing."""


@dataclass(frozen=True)
class Step:
    """A step of a staircase: height * sigmoid(slope * (w - place))."""

    slope: float
    place: float
    height: float

    def unit(self, activation: str) -> RidgeUnit:
        """Return the step as a sigmoid unit, or minus half its height as a tanh unit."""
        half = 1.0 if activation == "sigmoid" else 0.5
        slope = half * self.slope
        return RidgeUnit((slope,), -slope * self.place, half * self.height)


def clip_staircase(bound: float, activation: str, units: int, decay: float) -> SoftClip:
    """Fit clip(w) for all w by at most `units` units, with a periodic error of about exp(-decay).

    A staircase of n steps at a distance h = 2 bound / n with slope b is a difference of two ramps,

        sum_i h sigmoid(b (w - s_i)) = ramp(w + bound) - ramp(w - bound),   ramp(z) = P(b z) / b,

    with P as in `Halving`. The width 1 / b of its corners decreases only like 1 / n. So both
    corners are sharpened: adding F at the scales b, 2 b, 4 b, ... halves the width each time. The
    units of slope 2 at one scale are those of slope 1 at the next, so a halving costs two units per
    bump at either end.
    """
    constant = [RidgeUnit((0.0,), 0.0, -2 * bound)] if activation == "sigmoid" else []
    n_bumps = BUMPS if exp(-decay) < 10 * FAR else FEW_BUMPS
    n_steps, n_halvings = _steps_and_halvings(units - len(constant), n_bumps, decay)
    slope = step_distance(decay) * n_steps / (2 * bound)
    halving = halving_of(decay, n_bumps)
    height = 2 * bound / n_steps
    steps = [
        Step(slope, (2 * number + 1 - n_steps) * height / 2, height) for number in range(n_steps)
    ]
    steps += _sharp_ends(bound, slope, halving, n_halvings)
    all_units = (*(step.unit(activation) for step in steps), *constant)
    width = 1 / (slope * 2**n_halvings)
    of_halvings = 4 * halving.error / slope if n_halvings else 0.0  # two ends, 1 + 1/2 + 1/4 ...
    # The excesses of the two corners have opposite signs, so the nearer one alone is a bound.
    error = of_halvings + 2 * width * periodic_error(decay)
    # Beyond the bound units are flat, so rounding of their arguments matters within it only.
    rounding = moved_by_rounding(activation, bound, all_units)
    return SoftClip(all_units, error * SAFE + rounding, width, logistic_corner, decay)


def _steps_and_halvings(units: int, n_bumps: int, decay: float) -> tuple[int, int]:
    """Return the numbers of steps and of halvings that give the sharpest corners."""
    choices = [(units, 0)]
    for n_halvings in range(1, 1 + floor((decay - log(NARROW_ENOUGH)) / log(2))):
        n_steps = units - 4 * n_bumps * (n_halvings + 1)
        if n_steps >= FEWEST_STEPS:
            choices.append((min(n_steps, ENOUGH_STEPS), n_halvings))
    return max(choices, key=lambda choice: choice[0] * 2 ** choice[1])


def _sharp_ends(bound: float, slope: float, halving: Halving, n_halvings: int) -> list[Step]:
    """Return the steps of F at all scales, added at one end and subtracted at the other."""
    steps = []
    for scale in range(n_halvings + 1) if n_halvings else ():
        # The bumps of slope 1 of F at this scale and those of slope 2 of F at the previous scale
        # have the same units, so their heights add up.
        this_scale = 1.0 if scale < n_halvings else 0.0
        previous_scale = 2.0 if scale > 0 else 0.0
        steep = slope * 2**scale
        for place, before, after in zip(halving.places, halving.before, halving.after, strict=True):
            height = (this_scale * before + previous_scale * after) / steep
            steps += [
                Step(steep, end + side * (place / steep), -side * sign * height)
                for end, sign in ((-bound, 1.0), (bound, -1.0))
                for side in (-1.0, 1.0)
            ]
    return steps


SLOPES = (0.25, 0.125, 0.0625, 0.03125)
"""Candidate slopes of soft corners, relative to the number of units over the reach."""

MOST_FITTED = 200
"""The largest number of units of a fitted clip; more gain little within a function's domain."""

AWAY = 1e3
"""The factor by which the error everywhere counts more than that near a corner, where few weights
are."""


def fitted_clip(
    bound: float, reach: float, activation: str, units: int, roundoff: float
) -> tuple[RidgeSum, SoftClip]:
    """Fit a soft clip minus w by least squares over units of any analytic activation,

        (softplus(b (w + bound)) - softplus(b (w - bound))) / b - bound - w.

    The excess of a corner at a distance d is log(1 + exp(-b d)) / b, with opposite signs at the two
    corners.
    """
    candidates = []
    for share in SLOPES:
        slope = 2.0 ** floor(log2(share * units / reach))
        b, edge, middle = (
            "/".join(map(str, number.as_integer_ratio()))
            for number in (slope, slope * bound, bound)
        )
        ramps = f"softplus({b}*x + {edge}) - softplus({b}*x - {edge})"
        target = Function("", f"({ramps})/({b}) - {middle} - x", -2 * reach, 2 * reach)
        fit = fit_line(target, reach, activation, min(units, MOST_FITTED), roundoff=roundoff)
        corners = SoftClip((), 0.0, 1 / slope, logistic_corner, decay_for(roundoff))
        candidates.append((AWAY * fit.error + corners.near(0.0), fit, corners))
    _, fit, corners = min(candidates, key=lambda candidate: candidate[0])
    return fit, corners


# clip(w) - w by any activation.


ENOUGH_FOR_A_LINE = 16
"""The number of units for which sigmoid, tanh and cos fit a line on [-1, 1] to 3e-13."""

SMALLEST_BOUND = 2.0**-400
"""The smallest bound for units other than relu: the square of the largest slope, about
2^40 / bound, must be finite."""

BANDS = 10
"""Bands on either side of a corner; the error decreases about 15-fold from one to the next."""


def fit_clip(
    bound: float, reach: float, activation: str, units: int, *, roundoff: float = DOUBLE_ROUNDOFF
) -> RidgeSum:
    """Fit clip(w) - w for |w| <= reach by at most `units` units.

    For units that do not bend like relu, `error` holds away from +-bound, and `largest_error`
    everywhere.
    """
    if positive("reach", reach) <= positive("bound", bound):
        raise SettingError(
            f"reach={reach:g} must exceed bound={bound:g}: values within the bound are never "
            "clipped. Give the largest value before clipping as reach, or do not clip."
        )
    check_box((reach,), activation, units)
    if bound < SMALLEST_BOUND and activation != "relu":
        raise SettingError(
            f"{activation} units cannot clip to [-{bound:g}, {bound:g}]: their slopes grow like "
            f"1 / {bound:g}, beyond the range of float64. Use a box of at least "
            f"{SMALLEST_BOUND:.2g}, or relu units, whose corners are sharp."
        )
    if unit_activation_named(activation).bends:
        relus = [RidgeUnit((-sign,), -bound, sign) for sign in (1.0, -1.0)]
        return by_bends("clip", activation, (reach,), relus)
    if isinstance(unit_activation_named(activation).value, Function):
        line, soft = fitted_clip(bound, reach, activation, units, roundoff)
    else:
        enough = min(ENOUGH_FOR_A_LINE, units // 2)
        line = fit_line(IDENTITY_FUNCTION, reach, activation, enough, roundoff=roundoff).along(
            (1.0,), -1.0
        )
        n_left, decay = units - line.n_units, decay_for(roundoff)
        soft = (
            clip_wave(bound, reach, n_left, decay)
            if activation == "cos"
            else clip_staircase(bound, activation, n_left, decay)
        )
    # Bound the excess of a corner by a step function of the distance: the bound of a band is the
    # excess at its inner end.
    farthest = min(bound, soft.fades * soft.width)
    distances = [farthest * number / BANDS for number in range(BANDS + 1)]
    everywhere = line.error + soft.error
    bands = tuple(
        Band(corner - outer, corner + outer, everywhere + soft.near(inner))
        for corner in (-bound, bound)
        for inner, outer in pairwise(distances)
    )
    error = everywhere + soft.near(farthest)
    all_units = line.units + soft.units
    return RidgeSum("clip", activation, line.half_widths, all_units, error, bands)
