r"""Fit functions of one and two variables by sums of units of any activation, with a proved error.

In this order: the proof of an error, sums of relus by units that bend like relu, functions of one
variable, the product s r'(t), and the functions of two variables that gradient descent needs.
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
"""N / n in `proved_error`; 3 makes the factor 1 / cos(pi / 6) = 1.155, more points cost time."""

MOST_PANELS = 1e6
"""The largest number of panels along one argument; nearly kinked units would need far more."""

LONGEST_PROOF = 7e8
"""The largest number of evaluations of units in a proof, 10 to 20 seconds."""

NUMBERS_AT_ONCE = 2**22
"""The largest number of units times points per evaluation, which bounds memory."""

TAIL = 1e-18
"""r^-n in `proved_error`, below rounding even with coefficients of size 1e3."""

DOUBLE_ROUNDOFF = 2.0**-53
"""The unit roundoff of float64; that of float32 is 2^-24."""

_ULPS = 8.0  # rounding of one evaluation of an activation or a function, in units of its size


Box = tuple[float, float]
"""Half-widths of a box in two variables."""


@dataclass(frozen=True)
class Profile:
    """The target of a proof on a box: a function of t, or s times a function of t."""

    function: ScalarFunction
    half_widths: tuple[float, ...]

    def __call__(self, z: Tensor) -> Tensor:
        value = self.function(z[..., -1])
        return value if len(self.half_widths) == 1 else z[..., 0] * value

    def strip(self) -> Strip:
        """Return a strip of analyticity in each argument, the other one being real."""
        strip = strip_of(self.function)
        if len(self.half_widths) == 1:
            return strip
        width = self.half_widths[0]
        return Strip(strip.height, lambda reach: (width + strip.height) * strip.size(reach))

    def kinks(self) -> tuple[float, ...]:
        return self.function.knots


def strip_of(function: ScalarFunction) -> Strip:
    """Return the strip around the real line in which a function is analytic, and its size there."""
    name = function.name
    if is_kinked(function):
        # Panels end at kinks, so on each panel the function is a line, which is entire.
        steepest = max(abs(slope) for slope in function.slopes)
        at_zero = float(function(torch.zeros(1, dtype=torch.float64)).abs())
        return Strip(2.0, lambda reach: at_zero + 3 * steepest * (reach + 2.0))
    if isinstance(function, Function):
        return strip_of_text(function)
    if not isinstance(function, SmoothFunction):
        supported = [kind.__name__ for kind in (KinkedFunction, SmoothFunction)]
        raise UnknownNameError.of("kind of function", type(function).__name__, known=supported)
    if name == "square":
        return Strip(2.0, lambda reach: reach**2 + 4.0)
    if name.endswith("'") and name[:-1] in UNIT_ACTIVATIONS:
        # Cauchy's estimate for the derivative, with circles of radius half the height.
        strip = UNIT_ACTIVATIONS[name[:-1]].strip
        half = strip.height / 2
        return Strip(half, lambda reach: strip.size(reach + half) / half)
    if name in UNIT_ACTIVATIONS:
        return UNIT_ACTIVATIONS[name].strip
    return strip_of_text(function)


def unit_of(name: str) -> UnitActivation:
    """Return the unit activation of this name; proofs also take any analytic function."""
    if name in UNIT_ACTIVATIONS:
        return UNIT_ACTIVATIONS[name]
    function = function_named(name)
    return own_unit(function) if isinstance(function, Function) else unit_activation_named(name)


@dataclass(frozen=True)
class Units:
    """The units of a ridge sum as tensors."""

    activation: UnitActivation
    directions: Tensor
    offsets: Tensor
    coefficients: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        return self.activation(z @ self.directions.T + self.offsets) @ self.coefficients


def units_of(fit: RidgeSum, dtype: torch.dtype = torch.float64) -> Units:
    """Return the units of `fit` as tensors; their call takes points along the last axis."""
    width = len(fit.half_widths)
    return Units(
        unit_of(fit.activation),
        torch.tensor([unit.direction for unit in fit.units], dtype=dtype).reshape(-1, width),
        torch.tensor([unit.offset for unit in fit.units], dtype=dtype),
        torch.tensor([unit.coefficient for unit in fit.units], dtype=dtype),
    )


def proved_error(target: Profile, fit: RidgeSum, most: float = inf) -> float:
    """Bound |target - fit| on the box; return infinity if a proof would take too long.

    The gap g is analytic in a strip of half-height y around a panel of half-width q. So some
    polynomial of degree n differs from g on the panel by at most

        tail = 2 M r^-n / (r - 1),    r = y / q + sqrt(1 + (y / q)^2),

    where M bounds |g| in the strip (Bernstein). The maximum of that polynomial on the panel is at
    most 1 / cos(pi n / 2N) times its maximum at N Chebyshev points (Ehlich and Zeller), so

        max |g| <= (max over the points of |g| + tail) / cos(pi n / 2N) + tail.

    Panels end at the kinks of units and function, so both are analytic on each panel. Two variables
    are treated one after the other, with the other one real. The rounding of every evaluation is
    added.

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
    name: str, half_widths: tuple[float, ...], terms: Sequence[RidgeSum], target: Profile
) -> RidgeSum:
    """Concatenate several sums; add their errors, and the rounding of their numbers if inexact."""
    units = tuple(unit for term in terms for unit in term.units)
    fit = RidgeSum(name, terms[0].activation, half_widths, units, inf)
    error = sum((term.error for term in terms), 0.0)
    return replace(fit, error=error + rounding(target, fit) if error else 0.0)


