r"""Functions of one variable by one softmax head over a lattice, to machine precision.

The points of a lattice are g h for g = -half .. half, a token each. A query with the scalar s meets
them with the scores (g s / h - g^2 / 2) / rho^2, so its softmax weights are a discrete Gaussian of
width rho h around s, and the head returns the mean of the points' values under it.

- Values g h give s itself. By Poisson summation the mean is off by 4 pi rho^2 h exp(-2 pi^2 rho^2)
  sin(2 pi s / h) and smaller terms, and by what the lattice cuts off.
- Values (g h)^2 - (rho h)^2 give s^2, and with two such heads the product of two features.
- Values found by least squares give any smooth function.

The error falls exponentially with the number of points. The published form picks the nearest
point (`nearest_point`), whose error falls only like 1 / points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, exp, factorial, inf, log, pi, sqrt

import torch
from torch import Tensor

from icgd.errors import ConstructionError, SettingError
from icgd.problems.analytic import analytic_panels
from icgd.problems.functions import (
    IDENTITY_FUNCTION,
    SIGMOID,
    SmoothFunction,
    rounding_of,
)
from icgd.problems.linear_model import link_named
from icgd.problems.scalar import ScalarFunction
from icgd.program.functions import GridMean, LatticeFunction
from icgd.shapes import Values

LARGEST_VALUE = 10.0
"""Values of a fit stay below this, or below what the function itself reaches on the interval."""

RATIO = 1.4
"""rho of a fit. The lattice error of a line is 4e-16 h; wider weights would resolve less."""

FIT_MARGIN = 5.5
"""The margin beyond the reach, in widths of the weights; least squares corrects for the cut-off."""

ACCURACY = {"float64": 1e-11, "float32": 1e-6}
"""Certified errors of look-ups in constructions without a given number of points."""

FLATNESS = 1 / 128
"""Fits end where functions are this close to their limits, as a share of the accuracy."""

MOST_POINTS = 1024
"""The number of points at which a search gives up."""

Functions = tuple[ScalarFunction, ...]
LookUps = tuple[LatticeFunction, ...]

_FAR = 128.0
_ROUNDOFF = 2.0**-53
_NUMBERS_AT_ONCE = 2**17


NODES = 32
"""The Chebyshev points of a panel at which a gap is computed."""

BETWEEN = 1 + 2 / pi * log(NODES)
"""An interpolant exceeds its values at these points by no more than this factor."""

_R = 2 + sqrt(5)
TAIL = 4 * _R ** (1 - NODES) / (_R - 1)
"""The interpolation error at these points of a function that is at most 1 in the ellipse around a
panel whose half-axes are 2 and sqrt(5) times half its width."""


@dataclass(frozen=True)
class Lattice:
    """Points -half .. half, `spacing` apart, read with weights `ratio` cells wide."""

    reach: float
    spacing: float
    ratio: float
    half: int

    @property
    def n_points(self) -> int:
        return 2 * self.half + 1

    @property
    def n_terms(self) -> int:
        """The number of weights above 2^-60 of the largest, which alone matter for rounding."""
        return min(self.n_points, 2 * ceil(self.ratio * sqrt(120 * log(2))) + 1)

    @property
    def widest_panel(self) -> float:
        """The widest panel in whose ellipse `size_around` bounds a head."""
        return pi * self.ratio**2 * self.spacing / 2

    def size_around(self, half_width: Values, largest: Values | float) -> Values:
        """Bound a head, with values up to `largest`, in the ellipse around a panel.

        It divides by a theta function, which has no zero there, by Poisson summation.
        """
        return 4 * largest * torch.exp(2 * (half_width / (self.ratio * self.spacing)) ** 2)

    def numbers(self) -> Tensor:
        """Return the numbers g of the points."""
        return torch.arange(-self.half, self.half + 1, dtype=torch.float64)

    def points(self) -> Tensor:
        """Return the points g h."""
        return self.spacing * self.numbers()

    def keys(self) -> Tensor:
        """Return the factors of s in the scores of the points."""
        return self.numbers() / (self.spacing * self.ratio**2)

    def offsets(self) -> Tensor:
        """Return the scores of the points where s is 0."""
        return 0.0 - self.numbers() ** 2 / (2 * self.ratio**2)

    def weights(self, s: Values) -> Values:
        """Return the softmax weights of the points at every entry of `s`, along a new last axis."""
        g = self.numbers().to(s)
        scores = (s.unsqueeze(-1) / self.spacing * g - g**2 / 2) / self.ratio**2
        return torch.softmax(scores, dim=-1)


def lattice_of(function: LatticeFunction) -> Lattice:
    """Return the lattice that a function is looked up in."""
    return Lattice(function.reach, function.spacing, function.ratio, function.half)


def head(function: LatticeFunction, s: Values) -> Values:
    """Return what the head returns at every entry of `s`."""
    return lattice_of(function).weights(s) @ torch.tensor(function.values, dtype=s.dtype)


LINE_MARGIN = 13
"""Points beyond the reach of a line, so that the cut-off is below 1e-17."""


def line_lattice(reach: float, half: int) -> Lattice:
    """Return the lattice for lines and squares, which is coarse, so that little is rounded."""
    return Lattice(reach, reach / min(2, half - LINE_MARGIN), RATIO, half)


def identity(lattice: Lattice) -> LatticeFunction:
    """Return s itself, which makes a dot product of whatever s is a score of."""
    return next(_certified(lattice, (IDENTITY_FUNCTION,), (lattice.points(),)))


def square(lattice: Lattice) -> LatticeFunction:
    """Return s^2: the second moment of the weights is s^2 + (rho h)^2."""
    variance = (lattice.ratio * lattice.spacing) ** 2
    values = lattice.points() ** 2 - variance
    return next(_certified(lattice, (SQUARE,), (values,)))


SQUARE = SmoothFunction(
    "square",
    (torch.square, lambda z: 2 * z, lambda z: torch.full_like(z, 2.0), torch.zeros_like),
    ((0.0,), (), (), ()),
    "x**2",
)


def _worst(fits: LookUps) -> float:
    return max(fit.error for fit in fits)


@lru_cache(maxsize=256)
def fit_to_accuracy(
    functions: Functions, reach: float, accuracy: float, fewest: int = 4
) -> LookUps:
    """Fit several functions on one lattice of about the fewest points that are proved to suffice.

    The number of points is doubled until they do, then bisected. A trial costs O(points^3).
    """
    end = _where_flat(functions, FLATNESS * accuracy)

    def trial(half: int) -> LookUps:
        return _fit_all(functions, reach, half, end)

    too_few, enough, best = fewest - 1, fewest, inf
    while (error := _worst(trial(enough))) > accuracy:
        best = min(best, error)
        if 4 * enough > MOST_POINTS:
            raise ConstructionError(
                f"accuracy={accuracy:g} cannot be proved with {MOST_POINTS} lattice points; the "
                f"smallest error is {best:.3g}. Ask for less, or use a smaller range."
            )
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        suffices = _worst(trial(middle)) <= accuracy
        too_few, enough = (too_few, middle) if suffices else (middle, enough)
    return trial(enough)


@lru_cache(maxsize=256)
def fit_on_lattice(functions: Functions, reach: float, half: int) -> LookUps:
    """Fit several functions on one lattice of 2 half + 1 points, as well as possible."""
    flat = {_where_flat(functions, 10.0**-digits) for digits in range(1, 14, 2)}
    ends = {end for end in flat if end < 2 * reach}
    if reach <= 2 * max(flat):  # covering the range may be better than ending
        ends.add(inf)
    return min((_fit_all(functions, reach, half, end) for end in sorted(ends)), key=_worst)


@lru_cache(maxsize=256)
def _fit_all(functions: Functions, reach: float, half: int, end: float) -> LookUps:
    """Return the functions on a lattice of 2 half + 1 points.

    It covers [-reach, reach] with a margin, or ends at `end`, beyond which all functions are flat:
    whichever spacing is smaller.
    """
    inside = max(half - ceil(FIT_MARGIN * RATIO), 1)
    saturates = end / half < reach / inside
    spacing = end / half if saturates else reach / inside
    until = min((half + 6 * RATIO) * spacing, _domain(functions)) if saturates else reach
    lattice = Lattice(until, spacing, RATIO, half)
    fits = _certified(lattice, functions, _least_squares(functions, lattice))
    if not saturates:
        return tuple(fits)
    return tuple(
        replace(fit, error=max(fit.error, _tail_error(function, lattice, fit)), saturates=True)
        for function, fit in zip(functions, fits, strict=True)
    )


@lru_cache(maxsize=256)
def _where_flat(functions: Functions, flatness: float) -> float:
    """Return where every function is this close to its limit; inf if one has no limit."""
    far = min(_FAR, _domain(functions))
    s = torch.linspace(0, far, 6401, dtype=torch.float64)
    gaps = [(f(side * s) - f(side * s[-1:])).abs() for f in functions for side in (1, -1)]
    beyond = [
        float(s[gap > flatness].amax()) if bool((gap > flatness).any()) else 0.0 for gap in gaps
    ]
    return max(beyond) + far / 6400 if max(beyond) < far / 2 else inf


def _domain(functions: Functions) -> float:
    """Return how far to both sides all functions are defined."""
    return min(min(-function.low, function.high) for function in functions)


def _least_squares(functions: Functions, lattice: Lattice) -> Tensor:
    """Return values of moderate size that fit best at Chebyshev points, a row a function."""
    s = lattice.reach * chebyshev_points(3 * lattice.n_points)
    weights = lattice.weights(s)
    target = torch.stack([function(s) for function in functions], dim=-1)
    largest = max(LARGEST_VALUE, 2 * float(target.abs().max()))
    values: Tensor = torch.linalg.lstsq(weights, target, driver="gels").solution
    for cut in (1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2):
        if float(values.abs().max()) <= largest:
            break
        values = torch.linalg.lstsq(weights, target, rcond=cut, driver="gelsd").solution
    return values.T


def chebyshev_points(n_points: int) -> Tensor:
    """Return the zeros of the Chebyshev polynomial of this degree, in [-1, 1]."""
    return torch.cos(torch.pi * (torch.arange(n_points, dtype=torch.float64) + 0.5) / n_points)


def _certified(
    lattice: Lattice, functions: Functions, rows: Iterable[Tensor]
) -> Iterator[LatticeFunction]:
    """Yield a row of values for each function with its proved distance from the function.

    The gap between head and function is analytic around a panel of half-width q, in the ellipse
    whose half-axes are 2 q and sqrt(5) q. So it is interpolated at n + 1 Chebyshev points to within
    4 M r^-n / (r - 1), where r = 2 + sqrt(5) and M bounds it in the ellipse, and the interpolant is
    at most 1 + (2 / pi) log(n + 1) times its largest value at these points.

    For the function complex balls prove M. The head divides by a theta function: by Poisson
    summation that has no zero where 2 q <= pi ratio^2 spacing / 2, and the head is at most
    4 max |value| exp(2 q^2 / (ratio spacing)^2). Near the ends of a lattice and beyond, balls
    prove it, in a test.

    What is compared at the points is rounded: the head's value, and the function's.
    """
    # A score's terms add up to at most (|g| reach / h + g^2 / 2) / rho^2; 2 is for the exponential.
    g = lattice.numbers().abs()
    at_most = (g * lattice.reach / lattice.spacing + g**2 / 2) / lattice.ratio**2 + 2
    ends, in_ellipses = analytic_panels(functions, lattice.reach, lattice.widest_panel)
    low, high = ends[:-1, None], ends[1:, None]
    s = (low + high) / 2 + (high - low) / 2 * chebyshev_points(NODES)
    # Small tensors are several times faster, because their memory is reused.
    n_panels = max(1, _NUMBERS_AT_ONCE // (NODES * lattice.n_points))
    weights = [lattice.weights(part) for part in s.split(n_panels)]
    for function, values, in_ellipse in zip(functions, rows, in_ellipses, strict=True):
        sums = []
        for weight in weights:
            mean = weight @ values
            spread = (values - mean.unsqueeze(-1)).abs_().mul_(weight)
            sums.append(torch.stack([mean, weight @ values.abs(), spread @ at_most]))
        mean, absolute, sensitivity = torch.cat(sums, dim=1)
        real, largest = function(s), values.abs().max()
        # Four roundings of each score, and one for every addition of the two sums.
        rounding = 4 * sensitivity + 2 * lattice.n_terms * absolute + 2.0**-4 * largest
        rounding = _ROUNDOFF * rounding + rounding_of(function.name).at(real.abs())
        gap = (mean - real).abs() + rounding
        beyond = TAIL * (lattice.size_around((high - low) / 2, largest) + in_ellipse[:, None])
        error = float((BETWEEN * gap + beyond).max())
        read = (lattice.reach, lattice.spacing, lattice.ratio)
        sizes = float(absolute.max()), float(sensitivity.max())
        yield LatticeFunction(function.name, *read, tuple(values.tolist()), error, *sizes)


def _tail_error(function: ScalarFunction, lattice: Lattice, fit: LatticeFunction) -> float:
    """Bound the error beyond the lattice's reach, where the function is nearly at its limits.

    The mass of the points below any g falls as s grows, so the head is at most the largest
    distance of the points from g on, and that mass times the largest of all.
    """
    worst = 0.0
    values = torch.tensor(fit.values, dtype=torch.float64)
    for side in (1.0, -1.0):
        at_end = torch.tensor([side * lattice.reach], dtype=torch.float64)
        end = _domain((function,))  # beyond 1e6, functions without one are at their limits
        far = torch.full_like(at_end, side * (end if end < inf else 1e6))
        limit = function(far)
        least, largest = function.bounds(torch.minimum(at_end, far), torch.maximum(at_end, far))
        mass = lattice.weights(at_end)[0]
        off = (values - limit).abs()
        if side < 0:
            mass, off = mass.flip(0), off.flip(0)
        below = mass.cumsum(0) - mass
        above = off.flip(0).cummax(0).values.flip(0)
        head_error = float((above + below * off.max()).min())
        worst = max(worst, head_error + float(torch.maximum(largest - limit, limit - least)))
    return worst


def nearest_point(function: ScalarFunction, reach: float, n_points: int) -> LatticeFunction:
    """Take the published form: weights so narrow that the nearest point answers.

    A point is at most reach / n_points away, so the error is that times the steepest slope.
    """
    half = n_points // 2
    lattice = Lattice(reach, 2 * reach / n_points, 0.02, half)
    end = torch.tensor(reach, dtype=torch.float64)
    error = reach / n_points * float(function.lipschitz(-end, end))
    values = function(lattice.points())
    size = float(values.abs().max())
    sensitivity = 2 * size * lattice.n_points**2 / lattice.ratio**2
    read = (reach, lattice.spacing, lattice.ratio)
    return LatticeFunction(function.name, *read, tuple(values.tolist()), error, size, sensitivity)


LINE_HALF = 15
"""Half of the 31 tokens that give a line full accuracy."""

CUT_OFF = 1e-17
"""The share of the mean that poisson labels beyond the last token may add."""

ACCURACIES = (1e-12, 1e-11, 1e-10)
"""Accuracies of a fitted mean, relative to its largest value: the first that can be proved."""

WIDEST_FIT = 64.0
"""Largest score of a fitted mean that does not level off: each unit of score takes 4 tokens, and a
search takes time in proportion to the cube of their number."""

OFFSET_ROUNDING = 3 * 2.0**-53
"""The relative error of an offset, a logarithm of a factorial, with room for the rounding of the
bound itself; tests compare all offsets with the real ones."""


@lru_cache(maxsize=64)
def mean_of_link(link: str, reach: float) -> GridMean:
    """Return the expected label at scores in [-reach, reach], as one head returns it.

    The normal, Bernoulli and Poisson families give label g the weight exp(g s) base(g), up to a
    factor, at the score s. A head whose token g has the key g, the offset log base(g) and the value
    g has these weights for its softmax, so that it returns the expected label mu(s): softmax
    attention is the mean of an exponential family. What is left is rounding, and the labels left
    out:

        identity  equally spaced labels around 0 and a normal base, the lattice above
        logistic  the labels 0 and 1, with no offset: exact for every s
        poisson   0 .. K, base 1 / g!: the mean of the labels up to K is exp(s) (1 - P(K) / P(<= K))

    Other links are means of no such family; their values are fitted on a lattice. They may be
    functions of one's own, if these are analytic.

    The offsets of poisson are doubles, so that the head has not quite the weights 1 / g!. Where
    every offset is off by a share r of itself, the mean moves by at most r times the sum of
    weight_g |g - mean| |offset_g|, which is larger by far than what the labels beyond K would add.
    """
    if link == "identity":
        return line(link, reach)
    if link == "logistic":
        return _grid_mean(link, reach, (0.0, 1.0), (0.0, 0.0), (0.0, 1.0), 0.0)
    if link == "poisson":
        return _poisson(reach)
    mean = link_named(link).mean
    if mean.kind == "kinked" and not mean.knots:
        return replace(_scaled_line(mean, reach), name=link)
    if mean.kind != "smooth":
        raise ConstructionError(
            f"A head returns the mean of a link within {ACCURACIES[-1]:g} only if the link is "
            f"analytic, and {mean} has knots at {', '.join(f'{knot:g}' for knot in mean.knots)}."
        )
    return _fitted_mean(link, mean, reach)


@lru_cache(maxsize=64)
def mean_of_function(function: ScalarFunction, reach: float, n_tokens: int) -> GridMean:
    """Return a function on [-reach, reach] as one head returns it.

    A smooth function takes the tokens that its accuracy needs, and a line those of `line`. One with
    kinks takes so many, of which the nearest answers: its error falls like 1 / n_tokens.
    """
    if function.name == SIGMOID.name:
        return replace(mean_of_link("logistic", reach), name=function.name)
    if function.kind == "smooth":
        return _fitted_mean(function.name, function, reach)
    _require_domain(function, reach)
    if function.kind == "kinked" and not function.knots:
        return _scaled_line(function, reach)
    fit = nearest_point(function, reach, n_tokens)
    mean = _from_lattice(function.name, reach, fit)
    # Between two points the head jumps, which samples miss: there the values of the tokens that
    # have weight differ from their mean by no more than two neighbours differ.
    end = torch.tensor(reach, dtype=torch.float64)
    jump = 2 * fit.spacing * float(function.lipschitz(-end, end))
    return replace(
        mean,
        per_argument=jump * max(map(abs, mean.points)),
        per_offset=jump * (max(map(abs, mean.offsets)) + 2),
    )


def _fitted_mean(name: str, mean: ScalarFunction, reach: float) -> GridMean:
    """Return a smooth function by fitted values; one that levels off, on any range."""
    _require_domain(mean, reach)
    if reach > WIDEST_FIT and _where_flat((mean,), FLATNESS * ACCURACIES[-1]) == inf:
        raise _too_wide(name, reach)
    ends = torch.tensor([-reach, reach], dtype=torch.float64)
    largest = max(1.0, float(mean(ends).abs().max()))
    for accuracy in ACCURACIES:
        with suppress(SettingError):
            (fit,) = fit_to_accuracy((mean,), reach, accuracy * largest)
            return _from_lattice(name, reach, fit)
    raise _too_wide(name, reach)


def _require_domain(function: ScalarFunction, reach: float) -> None:
    if not reach <= _domain((function,)):
        raise ConstructionError(
            f"Scores can reach {reach:.4g}, and {function} is defined on [{function.low:g}, "
            f"{function.high:g}] only. Define it there, by low= and high=, give a smaller bound "
            "with Domain(score=...), or a smaller box."
        )


def _scaled_line(function: ScalarFunction, reach: float) -> GridMean:
    """Return a s + c as one head returns it: the tokens of s with the values a v + c."""
    unit, ends = line(function.name, reach), torch.tensor([0.0, 1.0], dtype=torch.float64)
    constant, at_one = function(ends).tolist()
    slope = at_one - constant
    values = tuple(slope * value + constant for value in unit.values)
    # A value is rounded three times.
    size = abs(slope) * unit.size + abs(constant)
    rounding = 3 * _ROUNDOFF * (size + max(map(abs, values)))
    return replace(
        unit,
        values=values,
        error=abs(slope) * unit.error + rounding,
        size=size,
        per_argument=abs(slope) * unit.per_argument,
        per_offset=abs(slope) * unit.per_offset,
    )


def line(name: str, reach: float) -> GridMean:
    """Return s itself on [-reach, reach]: a line on [-1, 1] at s / reach, times the reach."""
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


def _too_wide(link: str, reach: float) -> ConstructionError:
    return ConstructionError(
        f"A head of {MOST_POINTS} tokens cannot return the {link} mean of scores up to "
        f"{reach:.4g}. Give a smaller bound with Domain(score=...), or a smaller box."
    )


def _from_lattice(name: str, reach: float, fit: LatticeFunction) -> GridMean:
    lattice = lattice_of(fit)
    points, offsets = tuple(lattice.keys().tolist()), tuple(lattice.offsets().tolist())
    return _grid_mean(name, reach, points, offsets, fit.values, fit.error)


def _poisson(reach: float) -> GridMean:
    """Take labels 0 .. K, with K so large that the others add next to nothing at s = reach."""
    lasts = range(1, MOST_POINTS) if reach < log(MOST_POINTS) else ()
    last = next((k for k in lasts if _beyond(reach, k) <= CUT_OFF * exp(reach)), None)
    if last is None:
        raise _too_wide("poisson", reach)
    labels = tuple(float(g) for g in range(last + 1))
    offsets = tuple(-log_factorial(g) for g in range(last + 1))
    fit = _grid_mean("poisson", reach, labels, offsets, labels, _beyond(reach, last))
    return replace(fit, error=fit.error + OFFSET_ROUNDING * fit.per_offset)


@lru_cache(maxsize=4096)
def log_factorial(number: int) -> float:
    """Return log(g!), of the whole number g! itself: lgamma is off by up to 5 units."""
    return log(factorial(number))


def _beyond(reach: float, last: int) -> float:
    """Return what is missing of the mean, exp(s) P(K) / P(<= K), at s = reach, where it is most."""
    log_weights = [g * reach - log_factorial(g) for g in range(last + 1)]
    largest = max(log_weights)
    total = sum(exp(weight - largest) for weight in log_weights)
    return exp(reach + log_weights[-1] - largest) / total


def _grid_mean(
    name: str,
    reach: float,
    points: tuple[float, ...],
    offsets: tuple[float, ...],
    values: tuple[float, ...],
    error: float,
) -> GridMean:
    """Add the sensitivity to rounding, which is the largest at dense sample points."""
    point, offset, value = (
        torch.tensor(numbers, dtype=torch.float64) for numbers in (points, offsets, values)
    )
    ends = (reach, min(reach, 16.0))
    s = torch.cat([torch.linspace(-end, end, 2001, dtype=torch.float64) for end in ends])
    weights = torch.softmax(s[:, None] * point + offset, dim=-1)
    spread = weights * (value - (weights @ value)[:, None]).abs()
    size = float((weights @ value.abs()).max())
    per_point = float((spread @ point.abs()).max())
    per_offset = float((spread @ (offset.abs() + 2)).max())  # 2 for the exponential
    return GridMean(name, reach, points, offsets, values, error, size, per_point, per_offset)
