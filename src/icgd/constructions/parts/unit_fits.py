"""The functions that recursion makes of units of one activation, and how large slots can get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import floor, log2

import torch

from icgd.approximation import ridge as ridge_sum
from icgd.approximation.clipping import fit_clip
from icgd.approximation.ridge import CLOSE_ENOUGH, KINK_WIDTH, fit_gate
from icgd.constructions.parts import network as sizes
from icgd.constructions.parts.network import ROUNDING_ROOM, units_slot
from icgd.problems.activations import IDENTITY_FUNCTION, UNIT_ACTIVATIONS
from icgd.problems.data import dtype_named
from icgd.problems.problem import Problem
from icgd.program.functions import RidgeSum

LARGEST_FIT_ERROR = 0.25
"""The largest error of r and r' for arguments of size 1, and of the clip as a share of the box: a
step with larger errors is a step in name only."""

FEW = (16, 32, 64)
"""Numbers of units to try first: lines and products by smooth units are as good with these."""

HARDLY = 2.0**-30
"""A margin that costs nothing and covers a fit that is as good as exact."""

COARSE_ROOM = 1 + 2.0**-4
"""`ROUNDING_ROOM` in float32, where sums of hundreds of units lose a few percent."""

ROUNDINGS = 64
"""The rounding of s r'(t) in units of its `size`; near kinks in float32 it exceeds the error."""

SMALLEST_REACH = 2.0**-300
"""No range is taken for smaller: inverses and squares of this are still ordinary numbers."""

SLACK = 1.25
"""How much wider than needed a range is taken when a fit overshoots, so that few rounds do."""


def preactivation(layer: int) -> str:
    """The slot of z_m."""
    return f"preactivation_{layer}"


def jacobian(layer: int, of: int) -> str:
    """The slot of d z_m / d V_j: a row for each entry of z_m, a column for each of V_j."""
    return f"jacobian_{layer}_{of}"


@dataclass(frozen=True)
class Fits:
    """The functions of a program, the activation of their units, and how large slots can get."""

    functions: tuple[RidgeSum, ...]
    activation: str
    reaches: dict[str, float]


@lru_cache(maxsize=64)
def fit_all(
    problem: Problem, activation: str, units: int, kink_width: float | None, dtype: str
) -> Fits:
    """All functions of a program; the number of steps makes no difference to them."""
    return _Fitting(problem, activation, units, kink_width, dtype).fits()