@dataclass(frozen=True)
class _Axis:
    """Points along one argument, the half-height of its strip, and the factors of the bound."""

    points: Tensor
    height: float
    amplification: float
    tail: float


def _axes(target: Profile, units: Units) -> tuple[_Axis, ...]:
    """Return the points at which function and units are compared; none if they are too many.

    In two variables units must be analytic, because their kinks are lines that cross panels.
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
        # Cut the interval at kinks, and into panels of a half-width of at most height / 2.
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
    """Return Chebyshev points of all panels, the amplification, and the tail for |g| <= 1."""
    widest = max(high - low for low, high in panels) / 2
    r = height / widest + hypot(1, height / widest)
    degree = max(ceil(-log(TAIL) / log(r)), 1)
    on_unit_panel = chebyshev_points(POINTS_PER_DEGREE * degree)
    ends = torch.tensor(panels, dtype=torch.float64)
    points = ends.mean(1, keepdim=True) + (ends[:, 1:] - ends[:, :1]) / 2 * on_unit_panel
    amplification = 1 / cos(pi / (2 * POINTS_PER_DEGREE))
    return _Axis(points.flatten(), height, amplification, 2 * TAIL / (r - 1))


def _largest_gap(target: Profile, units: Units, axes: Sequence[Tensor]) -> float:
    """Return the largest |target - sum| at all points of the axes, in slices of bounded memory."""
    *others, last = axes
    chunks = last.split(max(1, NUMBERS_AT_ONCE // max(len(units.offsets), 1)))
    slices = (chunk.unsqueeze(-1) for chunk in chunks)
    if others:
        slices = (torch.cartesian_prod(s.reshape(1), chunk) for s in others[0] for chunk in chunks)
    return max(float((target(z) - units(z)).abs().max()) for z in slices)


def _size_in_strip(target: Profile, units: Units, heights: Sequence[float]) -> float:
    """Bound |target - sum| for one argument in its strip and the other one real."""
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
    """Bound the rounding errors of the computed values of both sum and function in float64."""
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
    """Bound max(|f|, 1), with room for its rounding, and |f'| on [-reach, reach]."""
    if isinstance(activation.value, Function):
        least, most = activation.value.bounds(-reach, reach)
        largest = torch.maximum(-least, most).clamp(min=1.0)
        return (1 + activation.ulps / _ULPS) * largest, activation.value.lipschitz(-reach, reach)
    ends = torch.stack([activation(reach), activation(-reach)]).abs().amax(0)
    # Built-in activations attain their maximum on an interval at one of its ends, or are below 1.
    return ends.clamp(min=1.0), torch.full_like(reach, STEEPEST_UNIT)


