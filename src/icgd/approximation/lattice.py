r"""Evaluate functions of one variable by one softmax head over a lattice, to machine precision.

A lattice has a token for each point g h, g = -half .. half. A query with the scalar s gives them
the scores (g s / h - g^2 / 2) / rho^2, so its softmax weights are a discrete Gaussian of width
rho h around s, and the head returns the mean of the points' values under these weights.

- Values g h give s itself. By Poisson summation the error is 4 pi rho^2 h exp(-2 pi^2 rho^2)
  sin(2 pi s / h) plus smaller terms, plus the truncation at the ends of the lattice.
- Values (g h)^2 - (rho h)^2 give s^2, and two such heads the product of two features.
- Values found by least squares give any smooth function.

The error falls exponentially with the number of points. The published form selects the nearest
point (`nearest_point`), and its error is proportional to 1 / points.
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
"""The limit on fitted values, unless the function itself is larger on the interval."""

RATIO = 1.4
"""rho of a fit. The lattice error of a line is 4e-16 h; wider weights would blur features more."""

FIT_MARGIN = 5.5
"""The margin beyond the reach, in widths of the weights; least squares corrects the truncation."""

ACCURACY = {"float64": 1e-11, "float32": 1e-6}
"""Certified errors of look-ups in constructions whose number of points is not given."""

FLATNESS = 1 / 128
"""The distance of a function to its limit at which a fit may end, relative to the accuracy."""

MOST_POINTS = 1024
"""The largest number of points of a search."""

Functions = tuple[ScalarFunction, ...]
LookUps = tuple[LatticeFunction, ...]

_FAR = 128.0
_ROUNDOFF = 2.0**-53
_NUMBERS_AT_ONCE = 2**17


NODES = 32
"""The number of Chebyshev points per panel at which the error is evaluated."""

BETWEEN = 1 + 2 / pi * log(NODES)
"""The Lebesgue constant: an interpolant is at most this factor larger than its values there."""

_R = 2 + sqrt(5)
TAIL = 4 * _R ** (1 - NODES) / (_R - 1)
"""The interpolation error of a function bounded by 1 in the Bernstein ellipse around a panel whose
half-axes are 2 and sqrt(5) times the panel's half-width."""


@dataclass(frozen=True)
class Lattice:
    """Points g * spacing, g = -half .. half, read by Gaussian weights of width ratio * spacing."""

    reach: float
    spacing: float
    ratio: float
    half: int

    @property
    def n_points(self) -> int:
        return 2 * self.half + 1

    @property
    def n_terms(self) -> int:
        """The number of weights above 2^-60 of the largest; only these contribute to rounding."""
        return min(self.n_points, 2 * ceil(self.ratio * sqrt(120 * log(2))) + 1)

    @property
    def widest_panel(self) -> float:
        """The largest width of a panel for which `size_around` holds."""
        return pi * self.ratio**2 * self.spacing / 2

    def size_around(self, half_width: Values, largest: Values | float) -> Values:
        """Bound |head|, for |values| <= largest, in the ellipse around a panel.

        A head is a quotient by a theta function, which by Poisson summation has no zero there.
        """
        return 4 * largest * torch.exp(2 * (half_width / (self.ratio * self.spacing)) ** 2)

    def numbers(self) -> Tensor:
        """Return the numbers g of the points."""
        return torch.arange(-self.half, self.half + 1, dtype=torch.float64)

    def points(self) -> Tensor:
        """Return the points g h."""
        return self.spacing * self.numbers()

    def keys(self) -> Tensor:
        """Return the coefficients of s in the scores of the points."""
        return self.numbers() / (self.spacing * self.ratio**2)

    def offsets(self) -> Tensor:
        """Return the scores of the points at s = 0."""
        return 0.0 - self.numbers() ** 2 / (2 * self.ratio**2)

    def weights(self, s: Values) -> Values:
        """Return the softmax weights of the points at every entry of `s`, along a new last axis."""
        g = self.numbers().to(s)
        scores = (s.unsqueeze(-1) / self.spacing * g - g**2 / 2) / self.ratio**2
        return torch.softmax(scores, dim=-1)


def lattice_of(function: LatticeFunction) -> Lattice:
    """Return the lattice of a fitted function."""
    return Lattice(function.reach, function.spacing, function.ratio, function.half)


def head(function: LatticeFunction, s: Values) -> Values:
    """Return the output of the head at every entry of `s`."""
    return lattice_of(function).weights(s) @ torch.tensor(function.values, dtype=s.dtype)


