r"""Functions of one variable by sums of any activation.

Least squares at Chebyshev points over units spread evenly across the interval, for several
weights of the units, with as little damping of small singular values as keeps the coefficients
small. Where an identity gives the function exactly, such as softplus(z) - softplus(-z) = z, it is
used instead. relu takes the free knots of `relu_sum`, and units that bend like relu are as good as
relu for piecewise-linear functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import inf, pi

import torch
from torch import Tensor

from icgd.approximation.bends import fit_bends
from icgd.approximation.lattice import chebyshev_points
from icgd.approximation.ridge_proof import Profile, proved_error, rounding
from icgd.problems.functions import KinkedFunction, ScalarFunction
from icgd.problems.unit_activations import UNIT_ACTIVATIONS
from icgd.program.ridge import RidgeSum, RidgeUnit

LARGEST_COEFFICIENT = 1e3
"""Coefficients stay below this: rounding in a run grows with them."""

ENOUGH_UNITS = 96
"""More units on one interval are tried only if these leave more than `CLOSE_ENOUGH`."""

MOST_ON_A_LINE = 400
"""The most units on one interval: a fit costs their cube, and only elu gains from so many."""

DOUBLE_ROUNDOFF = 2.0**-53
"""The unit roundoff of float64; that of float32 is 2^-24."""

LIKELY_ROUNDING = 1 / 8
"""What is lost to rounding, as a share of what could be lost: its signs differ."""

CLOSE_ENOUGH = 1e-11
"""An error that is about what rounding in float64 leaves of coefficients of size 10."""

_ODD_PART_IS_A_LINE = ("softplus", "gelu", "silu")
_DAMPING = tuple(10.0**-digits for digits in range(16, 3, -1))
_WEIGHTS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.5)  # slopes; the units are as wide as the features
_MARGINS = (0.0, 2.0, 4.0)  # arguments of the outermost units at the ends of the interval
_TURNS = (0.5, 1.0, 2.0, 3.0)  # radians from the middle to the end: a period beyond the interval
_ELU_BENDS = (0.25, 0.5, 1.0)  # slopes of elus: nearly parabolas to the left of their kinks


@lru_cache(maxsize=512)
def fit_line(
    function: ScalarFunction,
    half_width: float,
    activation: str,
    units: int,
    largest: float = LARGEST_COEFFICIENT,
    roundoff: float = DOUBLE_ROUNDOFF,
) -> RidgeSum:
    """`function` on [-half_width, half_width] by about `units` units, or fewer if those do.

    `roundoff` is the unit roundoff of the arithmetic that will evaluate the sum: in a coarse one,
    small coefficients are worth some error.
    """
    exact = _exact_units(function, half_width, activation)
    if exact:
        return RidgeSum(function.name, activation, (half_width,), exact, 0.0)
    if isinstance(function, KinkedFunction) and UNIT_ACTIVATIONS[activation].bends:
        return fit_bends(function, half_width, activation)
    if activation == "relu":
        return fit_bends(function, half_width, activation, units - 1)
    if half_width != 1.0 and _is_multiple_of_identity(function):
        line = fit_line(function, 1.0, activation, units, largest, roundoff)
        return _widened(function, half_width, line)
    few = min(units, ENOUGH_UNITS)
    fits = [_least_squares(function, half_width, activation, few, largest, roundoff)]
    if fits[0].error <= max(CLOSE_ENOUGH, roundoff * fits[0].size):
        return fits[0]
    if units > few:
        many = min(units, MOST_ON_A_LINE)
        fits.append(_least_squares(function, half_width, activation, many, largest, roundoff))
    if UNIT_ACTIVATIONS[activation].bends:  # better where the interval is wide
        fits.append(fit_bends(function, half_width, activation, units - 1))
    return min(fits, key=lambda fit: fit.error + roundoff * LIKELY_ROUNDING * fit.size)


def _exact_units(
    function: ScalarFunction, half_width: float, activation: str
) -> tuple[RidgeUnit, ...]:
    """Units that are the function itself; none if no identity is known."""
    if function.name == activation:
        return (RidgeUnit((1.0,), 0.0, 1.0),)
    if (function.name, activation) == ("tanh", "sigmoid"):
        return (RidgeUnit((2.0,), 0.0, 2.0), RidgeUnit((0.0,), 0.0, -2.0))
    if (function.name, activation) == ("sigmoid", "tanh"):  # tanh(64) is 1 to 55 digits
        return (RidgeUnit((0.5,), 0.0, 0.5), RidgeUnit((0.0,), 64.0, 0.5))
    if not _is_multiple_of_identity(function):
        return ()
    slope = float(function(torch.ones((), dtype=torch.float64)))
    if activation in _ODD_PART_IS_A_LINE:
        return (RidgeUnit((1.0,), 0.0, slope), RidgeUnit((-1.0,), 0.0, -slope))
    if activation == "elu":  # a line to the right of -half_width
        return (RidgeUnit((1.0,), half_width, slope), RidgeUnit((0.0,), half_width, -slope))
    return ()


def _is_multiple_of_identity(function: ScalarFunction) -> bool:
    is_line = isinstance(function, KinkedFunction) and not function.knots
    return is_line and float(function(torch.zeros((), dtype=torch.float64))) == 0.0


def _widened(function: ScalarFunction, half_width: float, line: RidgeSum) -> RidgeSum:
    """A line on [-1, 1], scaled: laid out on a wide interval, units that saturate miss it."""
    wide = replace(line.along((1 / half_width,), half_width), half_widths=(half_width,))
    return replace(wide, error=wide.error + rounding(Profile(function, (half_width,)), wide))


@dataclass(frozen=True)
class _Trial:
    slopes: Tensor
    offsets: Tensor
    coefficients: Tensor
    error: float
    size: float

    @property
    def largest(self) -> float:
        return float(self.coefficients.abs().max())

    def units(self) -> tuple[RidgeUnit, ...]:
        columns = (self.slopes.tolist(), self.offsets.tolist(), self.coefficients.tolist())
        return tuple(RidgeUnit((a,), b, beta) for a, b, beta in zip(*columns, strict=True))


@lru_cache(maxsize=128)  # a search for the number of units asks again and again
def _least_squares(
    function: ScalarFunction,
    half_width: float,
    activation: str,
    units: int,
    largest: float,
    roundoff: float,
) -> RidgeSum:
    """The fit with the smallest coefficients of those about as close as the closest."""
    trials = [
        trial
        for slopes, offsets in _layouts(activation, half_width, units)
        for trial in _trials(function, half_width, activation, slopes, offsets)
    ]
    bounded = [trial for trial in trials if trial.largest <= largest]
    trials = bounded or [min(trials, key=lambda trial: trial.largest)]
    rounding = roundoff * LIKELY_ROUNDING
    closest = min(trial.error + rounding * trial.size for trial in trials)
    enough = 2 * closest + CLOSE_ENOUGH / 10
    close = [trial for trial in trials if trial.error + rounding * trial.size <= enough]
    best = min(close, key=lambda trial: trial.size)
    fit = RidgeSum(function.name, activation, (half_width,), best.units(), inf)
    return replace(fit, error=proved_error(Profile(function, (half_width,)), fit))


def _layouts(activation: str, half_width: float, units: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The slopes and offsets of the units, in all layouts that are compared."""
    number = torch.arange(units, dtype=torch.float64)
    if activation == "cos":  # cosines and sines in turn
        for turn in _TURNS:
            yield turn / half_width * (number // 2 + 0.5), -pi / 2 * (number % 2)
    elif activation == "elu":
        for bend in _ELU_BENDS:
            yield _with_constant(bend / half_width, bend, number[1:] // 2, number[1:] % 2)
    else:
        sharp = units / half_width  # a unit as wide as the distance to the next but one
        for weight, margin in product((*_WEIGHTS, sharp), _MARGINS):
            reach = weight * half_width + margin
            for flipped in (number[1:] % 2, torch.zeros_like(number[1:])):
                yield _with_constant(weight, reach, number[1:], flipped)


def _with_constant(
    weight: float, reach: float, place: Tensor, flipped: Tensor
) -> tuple[Tensor, Tensor]:
    """Units whose centres follow `place` across the reach, and one that is constant."""
    centred = 2 * (place - place[0]) / (place[-1] - place[0]).clamp(min=1) - 1
    slopes = weight * (1 - 2 * flipped)
    zero, one = slopes.new_zeros(1), slopes.new_ones(1)
    return torch.cat([slopes, zero]), torch.cat([reach * centred, one])


def _trials(
    function: ScalarFunction, half_width: float, activation: str, slopes: Tensor, offsets: Tensor
) -> Iterator[_Trial]:
    """Solutions with more and more damping, with their errors at other points."""
    units = UNIT_ACTIVATIONS[activation]
    points = half_width * chebyshev_points(4 * len(slopes) + 20)
    others = half_width * chebyshev_points(8 * len(slopes) + 41)
    left, sizes, right = torch.linalg.svd(
        units(points.unsqueeze(-1) * slopes + offsets), full_matrices=False
    )
    damping = sizes[0] * torch.tensor(_DAMPING, dtype=torch.float64).unsqueeze(-1)
    inverse = sizes / (sizes**2 + damping**2)
    betas = (inverse * (left.T @ function(points))) @ right
    there = units(others.unsqueeze(-1) * slopes + offsets)
    errors = (there @ betas.T - function(others).unsqueeze(-1)).abs().amax(0)
    reach = 1 + half_width * slopes.abs() + offsets.abs()
    for beta, error, size in zip(
        betas, errors.tolist(), (betas.abs() @ reach).tolist(), strict=True
    ):
        yield _Trial(slopes, offsets, beta, error, size)
