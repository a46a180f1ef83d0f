r"""What clipping adds to a number: clip(w) - w, where clip(w) is w held within [-bound, bound].

Units that bend like relu take  clip(w) - w = relu(-w - bound) - relu(w - bound).  The others take
a clip with soft corners and a line,

    clip(w) - w ~ soft_clip(w) - line(w),

whose error is largest at +-bound and falls fast on both sides: `bands` say how fast.
"""

from __future__ import annotations

from itertools import pairwise

from icgd.approximation.bends import by_bends
from icgd.approximation.clip_staircase import clip_staircase
from icgd.approximation.clip_wave import clip_wave
from icgd.approximation.ridge_line import DOUBLE_ROUNDOFF, fit_line
from icgd.approximation.ridge_sum import check_box
from icgd.approximation.soft_clip import SoftClip, logarithm_of_far
from icgd.errors import SettingError
from icgd.problems.activations import IDENTITY_FUNCTION
from icgd.problems.settings import positive
from icgd.problems.unit_activations import unit_activation_named
from icgd.program.ridge import Band, RidgeSum, RidgeUnit

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
    """clip(w) - w for |w| <= reach by at most `units` units.

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
    enough = min(ENOUGH_FOR_A_LINE, units // 2)
    line = fit_line(IDENTITY_FUNCTION, reach, activation, enough, roundoff=roundoff).along(
        (1.0,), -1.0
    )
    left, far = units - line.n_units, logarithm_of_far(roundoff)
    if activation == "cos":
        return _together(bound, line, clip_wave(bound, reach, left, far))
    return _together(bound, line, clip_staircase(bound, activation, left, far))


def _together(bound: float, line: RidgeSum, soft: SoftClip) -> RidgeSum:
    """The sum of line and clip; the error of a corner is bounded by steps in the distance to it."""
    farthest = min(bound, soft.fades * soft.width)
    distances = [farthest * number / BANDS for number in range(BANDS + 1)]
    everywhere = line.error + soft.error
    bands = tuple(
        Band(corner - outer, corner + outer, everywhere + soft.near(inner))
        for corner in (-bound, bound)
        for inner, outer in pairwise(distances)
    )
    error = everywhere + soft.near(farthest)
    units = line.units + soft.units
    return RidgeSum("clip", line.activation, line.half_widths, units, error, bands)
