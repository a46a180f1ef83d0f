r"""Functions of one and two variables by sums of units of any activation, with a proved error.

From the bottom up: how an error is proved, sums of relus by what bends like relu, functions of one
variable, the product s r'(t), and what descent needs of two variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from math import ceil, copysign, cos, floor, hypot, inf, log, log2, pi, prod

import torch
from torch import Tensor

from icgd.approximation.lattice import SQUARE, chebyshev_points
from icgd.approximation.relu_sum import fit_relu_sum
from icgd.errors import SettingError, UnknownNameError
from icgd.problems.analytic import Strip, strip_of_text
from icgd.problems.functions import (
    IDENTITY_FUNCTION,
    STEEPEST_UNIT,
    UNIT_ACTIVATIONS,
    KinkedFunction,
    SmoothFunction,
    UnitActivation,
    bending_activations,
    function_named,
    is_kinked,
    own_unit,
    unit_activation_named,
)
from icgd.problems.losses import Loss
from icgd.problems.piecewise import Function
from icgd.problems.scalar import ScalarFunction
from icgd.problems.settings import count, positive, power_of_two
from icgd.program.functions import Band, RidgeSum, RidgeUnit, slope_product

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

DOUBLE_ROUNDOFF = 2.0**-53
"""The unit roundoff of float64; that of float32 is 2^-24."""

_ULPS = 8.0  # rounding of one evaluation of an activation or a function, in units of its size


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
        """Return a strip that holds for each argument while the other one is real."""
        strip = strip_of(self.function)
        if len(self.half_widths) == 1:
            return strip
        width = self.half_widths[0]
        return Strip(strip.height, lambda reach: (width + strip.height) * strip.size(reach))

    def kinks(self) -> tuple[float, ...]:
        return self.function.knots


def strip_of(function: ScalarFunction) -> Strip:
    """Return where a function is analytic, and how large it is there."""
    name = function.name
    if is_kinked(function):
        # Every line meets the function on its panel, and goes on from there.
        steepest = max(abs(slope) for slope in function.slopes)
        at_zero = float(function(torch.zeros(1, dtype=torch.float64)).abs())
        return Strip(2.0, lambda reach: at_zero + 3 * steepest * (reach + 2.0))
    if isinstance(function, Function):
        return strip_of_text(function)
    if not isinstance(function, SmoothFunction):
        known = [kind.__name__ for kind in (KinkedFunction, SmoothFunction)]
        raise UnknownNameError.of("kind of function", type(function).__name__, known=known)
    if name == "square":
        return Strip(2.0, lambda reach: reach**2 + 4.0)
    if name.endswith("'") and name[:-1] in UNIT_ACTIVATIONS:
        # Cauchy's estimate: half the height is left for a circle around every point.
        strip = UNIT_ACTIVATIONS[name[:-1]].strip
        half = strip.height / 2
        return Strip(half, lambda reach: strip.size(reach + half) / half)
    if name in UNIT_ACTIVATIONS:
        return UNIT_ACTIVATIONS[name].strip
    return strip_of_text(function)


def unit_of(name: str) -> UnitActivation:
    """Return the activation of units, which in a proof may be any analytic function."""
    if name in UNIT_ACTIVATIONS:
        return UNIT_ACTIVATIONS[name]
    function = function_named(name)
    return own_unit(function) if isinstance(function, Function) else unit_activation_named(name)


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
    """Return the units of `fit` as tensors, to be evaluated at points along the last axis."""
    width = len(fit.half_widths)
    return Units(
        unit_of(fit.activation),
        torch.tensor([unit.direction for unit in fit.units], dtype=dtype).reshape(-1, width),
        torch.tensor([unit.offset for unit in fit.units], dtype=dtype),
        torch.tensor([unit.coefficient for unit in fit.units], dtype=dtype),
    )


def proved_error(target: Profile, fit: RidgeSum, most: float = inf) -> float:
    """Bound |target - fit| on the box; infinite where a proof would take too long.

    The gap g is analytic in a strip of half-height y around a panel of half-width q, so on the
    panel a polynomial of degree n is within

        tail = 2 M r^-n / (r - 1),    r = y / q + sqrt(1 + (y / q)^2),

    of it, where M bounds |g| in the strip (Bernstein). The size of that polynomial on the panel is
    at most 1 / cos(pi n / 2N) times its size at N Chebyshev points (Ehlich and Zeller), so

        max |g| <= (max over the points of |g| + tail) / cos(pi n / 2N) + tail.

    Panels end at the kinks of units and function, so that every one of them is analytic on each.
    Two variables are treated one after the other, each with the other one real. The rounding of
    every evaluation is added.

    Costs O(panels * units), and at most `most` evaluations of units.
    """
    units = units_of(fit)
    axes = _axes(target, units)
    n_evaluations = prod(len(axis.points) for axis in axes) * len(units.offsets)
    if not axes or n_evaluations > min(most, LONGEST_PROOF):
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
    """Add several sums; their errors add up, and rounding moved their numbers a little."""
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
    """Return where to compare function and units; nowhere if there is no end to it.

    In two variables units must be analytic: kinks are lines across the panels there.
    """
    widths, is_kinked = target.half_widths, units.activation.kinked
    if is_kinked and len(widths) > 1:
        return ()
    # Half-heights of the strips around each argument in which function and units are analytic.
    heights = [target.strip().height] * len(widths)
    steepest_slopes = units.directions.abs().amax(0).tolist() if len(units.offsets) else []
    for axis, steepest in enumerate(steepest_slopes):
        if steepest:
            heights[axis] = min(heights[axis], units.activation.strip.height / steepest)
    sides = list(zip(widths, heights, strict=True))
    if any(2 * width / height > MOST_PANELS for width, height in sides):
        return ()
    axes = []
    for axis, (width, height) in enumerate(sides):
        # The interval, cut at kinks, in panels of a half-width below height / 2.
        kinks = set(target.kinks()) if axis == len(widths) - 1 else set()
        if is_kinked:
            slopes = units.directions[:, axis]
            kinks |= set((-units.offsets / slopes)[slopes != 0].tolist())
        cuts = [-width, *sorted(kink for kink in kinks if -width < kink < width), width]
        panels = []
        for low, high in pairwise(cuts):
            n_panels = max(ceil((high - low) / height), 1)
            ends = torch.linspace(low, high, n_panels + 1, dtype=torch.float64)
            panels += list(pairwise(ends.tolist()))
        axes.append(_axis(panels, height))
    return tuple(axes)


def _axis(panels: Sequence[tuple[float, float]], height: float) -> _Axis:
    """Return Chebyshev points of all panels, their amplification, and the tail where |g| <= 1."""
    widest = max(high - low for low, high in panels) / 2
    r = height / widest + hypot(1, height / widest)
    degree = max(ceil(-log(TAIL) / log(r)), 1)
    share = chebyshev_points(POINTS_PER_DEGREE * degree)
    ends = torch.tensor(panels, dtype=torch.float64)
    points = ends.mean(1, keepdim=True) + (ends[:, 1:] - ends[:, :1]) / 2 * share
    amplification = 1 / cos(pi / (2 * POINTS_PER_DEGREE))
    return _Axis(points.flatten(), height, amplification, 2 * TAIL / (r - 1))


def _largest_gap(target: Profile, units: Units, axes: Sequence[Tensor]) -> float:
    """Return the largest |target - sum| on all points of the axes, in slices of bounded memory."""
    *others, last = axes
    parts = last.split(max(1, NUMBERS_AT_ONCE // max(len(units.offsets), 1)))
    slices = (part.unsqueeze(-1) for part in parts)
    if others:
        slices = (torch.cartesian_prod(row.reshape(1), part) for row in others[0] for part in parts)
    return max(float((target(z) - units(z)).abs().max()) for z in slices)


def _size_in_strip(target: Profile, units: Units, heights: Sequence[float]) -> float:
    """Return an upper bound on |target - sum| while one argument is complex."""
    widths = [width + height for width, height in zip(target.half_widths, heights, strict=True)]
    sizes = [units.activation.strip.size(number) for number in _reach(units, widths).tolist()]
    of_sum = sum(
        abs(coefficient) * size
        for coefficient, size in zip(units.coefficients.tolist(), sizes, strict=True)
    )
    return target.strip().size(max(widths)) + float(of_sum)


def _reach(units: Units, widths: Sequence[float]) -> Tensor:
    """Return the largest |direction . z| + |offset| of every unit on a box."""
    return units.directions.abs() @ torch.tensor(widths, dtype=torch.float64) + units.offsets.abs()


def rounding(target: Profile, fit: RidgeSum) -> float:
    """Bound what rounding in float64 changes in the sum's and the function's computed values."""
    units, reach = units_of(fit), _reach(units_of(fit), target.half_widths)
    largest, steepest = _unit_sizes(units.activation, reach)
    per_unit = (len(reach) + _ULPS) * largest + 3 * steepest * reach
    width = torch.tensor(target.half_widths[-1], dtype=torch.float64)
    least, most = target.function.bounds(-width, width)
    size = float(torch.maximum(-least, most))
    ulps, absolute = _ULPS, 0.0
    if isinstance(target.function, Function):
        ulps, absolute = target.function.rounding.relative + 2, target.function.rounding.absolute
    of_function = ulps * size + absolute
    if len(target.half_widths) == 2:
        of_function *= target.half_widths[0]
    return DOUBLE_ROUNDOFF * (float(units.coefficients.abs() @ per_unit) + of_function)


def _unit_sizes(activation: UnitActivation, reach: Tensor) -> tuple[Tensor, Tensor]:
    """Bound |f|, or 1, with room for its rounding, and |f'| at arguments that reach so far."""
    if isinstance(activation.value, Function):
        least, most = activation.value.bounds(-reach, reach)
        largest = torch.maximum(-least, most).clamp(min=1.0)
        return (1 + activation.ulps / _ULPS) * largest, activation.value.lipschitz(-reach, reach)
    ends = torch.stack([activation(reach), activation(-reach)]).abs().amax(0)
    return ends.clamp(min=1.0), torch.full_like(reach, STEEPEST_UNIT)  # none is larger in between


