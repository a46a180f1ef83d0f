r"""The mean of a generalised linear model by one softmax head: it reads the possible labels.

The normal, Bernoulli and Poisson families give label g the weight exp(g s) base(g), up to a factor,
at the score s. A head whose token g has the key g, the offset log base(g) and the value g has these
weights for its softmax, so that it returns the expected label mu(s): softmax attention is the mean
of an exponential family. What is left is rounding, and the labels that are left out:

    identity  equally spaced labels around 0 and a normal base, the lattice of `lattice.py`
    logistic  the labels 0 and 1, with no offset: exact for every s
    poisson   0 .. K, base 1 / g!: the mean of the labels up to K is exp(s) (1 - P(K) / P(<= K))

probit and softplus are means of no such family; their values are fitted on a lattice.

The offsets of poisson are doubles, so that the head has not quite the weights 1 / g!. Where every
offset is off by a share r of itself, the mean moves by at most r times the sum of weight_g
|g - mean| |offset_g|, which is larger by far than what the labels beyond K would add.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import exp, factorial, log

import torch
from torch import Tensor

from icgd.approximation.lattice import MOST_POINTS, fit_to_accuracy, identity, line_lattice
from icgd.errors import ConstructionError, SettingError, brief
from icgd.problems.functions import SmoothFunction
from icgd.problems.linear_model import link_named
from icgd.program.functions import GridMean, LatticeFunction

LINE_HALF = 15
"""31 tokens give a line full accuracy."""

CUT_OFF = 1e-17
"""What poisson labels beyond the last token may add to the mean, as a share of it."""

ACCURACIES = (1e-12, 1e-11, 1e-10)
"""Accuracies of a fitted mean, relative to its largest value: the first that can be proved."""

WIDEST_FIT = 64.0
"""Largest score of a fitted mean that does not level off: it takes 4 tokens for a unit of score,
and a search for them takes their number to the third power."""

SATURATES = ("probit",)
"""Links whose mean levels off, so that scores of any size are covered."""

OFFSET_ROUNDING = 3 * 2.0**-53
"""The share of itself by which an offset, a logarithm of a factorial, is off at most: the tests
compare all of them with the real ones. What is left of it is for the rounding of the error itself.
"""

_SAMPLES, _MIDDLE = 2001, 16.0

Numbers = tuple[float, ...]


@lru_cache(maxsize=64)
def mean_of_link(link: str, reach: float) -> GridMean:
    """The expected label at scores in [-reach, reach], as one head returns it."""
    if link == "identity":
        return line(link, reach)
    if link == "logistic":
        return _certified(link, reach, (0.0, 1.0), (0.0, 0.0), (0.0, 1.0), 0.0)
    if link == "poisson":
        return _poisson(reach)
    return _from_lattice(link, reach, _fitted(link, reach))


def line(name: str, reach: float) -> GridMean:
    """s itself on [-reach, reach]: a line on [-1, 1] at s / reach, times the reach."""
    unit = _from_lattice(name, 1.0, identity(line_lattice(1.0, LINE_HALF)))
    return replace(
        unit,
        reach=reach,
        points=tuple(point / reach for point in unit.points),
        values=tuple(reach * value for value in unit.values),
        error=reach * unit.error,
        size=reach * unit.size,
        per_offset=reach * unit.per_offset,
    )


def _fitted(link: str, reach: float) -> LatticeFunction:
    mean = link_named(link).mean
    if not isinstance(mean, SmoothFunction):
        raise SettingError(f"mean of {link} must be of type SmoothFunction, got {brief(mean)}.")
    if reach > WIDEST_FIT and link not in SATURATES:
        raise _too_wide(link, reach)
    largest = max(1.0, float(mean(torch.tensor(reach, dtype=torch.float64))))
    for accuracy in ACCURACIES:
        with suppress(SettingError):
            return fit_to_accuracy((mean,), reach, accuracy * largest)[0]
    raise _too_wide(link, reach)


def _too_wide(link: str, reach: float) -> ConstructionError:
    return ConstructionError(
        f"A head of {MOST_POINTS} tokens cannot return the {link} mean of scores up to "
        f"{reach:.4g}. Give a smaller bound with Domain(score=...), or a smaller box."
    )


def _from_lattice(name: str, reach: float, fit: LatticeFunction) -> GridMean:
    numbers = range(-fit.half, fit.half + 1)
    variance = fit.ratio**2
    points = tuple(g / (fit.spacing * variance) for g in numbers)
    offsets = tuple(-g * g / (2 * variance) for g in numbers)
    return _certified(name, reach, points, offsets, fit.values, fit.error)


def _poisson(reach: float) -> GridMean:
    """Labels 0 .. K, with K so large that the others add next to nothing at s = reach."""
    last = _last_label(reach)
    labels = tuple(float(g) for g in range(last + 1))
    offsets = tuple(-log_factorial(g) for g in range(last + 1))
    fit = _certified("poisson", reach, labels, offsets, labels, _beyond(reach, last))
    return replace(fit, error=fit.error + OFFSET_ROUNDING * fit.per_offset)


@lru_cache(maxsize=4096)
def log_factorial(number: int) -> float:
    """log(g!), of the whole number g! itself: the library's lgamma is off by up to 5 units."""
    return log(factorial(number))


def _last_label(reach: float) -> int:
    if reach < log(MOST_POINTS):
        for last in range(1, MOST_POINTS):
            if _beyond(reach, last) <= CUT_OFF * exp(reach):
                return last
    raise _too_wide("poisson", reach)


def _beyond(reach: float, last: int) -> float:
    """exp(s) P(K) / P(<= K) at s = reach, where it is largest: what is missing of the mean."""
    log_weights = [g * reach - log_factorial(g) for g in range(last + 1)]
    largest = max(log_weights)
    total = sum(exp(weight - largest) for weight in log_weights)
    return exp(reach + log_weights[-1] - largest) / total


def _certified(
    name: str, reach: float, points: Numbers, offsets: Numbers, values: Numbers, error: float
) -> GridMean:
    """The mean with its sensitivity to rounding, which is the largest at dense sample points."""
    point, offset, value = (
        torch.tensor(numbers, dtype=torch.float64) for numbers in (points, offsets, values)
    )
    ends = (reach, min(reach, _MIDDLE))
    s = torch.cat([torch.linspace(-end, end, _SAMPLES, dtype=torch.float64) for end in ends])
    weights = torch.softmax(s[:, None] * point + offset, dim=-1)
    spread = weights * (value - (weights @ value)[:, None]).abs()

    def largest(sizes: Tensor) -> float:
        return float((spread @ sizes).max())

    size = float((weights @ value.abs()).max())
    per_offset = largest(offset.abs() + 2)  # 2 for the exponential
    return GridMean(
        name, reach, points, offsets, values, error, size, largest(point.abs()), per_offset
    )
