r"""How far a ridge sum is from its function, proved on a whole box.

The gap g is analytic in a strip of half-height y around a panel of half-width q, so on the panel
a polynomial of degree n is within

    tail = 2 M r^-n / (r - 1),    r = y / q + sqrt(1 + (y / q)^2),

of it, where M bounds |g| in the strip (Bernstein). The size of that polynomial on the panel is at
most 1 / cos(pi n / 2N) times its size at N Chebyshev points (Ehlich and Zeller), so

    max |g| <= (max over the points of |g| + tail) / cos(pi n / 2N) + tail.

Panels end at the kinks of units and function, so that every one of them is analytic on each. Two
variables are treated one after the other, each with the other one real. The rounding of every
evaluation is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, cos, hypot, inf, log, pi, prod

import torch
from torch import Tensor

from icgd.approximation.lattice import chebyshev_points
from icgd.errors import UnknownNameError
from icgd.problems.functions import KinkedFunction, ScalarFunction, SmoothFunction
from icgd.problems.unit_activations import UNIT_ACTIVATIONS, Strip, UnitActivation
from icgd.program.ridge import RidgeSum

POINTS_PER_DEGREE = 3
"""N / n: points cost time, and 3 makes the factor 1 / cos(pi / 6) = 1.155."""

MOST_PANELS = 1e6
"""The most panels along one argument; units as sharp as corners would need far more."""

LONGEST_PROOF = 7e8
"""The most evaluations of units, 10 to 20 seconds; where more are needed nothing is proved."""

NUMBERS_AT_ONCE = 2**22
"""The most units times points that are evaluated at once."""

TAIL = 1e-18
"""r^-n: so far below rounding that coefficients of size 1e3 leave no trace of it."""

_ROUNDOFF = 2.0**-53
_STEEPEST = 1.2  # no unit activation has a larger slope: gelu's is 1.13
_ULPS = 8.0  # rounding of one evaluation of an activation or a function, in units of its size

_LINE_STRIP = Strip(2.0, lambda reach: reach + 2.0)
_SQUARE_STRIP = Strip(2.0, lambda reach: reach**2 + 4.0)


Box = tuple[float, float]
"""Half-widths of a box in two variables."""


@dataclass(frozen=True)
class Profile:
    """A function of t, or s times it, whose distance to a sum is to be proved on a box."""

    function: ScalarFunction
    half_widths: tuple[float, ...]

    def __call__(self, z: Tensor) -> Tensor:
        value = self.function(z[..., -1])
        return value if len(self.half_widths) == 1 else z[..., 0] * value

    def strip(self) -> Strip:
        """A strip that holds for each argument while the other one is real."""
        strip = strip_of(self.function)
        if len(self.half_widths) == 1:
            return strip
        width = self.half_widths[0]
        return Strip(strip.height, lambda reach: (width + strip.height) * strip.size(reach))

    def kinks(self) -> tuple[float, ...]:
        return self.function.knots if isinstance(self.function, KinkedFunction) else ()


def strip_of(function: ScalarFunction) -> Strip:
    """Where a function is analytic, and how large it is there."""
    name = function.name
    if isinstance(function, KinkedFunction):
        return _strip_of_lines(function)
    if not isinstance(function, SmoothFunction):
        known = [kind.__name__ for kind in (KinkedFunction, SmoothFunction)]
        raise UnknownNameError.of("kind of function", type(function).__name__, known=known)
    if name == "square":
        return _SQUARE_STRIP
    if name.endswith("'") and name[:-1] in UNIT_ACTIVATIONS:
        return _strip_of_derivative(UNIT_ACTIVATIONS[name[:-1]].strip)
    if name in UNIT_ACTIVATIONS:
        return UNIT_ACTIVATIONS[name].strip
    raise UnknownNameError.of("analytic function", name, known=[*UNIT_ACTIVATIONS, "square"])


def _strip_of_lines(function: KinkedFunction) -> Strip:
    """Every line meets the function on its panel, and goes on from there."""
    steepest = max(abs(slope) for slope in function.slopes)
    at_zero = float(function(torch.zeros(1, dtype=torch.float64)).abs())
    return Strip(_LINE_STRIP.height, lambda reach: at_zero + 3 * steepest * _LINE_STRIP.size(reach))


def _strip_of_derivative(strip: Strip) -> Strip:
    """Cauchy's estimate: half the height is left for a circle around every point."""
    half = strip.height / 2
    return Strip(half, lambda reach: strip.size(reach + half) / half)