LINE_MARGIN = 13
"""The number of points beyond the reach of a line, for a truncation error below 1e-17."""


def line_lattice(reach: float, half: int) -> Lattice:
    """Return the lattice for lines and squares, coarse so that scores and rounding are small."""
    return Lattice(reach, reach / min(2, half - LINE_MARGIN), RATIO, half)


def identity(lattice: Lattice) -> LatticeFunction:
    """Return the look-up of s itself: a head that returns the dot product in its score."""
    return next(_certified(lattice, (IDENTITY_FUNCTION,), (lattice.points(),)))


def square(lattice: Lattice) -> LatticeFunction:
    """Return the look-up of s^2, from the weights' second moment s^2 + (rho h)^2."""
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
    """Fit several functions on one lattice, with about the fewest points that prove `accuracy`.

    Double the number of points until it suffices, then bisect. A fit costs O(points^3).
    """
    end = _where_flat(functions, FLATNESS * accuracy)

    def fit(half: int) -> LookUps:
        return _fit_all(functions, reach, half, end)

    too_few, enough, best = fewest - 1, fewest, inf
    while (error := _worst(fit(enough))) > accuracy:
        best = min(best, error)
        if 4 * enough > MOST_POINTS:
            raise ConstructionError(
                f"accuracy={accuracy:g} cannot be proved with {MOST_POINTS} lattice points; the "
                f"smallest error is {best:.3g}. Ask for less, or use a smaller range."
            )
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        suffices = _worst(fit(middle)) <= accuracy
        too_few, enough = (too_few, middle) if suffices else (middle, enough)
    return fit(enough)


@lru_cache(maxsize=256)
def fit_on_lattice(functions: Functions, reach: float, half: int) -> LookUps:
    """Fit several functions on the best lattice of 2 half + 1 points."""
    # Candidates: a lattice that covers the range, or ends where all functions are nearly flat.
    flat = {_where_flat(functions, 10.0**-digits) for digits in range(1, 14, 2)}
    ends = {end for end in flat if end < 2 * reach}
    if reach <= 2 * max(flat):
        ends.add(inf)
    return min((_fit_all(functions, reach, half, end) for end in sorted(ends)), key=_worst)