# Sums of relus by any activation that bends like relu.
#
# Such an activation f satisfies |f - relu| <= c = `off_relu` everywhere. So f(beta z) / beta
# differs from relu(z) by at most c / beta, and a sum of relus with coefficients a_m is met within
# c sum |a_m| / beta. A large beta does no harm, because rounding is relative to the argument.
#
# The slope of a piecewise-linear r jumps at its knots. With |s| <= S and steep >= S / kink_width,
#
#     s r'(t) = slope_0 s + sum_k jump_k (relu(s + steep (t - knot_k)) - relu(steep (t - knot_k)))
#
# if t is at least kink_width away from all knots. Closer to a knot, a difference of relus lies
# between 0 and s, so its error is at most |jump_k| S. The absolute values of the jumps are moved
# into the relus, and |jump_k| steep is rounded up to a power of two, so that products are exact.


KINK_WIDTH = 2.0**-13
"""Default width of the band on either side of a kink. Fewer arguments lie in a narrower band, but
the units of s r'(t) lose |t| / width units of rounding everywhere: 1e-12 |t| here."""

SHARPNESS = 2.0**40
"""beta on a box of size 1: the error is 1e-12, and float32 still holds 2^88 times the arguments."""


def by_bends(
    name: str, activation: str, half_widths: tuple[float, ...], relus: Sequence[RidgeUnit]
) -> RidgeSum:
    """Convert a sum of relus to units that bend like relu; it is exact if they are relus."""
    unit, sharpness = unit_activation_named(activation), 1.0
    if unit.off_relu:  # a power of two, larger for a small box
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
    """Fit a function by `pieces` lines, which are exact if the function is piecewise linear."""
    fit = fit_relu_sum(function, -half_width, half_width, pieces)
    relus = [RidgeUnit((term.scale,), term.shift, term.coefficient) for term in fit.terms()]
    by_units = by_bends(function.name, activation, (half_width,), relus)
    return replace(by_units, error=by_units.error + fit.error)


def kinked_slope(
    function: KinkedFunction | Function,
    half_widths: tuple[float, float],
    activation: str,
    kink_width: float,
) -> RidgeSum:
    """Fit s r'(t), r = `function`, with a band of `kink_width` on either side of every knot.

    A run loses about |t| S / kink_width units of rounding, which `size` accounts for.
    """
    size, _ = half_widths
    first = function.slopes[0]
    relus = [RidgeUnit((sign, 0.0), 0.0, sign * first) for sign in (1.0, -1.0) if first]
    sides = zip(function.knots, pairwise(function.slopes), strict=True)
    jumps = [(knot, after - before) for knot, (before, after) in sides if after != before]
    for knot, jump in jumps:  # add jump * s to the right of the knot, and 0 to the left
        steep, sign = 2.0 ** ceil(log2(abs(jump) * size)) / kink_width, copysign(1.0, jump)
        relus += [
            RidgeUnit((abs(jump), steep), -steep * knot, sign),
            RidgeUnit((0.0, steep), -steep * knot, -sign),
        ]
    fit = by_bends(slope_product(f"{function.name}'"), activation, half_widths, relus)
    bands = []
    for knot, _ in jumps:  # the errors of jumps whose bands overlap add up
        overlapping = (abs(jump) for other, jump in jumps if abs(other - knot) <= 2 * kink_width)
        error = size * sum(overlapping, 0.0) + fit.error
        bands.append(Band(knot - kink_width, knot + kink_width, error))
    return replace(fit, bands=tuple(bands))


