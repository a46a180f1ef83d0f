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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, exp, inf, log, pi, sqrt

import torch
from torch import Tensor

from icgd.errors import ConstructionError
from icgd.problems.functions import SmoothFunction
from icgd.program.functions import LatticeFunction
from icgd.shapes import Values

LARGEST_VALUE = 10.0
"""Values of a fit stay below this, or below what the function itself reaches on the interval."""

RATIO = 1.4
"""rho of a fit: the lattice error of a line is 4e-16 h, and wider weights resolve less."""

FIT_MARGIN = 5.5
"""Widths of the weights beyond the reach; least squares makes up for what is cut off there."""

ACCURACY = {"float64": 1e-11, "float32": 1e-6}
"""Certified errors of the look-ups of a construction whose number of points is not given."""

MOST_POINTS = 1024
"""Where a search for the number of points gives up."""

Functions = tuple[SmoothFunction, ...]
LookUps = tuple[LatticeFunction, ...]

_STRIP = 0.5
_NODES = 32
_ROUNDOFF = 2.0**-53


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

    def numbers(self) -> Tensor:
        """The numbers g of the points."""
        return torch.arange(-self.half, self.half + 1, dtype=torch.float64)

    def points(self) -> Tensor:
        """The points g h."""
        return self.spacing * self.numbers()

    def weights(self, s: Values) -> Values:
        """The softmax weights of the points at every entry of `s`, along a new last axis."""
        g = self.numbers().to(s)
        scores = (s.unsqueeze(-1) / self.spacing * g - g**2 / 2) / self.ratio**2
        return torch.softmax(scores, dim=-1)

    def function(
        self, name: str, values: Tensor, error: float, size: float, sensitivity: float
    ) -> LatticeFunction:
        """The lattice with these values, as plain data."""
        listed = tuple(values.tolist())
        return LatticeFunction(
            name, self.reach, self.spacing, self.ratio, listed, error, size, sensitivity
        )


def lattice_of(function: LatticeFunction) -> Lattice:
    """The lattice that a function is looked up in."""
    return Lattice(function.reach, function.spacing, function.ratio, function.half)


def head(function: LatticeFunction, s: Values) -> Values:
    """What the head returns at every entry of `s`."""
    return lattice_of(function).weights(s) @ torch.tensor(function.values, dtype=s.dtype)


def line_lattice(reach: float, half: int) -> Lattice:
    """The lattice for lines and squares, which is coarse, so that little is rounded."""
    return Lattice(reach, reach / min(2, half - LINE_MARGIN), RATIO, half)


LINE_MARGIN = 13
"""Points beyond the reach of a line; what they cut off is below 1e-17."""


def identity(lattice: Lattice) -> LatticeFunction:
    """s itself, which makes a dot product of whatever s is a score of."""
    return _certified("identity", lattice, lattice.points(), lambda s: s)


def square(lattice: Lattice) -> LatticeFunction:
    """s^2: the second moment of the weights is s^2 + (rho h)^2."""
    variance = (lattice.ratio * lattice.spacing) ** 2
    return _certified("square", lattice, lattice.points() ** 2 - variance, torch.square)


@lru_cache(maxsize=256)
def fit_to_accuracy(
    functions: Functions, reach: float, accuracy: float, fewest: int = 4
) -> LookUps:
    """Several functions on one lattice of about the fewest points whose proved errors suffice.

    The number of points is doubled until they do, then bisected. A trial costs O(points^3).
    """
    end = _where_flat(functions, accuracy / 128)

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


def _worst(fits: LookUps) -> float:
    return max(fit.error for fit in fits)


@lru_cache(maxsize=256)
def fit_on_lattice(functions: Functions, reach: float, half: int) -> LookUps:
    """Several functions on one lattice of 2 half + 1 points, as well as possible."""
    flat = {_where_flat(functions, 10.0**-digits) for digits in range(1, 14, 2)}
    ends = {end for end in flat if end < 2 * reach}
    if reach <= 2 * max(flat):  # covering the range may be better than ending
        ends.add(inf)
    return min((_fit_all(functions, reach, half, end) for end in sorted(ends)), key=_worst)


@lru_cache(maxsize=256)
def _fit_all(functions: Functions, reach: float, half: int, end: float) -> LookUps:
    """The functions on a lattice of 2 half + 1 points.

    It covers [-reach, reach] with a margin, or ends at `end`, beyond which all functions are flat:
    whichever spacing is smaller.
    """
    inside = max(half - ceil(FIT_MARGIN * RATIO), 1)
    saturates = end / half < reach / inside
    spacing = end / half if saturates else reach / inside
    until = (half + 6 * RATIO) * spacing if saturates else reach
    lattice = Lattice(until, spacing, RATIO, half)
    fits = [
        _certified(function.name, lattice, values, function)
        for function, values in zip(functions, _least_squares(functions, lattice), strict=True)
    ]
    if not saturates:
        return tuple(fits)
    return tuple(
        replace(fit, error=max(fit.error, _tail_error(function, lattice, fit)), saturates=True)
        for function, fit in zip(functions, fits, strict=True)
    )


