r"""What a function says of itself, held against the real function at many points.

A program carries its functions with proved errors, so that a loaded one need not fit anything. But
whoever can alter the numbers of a file can alter its errors as well. Therefore nothing of it is
believed that a point can refute. Each function is evaluated beside the real one of its name, at
points so dense that the largest distance is met up to a few percent, and its sizes and
sensitivities are computed again. That is no proof: it takes milliseconds where proofs take seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import lru_cache, singledispatch

import torch
from torch import Tensor

from icgd.approximation import gate
from icgd.approximation.lattice import chebyshev_points, lattice_of, sensitivity_of
from icgd.approximation.ridge_proof import Profile, rounding, units_of
from icgd.approximation.ridge_sum import PRODUCT
from icgd.errors import ProgramError, UnknownNameError
from icgd.problems.activations import IDENTITY_FUNCTION
from icgd.problems.catalog import function_named
from icgd.problems.links import LINKS
from icgd.problems.losses import loss_named
from icgd.program.functions import Function, GridMean, LatticeFunction, ReluSum
from icgd.program.ridge import RidgeSum

Real = Callable[[Tensor], Tensor]

SAMPLES_OF_A_PIECE = 17
"""A chord of a curve errs most near its middle and at its ends."""

MOST_EVALUATIONS = 2**16
"""How often the tokens or the units of one function are evaluated."""

LINES = 9
"""The values of the first of two arguments, on which all functions here depend simply."""

MOST_POINTS, FEWEST_POINTS = 1025, 65
"""The points at which a function of one variable is compared."""

ROUNDINGS = 64 * 2.0**-53
"""The share of the numbers met on the way by which a value in float64 may be off here."""

ROOM = 1 + 2.0**-4
"""Sizes and sensitivities are themselves the largest at sample points, which are not these."""


def check_claims(functions: Iterable[Function], box: float | None) -> None:
    """Raise `ProgramError` that names the first claim that a point refutes.

    Weights are clipped to `box`, which one of the functions may stand for.
    """
    for function in functions:
        if problem := _refuted(function, box):
            raise ProgramError.broken(f"function {function.name!r}", problem)


@lru_cache(maxsize=64)
def _refuted(function: Function, box: float | None) -> str | None:
    return refutation(function, box)


@singledispatch
def refutation(function: Function, box: float | None) -> str | None:
    """What a point refutes of a function's claims; None if nothing is."""
    return "is of no known kind"


@refutation.register
def _of_relu_sum(function: ReluSum, box: float | None) -> str | None:
    if (real := _of_one_variable(function.name)) is None:
        return None
    z, value, sizes = _pieces(function)
    exact = real(z)
    off = (value - exact).abs() - ROUNDINGS * (sizes + exact.abs())
    off = off.where(z[:, :1] < z[:, -1:], 0.0)  # pieces beyond the range of the function
    return _too_far(off, torch.tensor(function.errors, dtype=torch.float64)[:, None], z)


@refutation.register
def _of_lattice_function(function: LatticeFunction, box: float | None) -> str | None:
    if (real := _of_one_variable(function.name)) is None:
        return None
    lattice, values = lattice_of(function), torch.tensor(function.values, dtype=torch.float64)
    s = _line(function.reach, lattice.n_points)
    weights = lattice.weights(s)
    mean = weights @ values
    size = float((weights @ values.abs()).max())
    sensitivity = sensitivity_of(lattice, weights, values, mean)
    if function.saturates:
        far = torch.cat([factor * s[::8] for factor in (2, 16)])
        s, mean = torch.cat([s, far]), torch.cat([mean, lattice.weights(far) @ values])
    slack = ROUNDINGS * (sensitivity + lattice.n_points * size)
    off = (mean - real(s)).abs() - slack
    claims = {"size": (function.size, size), "sensitivity": (function.sensitivity, sensitivity)}
    return _too_far(off, torch.tensor(function.error, dtype=torch.float64), s) or _small(claims)


@refutation.register
def _of_grid_mean(function: GridMean, box: float | None) -> str | None:
    if (link := LINKS.get(function.name)) is None:
        return None
    points, offsets, values = (
        torch.tensor(numbers, dtype=torch.float64)
        for numbers in (function.points, function.offsets, function.values)
    )
    s = _line(function.reach, len(values))
    weights = torch.softmax(s[:, None] * points + offsets, dim=-1)
    mean = weights @ values
    spread = weights * (values - mean[:, None]).abs()
    size = float((weights @ values.abs()).max())
    per_argument, per_offset = (
        float((spread @ sizes).max()) for sizes in (points.abs(), offsets.abs() + 2)
    )
    slack = ROUNDINGS * (per_offset + per_argument * function.reach + len(values) * size)
    off = (mean - link.mean(s)).abs() - slack
    claims = {
        "size": (function.size, size),
        "per_argument": (function.per_argument, per_argument),
        "per_offset": (function.per_offset, per_offset),
    }
    return _too_far(off, torch.tensor(function.error, dtype=torch.float64), s) or _small(claims)


@refutation.register
def _of_ridge_sum(function: RidgeSum, box: float | None) -> str | None:
    found = _of_units(function.name, box)
    if found is None:
        return None
    real, n_arguments = found
    if len(function.half_widths) != n_arguments:
        return f"takes {len(function.half_widths)} arguments, expected {n_arguments}"
    z = _box(function)
    slack = 4 * rounding(Profile(IDENTITY_FUNCTION, function.half_widths), function)
    off = (units_of(function)(z) - real(z)).abs() - slack - ROUNDINGS * real(z).abs()
    return _too_far(off, _allowed(function, z[:, -1]), z)


