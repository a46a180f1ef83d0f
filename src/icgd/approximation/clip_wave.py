r"""Clipping by cosines: the Fourier series of a wave that is clip(w) for a quarter of its period.

    clip(w) ~ sum_k (2 / quarter) sin(bound f_k) / f_k^2 exp(-(width f_k)^2 / 2) sin(f_k w),

with f_k = (2 k + 1) pi / (2 quarter), is the wave averaged over a normal distribution, so that the
series ends early. Its corners lie at +-bound + 2 j quarter, and one at distance d leaves
width (phi(x) - x Phi(-x)), x = d / width. The terms from the n-th on are together at most
2 quarter / (pi^2 n) exp(-(width f_n)^2 / 2), because sum_{k >= n} (2 k + 1)^-2 <= 1 / (4 n).
"""

from __future__ import annotations

from math import exp, pi, sin, sqrt

from icgd.approximation.soft_clip import SAFE, SoftClip, moved_by_rounding, normal_corner
from icgd.program.ridge import RidgeUnit


def clip_wave(bound: float, reach: float, units: int, far: float) -> SoftClip:
    """clip(w) for |w| <= reach by waves; exp(-`far`) is the share of the last ones."""
    quarter = max(reach, 2 * bound)  # no other corner is closer than bound
    *frequencies, next_one = [(2 * k + 1) * pi / (2 * quarter) for k in range(units + 1)]
    width = min(sqrt(2 * far) / next_one, bound / 2)
    waves = tuple(_wave(bound, quarter, width, frequency) for frequency in frequencies)
    left_out = 2 * quarter / (pi**2 * units) * exp(-((width * next_one) ** 2) / 2)
    # The others are at distances of bound, and of (2 j - 1) bound or more four times for each j.
    other_corners = 6 * width * normal_corner(bound / width)
    error = (left_out + other_corners) * SAFE + moved_by_rounding("cos", quarter, waves)
    return SoftClip(waves, error, width, normal_corner, sqrt(2 * far))


def _wave(bound: float, quarter: float, width: float, frequency: float) -> RidgeUnit:
    size = 2 / quarter * sin(bound * frequency) / frequency**2
    return RidgeUnit((frequency,), -pi / 2, size * exp(-((width * frequency) ** 2) / 2))