# Sums of relus by any activation that bends like relu.
#
# Such an activation f is within c = `off_relu` of relu everywhere, so f(beta z) / beta is within
# c / beta of relu(z), and a sum of relus with coefficients a_m is met within c sum |a_m| / beta.
# Nothing speaks against a large beta: rounding is relative to the argument, whatever its scale.
#
# The slope of a piecewise-linear r jumps at its knots. With |s| <= S and steep >= S / kink_width,
#
#     s r'(t) = slope_0 s + sum_k jump_k (relu(s + steep (t - knot_k)) - relu(steep (t - knot_k)))
#
# wherever t is at least kink_width away from all knots; nearer, a difference of relus lies between
# 0 and s, so it is wrong by |jump_k| S at most. The jumps go inside the relus, up to their signs,
# and jump_k steep is rounded up to a power of two: then little else than the sums is rounded.


KINK_WIDTH = 2.0**-13
"""Default width of the band on either side of a kink. A narrower band meets fewer arguments, but
the units of s r'(t) lose |t| / width units of rounding everywhere: 1e-12 |t| here."""

SHARPNESS = 2.0**40
"""beta on a box of size 1: leaves 1e-12, and float32 holds arguments up to 2^88 times as large."""


def by_bends(
    name: str, activation: str, half_widths: tuple[float, ...], relus: Sequence[RidgeUnit]
) -> RidgeSum:
    """Return a sum of relus by units that bend like relu; exact if they are relus."""
    unit, sharpness = unit_activation_named(activation), 1.0
    if unit.off_relu:  # a power of two that is larger on a small box
        sharpness = SHARPNESS / min(1.0, 2.0 ** floor(log2(min(half_widths))))
    units = tuple(
        RidgeUnit(
            tuple(sharpness * entry for entry in relu.direction),
            sharpness * relu.offset,
            relu.coefficient / sharpness,
        )
        for relu in relus
    )
    total = sum((abs(relu.coefficient) for relu in relus), 0.0)
    error = total * (unit.off_relu or 0.0) / sharpness
    return RidgeSum(name, activation, half_widths, units, error)


