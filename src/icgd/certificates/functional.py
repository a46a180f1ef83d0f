"""Bounds for functional descent. It approximates nothing, so all of its error is rounding.

(b) for one run: a step adds at most what the rounding of the kernel and of its sums moves, and
what was off before is multiplied by I - step_size (K + noise I), whose norm is known from the
kernel matrix: where steps converge, errors do not grow.

(a) for every task: the same with the largest kernel and the largest residual that the domain
allows. A kernel without negative eigenvalues lets the residual grow only if step_size times the
largest possible eigenvalue exceeds 2.

With momentum the last change is off too; `linear.py` says what becomes of both.

All numbers here are sums of products that are not negative, so that `ROOM` covers what rounding
takes from them.
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
from icgd.certificates.linear import Motion, Pair, Responses, is_stable, multiplied
from icgd.environment import require_memory
from icgd.errors import KernelError, at, quoted
from icgd.problems.data import Task, first_set
from icgd.problems.functions import FUNCTION_ROUNDING
from icgd.problems.kernel_machine import SHAPES, Kernel, KernelHead, as_matrix, sum_of_heads
from icgd.problems.problem import Problem
from icgd.problems.scalar import LEAST_NUMBERS
from icgd.shapes import History, Predictions


class Rounded(NamedTuple):
    """Points as they are in exact arithmetic, and how far each coordinate may be off."""

    points: Tensor
    error: Tensor


def sizes_of(head: KernelHead, points: Tensor) -> Tensor:
    """Return what the sizes of the terms of G u add up to, |G| |u|."""
    if head.transform is None:
        return points.abs()
    return points.abs() @ as_matrix(head.transform, points).abs().mT


def moved_error(head: KernelHead, rounded: Rounded, arithmetic: Arithmetic) -> Tensor:
    """Return how far G u may be off."""
    width = rounded.points.shape[-1]
    carried = sizes_of(head, rounded.error)
    return carried + arithmetic.sum_of(width, sizes_of(head, rounded.points) + carried)


# Bound the error of a user's own kernel by what was stated of it at its registration.
#
# Let L be its Lipschitz constant, and let points u, w be off by at most a, b in the Euclidean
# norm. Then K(u, w) is off by at most L (a + b). What the function returns is off besides by the
# stated units of roundoff of |K|, and by what K changes if points move by as many units of their
# norms:
#
#     |error| <= L (a + b) + units (|K| + L (|u| + |w| + 2 a + 2 b))
#
# The units are counted twice, because the oracle rounds too. Neither of the two values is larger
# than `bound`, if one was stated, but for the units of itself that it rounds by.
#
# With stated constants the bound is proved from them. Every use compares them with the kernel at
# the run's own points, at neighbours in the order of the data and at points whose last digits
# moved, and raises an error if they are contradicted. Without a stated L, the slope and the
# rounding seen in these comparisons, times `SAFETY_FACTOR`, give an estimate, which reports call
# so.


NUDGE = 4
"""Units of roundoff by which points are moved to see how a kernel rounds."""

SAFETY_FACTOR = 4.0
"""Safety factor on the slope and the rounding error estimated from samples."""


@dataclass(frozen=True)
class _Constants:
    """Slope, largest value and relative rounding of a kernel at points of at most one norm.

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

    def error(self, values: Tensor, off: Tensor, size: Tensor) -> Tensor:
        """Bound the error of `values`; for every pair, norms sum to `size` and errors to `off`."""
        rounding = self.units * (1 + self.units) * (values.abs() + self.slope * (size + 2 * off))
        error = ROOM * (self.slope * off + 2 * rounding + self.noise)
        return error.nan_to_num(nan=inf, posinf=inf).clamp(max=2 * self.returned)

    @property
    def returned(self) -> float:
        """The largest value that the function returns."""
        return ROOM * (1 + self.units) * self.largest


