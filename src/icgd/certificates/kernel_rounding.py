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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.intervals import UNIT_ROUNDOFF
from icgd.problems.function_rounding import FUNCTION_ROUNDING, LEAST_NUMBERS
from icgd.problems.kernel_machine import KernelHead, Rows, as_matrix
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


class Rounded(NamedTuple):
    """Points as they are in exact arithmetic, and how far each coordinate may be off."""

    points: Tensor
    error: Tensor


def kernel_error(head: KernelHead, left: Rounded, right: Rounded, how: Arithmetic) -> Tensor:
    """A bound on the error of `head.matrix(left, right)`, entry by entry.

    It is infinite for a kernel of the user's own, about which nothing is known.
    """
    if head.kernel in PRODUCT_KERNELS:
        scores = head.moved(left.points) @ head.keys.moved(right.points).mT
        error = _of_product(head, scores, _product_error(head, left, right, how), how)
    elif head.kernel in DISTANCE_KERNELS:
        # No such kernel is steeper than 1, nor larger.
        error = _distance_error(head, left, right, how) + DISTANCE_UNITS * how.roundoff
    else:
        error = left.points.new_full((*left.points.shape[:-1], right.points.shape[-2]), inf)
    return 2 * head.weight * (error + LEAST_NUMBERS * how.least)  # twice: the oracle rounds too


def _sizes(head: KernelHead, points: Tensor) -> Tensor:
    """What the sizes of the terms of G u add up to, |G| |u|."""
    if head.transform is None:
        return points.abs()
    return points.abs() @ as_matrix(head.transform, points).abs().mT


def _moved_error(head: KernelHead, rounded: Rounded, how: Arithmetic) -> Tensor:
    """How far G u may be off."""
    width = rounded.points.shape[-1]
    carried = _sizes(head, rounded.error)
    return carried + how.sum_of(width, _sizes(head, rounded.points) + carried)


def _product_error(head: KernelHead, left: Rounded, right: Rounded, how: Arithmetic) -> Tensor:
    a, b = _sizes(head, left.points), _sizes(head.keys, right.points)
    off_a, off_b = _moved_error(head, left, how), _moved_error(head.keys, right, how)
    carried = off_a @ b.mT + (a + off_a) @ off_b.mT
    return carried + how.sum_of(a.shape[-1], (a + off_a) @ (b + off_b).mT)


def _distance_error(head: KernelHead, left: Rounded, right: Rounded, how: Arithmetic) -> Tensor:
    """The error of a distance in the sum norm, which is no less than in the Euclidean one."""
    off = _moved_error(head, left, how).sum(-1)[..., :, None]
    off = off + _moved_error(head.keys, right, how).sum(-1)[..., None, :]
    distance = torch.cdist(head.moved(left.points), head.keys.moved(right.points), p=1.0)
    return off + how.sum_of(left.points.shape[-1], distance + off)


def _of_product(head: KernelHead, scores: Tensor, tau: Tensor, how: Arithmetic) -> Tensor:
    rules: dict[str, Callable[[], Tensor]] = {
        "linear": lambda: tau,
        "relu": lambda: tau,
        "exp": lambda: scores.exp() * (torch.expm1(tau) + _exponential(how) * tau.exp()),
        "polynomial": lambda: _of_power(head, scores, tau, how),
        "softmax": lambda: _of_softmax(scores, tau, how),
    }
    return rules[head.kernel]()


def _exponential(how: Arithmetic) -> float:
    """The relative error of an exponential, with the rounding of its bound itself."""
    return PRODUCT_UNITS * (how.roundoff + UNIT_ROUNDOFF)


def _of_power(head: KernelHead, scores: Tensor, tau: Tensor, how: Arithmetic) -> Tensor:
    degree = int(SHAPES["polynomial"] if head.shape is None else head.shape)
    base = 1 + scores.abs() + tau
    off = tau + POWER_UNITS * how.roundoff * base
    return degree * base ** (degree - 1) * off + degree * POWER_UNITS * how.roundoff * base**degree


def _of_softmax(scores: Tensor, tau: Tensor, how: Arithmetic) -> Tensor:
    """All scores of a row may move, by tau, and by rounding when the largest is subtracted."""
    largest = tau.amax(-1, keepdim=True) + 4 * how.roundoff * scores.abs().amax(-1, keepdim=True)
    relative = torch.expm1(2 * largest) + 2 * _exponential(how)
    share = torch.softmax(scores, dim=-1)
    return how.sum_of(scores.shape[-1], share) + share * relative


def largest_kernel(head: KernelHead, points: Tensor) -> float:
    """The largest |K| of two points whose coordinates are at most those of the one in `points`."""
    if head.kernel in DISTANCE_KERNELS or head.kernel == "softmax":
        return head.weight
    score, degree = _largest_score(head, points), head.shape or SHAPES["polynomial"]
    rules: dict[str, Callable[[], Tensor]] = {
        "linear": lambda: score,
        "relu": lambda: score,
        "exp": score.exp,
        "polynomial": lambda: (1 + score) ** degree,
    }
    return head.weight * float(rules[head.kernel]()) if head.kernel in rules else inf


def _largest_score(head: KernelHead, points: Tensor) -> Tensor:
    """The largest <G u, H w> of two such points."""
    return (_sizes(head, points) * _sizes(head.keys, points)).sum()


def worst_kernel_error(head: KernelHead, rounded: Rounded, how: Arithmetic) -> float:
    """The largest error of the kernel of two points that are at most as large as the one given."""
    if head.kernel == "softmax":  # all shares are at most 1, whatever the number of scores
        tau = _product_error(head, rounded, rounded, how)
        largest = tau + 4 * how.roundoff * _largest_score(head, rounded.points)
        sums = how.sum_of(how.n_tokens, torch.ones_like(tau)) + 2 * _exponential(how)
        return float(2 * head.weight * (torch.expm1(2 * largest) + sums))
    positive = _in_positive_orthant(head)
    if head.kernel in DISTANCE_KERNELS:
        opposite = Rounded(-rounded.points, rounded.error)
        return float(kernel_error(positive, rounded, opposite, how))
    return float(kernel_error(positive, rounded, rounded, how))


def _in_positive_orthant(head: KernelHead) -> KernelHead:
    """The head with |G| for G and |H| for H: no product or distance of the original is larger."""
    queries, keys = _absolute(head.transform), _absolute(head.key_transform)
    return replace(head, transform=queries, key_transform=keys)


def _absolute(rows: Rows | None) -> Rows | None:
    return None if rows is None else tuple(tuple(map(abs, row)) for row in rows)