def fit_bends(
    function: ScalarFunction, half_width: float, activation: str, pieces: int = 1
) -> RidgeSum:
    """Fit a function on [-half_width, half_width] by `pieces` lines; exact if it has no curves."""
    fit = fit_relu_sum(function, -half_width, half_width, pieces)
    relus = [RidgeUnit((term.scale,), term.shift, term.coefficient) for term in fit.terms()]
    made = by_bends(function.name, activation, (half_width,), relus)
    return replace(made, error=made.error + fit.error)


def kinked_slope(
    function: KinkedFunction | Function,
    half_widths: tuple[float, float],
    activation: str,
    kink_width: float,
) -> RidgeSum:
    """Fit s r'(t), r = `function`, with a band of `kink_width` on either side of every knot.

    Rounding in a run costs about |t| S / kink_width units of it, as `size` says.
    """
    size, _ = half_widths
    first = function.slopes[0]
    relus = [RidgeUnit((sign, 0.0), 0.0, sign * first) for sign in (1.0, -1.0) if first]
    sides = zip(function.knots, pairwise(function.slopes), strict=True)
    jumps = [(knot, after - before) for knot, (before, after) in sides if after != before]
    for knot, jump in jumps:  # jump s to the right of the knot, and 0 to the left of it
        steep, sign = 2.0 ** ceil(log2(abs(jump) * size)) / kink_width, copysign(1.0, jump)
        relus += [
            RidgeUnit((abs(jump), steep), -steep * knot, sign),
            RidgeUnit((0.0, steep), -steep * knot, -sign),
        ]
    fit = by_bends(slope_product(f"{function.name}'"), activation, half_widths, relus)
    bands = []
    for knot, _ in jumps:  # those that share a band may add up
        near = (abs(jump) for other, jump in jumps if abs(other - knot) <= 2 * kink_width)
        error = size * sum(near, 0.0) + fit.error
        bands.append(Band(knot - kink_width, knot + kink_width, error))
    return replace(fit, bands=tuple(bands))