@dataclass(frozen=True)
class Units:
    """The numbers of a ridge sum as tensors."""

    activation: UnitActivation
    directions: Tensor
    offsets: Tensor
    coefficients: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        return self.activation(z @ self.directions.T + self.offsets) @ self.coefficients


def units_of(fit: RidgeSum, dtype: torch.dtype = torch.float64) -> Units:
    """The units of `fit` as tensors, to be evaluated at points along the last axis."""
    width = len(fit.half_widths)
    return Units(
        UNIT_ACTIVATIONS[fit.activation],
        torch.tensor([unit.direction for unit in fit.units], dtype=dtype).reshape(-1, width),
        torch.tensor([unit.offset for unit in fit.units], dtype=dtype),
        torch.tensor([unit.coefficient for unit in fit.units], dtype=dtype),
    )


def proved_error(target: Profile, fit: RidgeSum, most: float = inf) -> float:
    """An upper bound on |target - fit| on the box, infinite where a proof would take too long.

    Costs O(panels * units), and at most `most` evaluations of units.
    """
    units = units_of(fit)
    axes = _axes(target, units)
    if _cost(axes, units) > min(most, LONGEST_PROOF):
        return inf
    size = _size_in_strip(target, units, [axis.height for axis in axes])
    error = _largest_gap(target, units, [axis.points for axis in axes])
    error += rounding(target, fit)
    for axis in axes:
        tail = size * axis.tail
        error = (error + tail) * axis.amplification + tail
    return error


def joined(
    name: str, half_widths: tuple[float, ...], parts: Sequence[RidgeSum], target: Profile
) -> RidgeSum:
    """The sum of several sums; their errors add up, and rounding moved their numbers a little."""
    units = tuple(unit for part in parts for unit in part.units)
    fit = RidgeSum(name, parts[0].activation, half_widths, units, inf)
    error = sum((part.error for part in parts), 0.0)
    return replace(fit, error=error + rounding(target, fit) if error else 0.0)


@dataclass(frozen=True)
class _Axis:
    """Points along one argument, the half-height of its strip, and what lies between them."""

    points: Tensor
    height: float
    amplification: float
    tail: float


def _axes(target: Profile, units: Units) -> tuple[_Axis, ...]:
    """Where to compare function and units; nowhere if there is no end to it.

    In two variables units must be analytic: kinks are lines across the panels there.
    """
    widths = target.half_widths
    heights = [_height(target, units, axis) for axis in range(len(widths))]
    sides = list(zip(widths, heights, strict=True))
    kinks_cross = units.activation.kinked and len(widths) > 1
    if kinks_cross or any(2 * width / height > MOST_PANELS for width, height in sides):
        return ()
    panels = [_panels(target, units, axis, *side) for axis, side in enumerate(sides)]
    return tuple(_axis(ends, height) for ends, height in zip(panels, heights, strict=True))


def _cost(axes: tuple[_Axis, ...], units: Units) -> float:
    """How many evaluations of units a proof takes; infinite if there is nowhere to compare."""
    n_points = prod(len(axis.points) for axis in axes)
    return float(n_points * len(units.offsets)) if axes else inf


def _height(target: Profile, units: Units, axis: int) -> float:
    """Half-height of the strip around one argument in which function and units are analytic."""
    steepest = float(units.directions[:, axis].abs().max()) if len(units.offsets) else 0.0
    allowed = target.strip().height
    return min(allowed, units.activation.strip.height / steepest) if steepest else allowed


