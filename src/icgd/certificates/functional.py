"""Bounds for functional descent, which approximates nothing: all of its error is rounding.

(b) for one run: a step adds the rounding of the kernel and of its sums, and multiplies earlier
errors by I - step_size (K + noise I). The kernel matrix gives the norm of this matrix: where steps
converge, errors do not grow.

(a) for every task: the same with the largest kernel and the largest residual that the domain
allows. A kernel without negative eigenvalues lets the residual grow only if step_size times the
largest possible eigenvalue exceeds 2.

With momentum the last change has an error too; `linear.py` bounds the growth of both.

All numbers here are sums of products that are not negative, so that `ROOM` covers their rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from icgd.backends.prompt import known_labels
from icgd.backends.run import OnProgress
from icgd.certificates.enclosures import (
    INTERVALS,
    ROOM,
    UNIT_ROUNDOFF,
    AbstractBounds,
    Arithmetic,
    DomainBound,
    RunBounds,
    norm,
    one_by_one,
)
from icgd.certificates.linear import Motion, Pair, Responses, is_stable, multiply_norms
from icgd.environment import require_memory
from icgd.errors import KernelError, at, quoted
from icgd.problems.data import Task, first_set
from icgd.problems.functions import FUNCTION_ROUNDING
from icgd.problems.kernel_machine import SHAPES, Kernel, KernelHead, as_matrix, sum_of_heads
from icgd.problems.problem import Problem
from icgd.problems.scalar import LEAST_NUMBERS
from icgd.shapes import History, Predictions


class Rounded(NamedTuple):
    """Points of exact arithmetic, and a bound on the error of each coordinate."""

    points: Tensor
    error: Tensor


def sizes_of(head: KernelHead, points: Tensor) -> Tensor:
    """Return |G| |u|, the total sizes of the terms of G u."""
    if head.transform is None:
        return points.abs()
    return points.abs() @ as_matrix(head.transform, points).abs().mT


def moved_error(head: KernelHead, rounded: Rounded, arithmetic: Arithmetic) -> Tensor:
    """Bound the error of each coordinate of G u."""
    width = rounded.points.shape[-1]
    carried = sizes_of(head, rounded.error)
    return carried + arithmetic.sum_of(width, sizes_of(head, rounded.points) + carried)


# The error of a user's own kernel, from the constants stated at its registration.
#
# Let L be its Lipschitz constant, and let a, b bound the errors of the points u, w in the Euclidean
# norm. Then K(u, w) changes by at most L (a + b). The rounding of the function itself is the stated
# units of roundoff of |K|, plus the change of K if points move by as many units of their norms:
#
#     |error| <= L (a + b) + units (|K| + L (|u| + |w| + 2 a + 2 b))
#
# The units are counted twice, because the oracle rounds too. If a `bound` was stated, neither of
# the two values exceeds it by more than its own rounding.
#
# With stated constants the bound is proved from them. Every use compares them with the kernel at
# the run's own points, at neighbours in the order of the data and at points with perturbed last
# digits, and raises an error if they are contradicted. Without a stated L, the largest slope and
# rounding in these comparisons, times `SAFETY_FACTOR`, give an estimate, which reports mark as
# such.


NUDGE = 4
"""Units of roundoff by which points are perturbed to measure the rounding of a kernel."""

SAFETY_FACTOR = 4.0
"""Safety factor on the slope and the rounding error estimated from samples."""


@dataclass(frozen=True)
class _Constants:
    """Slope, largest value and relative rounding of a kernel at points of bounded norm.

    `noise` is added to every error.
    """

    slope: float
    largest: float
    units: float
    noise: float = 0.0

    @classmethod
    def stated(
        cls, kernel: Kernel, radius: float, width: int, arithmetic: Arithmetic
    ) -> _Constants:
        slope, bound = kernel.stated("lipschitz", radius), kernel.stated("bound", radius)
        return cls(slope, bound, _units(kernel, width) * arithmetic.roundoff)

    def error(self, values: Tensor, point_error: Tensor, size: Tensor) -> Tensor:
        """Bound the error of `values`, from the sums of norms and of point errors of each pair."""
        rounding = (
            self.units * (1 + self.units) * (values.abs() + self.slope * (size + 2 * point_error))
        )
        error = ROOM * (self.slope * point_error + 2 * rounding + self.noise)
        return error.nan_to_num(nan=inf, posinf=inf).clamp(max=2 * self.returned)

    @property
    def returned(self) -> float:
        """The largest value that the function returns."""
        return ROOM * (1 + self.units) * self.largest


def own_error(head: KernelHead, left: Rounded, right: Rounded, arithmetic: Arithmetic) -> Tensor:
    """Bound the error of a user's own kernel, entry by entry, without the head's weight.

    The bound is an estimate if no Lipschitz constant was stated. Raises `KernelError` if the kernel
    contradicts its stated constants.
    """
    kernel, u, w = head.function, head.moved(left.points), head.keys.moved(right.points)
    sides = (head, left), (head.keys, right)
    point_errors = [
        _norms_of_points(moved_error(side_head, points, arithmetic)) for side_head, points in sides
    ]
    values, size = kernel.matrix(u, w), _of_pairs(_norms_of_points(u), _norms_of_points(w))
    nudged = _nudged(kernel, u, w, values, arithmetic)
    slopes = [_changes(u, values), _changes(w, values.mT)]
    if kernel.lipschitz is None:
        largest_slope = max(
            float((change / gap).nan_to_num(0, 0, 0).max()) for gap, change in slopes
        )
        units, noise = _units(kernel, u.shape[-1]) * arithmetic.roundoff, float(nudged.max())
        constants = _Constants(SAFETY_FACTOR * largest_slope, inf, units, SAFETY_FACTOR * noise)
        return constants.error(values, _of_pairs(*point_errors), size)
    radius = ROOM * float(
        torch.cat(
            [_norms_of_points(u) + point_errors[0], _norms_of_points(w) + point_errors[1]], dim=-1
        ).max()
    )
    constants = _Constants.stated(kernel, radius, u.shape[-1], arithmetic)
    if index := first_set(values.abs() > constants.returned):
        raise KernelError(
            f"Kernel {quoted(kernel.name)} contradicts its statement: it is "
            f"{values[tuple(index)].item():.6g} at {at(index)}, and bound is "
            f"{constants.largest:.6g}. Register it with a larger bound."
        )
    rounding = constants.error(values, torch.zeros_like(values), size)
    for gap, change in slopes:
        allowed = ROOM * constants.slope * gap + 2 * rounding.max()
        if index := first_set(change > allowed.nan_to_num(nan=inf, posinf=inf)):
            raise KernelError(
                f"Kernel {quoted(kernel.name)} contradicts its statement: it changes by "
                f"{change[tuple(index)].item():.6g} between two points of these data that are "
                f"{gap[tuple(index[:-1])].item():.6g} apart, and lipschitz is "
                f"{constants.slope:.6g}. Register it with a larger lipschitz; if it jumps, it has "
                "none: leave lipschitz out."
            )
    # The kernel of a pair must not depend on the other examples.
    alone = kernel.matrix(u, w[..., :1, :])
    if index := first_set((alone - values[..., :1]).abs() > rounding[..., :1]):
        raise KernelError(
            f"Kernel {quoted(kernel.name)} is not a function of two points: at {at(index)} it is "
            f"{alone[tuple(index)].item():.6g} for the pair alone and "
            f"{values[tuple(index)].item():.6g} among the others. Constants cannot be stated of "
            "it: leave lipschitz out."
        )
    allowed = constants.error(values, 2 * NUDGE * arithmetic.roundoff * size, size)
    if index := first_set(nudged > allowed):
        raise KernelError(
            f"Kernel {quoted(kernel.name)} contradicts its statement: it changes by "
            f"{nudged[tuple(index)].item():.3g} at {at(index)} if a point moves by its last "
            f"digits, and lipschitz and rounding allow {allowed[tuple(index)].item():.3g}. Compute "
            "it without cancellation, such as distances by torch.cdist with "
            "compute_mode='donot_use_mm_for_euclid_dist', or register it with a larger rounding."
        )
    return constants.error(values, _of_pairs(*point_errors), size)


def _changes(points: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance of each point from the one before, and the change of its kernel."""
    gap = _norms_of_points(points - points.roll(1, -2))[..., None]
    return gap, (values - values.roll(1, -2)).abs()