LARGEST_COEFFICIENT = 1e3
"""Coefficients stay below this: rounding in a run grows with them."""

ENOUGH_UNITS = 96
"""More units on one interval are tried only if these leave more than `CLOSE_ENOUGH`."""

MOST_ON_A_LINE = 400
"""The most units on one interval: a fit costs their cube, and only elu gains from so many."""

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
    """Fit `function` on [-half_width, half_width] by about `units` units, or fewer if those do.

    Least squares at Chebyshev points over units spread evenly across the interval, for several
    weights of the units, with as little damping of small singular values as keeps the coefficients
    small. Where an identity gives the function exactly, such as softplus(z) - softplus(-z) = z, it
    is used instead. relu takes the free knots of `relu_sum`, and units that bend like relu are as
    good as relu for piecewise-linear functions.

    `roundoff` is the unit roundoff of the arithmetic that will evaluate the sum: in a coarse one,
    small coefficients are worth some error.
    """
    exact = _exact_units(function, half_width, activation)
    if exact:
        return RidgeSum(function.name, activation, (half_width,), exact, 0.0)
    if is_kinked(function) and unit_of(activation).bends:
        return fit_bends(function, half_width, activation)
    if activation == "relu":
        return fit_bends(function, half_width, activation, units - 1)
    if half_width != 1.0 and _is_multiple_of_identity(function):
        # Laid out on a wide interval, units that saturate miss a line: scale one on [-1, 1].
        line = fit_line(function, 1.0, activation, units, largest, roundoff)
        wide = replace(line.along((1 / half_width,), half_width), half_widths=(half_width,))
        return replace(wide, error=wide.error + rounding(Profile(function, (half_width,)), wide))

    def price(fit: RidgeSum) -> float:
        return fit.error + roundoff * LIKELY_ROUNDING * fit.size

    bends, most = None, inf
    if unit_of(activation).bends:  # better where the interval is wide
        bends = fit_bends(function, half_width, activation, units - 1)
        most = max(price(bends), CLOSE_ENOUGH)
        if half_width > units:  # units spread evenly lie farther apart than features are wide
            return bends
    fits = []
    for tried in sorted({min(units, ENOUGH_UNITS), min(units, MOST_ON_A_LINE)}):
        fit = _least_squares(function, half_width, activation, tried, largest, roundoff, most)
        if tried <= ENOUGH_UNITS and fit.error <= max(CLOSE_ENOUGH, roundoff * fit.size):
            return fit
        fits.append(fit)
    return min([*fits, bends] if bends else fits, key=price)


def _exact_units(
    function: ScalarFunction, half_width: float, activation: str
) -> tuple[RidgeUnit, ...]:
    """Return units that are the function itself; none if no identity is known."""
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
    is_line = is_kinked(function) and not function.knots
    return is_line and float(function(torch.zeros((), dtype=torch.float64))) == 0.0


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


