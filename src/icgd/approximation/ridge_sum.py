r"""Functions of one and two variables by sums of any activation over few directions.

What descent needs of two variables is made of functions of one variable:

    a b      = ((a + b)^2 - (a - b)^2) / 4
    s r'(t)  = sum_k factor_k (r(t + shift_k s) - r(t - shift_k s)) + a small rest
    u(p, y)  = the sum of a loss's `slope_parts`

The second is a difference quotient; see `slope_product`. Where r has kinks, r' jumps, and only
units that bend like relu can follow; see `bends`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from icgd.approximation.bends import KINK_WIDTH, kinked_slope
from icgd.approximation.ridge_line import DOUBLE_ROUNDOFF, LARGEST_COEFFICIENT, fit_line
from icgd.approximation.ridge_proof import Box, Profile, joined
from icgd.approximation.slope_product import by_quotient
from icgd.errors import SettingError, UnknownNameError
from icgd.problems.activations import IDENTITY_FUNCTION
from icgd.problems.functions import KinkedFunction, ScalarFunction, SmoothFunction
from icgd.problems.losses import Loss
from icgd.problems.settings import count, positive, power_of_two
from icgd.problems.unit_activations import bending_activations, unit_activation_named
from icgd.program.ridge import RidgeSum

FEWEST_UNITS = 8
"""Two directions with four units each: with fewer, some activations have no fit at all."""

MOST_UNITS = 3200
"""Where a search for the number of units gives up, after nine doublings of the fewest."""

PRODUCT = "a b"
"""The name of the sum of units that multiplies."""

SQUARE = SmoothFunction(
    "square",
    (torch.square, lambda z: 2 * z, lambda z: torch.full_like(z, 2.0), torch.zeros_like),
    ((0.0,), (), (), ()),
)


def fit_ridge_sum(
    function: ScalarFunction,
    half_width: float,
    activation: str,
    units: int,
    *,
    roundoff: float = DOUBLE_ROUNDOFF,
) -> RidgeSum:
    """`function` on [-half_width, half_width] by at most `units` units.

    `roundoff` is the unit roundoff of the arithmetic that will evaluate the sum: in a coarse one,
    small coefficients are worth some error. That holds for all fits below.
    """
    check_box((half_width,), activation, units)
    return fit_line(function, half_width, activation, units, roundoff=roundoff)


def fit_product(
    half_widths: Box, activation: str, units: int, *, roundoff: float = DOUBLE_ROUNDOFF
) -> RidgeSum:
    """The product a b on |a| <= half_widths[0], |b| <= half_widths[1].

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
    """s r'(t) on |s| <= half_widths[0], |t| <= half_widths[1], where r is `function`.

    If r has kinks, the fit has a band of `kink_width` on either side of each, where its error is
    as large as the jump of the slope.
    """
    check_box(half_widths, activation, units)
    power_of_two("kink_width", kink_width)
    if isinstance(function, SmoothFunction):
        return by_quotient(function, half_widths, activation, units, roundoff=roundoff)
    if not isinstance(function, KinkedFunction):
        known = [kind.__name__ for kind in (KinkedFunction, SmoothFunction)]
        raise UnknownNameError.of("kind of function", type(function).__name__, known=known)
    if not function.knots:  # s times a constant
        line = fit_line(IDENTITY_FUNCTION, half_widths[0], activation, units, roundoff=roundoff)
        parts = [line.along((1.0, 0.0), function.slopes[0])]
        target = Profile(function.derivative(), half_widths)
        return joined(f"s {function.name}'(t)", half_widths, parts, target)
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
    """u(p, y) = d loss / d p on |p| <= half_widths[0], |y| <= half_widths[1]."""
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
    """The fit with `units` units; raise `SettingError` if its proved error exceeds `accuracy`."""
    fit = fit_with(units)
    if error_of(fit) <= positive("accuracy", accuracy):
        return fit
    tried = sorted({min(2**doublings * units, MOST_UNITS) for doublings in range(1, 10)})
    enough = next((more for more in tried if error_of(fit_with(more)) <= accuracy), None)
    box = " x ".join(f"[{-width:g}, {width:g}]" for width in fit.half_widths)
    hint = f"About {enough} would do; or" if enough else f"Even {MOST_UNITS} would not do:"
    raise SettingError(
        f"The box {box} is too large for {units} {fit.activation} units: the error of {fit.name} "
        f"would be {error_of(fit):.3g}, above accuracy={accuracy:g}. {hint} use a smaller box."
    )
