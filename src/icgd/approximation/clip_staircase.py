r"""Clipping by sigmoids, or tanhs: a staircase from -bound to bound, with sharpened ends.

A staircase of n steps, h = 2 bound / n apart and of slope b, is a difference of two ramps,

    sum_i h sigmoid(b (w - s_i)) = ramp(w + bound) - ramp(w - bound),   ramp(z) = P(b z) / b,

with P of `corner_halving`, and stays within its ends for all w. The corners of the ramps are 1 / b
wide, which falls only like 1 / n. So both ends are sharpened: added at the scales b, 2 b, 4 b, ...
the F of `corner_halving` halves the width every time. Its units of slope 2 are those of slope 1 at
the next scale, so a halving costs two units for each of its bumps, at both ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, floor, log

from icgd.approximation.corner_halving import Halving, halving_of, periodic_error, step_distance
from icgd.approximation.soft_clip import FAR, SAFE, SoftClip, logistic_corner, moved_by_rounding
from icgd.program.ridge import RidgeUnit

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
        """The step by a sigmoid, or, half its height lower, by a tanh."""
        half = 1.0 if activation == "sigmoid" else 0.5
        slope = half * self.slope
        return RidgeUnit((slope,), -slope * self.place, half * self.height)


def clip_staircase(bound: float, activation: str, units: int, far: float) -> SoftClip:
    """clip(w) for all w by at most `units` units; exp(-`far`) is the share of periodic errors."""
    constant = [RidgeUnit((0.0,), 0.0, -2 * bound)] if activation == "sigmoid" else []
    n_bumps = BUMPS if exp(-far) < 10 * FAR else FEW_BUMPS
    n_steps, n_halvings = _shares(units - len(constant), n_bumps, far)
    slope = step_distance(far) * n_steps / (2 * bound)
    halving = halving_of(far, n_bumps)
    steps = [*_staircase(bound, n_steps, slope), *_sharp_ends(bound, slope, halving, n_halvings)]
    made = (*(step.unit(activation) for step in steps), *constant)
    width = 1 / (slope * 2**n_halvings)
    of_halvings = 4 * halving.error / slope if n_halvings else 0.0  # two ends, 1 + 1/2 + 1/4 ...
    # What the two corners leave has different signs, so the nearer one counts alone.
    error = of_halvings + 2 * width * periodic_error(far)
    # Beyond the bound units are flat, so rounding of their arguments matters within it only.
    moved = moved_by_rounding(activation, bound, made)
    return SoftClip(made, error * SAFE + moved, width, logistic_corner, far)


def _shares(units: int, n_bumps: int, far: float) -> tuple[int, int]:
    """How many steps and halvings make the sharpest corners."""
    shares = [(units, 0)]
    for n_halvings in range(1, 1 + floor((far - log(NARROW_ENOUGH)) / log(2))):
        n_steps = units - 4 * n_bumps * (n_halvings + 1)
        if n_steps >= FEWEST_STEPS:
            shares.append((min(n_steps, ENOUGH_STEPS), n_halvings))
    return max(shares, key=lambda share: share[0] * 2 ** share[1])


def _staircase(bound: float, n_steps: int, slope: float) -> list[Step]:
    height = 2 * bound / n_steps
    return [
        Step(slope, (2 * number + 1 - n_steps) * height / 2, height) for number in range(n_steps)
    ]


def _sharp_ends(bound: float, slope: float, halving: Halving, n_halvings: int) -> list[Step]:
    """The steps of F at all scales, added at one end and taken away at the other."""
    scales = range(n_halvings + 1) if n_halvings else ()
    return [
        Step(slope * 2**scale, end + side * place, -side * sign * height)
        for scale in scales
        for place, height in _bumps(halving, slope * 2**scale, scale, n_halvings)
        for end, sign in ((-bound, 1.0), (bound, -1.0))
        for side in (-1.0, 1.0)
    ]


def _bumps(
    halving: Halving, slope: float, scale: int, n_halvings: int
) -> list[tuple[float, float]]:
    """Places and heights of bumps: F's own of slope 1, and those of slope 2 from before."""
    own = 1.0 if scale < n_halvings else 0.0
    earlier = 2.0 if scale > 0 else 0.0
    numbers = zip(halving.places, halving.before, halving.after, strict=True)
    return [
        (place / slope, (own * before + earlier * after) / slope)
        for place, before, after in numbers
    ]