@lru_cache(maxsize=256)
def _fit_all(functions: Functions, reach: float, half: int, end: float) -> LookUps:
    """Fit several functions on a lattice of 2 half + 1 points.

    The lattice covers [-reach, reach] with a margin, or ends at `end`, beyond which all functions
    are flat; the smaller spacing decides.
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
    """Return the |s| beyond which every function is this close to its limits, or inf.

    The distance is sampled: proofs do not rely on it.
    """
    far = min(_FAR, _domain(functions))
    s = torch.linspace(0, far, 6401, dtype=torch.float64)
    gaps = [(f(side * s) - f(side * s[-1:])).abs() for f in functions for side in (1, -1)]
    beyond = [
        float(s[gap > flatness].amax()) if bool((gap > flatness).any()) else 0.0 for gap in gaps
    ]
    return max(beyond) + far / 6400 if max(beyond) < far / 2 else inf


def _domain(functions: Functions) -> float:
    """Return the largest d such that all functions are defined on [-d, d]."""
    return min(min(-function.low, function.high) for function in functions)


def _least_squares(functions: Functions, lattice: Lattice) -> Tensor:
    """Return values of moderate size that fit best at Chebyshev points, one row per function."""
    s = lattice.reach * chebyshev_points(3 * lattice.n_points)
    weights = lattice.weights(s)
    target = torch.stack([function(s) for function in functions], dim=-1)
    largest = max(LARGEST_VALUE, 2 * float(target.abs().max()))
    values: Tensor = torch.linalg.lstsq(weights, target, driver="gels").solution
    # Large values amplify rounding: cut off more and more singular values until they are small.
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
    """Yield the look-up of each function, given its row of values, with a proved error.

    The difference of head and function is analytic around a panel of half-width q, in the ellipse
    whose half-axes are 2 q and sqrt(5) q. So its interpolant at n + 1 Chebyshev points has an error
    of at most 4 M r^-n / (r - 1), where r = 2 + sqrt(5) and M bounds the difference in the ellipse,
    and the interpolant is at most 1 + (2 / pi) log(n + 1) times its largest value at the points.

    M is the sum of two bounds. That of the function is proved by complex balls. The head is a
    quotient by a theta function, which by Poisson summation has no zero if 2 q <= pi ratio^2
    spacing / 2, and the head is at most 4 max |value| exp(2 q^2 / (ratio spacing)^2). Near the ends
    of a lattice and beyond, a test proves this by balls.

    At the points, the computed values of both head and function are rounded: these errors are
    added.
    """
    # The terms of a score add up to at most (|g| reach / h + g^2 / 2) / rho^2; 2 more covers exp.
    g = lattice.numbers().abs()
    at_most = (g * lattice.reach / lattice.spacing + g**2 / 2) / lattice.ratio**2 + 2
    ends, in_ellipses = analytic_panels(functions, lattice.reach, lattice.widest_panel)
    low, high = ends[:-1, None], ends[1:, None]
    s = (low + high) / 2 + (high - low) / 2 * chebyshev_points(NODES)
    # Small tensors are several times faster, because their memory is reused.
    n_panels = max(1, _NUMBERS_AT_ONCE // (NODES * lattice.n_points))
    weights = [lattice.weights(panels) for panels in s.split(n_panels)]
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
        scale = (lattice.reach, lattice.spacing, lattice.ratio)
        sizes = float(absolute.max()), float(sensitivity.max())
        yield LatticeFunction(function.name, *scale, tuple(values.tolist()), error, *sizes)


def _tail_error(function: ScalarFunction, lattice: Lattice, fit: LatticeFunction) -> float:
    """Bound the error beyond the lattice's reach, where the function is close to its limits.

    The total weight of the points below any g decreases as s grows. So, for any g, the distance
    between head and limit is at most the largest distance among points from g on, plus that weight
    at the end of the lattice times the largest distance of all.
    """
    worst = 0.0
    values = torch.tensor(fit.values, dtype=torch.float64)
    for side in (1.0, -1.0):
        at_end = torch.tensor([side * lattice.reach], dtype=torch.float64)
        end = _domain((function,))  # functions on the whole line are at their limits at 1e6
        far = torch.full_like(at_end, side * (end if end < inf else 1e6))
        limit = function(far)
        least, largest = function.bounds(torch.minimum(at_end, far), torch.maximum(at_end, far))
        mass = lattice.weights(at_end)[0]
        distance = (values - limit).abs()
        if side < 0:
            mass, distance = mass.flip(0), distance.flip(0)
        below = mass.cumsum(0) - mass
        above = distance.flip(0).cummax(0).values.flip(0)
        head_error = float((above + below * distance.max()).min())
        worst = max(worst, head_error + float(torch.maximum(largest - limit, limit - least)))
    return worst


def nearest_point(function: ScalarFunction, reach: float, n_points: int) -> LatticeFunction:
    """Return the published form: weights so narrow that the head returns the nearest point's value.

    A point is at most reach / n_points away, which times the largest slope bounds the error.
    """
    half = n_points // 2
    lattice = Lattice(reach, 2 * reach / n_points, 0.02, half)
    end = torch.tensor(reach, dtype=torch.float64)
    error = reach / n_points * float(function.lipschitz(-end, end))
    values = function(lattice.points())
    size = float(values.abs().max())
    sensitivity = 2 * size * lattice.n_points**2 / lattice.ratio**2
    scale = (reach, lattice.spacing, lattice.ratio)
    return LatticeFunction(function.name, *scale, tuple(values.tolist()), error, size, sensitivity)


LINE_HALF = 15
"""Half of the 31 tokens that give a line full accuracy."""

CUT_OFF = 1e-17
"""The largest relative contribution of Poisson labels that have no token."""

ACCURACIES = (1e-12, 1e-11, 1e-10)
"""Accuracies to try for a fitted mean, relative to its largest value."""

WIDEST_FIT = 64.0
"""The largest score of a fitted mean without limits at infinity: a unit of score takes 4 tokens,
and the time of a search is proportional to the cube of their number."""

OFFSET_ROUNDING = 3 * 2.0**-53
"""The relative error of an offset, the logarithm of a factorial, with room for the rounding of the
bound itself; tests compare all offsets with exact ones."""


@lru_cache(maxsize=64)
def mean_of_link(link: str, reach: float) -> GridMean:
    """Return the head that computes the expected label for scores in [-reach, reach].

    In the normal, Bernoulli and Poisson families the probability of label g at the score s is
    proportional to exp(g s) base(g). If token g has the key g, the offset log base(g) and the value
    g, these probabilities are the softmax weights, and the head returns the expected label mu(s):
    softmax attention is the mean of an exponential family. The only errors are rounding and omitted
    labels:

        identity  equally spaced labels around 0 and a normal base, the lattice above
        logistic  the labels 0 and 1, without offsets: exact for every s
        poisson   0 .. K, base 1 / g!: the mean of the labels up to K is exp(s) (1 - P(K) / P(<= K))

    Other links are fitted on a lattice. They may be user-defined functions if these are analytic.

    The offsets of poisson are rounded to doubles. If every offset has the relative error r, the
    mean changes by at most r times the sum of weight_g |g - mean| |offset_g|, which is far larger
    than the contribution of the labels beyond K.
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
            f"A head can return the mean of a link within {ACCURACIES[-1]:g} only if the link is "
            f"analytic, and {mean} has knots at {', '.join(f'{knot:g}' for knot in mean.knots)}. "
            "Use an analytic link."
        )
    return _fitted_mean(link, mean, reach)


