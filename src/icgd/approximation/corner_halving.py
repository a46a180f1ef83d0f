r"""A few sigmoids that make the corner of a ramp half as wide.

The ramp is a staircase of sigmoids without end,

    P(x) = d sum_{k >= 0} sigmoid(x - (k + 1/2) d).

With steps in both directions P would be x up to a periodic error of at most
2 pi sum_k 1 / sinh(2 pi^2 k / d) (Poisson's formula). The steps that are missing lie in the convex
part of sigmoid, so they are below their integral: apart from the periodic error, P(x) exceeds
relu(x) by log(1 + exp(-|x|)) at most. P(2 x) / 2 has a corner half as wide, and

    F(x) = sum_k before_k bump_k(x) + after_k bump_k(2 x) ~ P(2 x) / 2 - P(x),
    bump_k(x) = sigmoid(x + place_k) - sigmoid(x - place_k),

turns one into the other. Both sides decay like exp(-|x|), and F is fitted for x >= 0 by least
squares: it is even, and so is the other side up to the periodic error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, inf, pi

import torch
from torch import Tensor

from icgd.approximation.ridge_proof import Profile, proved_error
from icgd.problems.functions import KinkedFunction
from icgd.program.ridge import RidgeSum, RidgeUnit

SPREAD = 2.0
"""The last place of a bump: coefficients stay below 40 while errors fall to 1e-11."""

EDGE = 40.0
"""Beyond it F and what it stands for are below 1e-15: exp(-40) is 4e-18."""

_ZERO = KinkedFunction("zero", torch.zeros_like, (), (0.0,))
_DAMPING = 1e-15  # damping of the singular values, relative to the largest


@dataclass(frozen=True)
class Halving:
    """The coefficients of F, and a bound on its distance to P(2 x) / 2 - P(x) for all x."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    error: float

    @property
    def places(self) -> tuple[float, ...]:
        return places_of(len(self.before))


def places_of(n_bumps: int) -> tuple[float, ...]:
    """Half the distances of the two sigmoids of each bump."""
    return tuple(SPREAD * (k + 1) / n_bumps for k in range(n_bumps))


def step_distance(far: float) -> float:
    """d, for a periodic error of about exp(-far)."""
    return 2 * pi**2 / far


def periodic_error(far: float) -> float:
    """A bound on how far P is from the real line and its corner."""
    return 13 * exp(-far)  # 4 pi / (1 - exp(-far))^2 < 13 for far > 5


@lru_cache(maxsize=16)
def halving_of(far: float, n_bumps: int) -> Halving:
    """F with `n_bumps` bumps of either kind, for a staircase with periodic errors of exp(-far)."""
    ends = ((0, 6, 400), (6, EDGE, 200))
    x = torch.cat([torch.linspace(*end, dtype=torch.float64) for end in ends])
    bumps = torch.cat([_bumps(x, n_bumps), _bumps(2 * x, n_bumps)], dim=1)
    wanted = _corner(2 * x, far) / 2 - _corner(x, far)
    left, sizes, right = torch.linalg.svd(bumps, full_matrices=False)
    damped = sizes / (sizes**2 + (_DAMPING * sizes[0]) ** 2)
    coefficients = (right.T @ (damped * (left.T @ wanted))).tolist()
    fitted = Halving(tuple(coefficients[:n_bumps]), tuple(coefficients[n_bumps:]), inf)
    return Halving(fitted.before, fitted.after, _proved(fitted, far))


def _bumps(x: Tensor, n_bumps: int) -> Tensor:
    places = torch.tensor(places_of(n_bumps), dtype=torch.float64)
    return torch.sigmoid(x.unsqueeze(-1) + places) - torch.sigmoid(x.unsqueeze(-1) - places)


def _corner(x: Tensor, far: float) -> Tensor:
    """P(-x), which is all of the corner for x >= 0."""
    middles = step_distance(far) * (torch.arange(ceil(EDGE / step_distance(far))).double() + 0.5)
    return step_distance(far) * torch.sigmoid(-x.unsqueeze(-1) - middles).sum(-1)


def _proved(halving: Halving, far: float) -> float:
    """The error of F: proved by panels up to the edge, and by its decay beyond."""
    units = [
        *_of_bumps(halving.places, halving.before, slope=1.0),
        *_of_bumps(halving.places, halving.after, slope=2.0),
        *_of_ramp(far, slope=1.0, factor=1.0),
        *_of_ramp(far, slope=2.0, factor=-0.5),
    ]
    gap = RidgeSum("F + P(x) - P(2 x) / 2", "sigmoid", (EDGE,), tuple(units), inf)
    total = sum((abs(number) for number in (*halving.before, *halving.after)), 0.0)
    beyond = 2 * periodic_error(far) + (total + 2) * exp(SPREAD - EDGE)
    return max(proved_error(Profile(_ZERO, (EDGE,)), gap) + 2 * exp(-EDGE), beyond)


def _of_bumps(
    places: Iterable[float], coefficients: Iterable[float], slope: float
) -> list[RidgeUnit]:
    return [
        RidgeUnit((slope,), sign * place, sign * coefficient)
        for place, coefficient in zip(places, coefficients, strict=True)
        for sign in (1.0, -1.0)
    ]


def _of_ramp(far: float, slope: float, factor: float) -> list[RidgeUnit]:
    distance = step_distance(far)
    n_steps = ceil(3 * EDGE / distance)
    return [RidgeUnit((slope,), -(k + 0.5) * distance, factor * distance) for k in range(n_steps)]