@lru_cache(maxsize=256)
def _where_flat(functions: Functions, flatness: float) -> float:
    """Beyond this distance every function stays this close to its limit; inf if one has none."""
    s = torch.linspace(0, _FAR, 6401, dtype=torch.float64)
    gaps = [(f(side * s) - f(side * s[-1:])).abs() for f in functions for side in (1, -1)]
    beyond = [
        float(s[gap > flatness].amax()) if bool((gap > flatness).any()) else 0.0 for gap in gaps
    ]
    return max(beyond) + _FAR / 6400 if max(beyond) < _FAR / 2 else inf


_FAR = 128.0


def _least_squares(functions: Functions, lattice: Lattice) -> Tensor:
    """Values of moderate size that fit best at Chebyshev points, a row for each function."""
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
    """Zeros of the Chebyshev polynomial of this degree, in [-1, 1]."""
    return torch.cos(torch.pi * (torch.arange(n_points, dtype=torch.float64) + 0.5) / n_points)


def _certified(
    name: str, lattice: Lattice, values: Tensor, function: Callable[[Tensor], Tensor]
) -> LatticeFunction:
    """The values on the lattice with a proved error.

    The gap between head and function is analytic in the strip |Im s| <= y around the line: the
    weights' denominator is a theta function without zeros there, and no function used here has a
    singularity that near. On a panel of half-width y / 2 it is therefore interpolated at n + 1
    Chebyshev points to within 4 M r^-n / (r - 1), where r = 2 + sqrt(5) and M bounds it in the
    strip, and the interpolant is at most 1 + (2 / pi) log(n + 1) times its largest value there.
    """
    reach, width = lattice.reach, lattice.ratio * lattice.spacing
    strip = min(_STRIP, pi * lattice.ratio * width / 2)
    n_panels = ceil(reach / (strip / 2))
    centres = reach * (2 * torch.arange(n_panels, dtype=torch.float64) + 1 - n_panels)
    s = (centres[:, None] + reach * chebyshev_points(_NODES)) / n_panels
    weights = lattice.weights(s)
    mean = weights @ values
    gap = float((mean - function(s)).abs().max())
    size = float((weights @ values.abs()).max())
    sensitivity = sensitivity_of(lattice, weights, values, mean)
    in_strip = 4 * float(values.abs().max()) * exp(strip**2 / (2 * width**2))
    real = 3 * (1 + reach) ** 2  # |f(s)| <= 3 (1 + |s|)^2 for every function used here
    r = 2 + sqrt(5)
    beyond = 4 * (in_strip + real) * r ** (1 - _NODES) / (r - 1)
    rounding = _ROUNDOFF * (2 * sensitivity + lattice.n_points * size)
    error = (1 + 2 / pi * log(_NODES)) * gap + beyond + rounding
    return lattice.function(name, values, error, size, sensitivity)


def sensitivity_of(lattice: Lattice, weights: Tensor, values: Tensor, mean: Tensor) -> float:
    """Largest change of the mean if each score is off by its own size, and 2 for the exponential.

    A score's terms add up to at most (|g| reach / h + g^2 / 2) / rho^2.
    """
    g = lattice.numbers().abs()
    sizes = (g * lattice.reach / lattice.spacing + g**2 / 2) / lattice.ratio**2 + 2
    spread = (values - mean.unsqueeze(-1)).abs()
    return float((weights * spread * sizes).sum(-1).max())


def _tail_error(function: SmoothFunction, lattice: Lattice, fit: LatticeFunction) -> float:
    """Largest error beyond the lattice's reach, where the function is nearly at its limits.

    The mass of the points below any g falls as s grows, so the head is at most the largest
    distance of the points from g on, and that mass times the largest of all.
    """
    worst = 0.0
    values = torch.tensor(fit.values, dtype=torch.float64)
    for side in (1.0, -1.0):
        at_end = torch.tensor([side * lattice.reach], dtype=torch.float64)
        far = torch.full_like(at_end, side * 1e6)
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


def nearest_point(function: SmoothFunction, reach: float, n_points: int) -> LatticeFunction:
    """The published form: weights so narrow that the nearest point answers with its own value.

    A point is at most reach / n_points away, so the error is that times the steepest slope.
    """
    half = n_points // 2
    lattice = Lattice(reach, 2 * reach / n_points, 0.02, half)
    end = torch.tensor(reach, dtype=torch.float64)
    error = reach / n_points * float(function.lipschitz(-end, end))
    values = function(lattice.points())
    size = float(values.abs().max())
    sensitivity = 2 * size * lattice.n_points**2 / lattice.ratio**2
    return lattice.function(function.name, values, error, size, sensitivity)