@lru_cache(maxsize=64)
def mean_of_function(function: ScalarFunction, reach: float, n_tokens: int) -> GridMean:
    """Return the head that computes a function on [-reach, reach].

    A smooth function gets the tokens that its accuracy needs, and a line those of `line`. A kinked
    function gets `n_tokens`, and the head returns the value of the nearest: the error is
    proportional to 1 / n_tokens.
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
    # The sampled sensitivity misses the jumps of the head between two points. At a jump the values
    # of tokens with weight differ from their mean by at most the difference of two neighbours.
    end = torch.tensor(reach, dtype=torch.float64)
    jump = 2 * fit.spacing * float(function.lipschitz(-end, end))
    return replace(
        mean,
        per_argument=jump * max(map(abs, mean.points)),
        per_offset=jump * (max(map(abs, mean.offsets)) + 2),
    )


def _fitted_mean(name: str, mean: ScalarFunction, reach: float) -> GridMean:
    """Return the head of a smooth function by fitted values, with the best provable accuracy."""
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
            "with Domain(score=...), or use a smaller box."
        )


def _scaled_line(function: ScalarFunction, reach: float) -> GridMean:
    """Return the head that computes a s + c: the tokens of s with values a v + c for v."""
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
    """Return the head that computes s on [-reach, reach], by scaling the line on [-1, 1]."""
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
        f"{reach:.4g}. Give a smaller bound with Domain(score=...), or use a smaller box."
    )


def _from_lattice(name: str, reach: float, fit: LatticeFunction) -> GridMean:
    lattice = lattice_of(fit)
    points, offsets = tuple(lattice.keys().tolist()), tuple(lattice.offsets().tolist())
    return _grid_mean(name, reach, points, offsets, fit.values, fit.error)


def _poisson(reach: float) -> GridMean:
    """Return the poisson mean by labels 0 .. K, with K such that the omitted labels are negligible.

    Their contribution is largest at s = reach.
    """
    lasts = range(1, MOST_POINTS) if reach < log(MOST_POINTS) else ()
    last = next((k for k in lasts if _truncation_error(reach, k) <= CUT_OFF * exp(reach)), None)
    if last is None:
        raise _too_wide("poisson", reach)
    labels = tuple(float(g) for g in range(last + 1))
    offsets = tuple(-log_factorial(g) for g in range(last + 1))
    fit = _grid_mean("poisson", reach, labels, offsets, labels, _truncation_error(reach, last))
    return replace(fit, error=fit.error + OFFSET_ROUNDING * fit.per_offset)


@lru_cache(maxsize=4096)
def log_factorial(number: int) -> float:
    """Return log(g!) from the integer g!, because lgamma errs by up to 5 units of rounding."""
    return log(factorial(number))


def _truncation_error(reach: float, last: int) -> float:
    """Return the error from omitting labels beyond K: exp(s) P(K) / P(<= K) at s = reach."""
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
    """Return a `GridMean` with its sensitivity to rounding, the largest at dense sample points."""
    point, offset, value = (
        torch.tensor(numbers, dtype=torch.float64) for numbers in (points, offsets, values)
    )
    ends = (reach, min(reach, 16.0))
    s = torch.cat([torch.linspace(-end, end, 2001, dtype=torch.float64) for end in ends])
    weights = torch.softmax(s[:, None] * point + offset, dim=-1)
    spread = weights * (value - (weights @ value)[:, None]).abs()
    size = float((weights @ value.abs()).max())
    per_point = float((spread @ point.abs()).max())
    per_offset = float((spread @ (offset.abs() + 2)).max())  # 2 covers exp
    return GridMean(name, reach, points, offsets, values, error, size, per_point, per_offset)
