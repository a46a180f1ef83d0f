r"""What clipping adds to a number: clip(w) - w, where clip(w) is w held within [-bound, bound].

Units that bend like relu take  clip(w) - w = relu(-w - bound) - relu(w - bound).  The others take
a clip with soft corners and a line,

    clip(w) - w ~ soft_clip(w) - line(w),

whose error is largest at +-bound and falls fast on both sides: `bands` say how fast.
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
"""The last place of a bump: coefficients stay below 40 while errors fall to 1e-11."""

EDGE = 40.0
"""Beyond it F and what it stands for are below 1e-15: exp(-40) is 4e-18."""

_ZERO = KinkedFunction("zero", torch.zeros_like, (), (0.0,))
_DAMPING = 1e-15  # damping of the singular values, relative to the largest


@dataclass(frozen=True)
class Halving:
    """The coefficients of F, and a bound on its distance to P(2 x) / 2 - P(x) for all x.

    The ramp is a staircase of sigmoids without end,

        P(x) = d sum_{k >= 0} sigmoid(x - (k + 1/2) d).

    With steps in both directions P would be x up to a periodic error of at most 2 pi sum_k 1 /
    sinh(2 pi^2 k / d) (Poisson's formula). The steps that are missing lie in the convex part of
    sigmoid, so they are below their integral: apart from the periodic error, P(x) exceeds relu(x)
    by log(1 + exp(-|x|)) at most. P(2 x) / 2 has a corner half as wide, and

        F(x) = sum_k before_k bump_k(x) + after_k bump_k(2 x) ~ P(2 x) / 2 - P(x),
        bump_k(x) = sigmoid(x + place_k) - sigmoid(x - place_k),

    turns one into the other. Both sides decay like exp(-|x|), and F is fitted for x >= 0 by least
    squares: it is even, and so is the other side up to the periodic error.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    error: float

    @property
    def places(self) -> tuple[float, ...]:
        return places_of(len(self.before))


def places_of(n_bumps: int) -> tuple[float, ...]:
    """Return half the distances of the two sigmoids of each bump."""
    return tuple(SPREAD * (k + 1) / n_bumps for k in range(n_bumps))


def step_distance(far: float) -> float:
    """Return d for a periodic error of about exp(-far)."""
    return 2 * pi**2 / far


def periodic_error(far: float) -> float:
    """Return a bound on how far P is from the real line and its corner."""
    return 13 * exp(-far)  # 4 pi / (1 - exp(-far))^2 < 13 for far > 5


@lru_cache(maxsize=16)
def halving_of(far: float, n_bumps: int) -> Halving:
    """Fit F by `n_bumps` bumps of either kind, for a staircase of periodic errors exp(-far)."""
    ends = ((0, 6, 400), (6, EDGE, 200))
    x = torch.cat([torch.linspace(*end, dtype=torch.float64) for end in ends])
    bumps = torch.cat([_bumps_at(x, n_bumps), _bumps_at(2 * x, n_bumps)], dim=1)
    wanted = _corner(2 * x, far) / 2 - _corner(x, far)
    left, sizes, right = torch.linalg.svd(bumps, full_matrices=False)
    damped = sizes / (sizes**2 + (_DAMPING * sizes[0]) ** 2)
    coefficients = (right.T @ (damped * (left.T @ wanted))).tolist()
    before, after = tuple(coefficients[:n_bumps]), tuple(coefficients[n_bumps:])
    # The error of F: proved by panels up to the edge, and by its decay beyond.
    distance, places = step_distance(far), places_of(n_bumps)
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
    beyond = 2 * periodic_error(far) + (total + 2) * exp(SPREAD - EDGE)
    proved = proved_error(Profile(_ZERO, (EDGE,)), gap) + 2 * exp(-EDGE)
    return Halving(before, after, max(proved, beyond))


def _bumps_at(x: Tensor, n_bumps: int) -> Tensor:
    places = torch.tensor(places_of(n_bumps), dtype=torch.float64)
    return torch.sigmoid(x.unsqueeze(-1) + places) - torch.sigmoid(x.unsqueeze(-1) - places)


def _corner(x: Tensor, far: float) -> Tensor:
    """Return P(-x), which is all of the corner for x >= 0."""
    middles = step_distance(far) * (torch.arange(ceil(EDGE / step_distance(far))).double() + 0.5)
    return step_distance(far) * torch.sigmoid(-x.unsqueeze(-1) - middles).sum(-1)


# Clipping with soft corners: what units without corners of their own can do.
#
# clip(w) holds w within [-bound, bound]. A soft clip differs from it by what its two corners
# leave, which depends on the distance to them, and by an error that is nearly nothing.


FAR = 1e-12
"""Away from corners the error is about this share of a corner's width."""

BELOW_ROUNDOFF = 1 / 32
"""In coarse arithmetic the share is this multiple of the unit roundoff, whose bounds are loose."""

SAFE = 1.0 + 1e-9
"""Covers the rounding of the bounds themselves."""

_ROUNDINGS = 4.0  # roundings of every number of a unit, when it is computed


@dataclass(frozen=True)
class SoftClip:
    """Units whose sum is within `error` + near(distance to the next corner) of clip(w).

    `corner` is what a corner of width 1 leaves; beyond the distance `fades` that is negligible.
    """

    units: tuple[RidgeUnit, ...]
    error: float
    width: float
    corner: Callable[[float], float]
    fades: float

    def near(self, distance: float) -> float:
        """Bound what a corner leaves at a distance from it."""
        return self.width * self.corner(distance / self.width) * SAFE


def logarithm_of_far(roundoff: float) -> float:
    """Return -log of the share that is left away from corners."""
    return -log(max(FAR, BELOW_ROUNDOFF * roundoff))


def logistic_corner(x: float) -> float:
    """log(1 + exp(-x)): softplus(x) minus relu(x)."""
    return log1p(exp(-x))


def normal_corner(x: float) -> float:
    """phi(x) - x Phi(-x): relu averaged over a normal distribution, minus relu."""
    density = exp(-x * x / 2) / sqrt(2 * pi)
    return max(density - x * erfc(x / sqrt(2)) / 2, 0.0) + _ROUNDINGS * DOUBLE_ROUNDOFF * density


def moved_by_rounding(activation: str, half_width: float, units: Sequence[RidgeUnit]) -> float:
    """Bound how far rounding its numbers moves a sum of units on [-half_width, half_width]."""
    fit = RidgeSum("clip", activation, (half_width,), tuple(units), 0.0)
    return _ROUNDINGS * DOUBLE_ROUNDOFF * fit.size


def clip_wave(bound: float, reach: float, units: int, far: float) -> SoftClip:
    """Fit clip(w) for |w| <= reach by waves; exp(-`far`) is the share of the last ones.

        clip(w) ~ sum_k (2 / quarter) sin(bound f_k) / f_k^2 exp(-(width f_k)^2 / 2) sin(f_k w),

    with f_k = (2 k + 1) pi / (2 quarter), is the wave averaged over a normal distribution, so that
    the series ends early. Its corners lie at +-bound + 2 j quarter, and one at distance d leaves
    width (phi(x) - x Phi(-x)), x = d / width. The terms from the n-th on are together at most 2
    quarter / (pi^2 n) exp(-(width f_n)^2 / 2), because sum_{k >= n} (2 k + 1)^-2 <= 1 / (4 n).
    """
    quarter = max(reach, 2 * bound)  # no other corner is closer than bound
    *frequencies, next_one = [(2 * k + 1) * pi / (2 * quarter) for k in range(units + 1)]
    width = min(sqrt(2 * far) / next_one, bound / 2)
    waves = []
    for frequency in frequencies:
        size = 2 / quarter * sin(bound * frequency) / frequency**2
        damped = size * exp(-((width * frequency) ** 2) / 2)
        waves.append(RidgeUnit((frequency,), -pi / 2, damped))
    left_out = 2 * quarter / (pi**2 * units) * exp(-((width * next_one) ** 2) / 2)
    # The others are at distances of bound, and of (2 j - 1) bound or more four times for each j.
    other_corners = 6 * width * normal_corner(bound / width)
    error = (left_out + other_corners) * SAFE + moved_by_rounding("cos", quarter, waves)
    return SoftClip(tuple(waves), error, width, normal_corner, sqrt(2 * far))


BUMPS = 6
"""How many bumps of either kind F has: its error is then 1e-10."""

FEW_BUMPS = 4
"""How many it has in coarse arithmetic: its error is then 4e-7."""

FEWEST_STEPS = 8
"""The fewest steps: errors of F are shares of the width of a corner, which must be narrow."""

ENOUGH_STEPS = 64
"""With 48 steps or more, another halving gains more than its units would as further steps."""

NARROW_ENOUGH = 2.0**8
"""How many times exp(-far) a corner is wide at least; narrower ones gain nothing."""


@dataclass(frozen=True)
class Step:
    """height * sigmoid(slope * (w - place))."""

    slope: float
    place: float
    height: float

    def unit(self, activation: str) -> RidgeUnit:
        """Return the step by a sigmoid, or, half its height lower, by a tanh."""
        half = 1.0 if activation == "sigmoid" else 0.5
        slope = half * self.slope
        return RidgeUnit((slope,), -slope * self.place, half * self.height)


def clip_staircase(bound: float, activation: str, units: int, far: float) -> SoftClip:
    """Fit clip(w) for all w by at most `units` units, with periodic errors of about exp(-`far`).

    A staircase of n steps, h = 2 bound / n apart and of slope b, is a difference of two ramps,

        sum_i h sigmoid(b (w - s_i)) = ramp(w + bound) - ramp(w - bound),   ramp(z) = P(b z) / b,

    with P of `Halving`, and stays within its ends for all w. The ramps' corners are 1 / b wide,
    which falls only like 1 / n. So both ends are sharpened: added at the scales b, 2 b, 4 b, ... F
    halves the width every time. Its units of slope 2 are those of slope 1 at the next scale, so a
    halving costs two units for each of its bumps, at both ends.
    """
    constant = [RidgeUnit((0.0,), 0.0, -2 * bound)] if activation == "sigmoid" else []
    n_bumps = BUMPS if exp(-far) < 10 * FAR else FEW_BUMPS
    n_steps, n_halvings = _shares(units - len(constant), n_bumps, far)
    slope = step_distance(far) * n_steps / (2 * bound)
    halving = halving_of(far, n_bumps)
    height = 2 * bound / n_steps
    steps = [
        Step(slope, (2 * number + 1 - n_steps) * height / 2, height) for number in range(n_steps)
    ]
    steps += _sharp_ends(bound, slope, halving, n_halvings)
    made = (*(step.unit(activation) for step in steps), *constant)
    width = 1 / (slope * 2**n_halvings)
    of_halvings = 4 * halving.error / slope if n_halvings else 0.0  # two ends, 1 + 1/2 + 1/4 ...
    # What the two corners leave has different signs, so the nearer one counts alone.
    error = of_halvings + 2 * width * periodic_error(far)
    # Beyond the bound units are flat, so rounding of their arguments matters within it only.
    moved = moved_by_rounding(activation, bound, made)
    return SoftClip(made, error * SAFE + moved, width, logistic_corner, far)


def _shares(units: int, n_bumps: int, far: float) -> tuple[int, int]:
    """Return how many steps and halvings make the sharpest corners."""
    shares = [(units, 0)]
    for n_halvings in range(1, 1 + floor((far - log(NARROW_ENOUGH)) / log(2))):
        n_steps = units - 4 * n_bumps * (n_halvings + 1)
        if n_steps >= FEWEST_STEPS:
            shares.append((min(n_steps, ENOUGH_STEPS), n_halvings))
    return max(shares, key=lambda share: share[0] * 2 ** share[1])


def _sharp_ends(bound: float, slope: float, halving: Halving, n_halvings: int) -> list[Step]:
    """Return the steps of F at all scales, added at one end and taken away at the other."""
    steps = []
    for scale in range(n_halvings + 1) if n_halvings else ():
        # Bumps of F's slope 1 at this scale, and those of slope 2 from the one before.
        own = 1.0 if scale < n_halvings else 0.0
        earlier = 2.0 if scale > 0 else 0.0
        steep = slope * 2**scale
        for place, before, after in zip(halving.places, halving.before, halving.after, strict=True):
            height = (own * before + earlier * after) / steep
            steps += [
                Step(steep, end + side * (place / steep), -side * sign * height)
                for end, sign in ((-bound, 1.0), (bound, -1.0))
                for side in (-1.0, 1.0)
            ]
    return steps


SLOPES = (0.25, 0.125, 0.0625, 0.03125)
"""Slopes of soft corners that are tried, as shares of the number of units over the reach."""

MOST_FITTED = 200
"""The most units of a clip that is fitted: more gain little within a function's domain."""

AWAY = 1e3
"""Few weights are near a corner: what a fit errs by everywhere counts this many times as much."""


def fitted_clip(
    bound: float, reach: float, activation: str, units: int, roundoff: float
) -> tuple[RidgeSum, SoftClip]:
    """Fit a clip with soft corners, less w itself, by least squares over units of any activation,

        (softplus(b (w + bound)) - softplus(b (w - bound))) / b - bound - w.

    Both corners leave log(1 + exp(-b d)) / b at a distance d, with different signs.
    """
    tried = []
    for share in SLOPES:
        slope = 2.0 ** floor(log2(share * units / reach))
        b, edge, middle = (
            "/".join(map(str, number.as_integer_ratio()))
            for number in (slope, slope * bound, bound)
        )
        ramps = f"softplus({b}*x + {edge}) - softplus({b}*x - {edge})"
        target = Function("", f"({ramps})/({b}) - {middle} - x", -2 * reach, 2 * reach)
        fit = fit_line(target, reach, activation, min(units, MOST_FITTED), roundoff=roundoff)
        corners = SoftClip((), 0.0, 1 / slope, logistic_corner, logarithm_of_far(roundoff))
        tried.append((AWAY * fit.error + corners.near(0.0), fit, corners))
    _, fit, corners = min(tried, key=lambda one: one[0])
    return fit, corners


# clip(w) - w by every activation.


ENOUGH_FOR_A_LINE = 16
"""With so many units sigmoid, tanh and cos are within 3e-13 of a line on [-1, 1]."""

SMALLEST_BOUND = 2.0**-400
"""The smallest bound for units other than relu: the square of their largest slope, about
2^40 / bound, is still a number."""

BANDS = 10
"""Bands around either corner; the error falls by a factor of about 15 from one to the next."""


def fit_clip(
    bound: float, reach: float, activation: str, units: int, *, roundoff: float = DOUBLE_ROUNDOFF
) -> RidgeSum:
    """Fit clip(w) - w for |w| <= reach by at most `units` units.

    `error` holds away from +-bound, for units that do not bend like relu; `largest_error`
    everywhere.
    """
    if positive("reach", reach) <= positive("bound", bound):
        raise SettingError(
            f"reach={reach:g} must exceed bound={bound:g}: what stays within the bound is never "
            "clipped. Give the largest size before clipping as reach, or leave the clipping out."
        )
    check_box((reach,), activation, units)
    if bound < SMALLEST_BOUND and activation != "relu":
        raise SettingError(
            f"{activation} units cannot clip to [-{bound:g}, {bound:g}]: their slopes grow like "
            f"1 / {bound:g}, beyond the range of float64. Use a box of at least "
            f"{SMALLEST_BOUND:.2g}, or relu units, whose corners are sharp by themselves."
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
        left, far = units - line.n_units, logarithm_of_far(roundoff)
        soft = (
            clip_wave(bound, reach, left, far)
            if activation == "cos"
            else clip_staircase(bound, activation, left, far)
        )
    # The error of a corner is bounded by steps in the distance to it.
    farthest = min(bound, soft.fades * soft.width)
    distances = [farthest * number / BANDS for number in range(BANDS + 1)]
    everywhere = line.error + soft.error
    bands = tuple(
        Band(corner - outer, corner + outer, everywhere + soft.near(inner))
        for corner in (-bound, bound)
        for inner, outer in pairwise(distances)
    )
    error = everywhere + soft.near(farthest)
    both = line.units + soft.units
    return RidgeSum("clip", activation, line.half_widths, both, error, bands)