def _panels(
    target: Profile, units: Units, axis: int, width: float, height: float
) -> list[tuple[float, float]]:
    """The interval [-width, width], cut at kinks, in panels of a half-width below height / 2."""
    kinks = set(target.kinks()) if axis == len(target.half_widths) - 1 else set()
    if units.activation.kinked:
        slopes = units.directions[:, axis]
        kinks |= set((-units.offsets / slopes)[slopes != 0].tolist())
    cuts = [-width, *sorted(kink for kink in kinks if -width < kink < width), width]
    return [
        panel
        for low, high in pairwise(cuts)
        for panel in _split(low, high, ceil((high - low) / height))
    ]


def _split(low: float, high: float, n_parts: int) -> list[tuple[float, float]]:
    cuts = torch.linspace(low, high, max(n_parts, 1) + 1, dtype=torch.float64).tolist()
    return list(pairwise(cuts))


def _axis(panels: Sequence[tuple[float, float]], height: float) -> _Axis:
    """Chebyshev points of all panels, their amplification, and the tail where |g| <= 1."""
    widest = max(high - low for low, high in panels) / 2
    r = height / widest + hypot(1, height / widest)
    degree = max(ceil(-log(TAIL) / log(r)), 1)
    share = chebyshev_points(POINTS_PER_DEGREE * degree)
    ends = torch.tensor(panels, dtype=torch.float64)
    points = ends.mean(1, keepdim=True) + (ends[:, 1:] - ends[:, :1]) / 2 * share
    amplification = 1 / cos(pi / (2 * POINTS_PER_DEGREE))
    return _Axis(points.flatten(), height, amplification, 2 * TAIL / (r - 1))


def _largest_gap(target: Profile, units: Units, axes: Sequence[Tensor]) -> float:
    """Largest |target - sum| on the product of the axes, in slices of bounded memory."""
    *others, last = axes
    parts = last.split(max(1, NUMBERS_AT_ONCE // max(len(units.offsets), 1)))
    if not others:
        return max(_gap(target, units, part.unsqueeze(-1)) for part in parts)
    rows = (torch.cartesian_prod(row.reshape(1), part) for row in others[0] for part in parts)
    return max(_gap(target, units, row) for row in rows)


def _gap(target: Profile, units: Units, z: Tensor) -> float:
    return float((target(z) - units(z)).abs().max())


def _size_in_strip(target: Profile, units: Units, heights: Sequence[float]) -> float:
    """An upper bound on |target - sum| while one argument is complex."""
    widths = [width + height for width, height in zip(target.half_widths, heights, strict=True)]
    sizes = [units.activation.strip.size(number) for number in _reach(units, widths).tolist()]
    of_sum = sum(
        abs(coefficient) * size
        for coefficient, size in zip(units.coefficients.tolist(), sizes, strict=True)
    )
    return target.strip().size(max(widths)) + float(of_sum)


def _reach(units: Units, widths: Sequence[float]) -> Tensor:
    """Largest |direction . z| + |offset| of every unit on a box."""
    return units.directions.abs() @ torch.tensor(widths, dtype=torch.float64) + units.offsets.abs()


def rounding(target: Profile, fit: RidgeSum) -> float:
    """What rounding in float64 changes in the sum's and the function's computed values."""
    units, reach = units_of(fit), _reach(units_of(fit), target.half_widths)
    ends = torch.stack([units.activation(reach), units.activation(-reach)]).abs().amax(0)
    largest = ends.clamp(min=1.0)  # no unit activation is larger in between
    per_unit = (len(reach) + _ULPS) * largest + 3 * _STEEPEST * reach
    own = _ULPS * _real_size(target)
    return _ROUNDOFF * (float(units.coefficients.abs() @ per_unit) + own)


def _real_size(target: Profile) -> float:
    width = torch.tensor(target.half_widths[-1], dtype=torch.float64)
    least, largest = target.function.bounds(-width, width)
    size = float(torch.maximum(-least, largest))
    return size if len(target.half_widths) == 1 else size * target.half_widths[0]