class _Fitting:
    """Fits every function on a box that no argument leaves, fitting errors included.

    A fit may overshoot by its error, which is known only after fitting: widen the ranges by it and
    fit again, until it is covered.
    """

    def __init__(
        self, problem: Problem, activation: str, units: int, kink_width: float | None, dtype: str
    ) -> None:
        self.problem, self.target = problem, problem.network
        self.activation, self.units, self.kink_width = activation, units, kink_width
        self.roundoff = torch.finfo(dtype_named(dtype)).eps / 2
        self.room = COARSE_ROOM if dtype == "float32" else ROUNDING_ROOM

    def fits(self) -> Fits:
        margin, overshoot = HARDLY, self._usual_overshoot()
        while True:
            box = self.problem.gradient_step.box + overshoot  # what a clip may leave
            update = replace(self.problem.gradient_step, box=box)
            wide = replace(self.problem, update=update)
            ranges = sizes.ranges_on_domain(wide, margin)
            value, slope = self._activation(ranges)
            loss = self._loss(ranges)
            reaches = self._reaches(wide, ranges, slope, loss)
            clip = self._clip(reaches)
            if value.largest_error <= margin and clip.largest_error <= overshoot:
                return self._all([value, slope, loss, clip], reaches)
            margin = max(margin, SLACK * value.largest_error)
            overshoot = max(overshoot, SLACK * clip.largest_error)

    def _usual_overshoot(self) -> float:
        """The error of a clip of numbers up to twice the box; wider ranges seldom add to it."""
        box = self.problem.gradient_step.box
        return HARDLY + SLACK * self._with(fit_clip, box, 2 * box)(self.units).largest_error

    def _all(self, fitted: list[RidgeSum], reaches: dict[str, float]) -> Fits:
        """All functions; a network of one layer does without the first two, r and s r'(t)."""
        functions = fitted if self.target.depth > 1 else fitted[2:]
        if IDENTITY_FUNCTION.name not in (function.name for function in functions):
            functions.append(self._thrifty(ridge_sum.fit_ridge_sum, IDENTITY_FUNCTION, 1.0))
        functions.append(self._thrifty(fit_gate, reaches[preactivation(self.target.depth)]))
        if not UNIT_ACTIVATIONS[self.activation].bends:
            functions.append(self._thrifty(ridge_sum.fit_product, (1.0, 1.0)))
        return Fits(tuple(functions), self.activation, reaches)

    def _activation(self, ranges: sizes.Ranges) -> tuple[RidgeSum, RidgeSum]:
        """r and s r'(t) on all preactivations but those of the output."""
        function = self.target.layer_activation(1).value
        reach = self._roomy(max(ranges.preactivations[:-1], default=1.0))
        width = self.kink_width or KINK_WIDTH * min(1.0, 2.0 ** floor(log2(reach)))
        fit_slope = partial(ridge_sum.fit_slope_product, kink_width=width)
        fit_with = self._with(fit_slope, function, (1.0, reach))
        slope = ridge_sum.accurate(fit_with, self.units, LARGEST_FIT_ERROR)
        # Lines wipe numbers up to 1, so that r has to reach as far if it is one.
        wide = max(reach, 1.0) if function == IDENTITY_FUNCTION else reach
        return self._thrifty(ridge_sum.fit_ridge_sum, function, wide), slope

    def _with(self, fit: Callable[..., RidgeSum], *what: object) -> Callable[[int], RidgeSum]:
        """The function that fits `what` by a given number of units."""
        return lambda n: fit(*what, self.activation, n, roundoff=self.roundoff)

    def _thrifty(self, fit: Callable[..., RidgeSum], *what: object) -> RidgeSum:
        """The fit with the fewest units whose error is no more than rounding, or else with all."""
        fit_with = self._with(fit, *what)
        for few in (number for number in FEW if number < self.units):
            if (found := fit_with(few)).largest_error <= CLOSE_ENOUGH:
                return found
        return fit_with(self.units)

    def _loss(self, ranges: sizes.Ranges) -> RidgeSum:
        box = (self._roomy(ranges.outputs[-1]), self._roomy(self.problem.domain.y))
        return self._thrifty(ridge_sum.fit_loss_slope, self.problem.loss_function, box)

    def _clip(self, reaches: dict[str, float]) -> RidgeSum:
        box = self.problem.gradient_step.box
        fit_with = self._with(fit_clip, box, reaches["weights"])
        limit = LARGEST_FIT_ERROR * box
        return ridge_sum.accurate(fit_with, self.units, limit, lambda clip: clip.largest_error)

    def _reaches(
        self, problem: Problem, ranges: sizes.Ranges, slope: RidgeSum, loss: RidgeSum
    ) -> dict[str, float]:
        """Largest sizes of all slots, and of the weights before they are clipped."""
        widths, depth, box = self.target.widths, self.target.depth, problem.gradient_step.box
        steepest = (
            sizes.largest_size(self.target.layer_activation(1).derivative, slope.half_widths[-1])
            + slope.error
            + ROUNDINGS * self.roundoff * slope.size
        )
        reach = {"x": ranges.outputs[0]}
        for m in range(1, depth):
            reach[units_slot(m)] = ranges.outputs[m]
        for m in range(1, depth + 1):
            reach[preactivation(m)] = ranges.preactivations[m - 1]
            if m > 1:
                inputs = max(reach[units_slot(m - 2)], 1.0 * self.target.biases)
                reach[jacobian(m, m - 1)] = box * steepest * inputs
            for j in range(1, m - 1):
                passed_on = widths[m - 1] * box * steepest
                reach[jacobian(m, j)] = passed_on * reach[jacobian(m - 1, j)]
        reach["loss_slope"] = sizes.largest_loss_slope(problem, ranges.outputs[-1]) + loss.error
        dependence = [widths[-1] * reach[jacobian(depth, j)] for j in range(1, depth)]
        dependence.append(max(reach[units_slot(depth - 1)], 1.0 * self.target.biases))
        step = problem.gradient_step.size_of(0) / 2 * reach["loss_slope"] * max(dependence)
        reach["weights"] = box + step * (1 + LARGEST_FIT_ERROR)
        return {name: self._roomy(size) for name, size in reach.items()}

    def _roomy(self, size: float) -> float:
        """A size with room for rounding, and for tiny ones more."""
        return max(self.room * size, SMALLEST_REACH)