LARGEST_COEFFICIENT = 1e3
"""The limit on coefficients, because rounding errors of a run are proportional to them."""

ENOUGH_UNITS = 96
"""The units to try first on one interval; more only if the error exceeds `CLOSE_ENOUGH`."""

MOST_ON_A_LINE = 400
"""The most units on one interval: a fit costs their cube, and only elu gains from so many."""

LIKELY_ROUNDING = 1 / 8
"""The typical rounding error relative to its bound, because signs differ."""

CLOSE_ENOUGH = 1e-11
"""An error comparable to the rounding in float64 with coefficients of size 10."""

_ODD_PART_IS_A_LINE = ("softplus", "gelu", "silu")
_DAMPING = tuple(10.0**-digits for digits in range(16, 3, -1))
_WEIGHTS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.5)  # slopes; the units are as wide as the features
_MARGINS = (0.0, 2.0, 4.0)  # arguments of the outermost units at the ends of the interval
_TURNS = (
    0.5,
    1.0,
    2.0,
    3.0,
)  # frequency step times half-width; below pi, so the period exceeds the interval
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
    """Fit `function` on [-half_width, half_width] by at most about `units` units.

    The fit is least squares at Chebyshev points over units spread evenly across the interval, for
    several slopes of the units, with just enough damping of small singular values to keep the
    coefficients small. If an identity gives the function exactly, such as softplus(z) -
    softplus(-z) = z, use it instead. relu units use the free knots of `relu_sum`, as do units that
    bend like relu for piecewise-linear functions.

    `roundoff` is the unit roundoff of the arithmetic that will evaluate the sum. In coarse
    arithmetic the choice trades accuracy of the fit for small coefficients.
    """
    exact = _exact_units(function, half_width, activation)
    if exact:
        return RidgeSum(function.name, activation, (half_width,), exact, 0.0)
    if is_kinked(function) and unit_of(activation).bends:
        return fit_bends(function, half_width, activation)
    if activation == "relu":
        return fit_bends(function, half_width, activation, units - 1)
    if half_width != 1.0 and _is_multiple_of_identity(function):
        # Saturating units spread over a wide interval fit a line badly: scale the fit on [-1, 1].
        line = fit_line(function, 1.0, activation, units, largest, roundoff)
        wide = replace(line.along((1 / half_width,), half_width), half_widths=(half_width,))
        return replace(wide, error=wide.error + rounding(Profile(function, (half_width,)), wide))

    def total_error(fit: RidgeSum) -> float:
        """Return the error of a fit plus its likely rounding error in a run."""
        return fit.error + roundoff * LIKELY_ROUNDING * fit.size

    bends, most = None, inf
    if unit_of(activation).bends:  # pieces of lines are better on a wide interval
        bends = fit_bends(function, half_width, activation, units - 1)
        most = max(total_error(bends), CLOSE_ENOUGH)
        if half_width > units:  # evenly spread units are farther apart than features are wide
            return bends
    fits = []
    for n_units in sorted({min(units, ENOUGH_UNITS), min(units, MOST_ON_A_LINE)}):
        fit = _least_squares(function, half_width, activation, n_units, largest, roundoff, most)
        if n_units <= ENOUGH_UNITS and fit.error <= max(CLOSE_ENOUGH, roundoff * fit.size):
            return fit
        fits.append(fit)
    return min([*fits, bends] if bends else fits, key=total_error)


def _exact_units(
    function: ScalarFunction, half_width: float, activation: str
) -> tuple[RidgeUnit, ...]:
    """Return units whose sum is the function exactly; none if there is no such identity."""
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
    """A candidate for a fit: units with their sampled error and the size of their numbers."""

    slopes: Tensor
    offsets: Tensor
    coefficients: Tensor
    error: float
    size: float

    @property
    def largest(self) -> float:
        return float(self.coefficients.abs().max())


