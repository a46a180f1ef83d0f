r"""How far rounding moves a kernel: the only error of functional descent besides its sums.

A kernel is a function of one number t, a product <u, w> or a distance |u - w|. If t is off by at
most tau, the kernel is off by at most tau times its slope between, and by the rounding of the
function itself. Points may be off too (steps that move them round), which adds to tau.

Exponentials are off as `problems/function_rounding.py` says. The arithmetic around them is counted
here, from t on:

    rbf      exp(-t^2 / 2)               a square, an exponential: 3/2 of t^2 exp(-t^2 / 2) < 1.2
    laplace  exp(-t)                     an exponential
    matern   p(s) exp(-s), s = t times a rounded root: 3 of s, s p(s) exp(-s) < 1.5, and at most
             six operations in p and the product, none of whose results is larger than p

The constants below round that up. It is counted in units of roundoff of a kernel that is at most 1.
Every rule counts it twice, because the oracle rounds too; tau has both roundings already. A kernel
that lies between 0 and 1 is off by at most 1, however far its points are. For a kernel of the
user's own see `own_kernels.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.intervals import ROOM, UNIT_ROUNDOFF
from icgd.certificates.own_kernels import largest_own, own_error, worst_own_error
from icgd.certificates.rounded_points import Rounded, moved_error, sizes_of
from icgd.problems.function_rounding import FUNCTION_ROUNDING, LEAST_NUMBERS
from icgd.problems.kernel_machine import KernelHead, Rows
from icgd.problems.kernels import SHAPES

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
        """The steepest slope between two distances."""
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


def kernel_error(head: KernelHead, left: Rounded, right: Rounded, how: Arithmetic) -> Tensor:
    """A bound on the error of `head.matrix(left, right)`, entry by entry."""
    if head.kernel in PRODUCT_KERNELS:
        scores = head.moved(left.points) @ head.keys.moved(right.points).mT
        error = _of_product(head, scores, _product_error(head, left, right, how), how)
    elif head.kernel in DISTANCE_KERNELS:
        error = _of_distance(head, left, right, how)
    else:
        error = own_error(head, left, right, how)
    return head.weight * (error + 2 * LEAST_NUMBERS * how.least)


def _product_error(head: KernelHead, left: Rounded, right: Rounded, how: Arithmetic) -> Tensor:
    a, b = sizes_of(head, left.points), sizes_of(head.keys, right.points)
    off_a, off_b = moved_error(head, left, how), moved_error(head.keys, right, how)
    carried = off_a @ b.mT + (a + off_a) @ off_b.mT
    return carried + how.sum_of(a.shape[-1], (a + off_a) @ (b + off_b).mT)


def _distance_error(head: KernelHead, left: Rounded, right: Rounded, how: Arithmetic) -> Tensor:
    """The error of a distance in the sum norm, which is no less than in the Euclidean one."""
    off = moved_error(head, left, how).sum(-1)[..., :, None]
    off = off + moved_error(head.keys, right, how).sum(-1)[..., None, :]
    distance = torch.cdist(head.moved(left.points), head.keys.moved(right.points), p=1.0)
    return off + how.sum_of(left.points.shape[-1], distance + off)


def _of_distance(head: KernelHead, left: Rounded, right: Rounded, how: Arithmetic) -> Tensor:
    """The slope is taken twice as far around as needed, because the oracle's own t is rounded."""
    tau = _distance_error(head, left, right, how)
    norm = 1.0 if head.kernel == "laplace" else 2.0
    t = torch.cdist(head.moved(left.points), head.keys.moved(right.points), p=norm)
    slope = _slope_of(head).between((t - 2 * tau).clamp(min=0), t + 2 * tau)
    return _at_most_one(slope * tau) + 2 * DISTANCE_UNITS * how.roundoff


def _at_most_one(error: Tensor) -> Tensor:
    """The error of what lies between 0 and 1."""
    return error.nan_to_num(nan=inf, posinf=inf).clamp(max=1)


def _of_product(head: KernelHead, scores: Tensor, tau: Tensor, how: Arithmetic) -> Tensor:
    rules: dict[str, Callable[[], Tensor]] = {
        "linear": lambda: tau,
        "relu": lambda: tau,
        "exp": lambda: (scores + tau).exp() * (torch.expm1(tau) + _exponential(how)),
        "polynomial": lambda: _of_power(head, scores, tau, how),
        "softmax": lambda: _of_softmax(scores, tau, how),
    }
    return rules[head.kernel]()


