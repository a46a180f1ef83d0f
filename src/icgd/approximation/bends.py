r"""Sums of relus by any activation that bends like relu.

Such an activation f is within c = `off_relu` of relu everywhere, so f(beta z) / beta is within
c / beta of relu(z), and a sum of relus with coefficients a_m is met within c sum |a_m| / beta.
Nothing speaks against a large beta: rounding is relative to the argument, whatever its scale.

The slope of a piecewise-linear r jumps at its knots. With |s| <= S and steep >= S / kink_width,

    s r'(t) = slope_0 s + sum_k jump_k (relu(s + steep (t - knot_k)) - relu(steep (t - knot_k)))

wherever t is at least kink_width away from all knots; nearer, a difference of relus lies between
0 and s, so it is wrong by |jump_k| S at most. The jumps go inside the relus, up to their signs,
and jump_k steep is rounded up to a power of two: then little else than the sums is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, copysign, floor, log2

from icgd.approximation.relu_sum import fit_relu_sum
from icgd.problems.functions import KinkedFunction, ScalarFunction
from icgd.problems.unit_activations import UnitActivation, unit_activation_named
from icgd.program.ridge import Band, RidgeSum, RidgeUnit

KINK_WIDTH = 2.0**-13
"""Default width of the band on either side of a kink. A narrower band meets fewer arguments, but
the units of s r'(t) lose |t| / width units of rounding everywhere: 1e-12 |t| here."""

SHARPNESS = 2.0**40
"""beta on a box of size 1: leaves 1e-12, and float32 holds arguments up to 2^88 times as large."""


def by_bends(
    name: str, activation: str, half_widths: tuple[float, ...], relus: Sequence[RidgeUnit]
) -> RidgeSum:
    """A sum of relus by units that bend like relu; exact if they are relus."""
    unit = unit_activation_named(activation)
    sharpness = _sharpness(unit, min(half_widths))
    units = tuple(_sharpened(relu, sharpness) for relu in relus)
    total = sum((abs(relu.coefficient) for relu in relus), 0.0)
    return RidgeSum(
        name, activation, half_widths, units, total * (unit.off_relu or 0.0) / sharpness
    )


def fit_bends(
    function: ScalarFunction, half_width: float, activation: str, pieces: int = 1
) -> RidgeSum:
    """A function on [-half_width, half_width] by `pieces` lines; exact if it is made of lines."""
    fit = fit_relu_sum(function, -half_width, half_width, pieces)
    relus = [RidgeUnit((term.scale,), term.shift, term.coefficient) for term in fit.terms()]
    made = by_bends(function.name, activation, (half_width,), relus)
    return replace(made, error=made.error + fit.error)


def kinked_slope(
    function: KinkedFunction, half_widths: tuple[float, float], activation: str, kink_width: float
) -> RidgeSum:
    """s r'(t), where r is `function`, with a band of `kink_width` on either side of every knot.

    Rounding in a run costs about |t| S / kink_width units of it, as `size` says.
    """
    size, _ = half_widths
    first = function.slopes[0]
    line = [RidgeUnit((sign, 0.0), 0.0, sign * first) for sign in (1.0, -1.0) if first]
    steps = [
        unit
        for knot, jump in _jumps(function)
        for unit in _step(knot, jump, 2.0 ** ceil(log2(abs(jump) * size)) / kink_width)
    ]
    fit = by_bends(f"s {function.name}'(t)", activation, half_widths, [*line, *steps])
    return replace(fit, bands=_bands(function, size, kink_width, fit.error))


def _step(knot: float, jump: float, steep: float) -> tuple[RidgeUnit, RidgeUnit]:
    """jump s to the right of the knot, and 0 to the left of it."""
    sign = copysign(1.0, jump)
    return (
        RidgeUnit((abs(jump), steep), -steep * knot, sign),
        RidgeUnit((0.0, steep), -steep * knot, -sign),
    )


def _jumps(function: KinkedFunction) -> list[tuple[float, float]]:
    """The knots, and what the slope jumps by at each."""
    sides = zip(function.knots, pairwise(function.slopes), strict=True)
    return [(knot, after - before) for knot, (before, after) in sides if after != before]


def _bands(
    function: KinkedFunction, size: float, kink_width: float, error: float
) -> tuple[Band, ...]:
    """A band around every knot; jumps that share a band may add up."""
    jumps = _jumps(function)
    together = [
        sum((abs(jump) for other, jump in jumps if abs(other - knot) <= 2 * kink_width), 0.0)
        for knot, _ in jumps
    ]
    return tuple(
        Band(knot - kink_width, knot + kink_width, size * jump + error)
        for (knot, _), jump in zip(jumps, together, strict=True)
    )


def _sharpness(unit: UnitActivation, size: float) -> float:
    """A power of two that is larger on a small box; 1 for relu, which is as sharp as can be."""
    return SHARPNESS / min(1.0, 2.0 ** floor(log2(size))) if unit.off_relu else 1.0


def _sharpened(relu: RidgeUnit, sharpness: float) -> RidgeUnit:
    direction = tuple(sharpness * entry for entry in relu.direction)
    return RidgeUnit(direction, sharpness * relu.offset, relu.coefficient / sharpness)