@lru_cache(maxsize=128)  # a search for the number of units asks again and again
def _least_squares(
    function: ScalarFunction,
    half_width: float,
    activation: str,
    units: int,
    largest: float,
    roundoff: float,
    most: float,
) -> RidgeSum:
    """Return the fit with the smallest coefficients of those about as close as the closest.

    Nothing is proved, and the error is infinite, if it exceeds `most` at a point.
    """
    own = unit_of(activation).value
    # Arguments of a function stay in its domain, those near the interval that a proof takes too.
    farthest = min(-own.low, own.high) / 2 if isinstance(own, Function) else inf
    trials = [
        trial
        for slopes, offsets in _layouts(activation, half_width, units)
        if float((slopes.abs() * half_width + offsets.abs()).max()) <= farthest
        for trial in _trials(function, half_width, activation, slopes, offsets)
    ]
    if not trials:
        raise SettingError(
            f"Units of {own} do not reach across [-{half_width:g}, {half_width:g}]: in a fit their "
            f"arguments would leave [-{farthest:g}, {farthest:g}], half of the domain. Define them "
            "on a larger domain, by low= and high=, or use a smaller box or step size."
        )
    bounded = [trial for trial in trials if trial.largest <= largest]
    trials = bounded or [min(trials, key=lambda trial: trial.largest)]
    rounding = roundoff * LIKELY_ROUNDING
    closest = min(trial.error + rounding * trial.size for trial in trials)
    enough = 2 * closest + CLOSE_ENOUGH / 10
    close = [trial for trial in trials if trial.error + rounding * trial.size <= enough]
    best = min(close, key=lambda trial: trial.size)
    columns = (best.slopes.tolist(), best.offsets.tolist(), best.coefficients.tolist())
    chosen = tuple(RidgeUnit((a,), b, beta) for a, b, beta in zip(*columns, strict=True))
    fit = RidgeSum(function.name, activation, (half_width,), chosen, inf)
    if best.error > most:
        return fit
    return replace(fit, error=proved_error(Profile(function, (half_width,)), fit))