def _exponential(how: Arithmetic) -> float:
    """The relative error of an exponential, twice, with the rounding of its bound itself."""
    return 2 * PRODUCT_UNITS * (how.roundoff + UNIT_ROUNDOFF)


def _of_power(head: KernelHead, scores: Tensor, tau: Tensor, how: Arithmetic) -> Tensor:
    degree = int(SHAPES["polynomial"] if head.shape is None else head.shape)
    base = 1 + scores.abs() + tau
    rounding = 2 * POWER_UNITS * how.roundoff
    return (
        degree * base ** (degree - 1) * (tau + rounding * base) + degree * rounding * base**degree
    )


def _of_softmax(scores: Tensor, tau: Tensor, how: Arithmetic) -> Tensor:
    """All scores of a row may move, by tau, and by rounding when the largest is subtracted."""
    largest = tau.amax(-1, keepdim=True) + 8 * how.roundoff * scores.abs().amax(-1, keepdim=True)
    relative = torch.expm1(2 * largest) + 2 * _exponential(how)
    share = torch.softmax(scores, dim=-1)
    moved = _at_most_one(share * relative * (1 + relative))
    return how.sum_of(scores.shape[-1], share + moved) + moved


def largest_kernel(head: KernelHead, points: Tensor) -> float:
    """The largest |K| of two points whose coordinates are at most those of the one in `points`."""
    if head.kernel in DISTANCE_KERNELS or head.kernel == "softmax":
        return head.weight
    if head.kernel not in PRODUCT_KERNELS:
        radius, width = _largest_norm(head, points)
        return head.weight * largest_own(head.function, radius, width)
    score, degree = _largest_score(head, points), head.shape or SHAPES["polynomial"]
    rules: dict[str, Callable[[], Tensor]] = {
        "linear": lambda: score,
        "relu": lambda: score,
        "exp": score.exp,
        "polynomial": lambda: (1 + score) ** degree,
    }
    return head.weight * float(rules[head.kernel]())


def _norm(sizes: Tensor) -> float:
    return ROOM * float(sizes.norm())


def _largest_norm(head: KernelHead, points: Tensor) -> tuple[float, int]:
    """The largest norm of such a point as G or H moves it, and its number of coordinates."""
    sizes = [sizes_of(side, points) for side in (head, head.keys)]
    return max(map(_norm, sizes)), sizes[0].shape[-1]


def _largest_score(head: KernelHead, points: Tensor) -> Tensor:
    """The largest <G u, H w> of two such points."""
    return (sizes_of(head, points) * sizes_of(head.keys, points)).sum()


def worst_kernel_error(head: KernelHead, rounded: Rounded, how: Arithmetic) -> float:
    """The largest error of the kernel of two points that are at most as large as the one given."""
    positive = _in_positive_orthant(head)
    if head.kernel == "softmax":
        worst = _worst_of_softmax(head, rounded, how)
    elif head.kernel in DISTANCE_KERNELS:  # none is steeper than 1
        tau = _distance_error(positive, rounded, Rounded(-rounded.points, rounded.error), how)
        worst = float(_at_most_one(tau)) + 2 * DISTANCE_UNITS * how.roundoff
    elif head.kernel in PRODUCT_KERNELS:
        return float(kernel_error(positive, rounded, rounded, how))
    else:
        radius, width = _largest_norm(head, rounded.points)
        off = max(_norm(moved_error(side, rounded, how)) for side in (head, head.keys))
        worst = worst_own_error(head.function, radius, off, width, how)
    return head.weight * (worst + 2 * LEAST_NUMBERS * how.least)


def _worst_of_softmax(head: KernelHead, rounded: Rounded, how: Arithmetic) -> float:
    """All shares are at most 1, whatever the number of scores."""
    tau = _product_error(head, rounded, rounded, how)
    largest = tau + 8 * how.roundoff * _largest_score(head, rounded.points)
    relative = torch.expm1(2 * largest) + 2 * _exponential(how)
    moved = _at_most_one(relative * (1 + relative))
    return float(2 * how.sum_of(how.n_tokens, torch.ones_like(moved)) + moved)


def _in_positive_orthant(head: KernelHead) -> KernelHead:
    """The head with |G| for G and |H| for H: no product or distance of the original is larger."""
    queries, keys = _absolute(head.transform), _absolute(head.key_transform)
    return replace(head, transform=queries, key_transform=keys)


def _absolute(rows: Rows | None) -> Rows | None:
    return None if rows is None else tuple(tuple(map(abs, row)) for row in rows)
