r"""Functions of one variable by one softmax head over grid tokens, to machine precision.

Grid tokens hold L_g = g h for whole g, on [-reach, reach] and `margin` more on both sides. A
query with the scalar s meets them with the scores (s L_g - L_g^2 / 2) / sigma^2, so its softmax
weights are a discrete Gaussian of width sigma = rho h around s, and the head returns the mean of
the tokens' values under it.

- Values L_g give s itself. By Poisson summation the mean is off by 4 pi rho^2 h exp(-2 pi^2 rho^2)
  sin(2 pi s / h) and smaller terms, and by what the grid cuts off, about exp(-margin^2 / 2 rho^2).
- Values L_g^2 - sigma^2 give s^2, and with two such heads the product of two features.
- Values found by least squares give any smooth function.

The error falls exponentially with the number of tokens. The published form picks the nearest
token (`nearest_token_error`), whose error falls only like 1 / tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, inf, log, pi, sqrt

import torch
from torch import Tensor

from icgd.errors import SettingError
from icgd.problems.functions import SmoothFunction
from icgd.problems.settings import positive
from icgd.shapes import Values

LARGEST_VALUE = 10.0
"""Values of a fit stay below this, or below what the function itself reaches on the interval."""

_STRIP = 0.5
_NODES = 32
_ROUNDOFF = 2.0**-53


@dataclass(frozen=True)
class Lattice:
    """A grid of tokens: `2 * half + 1` of them, `spacing` apart, read with weights of `width`."""

    reach: float
    spacing: float
    width: float
    half: int

    @property
    def n_tokens(self) -> int:
        return 2 * self.half + 1

    @property
    def ratio(self) -> float:
        """rho, the width in units of the spacing."""
        return self.width / self.spacing

    def points(self) -> Tensor:
        """What the tokens hold."""
        return self.spacing * torch.arange(-self.half, self.half + 1, dtype=torch.float64)

    def weights(self, s: Values) -> Values:
        """The softmax weights over the tokens at every entry of `s`, along a new last axis."""
        points = self.points().to(s)
        scores = (s.unsqueeze(-1) * points - points**2 / 2) / self.width**2
        return torch.softmax(scores, dim=-1)


@dataclass(frozen=True)
class LatticeFunction:
    """Values of the grid tokens that make the head return `name` at s, within `error`."""

    name: str
    lattice: Lattice
    values: tuple[float, ...]
    error: float

    def __call__(self, s: Values) -> Values:
        """What the head returns."""
        return self.lattice.weights(s) @ torch.tensor(self.values, dtype=s.dtype)


def choose_lattice(reach: float, accuracy: float, *, scale: float | None = None) -> Lattice:
    """The lattice with the fewest tokens for `accuracy` on [-reach, reach].

    `scale` is the length over which the function varies; a line or a parabola has none, and two
    grid cells are then enough for any reach. Raises `SettingError` below what float64 holds.
    """
    positive("reach", reach)
    if not 1e-15 <= positive("accuracy", accuracy) < 1:
        raise SettingError.out_of_range("accuracy", accuracy, least=1e-15, most=1.0)
    spacing = reach if scale is None else min(reach, positive("scale", scale))
    ratio = _ratio_for(accuracy / spacing)
    margin = ceil(ratio * sqrt(2 * log(4 * (1 + reach / spacing) / (accuracy / spacing))))
    return Lattice(reach, spacing, ratio * spacing, ceil(reach / spacing) + margin)


def _ratio_for(accuracy: float) -> float:
    """The smallest rho, in steps of 1/100, whose lattice error is a quarter of the accuracy."""
    ratio = 0.5
    while 4 * pi * ratio**2 * exp(-2 * pi**2 * ratio**2) > accuracy / 4:
        ratio += 0.01
    return ratio


def identity(lattice: Lattice) -> LatticeFunction:
    """s itself, which makes a dot product of whatever s is a score of."""
    return _certified("identity", lattice, lattice.points(), lambda s: s)


def square(lattice: Lattice) -> LatticeFunction:
    """s^2: the second moment of the weights is s^2 + sigma^2."""
    return _certified("square", lattice, lattice.points() ** 2 - lattice.width**2, torch.square)


def fit_lattice(function: SmoothFunction, reach: float, *, accuracy: float) -> LatticeFunction:
    """`function` on [-reach, reach] with about the fewest tokens whose certified error suffices.

    Halves the spacing until it does, then bisects the number of tokens. Each trial is a least
    squares problem, so it costs O(tokens^3).
    """
    ratio = _ratio_for(accuracy / reach)
    fewest, most, best = 4, 8, inf
    while (enough := _fit(function, reach, most, ratio)).error > accuracy:
        best = min(best, enough.error)
        if 4 * most > MOST_TOKENS:
            raise SettingError.unreachable_accuracy(accuracy, best, MOST_TOKENS)
        fewest, most = most, 2 * most
    while most - fewest > 1:
        middle = (fewest + most) // 2
        trial = _fit(function, reach, middle, ratio)
        if trial.error <= accuracy:
            enough, most = trial, middle
        else:
            fewest = middle
    return enough


MOST_TOKENS = 1024
"""Where a search for the number of tokens gives up."""

FIT_MARGIN = 5.5
"""Widths of the weights beyond the reach; least squares makes up for what is cut off there."""


def _fit(function: SmoothFunction, reach: float, n_inside: int, ratio: float) -> LatticeFunction:
    """Least squares on Chebyshev points, with values of moderate size."""
    spacing = reach / n_inside
    lattice = Lattice(reach, spacing, ratio * spacing, n_inside + ceil(FIT_MARGIN * ratio))
    n_samples = 8 * lattice.n_tokens
    angles = torch.pi * (torch.arange(n_samples, dtype=torch.float64) + 0.5) / n_samples
    s = reach * torch.cos(angles)
    weights, target = lattice.weights(s), function(s)
    largest = max(LARGEST_VALUE, 2 * float(target.abs().max()))
    for cut in (1e-14, 1e-12, 1e-10, 1e-8, 1e-6):
        solution = torch.linalg.lstsq(weights, target.unsqueeze(-1), rcond=cut, driver="gelsd")
        values = solution.solution.squeeze(-1)
        if float(values.abs().max()) <= largest:
            break
    return _certified(function.name, lattice, values, function)


def _certified(
    name: str, lattice: Lattice, values: Tensor, function: Callable[[Tensor], Tensor]
) -> LatticeFunction:
    """The function with a proved error.

    The gap between head and function is analytic in the strip |Im s| <= y around the line: the
    weights' denominator is a theta function without zeros there, and no function used here has a
    singularity that near. On a panel of half-width y / 2 it is therefore interpolated at n
    Chebyshev points to within 4 M r^-n / (r - 1), where r = 2 + sqrt(5) and M bounds it in the
    strip, and the interpolant is at most (1 + (2 / pi) log n) times its largest value there.
    """
    strip = min(_STRIP, pi * lattice.ratio**2 * lattice.spacing / 2)
    angles = torch.pi * (torch.arange(_NODES, dtype=torch.float64) + 0.5) / _NODES
    n_panels = ceil(lattice.reach / (strip / 2))
    centres = lattice.reach * (2 * torch.arange(n_panels, dtype=torch.float64) + 1 - n_panels)
    s = (centres[:, None] + lattice.reach * torch.cos(angles)) / n_panels
    weights = lattice.weights(s)
    gap = (weights @ values - function(s)).abs().max()
    size = float(values.abs().max())
    head = 4 * size * exp(strip**2 / (2 * lattice.width**2))
    real = 3 * (1 + lattice.reach) ** 2  # |f(s)| <= 3 (1 + |s|)^2 for every function used here
    r = 2 + sqrt(5)
    beyond = 4 * (head + real) * r**-_NODES / (r - 1)
    # A score of size (reach / width)^2 / 2 is rounded before it is exponentiated.
    n_roundings = lattice.n_tokens + 2 * (lattice.reach / lattice.width) ** 2
    rounding = n_roundings * _ROUNDOFF * float((weights @ values.abs()).max())
    error = (1 + 2 / pi * log(_NODES)) * float(gap) + beyond + rounding
    return LatticeFunction(name, lattice, tuple(values.tolist()), error)


def nearest_token_error(function: SmoothFunction, reach: float, n_tokens: int) -> float:
    """Error of the published form: the nearest of `n_tokens` tokens answers with its own value.

    A token is at most reach / n_tokens away, so the error is that times the steepest slope.
    """
    end = torch.tensor(reach, dtype=torch.float64)
    return reach / n_tokens * float(function.lipschitz(-end, end))
