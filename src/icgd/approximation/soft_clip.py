r"""Clipping with soft corners: what units without corners of their own can do.

clip(w) holds w within [-bound, bound]. A soft clip differs from it by what its two corners leave,
which depends on the distance to them, and by an error that is nearly nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import erfc, exp, log, log1p, pi, sqrt

from icgd.program.ridge import RidgeSum, RidgeUnit

FAR = 1e-12
"""Away from corners the error is about this share of a corner's width."""

BELOW_ROUNDOFF = 1 / 32
"""In coarse arithmetic the share is this multiple of the unit roundoff, whose bounds are loose."""

SAFE = 1.0 + 1e-9
"""Covers the rounding of the bounds themselves."""

ROUNDOFF = 2.0**-53

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
        """What a corner leaves at a distance from it."""
        return self.width * self.corner(distance / self.width) * SAFE


def logarithm_of_far(roundoff: float) -> float:
    """-log of the share that is left away from corners."""
    return -log(max(FAR, BELOW_ROUNDOFF * roundoff))


def logistic_corner(x: float) -> float:
    """log(1 + exp(-x)): softplus(x) minus relu(x)."""
    return log1p(exp(-x))


def normal_corner(x: float) -> float:
    """phi(x) - x Phi(-x): relu averaged over a normal distribution, minus relu."""
    density = exp(-x * x / 2) / sqrt(2 * pi)
    return max(density - x * erfc(x / sqrt(2)) / 2, 0.0) + _ROUNDINGS * ROUNDOFF * density


def moved_by_rounding(activation: str, half_width: float, units: Sequence[RidgeUnit]) -> float:
    """How far a sum of units moves on [-half_width, half_width] when its numbers are rounded."""
    fit = RidgeSum("clip", activation, (half_width,), tuple(units), 0.0)
    return _ROUNDINGS * ROUNDOFF * fit.size