def own_error(head: KernelHead, left: Rounded, right: Rounded, arithmetic: Arithmetic) -> Tensor:
    """Bound the error of a user's own kernel, entry by entry, without the head's weight.

    The bound is an estimate if no Lipschitz constant was stated. Raises `KernelError` if the kernel
    contradicts what was stated of it.
    """
    kernel, u, w = head.function, head.moved(left.points), head.keys.moved(right.points)
    sides = (head, left), (head.keys, right)
    off = [_norms_of_points(moved_error(moves, points, arithmetic)) for moves, points in sides]
    values, size = kernel.matrix(u, w), _of_pairs(_norms_of_points(u), _norms_of_points(w))
    nudged = _nudged(kernel, u, w, values, arithmetic)
    slopes = [_changes(u, values), _changes(w, values.mT)]
    if kernel.lipschitz is None:
        steepest = max(float((change / gap).nan_to_num(0, 0, 0).max()) for gap, change in slopes)
        units, noise = _units(kernel, u.shape[-1]) * arithmetic.roundoff, float(nudged.max())
        known = _Constants(SAFETY_FACTOR * steepest, inf, units, SAFETY_FACTOR * noise)
        return known.error(values, _of_pairs(*off), size)
    radius = ROOM * float(
        torch.cat([_norms_of_points(u) + off[0], _norms_of_points(w) + off[1]], dim=-1).max()
    )
    known = _Constants.stated(kernel, radius, u.shape[-1], arithmetic)
    if index := first_set(values.abs() > known.returned):
        raise KernelError(
            f"Kernel {quoted(kernel.name)} contradicts its statement: it is "
            f"{values[tuple(index)].item():.6g} at {at(index)}, and bound is {known.largest:.6g}. "
            "Register it with a larger bound."
        )
    rounding = known.error(values, torch.zeros_like(values), size)
    for gap, change in slopes:
        allowed = ROOM * known.slope * gap + 2 * rounding.max()
        if index := first_set(change > allowed.nan_to_num(nan=inf, posinf=inf)):
            raise KernelError(
                f"Kernel {quoted(kernel.name)} contradicts its statement: it changes by "
                f"{change[tuple(index)].item():.6g} between two points of these data that are "
                f"{gap[tuple(index[:-1])].item():.6g} apart, and lipschitz is {known.slope:.6g}. "
                "Register it with a larger lipschitz; if it jumps, it has none: leave "
                "lipschitz out."
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
    allowed = known.error(values, 2 * NUDGE * arithmetic.roundoff * size, size)
    if index := first_set(nudged > allowed):
        raise KernelError(
            f"Kernel {quoted(kernel.name)} contradicts its statement: it changes by "
            f"{nudged[tuple(index)].item():.3g} at {at(index)} if a point moves by its last "
            f"digits, and lipschitz and rounding allow {allowed[tuple(index)].item():.3g}. Compute "
            "it without cancellation, such as distances by torch.cdist with "
            "compute_mode='donot_use_mm_for_euclid_dist', or register it with a larger rounding."
        )
    return known.error(values, _of_pairs(*off), size)


def _changes(points: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance of each point from the one before, and the change of its kernel."""
    gap = _norms_of_points(points - points.roll(1, -2))[..., None]
    return gap, (values - values.roll(1, -2)).abs()


def _nudged(kernel: Kernel, u: Tensor, w: Tensor, values: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Return how far the kernel is off in the run's precision, also with other last digits of u."""
    dtype = torch.float32 if arithmetic.roundoff > UNIT_ROUNDOFF else torch.float64
    moved = (((1 + units * arithmetic.roundoff) * u).to(dtype) for units in (0, NUDGE))
    return torch.maximum(*((kernel.matrix(left, w.to(dtype)) - values).abs() for left in moved))


def largest_own(kernel: Kernel, radius: float, width: int) -> float:
    """Bound |K| at points of at most this norm: as stated, or by the Lipschitz constant."""
    if kernel.bound is not None or kernel.lipschitz is None:
        return kernel.stated("bound", radius)
    origin = torch.zeros(1, width, dtype=torch.float64)
    try:
        at_origin = abs(float(kernel.matrix(origin, origin)))
    except KernelError:  # it is not defined there
        return inf
    exact = (1 + _units(kernel, width) * UNIT_ROUNDOFF) * at_origin
    return ROOM * (exact + 2 * kernel.stated("lipschitz", radius) * radius)


def worst_own_error(
    kernel: Kernel, radius: float, off: float, width: int, arithmetic: Arithmetic
) -> float:
    """Bound the error at all points of at most this norm that are off by at most `off`."""
    reached = ROOM * (radius + off)
    known = _Constants.stated(kernel, reached, width, arithmetic)
    largest, twice = largest_own(kernel, reached, width), torch.tensor(2.0, dtype=torch.float64)
    return float(known.error(largest * twice / 2, off * twice, radius * twice))


def _units(kernel: Kernel, width: int) -> float:
    """Units of roundoff that a kernel is off by; two more are for the head's weight."""
    return kernel.rounding + width + 2


def _norms_of_points(points: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(points, dim=-1)
    return ROOM * norm


def _of_pairs(left: Tensor, right: Tensor) -> Tensor:
    """Add a number of every point on the left to one of every point on the right."""
    return left[..., :, None] + right[..., None, :]


# How far rounding moves a kernel: the only error of functional descent besides its sums.
#
# A kernel is a function of one number t, a product <u, w> or a distance |u - w|. If t is off by at
# most tau, the kernel is off by at most tau times its slope between, and by the rounding of the
# function itself. Points may be off too (steps that move them round), which adds to tau.
#
# Exponentials are off as `problems/functions.py` says. The arithmetic around them is
# counted here, from t on:
#
#     rbf      exp(-t^2 / 2)               a square, an exponential: 3/2 of t^2 exp(-t^2 / 2) < 1.2
#     laplace  exp(-t)                     an exponential
#     matern   p(s) exp(-s), s = t times a rounded root: 3 of s, s p(s) exp(-s) < 1.5, and at most
#              six operations in p and the product, none of whose results is larger than p
#
# The constants below round that up. It is counted in units of roundoff of a kernel that is at
# most 1. Every rule counts it twice, because the oracle rounds too; tau has both roundings
# already. A kernel that lies between 0 and 1 is off by at most 1, however far its points are.


EXPONENTIAL = FUNCTION_ROUNDING["exp"][0]

DISTANCE_UNITS = EXPONENTIAL.relative + 12
"""Units of roundoff by which a kernel of a distance is off, besides what its distance is off by."""

PRODUCT_UNITS = EXPONENTIAL.relative + 2
"""Units of roundoff, of itself, by which an exponential of a product is off, weight included."""

POWER_UNITS = 2
"""Units of roundoff that each factor of a power adds, of itself."""

PRODUCT_KERNELS = {"linear", "relu", "exp", "polynomial", "softmax"}
DISTANCE_KERNELS = {"rbf", "laplace", "matern"}


class _Slope(NamedTuple):
    """How steep a kernel of a distance is at t: steepest at `peak`, and less on either side."""

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
            # All scores of a row may move, by tau, and by rounding when the largest is subtracted.
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
        # The slope is taken twice as far around as needed, because the oracle's own t is rounded.
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
    off_a, off_b = moved_error(head, left, arithmetic), moved_error(head.keys, right, arithmetic)
    carried = off_a @ b.mT + (a + off_a) @ off_b.mT
    return carried + arithmetic.sum_of(a.shape[-1], (a + off_a) @ (b + off_b).mT)


def _distance_error(
    head: KernelHead, left: Rounded, right: Rounded, arithmetic: Arithmetic
) -> Tensor:
    """Return error of a distance in the sum norm, which is no less than in the Euclidean one."""
    off = moved_error(head, left, arithmetic).sum(-1)[..., :, None]
    off = off + moved_error(head.keys, right, arithmetic).sum(-1)[..., None, :]
    distance = torch.cdist(head.moved(left.points), head.keys.moved(right.points), p=1.0)
    return off + arithmetic.sum_of(left.points.shape[-1], distance + off)


def _at_most_one(error: Tensor) -> Tensor:
    """Return the error of what lies between 0 and 1."""
    return error.nan_to_num(nan=inf, posinf=inf).clamp(max=1)


def _exponential(arithmetic: Arithmetic) -> float:
    """Return the relative error of an exponential, twice, with the rounding of its bound itself."""
    return 2 * PRODUCT_UNITS * (arithmetic.roundoff + UNIT_ROUNDOFF)


def largest_kernel(head: KernelHead, points: Tensor) -> float:
    """Return the largest |K| of two points whose coordinates are at most those of the one in
    `points`.
    """
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
    """Return the largest norm of such a point as G or H moves it, and its number of coordinates."""
    sizes = [sizes_of(side, points) for side in (head, head.keys)]
    return max(ROOM * float(part.norm()) for part in sizes), sizes[0].shape[-1]


def _largest_score(head: KernelHead, points: Tensor) -> Tensor:
    """Return the largest <G u, H w> of two such points."""
    return (sizes_of(head, points) * sizes_of(head.keys, points)).sum()


def worst_kernel_error(head: KernelHead, rounded: Rounded, arithmetic: Arithmetic) -> float:
    """Return the largest error of the kernel of two points that are at most as large as the one
    given.
    """
    # No product or distance of the original is larger than with |G| for G and |H| for H.
    queries, keys = (
        None if rows is None else tuple(tuple(map(abs, row)) for row in rows)
        for rows in (head.transform, head.key_transform)
    )
    positive = replace(head, transform=queries, key_transform=keys)
    if head.kernel == "softmax":  # all shares are at most 1, whatever the number of scores
        tau = _product_error(head, rounded, rounded, arithmetic)
        largest = tau + 8 * arithmetic.roundoff * _largest_score(head, rounded.points)
        relative = torch.expm1(2 * largest) + 2 * _exponential(arithmetic)
        moved = _at_most_one(relative * (1 + relative))
        worst = float(2 * arithmetic.sum_of(arithmetic.n_tokens, torch.ones_like(moved)) + moved)
    elif head.kernel in DISTANCE_KERNELS:  # none is steeper than 1
        tau = _distance_error(
            positive, rounded, Rounded(-rounded.points, rounded.error), arithmetic
        )
        worst = float(_at_most_one(tau)) + 2 * DISTANCE_UNITS * arithmetic.roundoff
    elif head.kernel in PRODUCT_KERNELS:
        return float(kernel_error(positive, rounded, rounded, arithmetic))
    else:
        radius, width = _largest_norm(head, rounded.points)
        errors = [moved_error(side, rounded, arithmetic) for side in (head, head.keys)]
        off = max(ROOM * float(error.norm()) for error in errors)
        worst = worst_own_error(head.function, radius, off, width, arithmetic)
    return head.weight * (worst + 2 * LEAST_NUMBERS * arithmetic.least)


# Bound (a): the largest quantities that any task in the domain can reach.


def known(bound: float) -> float:
    """Replace NaN, where infinities met, by infinity."""
    return inf if isnan(bound) else bound


class _WorstStep(NamedTuple):
    """One step: its numbers, the largest kernel of two points, and how far that may be off."""

    size: float
    noise: float
    momentum: float
    ahead: float
    kernel: float
    wrong: float


class _Sizes(NamedTuple):
    """What a step starts from: the norm of what is left on the examples and of its last change,
    the largest value and the largest change at a token, and how far that change may be off from
    the difference of two values.
    """

    left: float
    change: float
    value: float
    token_change: float
    apart: float = 0.0


class Worst:
    """The largest quantities of any task, step by step.

    `left` bounds the Euclidean norm of what is left on the examples, `value` any value of the
    function, `error` how far examples may be off (in that norm) and `query_error` a query. With
    momentum, `change` and the others of that name bound the same of the last change.
    """

    def __init__(self, problem: Problem, arithmetic: Arithmetic) -> None:
        self._problem, self._arithmetic, self._sum = problem, arithmetic, arithmetic.sum_of_size
        self._root = sqrt(arithmetic.n_tokens)
        width = problem.machine.input_width
        require_memory(f"Bounding {width:,} inputs", INTERVALS * 8 * width, "Take fewer inputs.")
        reach = torch.full((1, width), problem.domain.x, dtype=torch.float64)
        self._inputs = Rounded(reach, torch.zeros_like(reach))
        self._label = problem.domain.y
        self._start = self.left = self._root * problem.domain.y
        self.value = self.error = self.query_error = self.step_error = 0.0
        self.change = self.token_change = self.change_error = self.query_change_error = 0.0
        self._apart = 0.0
        self._summed = self._aged = 0.0
        self._kernels: dict[tuple[KernelHead, ...], tuple[float, float]] = {}

    @property
    def is_lost(self) -> bool:
        """Whether no bound is finite any more; none ever will be again."""
        return not (self.step_error < inf or self.error + self.query_error < inf)

    def take(self, number: int) -> None:
        """Go through one step."""
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
        is_slow = update.momentum is not None and machine.is_positive and is_stable(update, largest)

        # What the step adds to the error: of a run without any, and of one that is off already.
        exact = _Sizes(self.left, self.change, self.value, self.token_change, self._apart)
        self.step_error = max(self.step_error, self._rounding(step, exact))
        off = _Sizes(
            self.left + self.error,
            self.change + self.change_error,
            self.value + self.error,
            self.token_change + self.query_change_error + self.change_error,
        )
        added = self._rounding(step, off)

        # What queries learn and are off by; examples learn no more than that and the noise.
        read = self.left + step.ahead * self.change
        error = self.error + step.ahead * self.change_error
        moved = step.momentum * self.query_change_error
        moved += step.size * self._root * step.kernel * error + added
        self.query_error, self.query_change_error = ROOM * (self.query_error + moved), ROOM * moved
        learnt = step.momentum * self.token_change
        learnt += step.size * (self._root * step.kernel + step.noise) * read
        self.value, self.token_change = ROOM * (self.value + learnt), ROOM * learnt

        # What `apart` of this step of a run is at most; values have grown, changes are learnt.
        values = 2 * (self.value + self._label) + 2 * self.value
        sums = (self._root * (step.kernel + step.wrong) + step.noise) * read
        apart = 3 * self._sum(arithmetic.n_tokens + 8, values + step.size * sums)
        self._apart = known(ROOM * apart)

        added = self._root * added
        if is_slow:
            # No product of steps is larger than `linear.py` says. What a step added is older by one
            # after every further step; all of it is summed, and summed times its age.
            self._aged += self._summed
            self._summed += added
            self.error = ROOM * (3 * self._aged + self._summed)
            self.change_error = ROOM * (6 * self._aged + self._summed)
            n_done = number + 1
            self.left, self.change = (2 * n_done + 1) * self._start, 4 * n_done * self._start
        else:  # norms are multiplied by those of the matrices of the step
            reach = ROOM * step.size * largest
            grows = max(1.0, reach - 1) * ROOM if machine.is_positive else ROOM * (1 + reach)
            kept = ROOM * (step.momentum + step.ahead * reach)
            error, left = kept * self.change_error + added, kept * self.change
            self.error, self.change_error = (
                ROOM * (grows * self.error + error),
                ROOM * (reach * self.error + error),
            )
            self.left, self.change = grows * self.left + left, reach * self.left + left
        self._move(number, step.kernel, step.wrong)

    def _kernel(self, heads: tuple[KernelHead, ...]) -> tuple[float, float]:
        """Return the largest kernel of heads and its error, recomputed only after inputs moved."""
        if heads not in self._kernels:
            kernel = sum(largest_kernel(head, self._inputs.points) for head in heads)
            errors = (worst_kernel_error(head, self._inputs, self._arithmetic) for head in heads)
            self._kernels[heads] = kernel, sum(errors) + self._sum(len(heads), kernel)
        return self._kernels[heads]

    def _rounding(self, step: _WorstStep, sizes: _Sizes) -> float:
        """Return what `rounding` of a step of a run is at most; Cauchy's inequality bounds the
        sums.
        """
        read = sizes.value + self.query_error + self._label
        off = self._sum(4, read)
        read_off = off + step.ahead * sizes.apart + self._sum(4, step.ahead * sizes.token_change)
        left = sizes.left + step.ahead * sizes.change + self._root * read_off
        sums = self._root * (step.kernel + step.wrong) * left
        moved = self._root * step.wrong * left
        moved += self._root**2 * (step.kernel + step.wrong) * read_off
        moved += self._sum(self._arithmetic.n_tokens, sums) + self._sum(4, step.noise * left)
        moved += step.noise * read_off
        ends = self._sum(4, read + sizes.token_change + step.size * sums)
        return known(ROOM * (off + step.momentum * sizes.apart + step.size * moved + ends))

    def _move(self, number: int, kernel: float, wrong: float) -> None:
        machine, update = self._problem.machine, self._problem.functional_step
        transform = update.transform_of(number, machine.input_width)
        if transform is None:
            return
        n = self._arithmetic.n_tokens
        sums = as_matrix(transform, self._inputs.points).abs().sum(-1)
        points, error = self._inputs.points, self._inputs.error
        reach = float((points + error).max())
        moved = n * (wrong * reach + kernel * float(error.max()))
        moved += self._sum(n + len(sums), n * (kernel + wrong) * reach)
        error = error + sums * moved + self._sum(4, reach)
        self._kernels.clear()
        self._inputs = Rounded(ROOM * (points + sums * n * kernel * reach), ROOM * error)


MOST_FOLLOWED = 3 * 10**5
"""Limit on the steps that bound (a) follows; more would take minutes and get no bound."""


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
        carried: Tensor,
        motion: Motion,
        arithmetic: Arithmetic,
    ) -> Tensor:
        """Return what the step may add to the error of every value, and of its last change.

        `values` are exact; `carried` is how far the transformer's own may be off already.
        """
        n_examples = self.kernel.shape[-1]
        size, change = values.abs() + carried + labels.abs(), _largest_change(motion)
        off = arithmetic.sum_of(4, size)  # what is left is read off the values
        read_off = off + self.ahead * motion.apart
        if self.ahead:
            read_off = read_off + arithmetic.sum_of(4, self.ahead * change)
        left = (labels - values + self.ahead * motion.change).abs() + self.ahead * motion.carried
        left = (left + carried + read_off)[..., :n_examples, :]
        largest = self.kernel.abs() + self.error
        sums = largest @ left
        wrong = self.error @ left + largest @ read_off[..., :n_examples, :]
        wrong = wrong + arithmetic.sum_of(n_examples, sums)
        own = arithmetic.sum_of(4, self.noise * left) + self.noise * read_off[..., :n_examples, :]
        wrong[..., :n_examples, :] += own
        kept = self.momentum * motion.apart
        ends = arithmetic.sum_of(4, size + change + self.size * sums)
        return ROOM * (off + kept + self.size * wrong + ends)

    def apart(
        self, labels: Tensor, values: Tensor, after: Tensor, motion: Motion, arithmetic: Arithmetic
    ) -> Tensor:
        """Return how far the change in the stream may be from the difference of the values."""
        n_examples = self.kernel.shape[-1]
        size = values.abs() + after.abs() + 2 * labels.abs()
        change = _largest_change(motion)
        left = ((labels - values).abs() + self.ahead * change)[..., :n_examples, :]
        sums = (self.kernel.abs() + self.error) @ left
        sums[..., :n_examples, :] += self.noise * left
        # Each sum counts its rounding twice, which also covers that its terms are off.
        return ROOM * 3 * arithmetic.sum_of(n_examples + 8, size + change + self.size * sums)

    def moved(
        self, tokens: Rounded, examples: Rounded, transform: Tensor, arithmetic: Arithmetic
    ) -> Rounded:
        """Return the inputs after x <- x + A sum_j K x_j."""
        points = tokens.points + self.kernel @ examples.points @ transform.mT
        size = examples.points.abs() + examples.error
        largest = self.kernel.abs() + self.error
        wrong = self.error @ size + self.kernel.abs() @ examples.error
        wrong = wrong + arithmetic.sum_of(examples.points.shape[-2], largest @ size)
        added = wrong @ transform.abs().mT
        added = added + arithmetic.sum_of(len(transform), largest @ size @ transform.abs().mT)
        error = tokens.error + added + arithmetic.sum_of(4, tokens.points.abs())
        return Rounded(points, (ROOM * error).nan_to_num(nan=inf, posinf=inf))


@dataclass(frozen=True)
class FunctionBounds(AbstractBounds):
    """Bounds on any value of the function. The paper has no closed form: its step is exact."""

    @property
    def stated(self) -> tuple[str, ...]:
        return tuple(kernel.name for kernel in self._own if kernel.lipschitz is not None)

    @property
    def estimated(self) -> tuple[str, ...]:
        return tuple(kernel.name for kernel in self._own if kernel.lipschitz is None)

    @property
    def _own(self) -> list[Kernel]:
        """The kernels of the user's own, each once."""
        update, machine = self.problem.functional_step, self.problem.machine
        n_different = self.program.n_steps if update.heads else min(self.program.n_steps, 1)
        steps = (update.machine_of(step, machine) for step in range(n_different))
        kernels = {head.kernel: head.function for each in steps for head in each.heads}
        return [kernel for kernel in kernels.values() if kernel.is_own]

    def domain(self) -> DomainBound:
        worst = Worst(self.problem, self.arithmetic)
        if self.program.n_steps > MOST_FOLLOWED:
            return DomainBound(inf, inf)
        for step in range(self.program.n_steps):
            worst.take(step)
            if worst.is_lost:
                return DomainBound(inf, inf)
        return DomainBound(known(worst.step_error), known(worst.error + worst.query_error))

    def steps(self, task: Task, history: History, on_progress: OnProgress | None = None) -> Tensor:
        labels = known_labels(task).double()
        before = history[..., :-1, :].double().unflatten(-1, labels.shape[-2:]).unbind(-3)
        none, steps = torch.zeros_like(labels), self._steps(task, len(before))
        motions = self._motions(labels, before, steps)
        bounds = (
            _largest(step.rounding(labels, values, none, motion, self.arithmetic))
            for step, values, motion in zip(steps, before, motions, strict=True)
        )
        return one_by_one(bounds, history, on_progress)

    def _motions(
        self, labels: Tensor, values: Sequence[Tensor], steps: list[_Step]
    ) -> Iterator[Motion]:
        """Yield the last change of what is left before every step of a run."""
        motion = Motion.none(labels)
        is_plain = self.problem.functional_step.momentum is None
        for number, step in enumerate(steps):
            yield motion
            if not is_plain and number + 1 < len(values):
                now, after = values[number], values[number + 1]
                apart = step.apart(labels, now, after, motion, self.arithmetic)
                motion = Motion(now - after, motion.carried, apart)

    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        trajectory = one_by_one(self._trajectory(task, real), real, on_progress)
        return RunBounds(self.steps(task, history), trajectory)

    def predictions(self, task: Task, real: History, error: Tensor) -> Predictions:
        """The function's values at the queries are learnt as those at the examples are."""
        every = error.double().expand_as(real[..., -1, :])
        return self.problem.oracle.predict(task, every)

    def _trajectory(self, task: Task, real: History) -> Iterator[Tensor]:
        """Errors on examples are in the Euclidean norm: a step that converges lets none grow."""
        n, labels = task.n_examples, known_labels(task).double()
        values = real[..., :-1, :].unflatten(-1, labels.shape[-2:]).unbind(-3)
        if self.problem.functional_step.momentum is not None:
            yield from self._trajectory_of_momentum(task, labels, values)
            return
        error, none = torch.zeros_like(labels), Motion.none(labels)
        norm = error[..., :1, :]
        steps = self._steps(task, len(values))
        factors = self._contractions(steps, n)
        for step, factor, before in zip(steps, factors, values, strict=True):
            added = step.rounding(labels, before, error, none, self.arithmetic)
            reading = step.size * (step.kernel[..., n:, :].norm(dim=-1, keepdim=True) * norm)
            norm = ROOM * (factor * norm + _norm_over_tokens(added[..., :n, :]))
            queries = ROOM * (error[..., n:, :] + reading + added[..., n:, :])
            error = torch.cat([norm.expand_as(labels[..., :n, :]), queries], dim=-2)
            yield _largest(error)

    def _trajectory_of_momentum(
        self, task: Task, labels: Tensor, values: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Yield the same with a last change, which is off at examples and queries too."""
        n, steps = task.n_examples, self._steps(task, len(values))
        off = Pair(torch.zeros_like(labels), torch.zeros_like(labels))
        norms = Pair(*(part[..., :1, :] for part in off))
        grow = self._growth(steps, n)
        for number, (step, before) in enumerate(zip(steps, values, strict=True)):
            change = values[max(0, number - 1)] - before
            motion = Motion(change, off.change, torch.zeros_like(change))
            added = step.rounding(labels, before, off.left, motion, self.arithmetic)
            read = norms.left + step.ahead * norms.change
            reading = step.size * (step.kernel[..., n:, :].norm(dim=-1, keepdim=True) * read)
            moved = step.momentum * off.change[..., n:, :] + reading + added[..., n:, :]
            norms = grow(number, _norm_over_tokens(added[..., :n, :]), norms)
            queries = Pair(ROOM * (off.left[..., n:, :] + moved), ROOM * moved)
            off = Pair(
                *(
                    torch.cat([norm.expand_as(labels[..., :n, :]), part], dim=-2)
                    for norm, part in zip(norms, queries, strict=True)
                )
            )
            yield _largest(off.left)

    def _growth(self, steps: list[_Step], n: int) -> Callable[[int, Tensor, Pair], Pair]:
        """Return what a step makes of the norms of errors on the examples, and of what it adds."""
        update, machine = self.problem.functional_step, self.problem.machine
        if steps and machine.is_symmetric and not update.changes_kernel:
            values = torch.linalg.eigvalsh(steps[0].kernel[..., :n, :]) + update.noise
            responses = Responses(values)
            return lambda number, added, now: responses.after(
                steps[number].size, steps[number].momentum, steps[number].ahead, added, now
            )
        factors = list(self._contractions(steps, n))

        def grow(number: int, added: Tensor, now: Pair) -> Pair:
            step = steps[number]
            norm = torch.linalg.matrix_norm(step.kernel[..., :n, :], ord=2)[..., None, None]
            reach = step.size * (norm * (1 + 1e-9) + step.noise)
            return multiplied(
                factors[number], reach, step.momentum + step.ahead * reach, added, now
            )

        return grow

    def _steps(self, task: Task, n_steps: int) -> list[_Step]:
        """Every step, with inputs that move and carry their own rounding."""
        update, machine, arithmetic = (
            self.problem.functional_step,
            self.problem.machine,
            self.arithmetic,
        )
        tokens = Rounded(points := task.points, torch.zeros_like(points))
        steps: list[_Step] = []
        for step in range(n_steps):
            if step == 0 or update.changes_kernel:
                examples = Rounded(*(part[..., : task.n_examples, :] for part in tokens))
                heads = update.machine_of(step, machine).heads
                kernel = sum_of_heads(heads, tokens.points, examples.points)
                errors = [kernel_error(head, tokens, examples, arithmetic) for head in heads]
                error = torch.stack(errors).sum(0) + arithmetic.sum_of(len(errors), kernel.abs())
            kept = (update.momentum_of(step), update.lookahead_of(step))
            steps.append(_Step(update.size_of(step), update.noise, kernel, error, *kept))
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
                whole = (1 - step.size * step.noise) * torch.eye(n).to(kernel) - step.size * kernel
                # The spectral norm, infinite if an entry is.
                is_known = whole.isfinite().flatten(-2).all(-1)
                finite = whole.where(is_known[..., None, None], 0.0)
                factor = torch.linalg.matrix_norm(finite, ord=2).where(is_known, inf)
            else:
                if eigenvalues is None or update.changes_kernel:
                    eigenvalues = torch.linalg.eigvalsh(kernel) + step.noise
                factor = (1 - step.size * eigenvalues).abs().amax(-1)
            # Room for the rounding of the norm itself.
            yield (factor * (1 + 1e-9) + 1e-12)[..., None, None]


def _largest_change(motion: Motion) -> Tensor:
    return motion.change.abs() + motion.carried + motion.apart


def _largest(errors: Tensor) -> Tensor:
    """Return the largest error at any token, which is infinite where nothing is known."""
    return errors.flatten(-2).amax(-1).nan_to_num(nan=inf, posinf=inf)


def _norm_over_tokens(errors: Tensor) -> Tensor:
    """Return the norm over tokens, of every output."""
    return norm(errors.mT).unsqueeze(-2)