def _nudged(kernel: Kernel, u: Tensor, w: Tensor, values: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Return the error of the kernel in the run's precision, also for perturbed points u."""
    dtype = torch.float32 if arithmetic.roundoff > UNIT_ROUNDOFF else torch.float64
    moved = (((1 + units * arithmetic.roundoff) * u).to(dtype) for units in (0, NUDGE))
    return torch.maximum(*((kernel.matrix(left, w.to(dtype)) - values).abs() for left in moved))


def largest_own(kernel: Kernel, radius: float, width: int) -> float:
    """Bound |K| at points of norm at most `radius`: as stated, or by the Lipschitz constant."""
    if kernel.bound is not None or kernel.lipschitz is None:
        return kernel.stated("bound", radius)
    origin = torch.zeros(1, width, dtype=torch.float64)
    try:
        at_origin = abs(float(kernel.matrix(origin, origin)))
    except KernelError:  # the kernel is not defined at the origin
        return inf
    exact = (1 + _units(kernel, width) * UNIT_ROUNDOFF) * at_origin
    return ROOM * (exact + 2 * kernel.stated("lipschitz", radius) * radius)


def worst_own_error(
    kernel: Kernel, radius: float, error: float, width: int, arithmetic: Arithmetic
) -> float:
    """Bound the error at all points of norm at most `radius` whose errors are at most `error`."""
    reach = ROOM * (radius + error)
    constants = _Constants.stated(kernel, reach, width, arithmetic)
    largest, twice = largest_own(kernel, reach, width), torch.tensor(2.0, dtype=torch.float64)
    return float(constants.error(largest * twice / 2, error * twice, radius * twice))


def _units(kernel: Kernel, width: int) -> float:
    """Return the relative error of a kernel in units of roundoff, two for the head's weight."""
    return kernel.rounding + width + 2


def _norms_of_points(points: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(points, dim=-1)
    return ROOM * norm


def _of_pairs(left: Tensor, right: Tensor) -> Tensor:
    """Add a number of every point on the left to one of every point on the right."""
    return left[..., :, None] + right[..., None, :]


# The rounding of a kernel: the only error of functional descent besides that of its sums.
#
# A kernel is a function of one number t, a product <u, w> or a distance |u - w|. If tau bounds the
# error of t, that of the kernel is at most tau times the largest slope near t, plus the rounding of
# the function itself. Errors of the points, which steps that move them round, add to tau.
#
# `problems/functions.py` has the error of exponentials. The arithmetic around them is counted here,
# from t on:
#
#     rbf      exp(-t^2 / 2)               a square, an exponential: 3/2 of t^2 exp(-t^2 / 2) < 1.2
#     laplace  exp(-t)                     an exponential
#     matern   p(s) exp(-s), s = t times a rounded root: 3 of s, s p(s) exp(-s) < 1.5, and at most
#              six operations in p and the product, none of whose results is larger than p
#
# The constants below round that up, in units of roundoff of a kernel that is at most 1. Every rule
# counts them twice, because the oracle rounds too; tau includes both roundings already. The error
# of a kernel with values in [0, 1] is at most 1, whatever the errors of its points.


EXPONENTIAL = FUNCTION_ROUNDING["exp"][0]

DISTANCE_UNITS = EXPONENTIAL.relative + 12
"""The rounding of a kernel of a distance at the computed distance, in units of roundoff."""

PRODUCT_UNITS = EXPONENTIAL.relative + 2
"""The relative rounding of an exponential of a product in units of roundoff, weight included."""

POWER_UNITS = 2
"""The relative rounding of each factor of a power, in units of roundoff."""

PRODUCT_KERNELS = {"linear", "relu", "exp", "polynomial", "softmax"}
DISTANCE_KERNELS = {"rbf", "laplace", "matern"}


class _Slope(NamedTuple):
    """The absolute slope of a kernel of a distance: largest at `peak`, monotone on each side."""

    peak: float
    at: Callable[[Tensor], Tensor]

    def between(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the steepest slope between two distances."""
        return self.at(torch.minimum(low.clamp(min=self.peak), high))


_FALLING = _Slope(0.0, lambda t: torch.exp(-t))
_MATERN = {
    0.5: _FALLING,
    1.5: _Slope(1 / sqrt(3), lambda t: 3 * t * torch.exp(-sqrt(3) * t)),
    2.5: _Slope(
        (1 + sqrt(5)) / (2 * sqrt(5)),
        lambda t: 5 / 3 * t * (1 + sqrt(5) * t) * torch.exp(-sqrt(5) * t),
    ),
}


def _slope_of(head: KernelHead) -> _Slope:
    if head.kernel == "rbf":
        return _Slope(1.0, lambda t: t * torch.exp(-t.square() / 2))
    if head.kernel == "laplace":
        return _FALLING
    return _MATERN[SHAPES["matern"] if head.shape is None else head.shape]


def kernel_error(head: KernelHead, left: Rounded, right: Rounded, arithmetic: Arithmetic) -> Tensor:
    """Bound the error of `head.matrix(left, right)`, entry by entry."""
    u, w = head.moved(left.points), head.keys.moved(right.points)
    if head.kernel in PRODUCT_KERNELS:
        scores, tau = u @ w.mT, _product_error(head, left, right, arithmetic)
        if head.kernel == "exp":
            error = (scores + tau).exp() * (torch.expm1(tau) + _exponential(arithmetic))
        elif head.kernel == "softmax":
            # All scores of a row change by up to tau, and round when the largest is subtracted.
            size = scores.abs().amax(-1, keepdim=True)
            largest = tau.amax(-1, keepdim=True) + 8 * arithmetic.roundoff * size
            relative = torch.expm1(2 * largest) + 2 * _exponential(arithmetic)
            share = torch.softmax(scores, dim=-1)
            moved = _at_most_one(share * relative * (1 + relative))
            error = arithmetic.sum_of(scores.shape[-1], share + moved) + moved
        elif head.kernel == "polynomial":
            degree = int(SHAPES["polynomial"] if head.shape is None else head.shape)
            base, rounding = 1 + scores.abs() + tau, 2 * POWER_UNITS * arithmetic.roundoff
            carried = degree * base ** (degree - 1) * (tau + rounding * base)
            error = carried + degree * rounding * base**degree
        else:  # linear and relu
            error = tau
    elif head.kernel in DISTANCE_KERNELS:
        # Take the slope on twice the range, because the t computed here is rounded itself.
        tau = _distance_error(head, left, right, arithmetic)
        t = torch.cdist(u, w, p=1.0 if head.kernel == "laplace" else 2.0)
        slope = _slope_of(head).between((t - 2 * tau).clamp(min=0), t + 2 * tau)
        error = _at_most_one(slope * tau) + 2 * DISTANCE_UNITS * arithmetic.roundoff
    else:
        error = own_error(head, left, right, arithmetic)
    return head.weight * (error + 2 * LEAST_NUMBERS * arithmetic.least)


def _product_error(
    head: KernelHead, left: Rounded, right: Rounded, arithmetic: Arithmetic
) -> Tensor:
    a, b = sizes_of(head, left.points), sizes_of(head.keys, right.points)
    error_a = moved_error(head, left, arithmetic)
    error_b = moved_error(head.keys, right, arithmetic)
    carried = error_a @ b.mT + (a + error_a) @ error_b.mT
    return carried + arithmetic.sum_of(a.shape[-1], (a + error_a) @ (b + error_b).mT)


def _distance_error(
    head: KernelHead, left: Rounded, right: Rounded, arithmetic: Arithmetic
) -> Tensor:
    """Bound the error of a distance in the 1-norm, which is at least that in the 2-norm."""
    point_error = moved_error(head, left, arithmetic).sum(-1)[..., :, None]
    point_error = point_error + moved_error(head.keys, right, arithmetic).sum(-1)[..., None, :]
    distance = torch.cdist(head.moved(left.points), head.keys.moved(right.points), p=1.0)
    return point_error + arithmetic.sum_of(left.points.shape[-1], distance + point_error)


def _at_most_one(error: Tensor) -> Tensor:
    """Return the error of a number that lies between 0 and 1."""
    return error.nan_to_num(nan=inf, posinf=inf).clamp(max=1)


def _exponential(arithmetic: Arithmetic) -> float:
    """Return twice the relative error of an exponential, plus the rounding of the bound itself."""
    return 2 * PRODUCT_UNITS * (arithmetic.roundoff + UNIT_ROUNDOFF)


def largest_kernel(head: KernelHead, points: Tensor) -> float:
    """Bound |K| at any two points whose coordinates are at most those in `points` in size."""
    if head.kernel in DISTANCE_KERNELS or head.kernel == "softmax":
        return head.weight
    if head.kernel not in PRODUCT_KERNELS:
        radius, width = _largest_norm(head, points)
        return head.weight * largest_own(head.function, radius, width)
    score = _largest_score(head, points)
    if head.kernel == "exp":
        score = score.exp()
    elif head.kernel == "polynomial":
        score = (1 + score) ** (head.shape or SHAPES["polynomial"])
    return head.weight * float(score)


def _largest_norm(head: KernelHead, points: Tensor) -> tuple[float, int]:
    """Return the largest norm of G u or H u of such a point u, and its number of coordinates."""
    sizes = [sizes_of(side, points) for side in (head, head.keys)]
    return max(ROOM * float(size.norm()) for size in sizes), sizes[0].shape[-1]


def _largest_score(head: KernelHead, points: Tensor) -> Tensor:
    """Return the largest <G u, H w> of two such points."""
    return (sizes_of(head, points) * sizes_of(head.keys, points)).sum()


def worst_kernel_error(head: KernelHead, rounded: Rounded, arithmetic: Arithmetic) -> float:
    """Bound the error of the kernel at any two points of at most these sizes and errors."""
    # Replacing G by |G| and H by |H| only enlarges products and distances.
    queries, keys = (
        None if rows is None else tuple(tuple(map(abs, row)) for row in rows)
        for rows in (head.transform, head.key_transform)
    )
    positive = replace(head, transform=queries, key_transform=keys)
    if head.kernel == "softmax":  # all shares are at most 1, whatever the number of scores
        tau = _product_error(head, rounded, rounded, arithmetic)
        largest = tau + 8 * arithmetic.roundoff * _largest_score(head, rounded.points)
        relative = torch.expm1(2 * largest) + 2 * _exponential(arithmetic)
        share_error = _at_most_one(relative * (1 + relative))
        worst = float(
            2 * arithmetic.sum_of(arithmetic.n_tokens, torch.ones_like(share_error)) + share_error
        )
    elif head.kernel in DISTANCE_KERNELS:  # their slopes are at most 1
        tau = _distance_error(
            positive, rounded, Rounded(-rounded.points, rounded.error), arithmetic
        )
        worst = float(_at_most_one(tau)) + 2 * DISTANCE_UNITS * arithmetic.roundoff
    elif head.kernel in PRODUCT_KERNELS:
        return float(kernel_error(positive, rounded, rounded, arithmetic))
    else:
        radius, width = _largest_norm(head, rounded.points)
        errors = [moved_error(side, rounded, arithmetic) for side in (head, head.keys)]
        error = max(ROOM * float(error.norm()) for error in errors)
        worst = worst_own_error(head.function, radius, error, width, arithmetic)
    return head.weight * (worst + 2 * LEAST_NUMBERS * arithmetic.least)


# Bound (a): the largest quantities that any task in the domain can reach.


def nan_to_infinity(bound: float) -> float:
    """Replace NaN, the result of cancelled infinities, by infinity."""
    return inf if isnan(bound) else bound


class _WorstStep(NamedTuple):
    """One step: its coefficients, the largest kernel of two points, and its largest error."""

    size: float
    noise: float
    momentum: float
    ahead: float
    kernel: float
    kernel_error: float


class _Sizes(NamedTuple):
    """Bounds before a step.

    They are the norms of the residual on the examples and of its last change, the largest value and
    the largest change at a token, and the mismatch of that change and the difference of two values.
    """

    residual: float
    change: float
    value: float
    token_change: float
    mismatch: float = 0.0


class Worst:
    """The largest quantities of any task, step by step.

    `residual` bounds the 2-norm of the residual on the examples, `value` any value of the function,
    `error` the 2-norm of the errors at the examples and `query_error` the error at a query. With
    momentum, `change` and the other attributes of that name bound the same for the last change.
    """

    def __init__(self, problem: Problem, arithmetic: Arithmetic) -> None:
        self._problem, self._arithmetic, self._sum = problem, arithmetic, arithmetic.sum_of_size
        self._root = sqrt(arithmetic.n_tokens)
        width = problem.machine.input_width
        require_memory(f"Bounding {width:,} inputs", INTERVALS * 8 * width, "Take fewer inputs.")
        reach = torch.full((1, width), problem.domain.x, dtype=torch.float64)
        self._inputs = Rounded(reach, torch.zeros_like(reach))
        self._label = problem.domain.y
        self._initial_residual = self.residual = self._root * problem.domain.y
        self.value = self.error = self.query_error = self.step_error = 0.0
        self.change = self.token_change = self.change_error = self.query_change_error = 0.0
        self._mismatch = 0.0
        self._sum_of_errors = self._sum_of_ages = 0.0
        self._kernels: dict[tuple[KernelHead, ...], tuple[float, float]] = {}

    @property
    def is_lost(self) -> bool:
        """Whether all bounds are infinite, now and after all later steps."""
        return not (self.step_error < inf or self.error + self.query_error < inf)

    def take(self, number: int) -> None:
        """Advance all bounds by one step."""
        update, arithmetic = self._problem.functional_step, self._arithmetic
        machine = update.machine_of(number, self._problem.machine)
        step = _WorstStep(
            ROOM * update.size_of(number),
            update.noise,
            update.momentum_of(number),
            update.lookahead_of(number),
            *self._kernel(machine.heads),
        )
        largest = arithmetic.n_tokens * step.kernel + step.noise  # no eigenvalue is larger
        is_stable_momentum = (
            update.momentum is not None and machine.is_positive and is_stable(update, largest)
        )

        # The error that the step adds, to a run without error and to one with the error so far.
        exact = _Sizes(self.residual, self.change, self.value, self.token_change, self._mismatch)
        self.step_error = max(self.step_error, self._rounding(step, exact))
        actual = _Sizes(
            self.residual + self.error,
            self.change + self.change_error,
            self.value + self.error,
            self.token_change + self.query_change_error + self.change_error,
        )
        added = self._rounding(step, actual)

        # Change and error of queries; the change of examples is at most that plus the noise.
        lookahead_residual = self.residual + step.ahead * self.change
        lookahead_error = self.error + step.ahead * self.change_error
        change_error = step.momentum * self.query_change_error
        change_error += step.size * self._root * step.kernel * lookahead_error + added
        self.query_error = ROOM * (self.query_error + change_error)
        self.query_change_error = ROOM * change_error
        value_change = step.momentum * self.token_change
        value_change += step.size * (self._root * step.kernel + step.noise) * lookahead_residual
        self.value, self.token_change = ROOM * (self.value + value_change), ROOM * value_change

        # A bound on `_Step.mismatch` of this step, with the values after it.
        values = 2 * (self.value + self._label) + 2 * self.value
        sums = (self._root * (step.kernel + step.kernel_error) + step.noise) * lookahead_residual
        mismatch = 3 * self._sum(arithmetic.n_tokens + 8, values + step.size * sums)
        self._mismatch = nan_to_infinity(ROOM * mismatch)

        added = self._root * added
        if is_stable_momentum:
            # `linear.py`: k steps later an error added to value and change has grown to at most
            # 3 k + 1 times its norm. So keep the sum of all added errors, and that weighted by k.
            self._sum_of_ages += self._sum_of_errors
            self._sum_of_errors += added
            self.error = ROOM * (3 * self._sum_of_ages + self._sum_of_errors)
            self.change_error = ROOM * (6 * self._sum_of_ages + self._sum_of_errors)
            n_done = number + 1
            self.residual = (2 * n_done + 1) * self._initial_residual
            self.change = 4 * n_done * self._initial_residual
        else:  # multiply norms by those of the step's matrices
            reach = ROOM * step.size * largest
            growth = max(1.0, reach - 1) * ROOM if machine.is_positive else ROOM * (1 + reach)
            velocity_gain = ROOM * (step.momentum + step.ahead * reach)
            # The last change comes first: it depends on the old error and residual.
            velocity_error = velocity_gain * self.change_error + added
            self.change_error = ROOM * (reach * self.error + velocity_error)
            self.error = ROOM * (growth * self.error + velocity_error)
            velocity = velocity_gain * self.change
            self.change = reach * self.residual + velocity
            self.residual = growth * self.residual + velocity
        self._move(number, step.kernel, step.kernel_error)

    def _kernel(self, heads: tuple[KernelHead, ...]) -> tuple[float, float]:
        """Return the largest kernel of heads and its error, recomputed only after inputs moved."""
        if heads not in self._kernels:
            kernel = sum(largest_kernel(head, self._inputs.points) for head in heads)
            errors = (worst_kernel_error(head, self._inputs, self._arithmetic) for head in heads)
            self._kernels[heads] = kernel, sum(errors) + self._sum(len(heads), kernel)
        return self._kernels[heads]

    def _rounding(self, step: _WorstStep, sizes: _Sizes) -> float:
        """Bound `_Step.rounding` for any run, with sums bounded by Cauchy's inequality."""
        read = sizes.value + self.query_error + self._label
        read_rounding = self._sum(4, read)
        read_error = read_rounding + step.ahead * sizes.mismatch
        read_error += self._sum(4, step.ahead * sizes.token_change)
        residual = sizes.residual + step.ahead * sizes.change + self._root * read_error
        sums = self._root * (step.kernel + step.kernel_error) * residual
        sum_error = self._root * step.kernel_error * residual
        sum_error += self._root**2 * (step.kernel + step.kernel_error) * read_error
        noise_rounding = self._sum(4, step.noise * residual)
        sum_error += self._sum(self._arithmetic.n_tokens, sums) + noise_rounding
        sum_error += step.noise * read_error
        ends = self._sum(4, read + sizes.token_change + step.size * sums)
        velocity_error = step.momentum * sizes.mismatch
        return nan_to_infinity(
            ROOM * (read_rounding + velocity_error + step.size * sum_error + ends)
        )

    def _move(self, number: int, kernel: float, kernel_error: float) -> None:
        machine, update = self._problem.machine, self._problem.functional_step
        transform = update.transform_of(number, machine.input_width)
        if transform is None:
            return
        n = self._arithmetic.n_tokens
        sums = as_matrix(transform, self._inputs.points).abs().sum(-1)
        points, error = self._inputs.points, self._inputs.error
        reach = float((points + error).max())
        error_of_sums = n * (kernel_error * reach + kernel * float(error.max()))
        error_of_sums += self._sum(n + len(sums), n * (kernel + kernel_error) * reach)
        error = error + sums * error_of_sums + self._sum(4, reach)
        self._kernels.clear()
        self._inputs = Rounded(ROOM * (points + sums * n * kernel * reach), ROOM * error)


MOST_FOLLOWED = 3 * 10**5
"""The most steps for which bound (a) is computed; more would take minutes."""


@dataclass(frozen=True)
class _Step:
    """One step of a task: its size, the exact kernel of tokens and examples, and its rounding."""

    size: float
    noise: float
    kernel: Tensor
    error: Tensor
    momentum: float = 0.0
    ahead: float = 0.0

    def rounding(
        self,
        labels: Tensor,
        values: Tensor,
        value_error: Tensor,
        motion: Motion,
        arithmetic: Arithmetic,
    ) -> Tensor:
        """Bound the error that the step adds to every value, and to its last change.

        `values` are exact, and `value_error` bounds the transformer's error before the step.
        """
        n_examples = self.kernel.shape[-1]
        size, change = values.abs() + value_error + labels.abs(), _largest_change(motion)
        read_rounding = arithmetic.sum_of(4, size)  # of the residual, label minus value
        read_error = read_rounding + self.ahead * motion.mismatch
        if self.ahead:
            read_error = read_error + arithmetic.sum_of(4, self.ahead * change)
        residual = (labels - values + self.ahead * motion.change).abs() + self.ahead * motion.error
        residual = (residual + value_error + read_error)[..., :n_examples, :]
        largest = self.kernel.abs() + self.error
        sums = largest @ residual
        sum_error = self.error @ residual + largest @ read_error[..., :n_examples, :]
        sum_error = sum_error + arithmetic.sum_of(n_examples, sums)
        noise_error = arithmetic.sum_of(4, self.noise * residual)
        noise_error = noise_error + self.noise * read_error[..., :n_examples, :]
        sum_error[..., :n_examples, :] += noise_error
        velocity_error = self.momentum * motion.mismatch
        ends = arithmetic.sum_of(4, size + change + self.size * sums)
        return ROOM * (read_rounding + velocity_error + self.size * sum_error + ends)

    def mismatch(
        self, labels: Tensor, values: Tensor, after: Tensor, motion: Motion, arithmetic: Arithmetic
    ) -> Tensor:
        """Bound the distance of the change in the stream from the difference of the values."""
        n_examples = self.kernel.shape[-1]
        size = values.abs() + after.abs() + 2 * labels.abs()
        change = _largest_change(motion)
        residual = ((labels - values).abs() + self.ahead * change)[..., :n_examples, :]
        sums = (self.kernel.abs() + self.error) @ residual
        sums[..., :n_examples, :] += self.noise * residual
        # Each sum counts its rounding twice, which also covers the errors of its terms.
        return ROOM * 3 * arithmetic.sum_of(n_examples + 8, size + change + self.size * sums)

    def moved(
        self, tokens: Rounded, examples: Rounded, transform: Tensor, arithmetic: Arithmetic
    ) -> Rounded:
        """Return the inputs after x <- x + A sum_j K x_j."""
        points = tokens.points + self.kernel @ examples.points @ transform.mT
        size = examples.points.abs() + examples.error
        largest = self.kernel.abs() + self.error
        sum_error = self.error @ size + self.kernel.abs() @ examples.error
        sum_error = sum_error + arithmetic.sum_of(examples.points.shape[-2], largest @ size)
        change_error = sum_error @ transform.abs().mT
        change_error = change_error + arithmetic.sum_of(
            len(transform), largest @ size @ transform.abs().mT
        )
        error = tokens.error + change_error + arithmetic.sum_of(4, tokens.points.abs())
        return Rounded(points, (ROOM * error).nan_to_num(nan=inf, posinf=inf))


@dataclass(frozen=True)
class FunctionBounds(AbstractBounds):
    """Bounds on any value of the learnt function. The paper's step is exact, without a bound."""

    @property
    def stated(self) -> tuple[str, ...]:
        return tuple(kernel.name for kernel in self._own if kernel.lipschitz is not None)

    @property
    def estimated(self) -> tuple[str, ...]:
        return tuple(kernel.name for kernel in self._own if kernel.lipschitz is None)

    @property
    def _own(self) -> list[Kernel]:
        """The user's own kernels, each once."""
        update, machine = self.problem.functional_step, self.problem.machine
        n_different = self.program.n_steps if update.heads else min(self.program.n_steps, 1)
        steps = (update.machine_of(step, machine) for step in range(n_different))
        heads = (head for step_machine in steps for head in step_machine.heads)
        kernels = {head.kernel: head.function for head in heads}
        return [kernel for kernel in kernels.values() if kernel.is_own]

    def domain(self) -> DomainBound:
        worst = Worst(self.problem, self.arithmetic)
        if self.program.n_steps > MOST_FOLLOWED:
            return DomainBound(inf, inf)
        for step in range(self.program.n_steps):
            worst.take(step)
            if worst.is_lost:
                return DomainBound(inf, inf)
        return DomainBound(
            nan_to_infinity(worst.step_error),
            nan_to_infinity(worst.error + worst.query_error),
        )

    def steps(self, task: Task, history: History, on_progress: OnProgress | None = None) -> Tensor:
        labels = known_labels(task).double()
        before = history[..., :-1, :].double().unflatten(-1, labels.shape[-2:]).unbind(-3)
        no_error, steps = torch.zeros_like(labels), self._steps(task, len(before))
        motions = self._motions(labels, before, steps)
        bounds = (
            _largest(step.rounding(labels, values, no_error, motion, self.arithmetic))
            for step, values, motion in zip(steps, before, motions, strict=True)
        )
        return one_by_one(bounds, history, on_progress)

    def _motions(
        self, labels: Tensor, values: Sequence[Tensor], steps: list[_Step]
    ) -> Iterator[Motion]:
        """Yield the last change of the residual before every step of a run."""
        motion = Motion.none(labels)
        is_plain = self.problem.functional_step.momentum is None
        for number, step in enumerate(steps):
            yield motion
            if not is_plain and number + 1 < len(values):
                now, after = values[number], values[number + 1]
                mismatch = step.mismatch(labels, now, after, motion, self.arithmetic)
                motion = Motion(now - after, motion.error, mismatch)

    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        trajectory = one_by_one(self._trajectory(task, real), real, on_progress)
        return RunBounds(self.steps(task, history), trajectory)

    def predictions(self, task: Task, real: History, error: Tensor) -> Predictions:
        """Return the bound on values at queries, which the run learns like those at examples."""
        errors = error.double().expand_as(real[..., -1, :])
        return self.problem.oracle.predict(task, errors)

    def _trajectory(self, task: Task, real: History) -> Iterator[Tensor]:
        """Yield the error after each step, with 2-norms on examples: they contract if steps do."""
        n, labels = task.n_examples, known_labels(task).double()
        values = real[..., :-1, :].unflatten(-1, labels.shape[-2:]).unbind(-3)
        if self.problem.functional_step.momentum is not None:
            yield from self._trajectory_of_momentum(task, labels, values)
            return
        error, no_motion = torch.zeros_like(labels), Motion.none(labels)
        norm = error[..., :1, :]
        steps = self._steps(task, len(values))
        factors = self._contractions(steps, n)
        for step, factor, before in zip(steps, factors, values, strict=True):
            step_error = step.rounding(labels, before, error, no_motion, self.arithmetic)
            read_error = step.size * (step.kernel[..., n:, :].norm(dim=-1, keepdim=True) * norm)
            norm = ROOM * (factor * norm + _norm_over_tokens(step_error[..., :n, :]))
            queries = ROOM * (error[..., n:, :] + read_error + step_error[..., n:, :])
            error = torch.cat([norm.expand_as(labels[..., :n, :]), queries], dim=-2)
            yield _largest(error)

    def _trajectory_of_momentum(
        self, task: Task, labels: Tensor, values: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Yield the error after each step of a run with momentum, whose last change errs too."""
        n, steps = task.n_examples, self._steps(task, len(values))
        errors = Pair(torch.zeros_like(labels), torch.zeros_like(labels))
        norms = Pair(*(error[..., :1, :] for error in errors))
        grow = self._growth(steps, n)
        for number, (step, before) in enumerate(zip(steps, values, strict=True)):
            change = values[max(0, number - 1)] - before
            motion = Motion(change, errors.change, torch.zeros_like(change))
            step_error = step.rounding(labels, before, errors.value, motion, self.arithmetic)
            lookahead_norm = norms.value + step.ahead * norms.change
            kernel_norm = step.kernel[..., n:, :].norm(dim=-1, keepdim=True)
            read_error = step.size * (kernel_norm * lookahead_norm)
            velocity_error = step.momentum * errors.change[..., n:, :]
            change = velocity_error + read_error + step_error[..., n:, :]
            norms = grow(number, _norm_over_tokens(step_error[..., :n, :]), norms)
            queries = Pair(ROOM * (errors.value[..., n:, :] + change), ROOM * change)
            pairs = zip(norms, queries, strict=True)
            errors = Pair(
                *(torch.cat([norm.expand_as(labels[..., :n, :]), q], dim=-2) for norm, q in pairs)
            )
            yield _largest(errors.value)

    def _growth(self, steps: list[_Step], n: int) -> Callable[[int, Tensor, Pair], Pair]:
        """Return a function of a step's number, its added norm and the norms before it.

        The function returns the norms after the step.
        """
        update, machine = self.problem.functional_step, self.problem.machine
        if steps and machine.is_symmetric and not update.changes_kernel:
            values = torch.linalg.eigvalsh(steps[0].kernel[..., :n, :]) + update.noise
            responses = Responses(values)
            return lambda number, added, norms: responses.after(
                steps[number].size, steps[number].momentum, steps[number].ahead, added, norms
            )
        factors = list(self._contractions(steps, n))

        def grow(number: int, added: Tensor, norms: Pair) -> Pair:
            step = steps[number]
            norm = torch.linalg.matrix_norm(step.kernel[..., :n, :], ord=2)[..., None, None]
            reach = step.size * (norm * (1 + 1e-9) + step.noise)
            return multiply_norms(
                factors[number], reach, step.momentum + step.ahead * reach, added, norms
            )

        return grow

    def _steps(self, task: Task, n_steps: int) -> list[_Step]:
        """Return every step, with inputs that may move and then carry their own rounding."""
        update, machine = self.problem.functional_step, self.problem.machine
        arithmetic = self.arithmetic
        tokens = Rounded(points := task.points, torch.zeros_like(points))
        steps: list[_Step] = []
        for step in range(n_steps):
            if step == 0 or update.changes_kernel:
                examples = Rounded(*(tensor[..., : task.n_examples, :] for tensor in tokens))
                heads = update.machine_of(step, machine).heads
                kernel = sum_of_heads(heads, tokens.points, examples.points)
                errors = [kernel_error(head, tokens, examples, arithmetic) for head in heads]
                error = torch.stack(errors).sum(0) + arithmetic.sum_of(len(errors), kernel.abs())
            momentum = (update.momentum_of(step), update.lookahead_of(step))
            steps.append(_Step(update.size_of(step), update.noise, kernel, error, *momentum))
            transform = update.transform_of(step, machine.input_width)
            if transform is not None:
                tokens = steps[-1].moved(tokens, examples, as_matrix(transform, points), arithmetic)
        return steps

    def _contractions(self, steps: list[_Step], n: int) -> Iterator[Tensor]:
        """Yield the norm of I - step_size (K + noise I) on the examples, for each step."""
        eigenvalues: Tensor | None = None
        update = self.problem.functional_step
        for number, step in enumerate(steps):
            kernel = step.kernel[..., :n, :]
            if not update.machine_of(number, self.problem.machine).is_symmetric:
                matrix = (1 - step.size * step.noise) * torch.eye(n).to(kernel) - step.size * kernel
                # The spectral norm, infinite if an entry is.
                is_finite = matrix.isfinite().flatten(-2).all(-1)
                finite = matrix.where(is_finite[..., None, None], 0.0)
                factor = torch.linalg.matrix_norm(finite, ord=2).where(is_finite, inf)
            else:
                if eigenvalues is None or update.changes_kernel:
                    eigenvalues = torch.linalg.eigvalsh(kernel) + step.noise
                factor = (1 - step.size * eigenvalues).abs().amax(-1)
            # Allow for the rounding of the norm itself.
            yield (factor * (1 + 1e-9) + 1e-12)[..., None, None]


def _largest_change(motion: Motion) -> Tensor:
    return motion.change.abs() + motion.error + motion.mismatch


def _largest(errors: Tensor) -> Tensor:
    """Return the largest error at any token, infinite where it is NaN."""
    return errors.flatten(-2).amax(-1).nan_to_num(nan=inf, posinf=inf)


def _norm_over_tokens(errors: Tensor) -> Tensor:
    """Return the norm over tokens, of every output."""
    return norm(errors.mT).unsqueeze(-2)