@lru_cache(maxsize=128)  # searches for the number of units repeat fits
def _least_squares(
    function: ScalarFunction,
    half_width: float,
    activation: str,
    units: int,
    largest: float,
    roundoff: float,
    most: float,
) -> RidgeSum:
    """Return the fit with the smallest coefficients among those about as accurate as the best.

    If the sampled error exceeds `most`, skip the proof: the error is then infinite.
    """
    unit_value = unit_of(activation).value
    # Keep arguments within half the domain of a unit, because proofs evaluate units beyond the
    # interval.
    farthest = inf
    if isinstance(unit_value, Function):
        farthest = min(-unit_value.low, unit_value.high) / 2
    trials = [
        trial
        for slopes, offsets in _layouts(activation, half_width, units)
        if float((slopes.abs() * half_width + offsets.abs()).max()) <= farthest
        for trial in _trials(function, half_width, activation, slopes, offsets)
    ]
    if not trials:
        raise SettingError(
            f"Units of {unit_value} cannot cover [-{half_width:g}, {half_width:g}]: in a fit their "
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
    """Yield the slopes and offsets of the units in each layout to be compared."""
    number, unit_value = torch.arange(units, dtype=torch.float64), unit_of(activation).value
    is_function = isinstance(unit_value, Function)
    if activation == "cos" or is_function:  # alternate cosines and sines
        for turn in _TURNS:
            yield turn / half_width * (number // 2 + 0.5), -pi / 2 * (number % 2)
    if activation == "cos":
        return
    if activation == "elu":
        for bend in _ELU_BENDS:
            yield _with_constant(bend / half_width, bend, number[1:] // 2, number[1:] % 2)
        return
    sharp = units / half_width  # units twice as wide as their distance
    sharpest = (sharp / 4, sharp / 2, sharp) if is_function else (sharp,)
    for weight, margin in product((*_WEIGHTS, *sharpest), _MARGINS):
        reach = weight * half_width + margin
        for flipped in (number[1:] % 2, torch.zeros_like(number[1:])):
            yield _with_constant(weight, reach, number[1:], flipped)


def _with_constant(
    weight: float, reach: float, place: Tensor, flipped: Tensor
) -> tuple[Tensor, Tensor]:
    """Return units with centres spaced like `place` across the reach, and a constant unit."""
    centred = 2 * (place - place[0]) / (place[-1] - place[0]).clamp(min=1) - 1
    slopes = weight * (1 - 2 * flipped)
    zero, one = slopes.new_zeros(1), slopes.new_ones(1)
    return torch.cat([slopes, zero]), torch.cat([reach * centred, one])


def _trials(
    function: ScalarFunction, half_width: float, activation: str, slopes: Tensor, offsets: Tensor
) -> Iterator[_Trial]:
    """Yield the solutions for increasing damping, with errors at points other than those fitted."""
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
"""Candidates for the largest shift; features of the functions are about 1 wide."""

TYPICAL_SHIFT = 0.3
"""The shift for which the error of r is estimated."""

MOST_PAIRS = 6
"""The largest number of pairs of directions; the quotient's own error is then below 1e-10."""

FEWEST_ON_A_LINE = 4
"""The fewest units of a fit on one interval."""

POINTS = 40
"""The number of points along s in least squares; points along t are at most 0.3 apart."""

FLAT = 64.0
"""Beyond this minus a shift, built-in smooth activations differ from lines by less than 1e-24.

So s r'(t) and its quotient, whose factors add up to 0, hardly depend on t there.
"""

MOST_EVALUATIONS = 1e8
"""The most evaluations of units in a proof of the whole sum, about a second; otherwise the errors
of its terms are added."""


@dataclass(frozen=True)
class Quotient:
    """The difference quotient sum_k factors[k] r(t + shifts[k] s) ~ s r'(t) for |s| <= 1."""

    shifts: tuple[float, ...]
    factors: tuple[float, ...]
    error: float

    @property
    def amplification(self) -> float:
        return sum((abs(factor) for factor in self.factors), 0.0)


@lru_cache(maxsize=256)
def quotient_of(function: ScalarFunction, half_width: float, pairs: int, shift: float) -> Quotient:
    """Fit the difference quotient in 2 * `pairs` directions; its error is sampled, not proved."""
    positive_shifts, half_width = (
        shift * chebyshev_points(2 * pairs)[:pairs],
        _bent(function, half_width),
    )
    n_points = POINTS + ceil(10 * half_width)
    s, t = torch.cartesian_prod(chebyshev_points(POINTS), half_width * chebyshev_points(n_points)).T
    basis = function(t.unsqueeze(-1) + s.unsqueeze(-1) * positive_shifts)
    basis = basis - function(t.unsqueeze(-1) - s.unsqueeze(-1) * positive_shifts)
    target = (s * function.derivative()(t)).unsqueeze(-1)
    factors = torch.linalg.lstsq(basis, target, rcond=1e-15, driver="gelsd").solution
    error = float((basis @ factors - target).abs().max())
    one_side, listed = positive_shifts.tolist(), factors.squeeze(-1).tolist()
    shifts = (*one_side, *(-number for number in one_side))
    return Quotient(shifts, (*listed, *(-number for number in listed)), error)


def _bent(function: ScalarFunction, half_width: float) -> float:
    """Return the half-width of the range in which a function may be nonlinear."""
    return half_width if isinstance(function, Function) else min(half_width, FLAT)


def _best_quotient(
    function: ScalarFunction, half_width: float, activation: str, units: int, *, roundoff: float
) -> tuple[Quotient, int]:
    """Return the quotient with the smallest total error, and the units for each direction."""
    candidates = []
    for pairs in range(1, MOST_PAIRS + 1):
        n_units = max(units // (2 * pairs), FEWEST_ON_A_LINE)
        reach = half_width + TYPICAL_SHIFT
        line = fit_line(function, reach, activation, n_units, roundoff=roundoff)
        if 2 * pairs * line.n_units > units:
            continue
        error = line.error + roundoff * LIKELY_ROUNDING * line.size
        for shift in SHIFTS:
            quotient = quotient_of(function, half_width, pairs, shift)
            total = quotient.error + quotient.amplification * error
            candidates.append((total, quotient, n_units))
    _, quotient, n_units = min(candidates, key=lambda candidate: candidate[0])
    return quotient, n_units


def by_quotient(
    function: ScalarFunction, half_widths: Box, activation: str, units: int, *, roundoff: float
) -> RidgeSum:
    """Fit s r'(t) by the best difference quotient, with r by units of the activation.

        s r'(t) = sum_k factor_k (r(t + shift_k s) - r(t - shift_k s)) + a small remainder

    The factors are found by least squares on the box, and r, a function of one variable, is
    replaced by units. All directions are close to (0, 1): with directions spread over the plane the
    error of 200 units is 1e-4. If r itself is the activation, one unit per direction suffices.

    More directions reduce the error of the quotient, more units that of r, and larger shifts the
    factors that multiply the latter. All combinations are compared. The error is proved for the
    whole sum if that is affordable, and otherwise added up.
    """
    size, half_width = half_widths
    quotient, n_units = _best_quotient(function, half_width, activation, units, roundoff=roundoff)
    reach = half_width + max(quotient.shifts)
    steepest = size * max(abs(factor) for factor in quotient.factors)
    line = fit_line(
        function, reach, activation, n_units, LARGEST_COEFFICIENT / max(steepest, 1.0), roundoff
    )
    terms = [
        line.along((shift / size, 1.0), size * factor)
        for shift, factor in zip(quotient.shifts, quotient.factors, strict=True)
    ]
    target = Profile(function.derivative(), half_widths)
    fit = joined(slope_product(f"{function.name}'"), half_widths, terms, target)
    if (proved := proved_error(target, fit, MOST_EVALUATIONS)) < inf:
        return replace(fit, error=proved)
    of_quotient = size * _proved_quotient(function, half_width, quotient)
    return replace(fit, error=of_quotient + fit.error + rounding(target, fit))


def _proved_quotient(function: ScalarFunction, half_width: float, quotient: Quotient) -> float:
    """Return a proved bound on the error of a quotient of the function itself, for |s| <= 1."""
    half_width = _bent(function, half_width)
    unit = fit_line(function, half_width, function.name, 1)
    terms = [
        unit.along((shift, 1.0), factor)
        for shift, factor in zip(quotient.shifts, quotient.factors, strict=True)
    ]
    box = (1.0, half_width)
    target = Profile(function.derivative(), box)
    fit = joined(function.name, box, terms, target)
    # The second term covers |t| > FLAT, where the function is within 1e-24 of a line.
    return proved_error(target, fit) + 1e-24 * (1 + quotient.amplification)


# Functions of one and two variables by sums of any activation over few directions.
#
# The functions of two variables in gradient descent reduce to functions of one variable:
#
#     a b      = ((a + b)^2 - (a - b)^2) / 4
#     s r'(t)  = sum_k factor_k (r(t + shift_k s) - r(t - shift_k s)) + a small remainder
#     u(p, y)  = the sum of a loss's `slope_terms`
#
# The second is the difference quotient above. If r has kinks, r' jumps, which only units that bend
# like relu can fit.


FEWEST_UNITS = 8
"""Two directions with four units each; with fewer, some activations have no fit at all."""

MOST_UNITS = 3200
"""The largest number of units of a search, after nine doublings of the fewest."""

PRODUCT = "a b"
"""The name of the sum of units that fits the product."""


def fit_ridge_sum(
    function: ScalarFunction,
    half_width: float,
    activation: str,
    units: int,
    *,
    roundoff: float = DOUBLE_ROUNDOFF,
) -> RidgeSum:
    """Fit `function` on [-half_width, half_width] by at most `units` units.

    `roundoff`, here and in all fits below, is the unit roundoff of the arithmetic that will
    evaluate the sum: see `fit_line`.
    """
    check_box((half_width,), activation, units)
    return fit_line(function, half_width, activation, units, roundoff=roundoff)


def fit_product(
    half_widths: Box, activation: str, units: int, *, roundoff: float = DOUBLE_ROUNDOFF
) -> RidgeSum:
    """Fit the product a b on |a| <= half_widths[0], |b| <= half_widths[1].

    With u = a / A + b / B and v = a / A - b / B, a b = A B (u^2 - v^2) / 4.
    """
    check_box(half_widths, activation, units)
    first, second = half_widths
    factor = first * second / 4
    largest = LARGEST_COEFFICIENT / max(factor, 1.0)
    line = fit_line(SQUARE, 2.0, activation, units // 2, largest, roundoff)
    squares = [line.along((1 / first, sign / second), sign * factor) for sign in (1.0, -1.0)]
    return joined(PRODUCT, half_widths, squares, Profile(IDENTITY_FUNCTION, half_widths))


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

    If r has kinks, the fit has a band of `kink_width` on either side of each, in which the error is
    as large as the jump of the slope.
    """
    check_box(half_widths, activation, units)
    power_of_two("kink_width", kink_width)
    if function.kind == "smooth":
        return by_quotient(function, half_widths, activation, units, roundoff=roundoff)
    if not is_kinked(function):
        supported = [kind.__name__ for kind in (KinkedFunction, SmoothFunction)]
        raise UnknownNameError.of("kind of function", type(function).__name__, known=supported)
    if not function.knots:  # s times a constant
        line = fit_line(IDENTITY_FUNCTION, half_widths[0], activation, units, roundoff=roundoff)
        multiple = line.along((1.0, 0.0), function.slopes[0])
        target = Profile(function.derivative(), half_widths)
        return joined(slope_product(f"{function.name}'"), half_widths, [multiple], target)
    if not unit_activation_named(activation).bends:
        raise SettingError(
            f"s {function.name}'(t) jumps where {function.name} has a kink, and {activation} units "
            f"cannot fit a jump. Use units of {', '.join(bending_activations())}, or a smooth "
            f"activation in place of {function.name}, such as softplus."
        )
    return kinked_slope(function, half_widths, activation, kink_width)


def fit_loss_slope(
    loss: Loss, half_widths: Box, activation: str, units: int, *, roundoff: float = DOUBLE_ROUNDOFF
) -> RidgeSum:
    """Fit u(p, y) = d loss / d p on |p| <= half_widths[0], |y| <= half_widths[1]."""
    check_box(half_widths, activation, units)
    if loss.slope_terms is None:
        raise SettingError(
            f"The slope of the {loss.name} loss is not a sum of functions of one variable. Use "
            "squared, logistic or huber."
        )
    n_units, terms = units // len(loss.slope_terms), []
    for term in loss.slope_terms:
        axis = (term.prediction, term.label)
        sides = zip(axis, half_widths, strict=True)
        reach = sum((abs(entry) * width for entry, width in sides), 0.0)
        line = fit_line(term.function, reach, activation, n_units, roundoff=roundoff)
        terms.append(line.along(axis, 1.0))
    return joined(
        f"slope of {loss.name}", half_widths, terms, Profile(IDENTITY_FUNCTION, half_widths)
    )


def check_box(half_widths: Sequence[float], activation: str, units: int) -> None:
    """Raise unless half-widths are positive, the activation exists and `units` is in range."""
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
        larger = sorted({min(2**doublings * units, MOST_UNITS) for doublings in range(1, 10)})
        enough = next(more for more in larger if error_of(fit_with(more)) <= accuracy)
    box = " x ".join(f"[{-width:g}, {width:g}]" for width in fit.half_widths)
    remedy = f"Use about {enough} units, or" if enough else f"Even {MOST_UNITS} do not suffice:"
    raise SettingError(
        f"The box {box} is too large for {units} {fit.activation} units: the error of {fit.name} "
        f"would be {error_of(fit):.3g}, above accuracy={accuracy:g}. {remedy} use a smaller box."
    )


NAME = "z where flagged"


def fit_gate(
    reach: float, activation: str, units: int, *, roundoff: float = DOUBLE_ROUNDOFF
) -> RidgeSum:
    """Fit (z, flag) -> z * flag for |z| <= reach and a flag of 0 or 1.

    With M >= 2 |z|,

        z flag = relu(z + M (flag - 1)) - relu(-z + M (flag - 1)),

    because both relus are off if the flag is 0. Units that do not bend like relu use the product of
    flag and z / reach instead; if the flag is 0, its two squares are equal and cancel.
    """
    half_widths = (reach, 1.0)
    check_box(half_widths, activation, units)
    if unit_activation_named(activation).bends:
        gate = 2.0 ** (1 + ceil(log2(reach)))
        relus = [RidgeUnit((sign, gate), -gate, sign) for sign in (1.0, -1.0)]
        return by_bends(NAME, activation, half_widths, relus)
    product = fit_product((1.0, 1.0), activation, units, roundoff=roundoff)
    scaled = tuple(
        RidgeUnit((of_number / reach, of_flag), unit.offset, reach * unit.coefficient)
        for unit in product.units
        for of_number, of_flag in [unit.direction]
    )
    fit = RidgeSum(NAME, activation, half_widths, scaled, reach * product.error)
    return replace(fit, error=fit.error + rounding(Profile(IDENTITY_FUNCTION, half_widths), fit))