def _layouts(activation: str, half_width: float, units: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the slopes and offsets of the units, in all layouts that are compared."""
    number, own = torch.arange(units, dtype=torch.float64), unit_of(activation).value
    if activation == "cos" or isinstance(own, Function):  # cosines and sines in turn
        for turn in _TURNS:
            yield turn / half_width * (number // 2 + 0.5), -pi / 2 * (number % 2)
    if activation == "cos":
        return
    if activation == "elu":
        for bend in _ELU_BENDS:
            yield _with_constant(bend / half_width, bend, number[1:] // 2, number[1:] % 2)
        return
    sharp = units / half_width  # a unit as wide as the distance to the next but one
    sharpest = (sharp / 4, sharp / 2, sharp) if isinstance(own, Function) else (sharp,)
    for weight, margin in product((*_WEIGHTS, *sharpest), _MARGINS):
        reach = weight * half_width + margin
        for flipped in (number[1:] % 2, torch.zeros_like(number[1:])):
            yield _with_constant(weight, reach, number[1:], flipped)


def _with_constant(
    weight: float, reach: float, place: Tensor, flipped: Tensor
) -> tuple[Tensor, Tensor]:
    """Return units whose centres follow `place` across the reach, and one that is constant."""
    centred = 2 * (place - place[0]) / (place[-1] - place[0]).clamp(min=1) - 1
    slopes = weight * (1 - 2 * flipped)
    zero, one = slopes.new_zeros(1), slopes.new_ones(1)
    return torch.cat([slopes, zero]), torch.cat([reach * centred, one])


def _trials(
    function: ScalarFunction, half_width: float, activation: str, slopes: Tensor, offsets: Tensor
) -> Iterator[_Trial]:
    """Yield solutions with more and more damping, with their errors at other points."""
    units = unit_of(activation)
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


SHIFTS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
"""Largest shifts that are compared; the functions' features are about 1 wide."""

TYPICAL_SHIFT = 0.3
"""The error of r is estimated for this shift."""

MOST_PAIRS = 6
"""The most pairs of directions; with six the quotient's own error is below 1e-10."""

FEWEST_ON_A_LINE = 4
"""With fewer units than this, no layout of them is worth trying."""

POINTS = 40
"""The points of the least squares along s; those along t are at most 0.3 apart."""

FLAT = 64.0
"""Beyond it, and a shift less, built-in smooth activations are within 1e-24 of lines.

So s r'(t) and its quotient, whose factors add up to 0, hardly depend on t there.
"""

MOST_EVALUATIONS = 1e8
"""The most evaluations of units in a proof, about a second; beyond it errors of parts add up."""


@dataclass(frozen=True)
class Quotient:
    """s r'(t) as sum_k factors[k] r(t + shifts[k] s), for |s| <= 1."""

    shifts: tuple[float, ...]
    factors: tuple[float, ...]
    error: float

    @property
    def amplification(self) -> float:
        return sum((abs(factor) for factor in self.factors), 0.0)


@lru_cache(maxsize=256)
def quotient_of(function: ScalarFunction, half_width: float, pairs: int, shift: float) -> Quotient:
    """Fit the difference quotient of 2 `pairs` directions; its error is sampled."""
    near, half_width = shift * chebyshev_points(2 * pairs)[:pairs], _bent(function, half_width)
    n_points = POINTS + ceil(10 * half_width)
    s, t = torch.cartesian_prod(chebyshev_points(POINTS), half_width * chebyshev_points(n_points)).T
    basis = function(t.unsqueeze(-1) + s.unsqueeze(-1) * near)
    basis = basis - function(t.unsqueeze(-1) - s.unsqueeze(-1) * near)
    wanted = (s * function.derivative()(t)).unsqueeze(-1)
    factors = torch.linalg.lstsq(basis, wanted, rcond=1e-15, driver="gelsd").solution
    error = float((basis @ factors - wanted).abs().max())
    one_side, listed = near.tolist(), factors.squeeze(-1).tolist()
    shifts = (*one_side, *(-number for number in one_side))
    return Quotient(shifts, (*listed, *(-number for number in listed)), error)


def _bent(function: ScalarFunction, half_width: float) -> float:
    """Return how far a function may bend; nothing is known of one's own."""
    return half_width if isinstance(function, Function) else min(half_width, FLAT)


def _best_quotient(
    function: ScalarFunction, half_width: float, activation: str, units: int, *, roundoff: float
) -> tuple[Quotient, int]:
    """Return the quotient whose own error and that of its functions add up to the least."""
    found = []
    for pairs in range(1, MOST_PAIRS + 1):
        each = max(units // (2 * pairs), FEWEST_ON_A_LINE)
        line = fit_line(function, half_width + TYPICAL_SHIFT, activation, each, roundoff=roundoff)
        if 2 * pairs * line.n_units > units:
            continue
        error = line.error + roundoff * LIKELY_ROUNDING * line.size
        for shift in SHIFTS:
            quotient = quotient_of(function, half_width, pairs, shift)
            found.append((quotient.error + quotient.amplification * error, quotient, each))
    _, quotient, each = min(found, key=lambda one: one[0])
    return quotient, each


def by_quotient(
    function: ScalarFunction, half_widths: Box, activation: str, units: int, *, roundoff: float
) -> RidgeSum:
    """Fit s r'(t) by the best quotient, with r by units; prove it as a whole if affordable.

        s r'(t) = sum_k factor_k (r(t + shift_k s) - r(t - shift_k s)) + a small rest

    The factors are found by least squares on the box, and r, a function of one variable, is
    replaced by units. Only directions close to (0, 1) occur; with directions all around the plane,
    200 units come only within 1e-4. Where r itself is the activation, a unit for each direction is
    enough.

    More directions make the quotient's own error small, more units that of r; larger shifts make
    the factors small, by which the latter is multiplied. All combinations are compared.
    """
    size, half_width = half_widths
    quotient, each = _best_quotient(function, half_width, activation, units, roundoff=roundoff)
    reach = half_width + max(quotient.shifts)
    steepest = size * max(abs(factor) for factor in quotient.factors)
    line = fit_line(
        function, reach, activation, each, LARGEST_COEFFICIENT / max(steepest, 1.0), roundoff
    )
    parts = [
        line.along((shift / size, 1.0), size * factor)
        for shift, factor in zip(quotient.shifts, quotient.factors, strict=True)
    ]
    target = Profile(function.derivative(), half_widths)
    fit = joined(slope_product(f"{function.name}'"), half_widths, parts, target)
    if (proved := proved_error(target, fit, MOST_EVALUATIONS)) < inf:
        return replace(fit, error=proved)
    own = size * _proved_quotient(function, half_width, quotient)
    return replace(fit, error=own + fit.error + rounding(target, fit))


def _proved_quotient(function: ScalarFunction, half_width: float, quotient: Quotient) -> float:
    """Return the error of a quotient of the function itself, proved on |s| <= 1."""
    half_width = _bent(function, half_width)
    unit = fit_line(function, half_width, function.name, 1)
    parts = [
        unit.along((shift, 1.0), factor)
        for shift, factor in zip(quotient.shifts, quotient.factors, strict=True)
    ]
    box = (1.0, half_width)
    target = Profile(function.derivative(), box)
    return proved_error(target, joined(function.name, box, parts, target)) + 1e-24 * (
        1 + quotient.amplification
    )


# Functions of one and two variables by sums of any activation over few directions.
#
# What descent needs of two variables is made of functions of one variable:
#
#     a b      = ((a + b)^2 - (a - b)^2) / 4
#     s r'(t)  = sum_k factor_k (r(t + shift_k s) - r(t - shift_k s)) + a small rest
#     u(p, y)  = the sum of a loss's `slope_parts`
#
# The second is the difference quotient above. Where r has kinks, r' jumps, and only units that bend
# like relu can follow.


FEWEST_UNITS = 8
"""Two directions with four units each: with fewer, some activations have no fit at all."""

MOST_UNITS = 3200
"""Where a search for the number of units gives up, after nine doublings of the fewest."""

PRODUCT = "a b"
"""The name of the sum of units that multiplies."""


def fit_ridge_sum(
    function: ScalarFunction,
    half_width: float,
    activation: str,
    units: int,
    *,
    roundoff: float = DOUBLE_ROUNDOFF,
) -> RidgeSum:
    """Fit `function` on [-half_width, half_width] by at most `units` units.

    `roundoff` is the unit roundoff of the arithmetic that will evaluate the sum: in a coarse one,
    small coefficients are worth some error. That holds for all fits below.
    """
    check_box((half_width,), activation, units)
    return fit_line(function, half_width, activation, units, roundoff=roundoff)


def fit_product(
    half_widths: Box, activation: str, units: int, *, roundoff: float = DOUBLE_ROUNDOFF
) -> RidgeSum:
    """Return the product a b on |a| <= half_widths[0], |b| <= half_widths[1].

    With u = a / A + b / B and v = a / A - b / B, a b = A B (u^2 - v^2) / 4.
    """
    check_box(half_widths, activation, units)
    first, second = half_widths
    factor = first * second / 4
    largest = LARGEST_COEFFICIENT / max(factor, 1.0)
    line = fit_line(SQUARE, 2.0, activation, units // 2, largest, roundoff)
    parts = [line.along((1 / first, sign / second), sign * factor) for sign in (1.0, -1.0)]
    return joined(PRODUCT, half_widths, parts, Profile(IDENTITY_FUNCTION, half_widths))


def fit_slope_product(
    function: ScalarFunction,
    half_widths: Box,
    activation: str,
    units: int,
    *,
    roundoff: float = DOUBLE_ROUNDOFF,
    kink_width: float = KINK_WIDTH,
) -> RidgeSum:
    """Fit s r'(t) on |s| <= half_widths[0], |t| <= half_widths[1], where r is `function`.

    If r has kinks, the fit has a band of `kink_width` on either side of each, where its error is
    as large as the jump of the slope.
    """
    check_box(half_widths, activation, units)
    power_of_two("kink_width", kink_width)
    if function.kind == "smooth":
        return by_quotient(function, half_widths, activation, units, roundoff=roundoff)
    if not is_kinked(function):
        known = [kind.__name__ for kind in (KinkedFunction, SmoothFunction)]
        raise UnknownNameError.of("kind of function", type(function).__name__, known=known)
    if not function.knots:  # s times a constant
        line = fit_line(IDENTITY_FUNCTION, half_widths[0], activation, units, roundoff=roundoff)
        parts = [line.along((1.0, 0.0), function.slopes[0])]
        target = Profile(function.derivative(), half_widths)
        return joined(slope_product(f"{function.name}'"), half_widths, parts, target)
    if not unit_activation_named(activation).bends:
        raise SettingError(
            f"s {function.name}'(t) jumps where {function.name} has a kink, and {activation} units "
            f"have no kink to put there. Use units of {', '.join(bending_activations())}, or a "
            f"smooth activation in place of {function.name}, such as softplus."
        )
    return kinked_slope(function, half_widths, activation, kink_width)


def fit_loss_slope(
    loss: Loss, half_widths: Box, activation: str, units: int, *, roundoff: float = DOUBLE_ROUNDOFF
) -> RidgeSum:
    """Fit u(p, y) = d loss / d p on |p| <= half_widths[0], |y| <= half_widths[1]."""
    check_box(half_widths, activation, units)
    if loss.slope_parts is None:
        raise SettingError(
            f"The slope of the {loss.name} loss couples all outputs; it is no sum of functions of "
            "one variable. Use squared, logistic or huber."
        )
    each, parts = units // len(loss.slope_parts), []
    for part in loss.slope_parts:
        axis = (part.prediction, part.label)
        sides = zip(axis, half_widths, strict=True)
        reach = sum((abs(entry) * width for entry, width in sides), 0.0)
        line = fit_line(part.function, reach, activation, each, roundoff=roundoff)
        parts.append(line.along(axis, 1.0))
    return joined(
        f"slope of {loss.name}", half_widths, parts, Profile(IDENTITY_FUNCTION, half_widths)
    )


def check_box(half_widths: Sequence[float], activation: str, units: int) -> None:
    """Raise unless the sides are positive, the activation known and the units within limits."""
    for half_width in half_widths:
        positive("half_width", half_width)
    unit_activation_named(activation)
    count("units", units, least=FEWEST_UNITS, most=MOST_UNITS)


def accurate(
    fit_with: Callable[[int], RidgeSum],
    units: int,
    accuracy: float,
    error_of: Callable[[RidgeSum], float] = lambda fit: fit.error,
) -> RidgeSum:
    """Fit by `units` units; raise `SettingError` if the proved error exceeds `accuracy`."""
    fit = fit_with(units)
    if error_of(fit) <= positive("accuracy", accuracy):
        return fit
    enough = None
    if error_of(fit_with(MOST_UNITS)) <= accuracy:
        tried = sorted({min(2**doublings * units, MOST_UNITS) for doublings in range(1, 10)})
        enough = next(more for more in tried if error_of(fit_with(more)) <= accuracy)
    box = " x ".join(f"[{-width:g}, {width:g}]" for width in fit.half_widths)
    hint = f"About {enough} would do; or" if enough else f"Even {MOST_UNITS} would not do:"
    raise SettingError(
        f"The box {box} is too large for {units} {fit.activation} units: the error of {fit.name} "
        f"would be {error_of(fit):.3g}, above accuracy={accuracy:g}. {hint} use a smaller box."
    )


NAME = "z where flagged"


def fit_gate(
    reach: float, activation: str, units: int, *, roundoff: float = DOUBLE_ROUNDOFF
) -> RidgeSum:
    """Fit z where `flag` is 1, and 0 where it is 0, for |z| <= reach; z comes first.

    With M >= 2 |z| and a flag of 0 or 1,

        z flag = relu(z + M (flag - 1)) - relu(-z + M (flag - 1)),

    because both relus are off where the flag is 0. Units that do not bend take the product of flag
    and z / reach instead; where the flag is 0, its two squares are equal and cancel.

    The error holds for these two values of the flag.
    """
    half_widths = (reach, 1.0)
    check_box(half_widths, activation, units)
    if unit_activation_named(activation).bends:
        off = 2.0 ** (1 + ceil(log2(reach)))
        relus = [RidgeUnit((sign, off), -off, sign) for sign in (1.0, -1.0)]
        return by_bends(NAME, activation, half_widths, relus)
    product = fit_product((1.0, 1.0), activation, units, roundoff=roundoff)
    scaled = tuple(
        RidgeUnit((of_number / reach, of_flag), unit.offset, reach * unit.coefficient)
        for unit in product.units
        for of_number, of_flag in [unit.direction]
    )
    fit = RidgeSum(NAME, activation, half_widths, scaled, reach * product.error)
    return replace(fit, error=fit.error + rounding(Profile(IDENTITY_FUNCTION, half_widths), fit))