def _too_far(off: Tensor, claimed: Tensor, z: Tensor) -> str | None:
    """Say where a function is further off than it claims; what is no number is too far."""
    claimed = claimed.expand_as(off)
    wrong = ~(off <= claimed)
    if not bool(wrong.any()):
        return None
    place = int((off - claimed).nan_to_num(nan=torch.inf).flatten().argmax())
    where = z.reshape(off.numel(), -1)[place].tolist()
    at = ", ".join(f"{entry:g}" for entry in where)
    far = f"is off by {float(off.flatten()[place]):.3g} at {at}"
    return f"{far}, and claims at most {float(claimed.flatten()[place]):.3g}"


def _small(claims: dict[str, tuple[float, float]]) -> str | None:
    """Say which number is smaller than what it bounds."""
    for name, (claimed, found) in claims.items():
        if not found <= ROOM * claimed + ROUNDINGS:
            return f"has a {name} of {found:.3g}, and claims at most {claimed:.3g}"
    return None


def _of_one_variable(name: str) -> Real | None:
    """The real function of a name; None for the tables of steps, which have no such name."""
    if name == "square":
        return torch.square
    try:
        return function_named(name)
    except UnknownNameError:
        return None


def _of_units(name: str, box: float | None) -> tuple[Real, int] | None:
    """The real function that a sum of units stands for, and the number of its arguments."""
    if name in (PRODUCT, gate.NAME):
        return (lambda z: z.prod(-1)), 2
    if name == "clip" and box is not None:
        return (lambda z: z[..., 0].clamp(-box, box) - z[..., 0]), 1
    if name.startswith("slope of "):
        loss = loss_named(name.removeprefix("slope of "))
        return (lambda z: loss.slope(z[..., :1], z[..., 1:]).squeeze(-1)), 2
    if name.startswith("s ") and name.endswith("(t)"):
        slope = function_named(name[2:-3])
        return (lambda z: z[..., 0] * slope(z[..., 1])), 2
    real = _of_one_variable(name)
    return None if real is None else ((lambda z: real(z[..., 0])), 1)


def _pieces(function: ReluSum) -> tuple[Tensor, Tensor, Tensor]:
    """Points of every piece, the sum there, and the sizes of the numbers that make it up.

    A piece is counted from its end that is nearer to the anchor: steep ramps would lose all digits
    if they were counted from 0.
    """
    home = bisect_left(function.knots, function.anchor)
    slopes = torch.tensor(function.slopes, dtype=torch.float64)
    start = torch.tensor([function.anchor], dtype=torch.float64)
    knots = torch.tensor(function.knots, dtype=torch.float64)
    right, left = torch.cat([start, knots[home:]]), torch.cat([start, knots[:home].flip(0)])
    rises = slopes[home:-1] * right.diff()
    falls = slopes[1 : home + 1].flip(0) * left.diff()
    to_right, to_left = rises.cumsum(0), falls.cumsum(0)
    value = torch.cat([to_left.flip(0)[:home], to_right.new_zeros(1), to_right])
    size = torch.cat([falls.abs().cumsum(0).flip(0), value.new_zeros(1), rises.abs().cumsum(0)])
    base = torch.cat([left[1:].flip(0), start, right[1:]])
    z = _inside(function, knots)
    rise = slopes[:, None] * (z - base[:, None])
    sizes = size[:, None] + rise.abs() + abs(function.anchor_value)
    return z, function.anchor_value + value[:, None] + rise, sizes


def _inside(function: ReluSum, knots: Tensor) -> Tensor:
    """Points of every piece within the range of the function: (piece, sample)."""
    ends = torch.tensor([function.low, function.high], dtype=torch.float64)
    nodes = torch.cat([ends[:1], knots, ends[1:]]).clamp(function.low, function.high)
    shares = torch.linspace(0, 1, SAMPLES_OF_A_PIECE, dtype=torch.float64)
    return torch.lerp(nodes[:-1, None], nodes[1:, None], shares)


def _line(reach: float, cost: int) -> Tensor:
    """Points of [-reach, reach], fewer if each costs much."""
    n_points = max(FEWEST_POINTS, min(MOST_POINTS, MOST_EVALUATIONS // cost))
    return reach * chebyshev_points(n_points)


def _box(function: RidgeSum) -> Tensor:
    """Points of the box of a sum of units; a flag is 0 or 1."""
    cost = max(1, function.n_units)
    *first, last = function.half_widths
    t = torch.cat([_line(last, cost * (LINES if first else 1)), _near_bands(function)])
    if function.name == gate.NAME:
        t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    if not first:
        return t[:, None]
    return torch.cartesian_prod(first[0] * chebyshev_points(LINES), t)


def _near_bands(function: RidgeSum) -> Tensor:
    """The ends of all bands that lie in the box, and their middles."""
    last = function.half_widths[-1]
    ends = [(band.low, (band.low + band.high) / 2, band.high) for band in function.bands]
    found = torch.tensor(ends, dtype=torch.float64).flatten()
    return found[found.abs() <= last]


def _allowed(function: RidgeSum, t: Tensor) -> Tensor:
    """The error that is claimed at each t: that of the bands around it, if they have more."""
    claimed = torch.full_like(t, function.error)
    for band in function.bands:
        inside = (band.low <= t) & (t <= band.high)
        claimed = torch.where(inside, claimed.clamp_min(band.error), claimed)
    return claimed
