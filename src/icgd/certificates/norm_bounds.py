"""Bounds of layer norms: a rule for each instruction of `norm_instructions.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.certificates.bounds import Moment, State, not_negative, rule
from icgd.certificates.enclosures import Arithmetic, Enclosure, add, matrix_product, multiply
from icgd.certificates.intervals import ROOM, Interval
from icgd.program import norm_instructions
from icgd.program.norm_instructions import Covary, ScaleCentred


def centring(width: int) -> Tensor:
    """The matrix that takes the mean of its coordinates away from a vector."""
    return torch.tensor(norm_instructions.centring(width), dtype=torch.float64)


@rule.register
def _bound_of_covary(instruction: Covary, now: Moment) -> State:
    """The mean of products of centred coordinates; that of squares is not negative."""
    left = centred(now.slots[instruction.left], now.how)
    is_square = instruction.left == instruction.right
    right = left if is_square else centred(now.slots[instruction.right], now.how)
    products = multiply(left, right, now.how)
    products = not_negative(products) if is_square else products
    width = products.error.shape[-1]
    shares = torch.full((1, width), 1.0 / width, dtype=torch.float64)
    mean = matrix_product(Enclosure.common(Interval.point(shares)), products, now.how)
    return {instruction.write: not_negative(mean) if is_square else mean}


@rule.register
def _bound_of_scale_centred(instruction: ScaleCentred, now: Moment) -> State:
    source, scale = now.slots[instruction.source], now.slots[instruction.scale]
    found = centred(source, now.how)
    if instruction.along is not None and instruction.share is not None:
        along, share = now.slots[instruction.along], now.slots[instruction.share]
        found = add(found, _negative(multiply(share, along, now.how)), now.how)
    found = multiply(scale, found, now.how)
    if instruction.reach is not None:
        found = _within(found, instruction.reach + _off_by_rounding(source, scale, now.how))
    return {instruction.write: found}


def _off_by_rounding(source: Enclosure, scale: Enclosure, how: Arithmetic) -> Tensor:
    """How far a norm may exceed its reach: it centres twice, once for the deviation."""
    sizes = source.size @ centring(source.error.shape[-1]).abs()
    return 2 * ROOM * scale.size * how.sum_of(2 * source.error.shape[-1], sizes)


def _within(norm: Enclosure, reach: Tensor) -> Enclosure:
    allowed = Interval(-reach, reach)
    exact, actual = norm.exact.within(allowed), norm.actual.within(allowed)
    return Enclosure(exact, actual, torch.minimum(norm.error, ROOM * exact.distance_to(actual)))


def centred(slot: Enclosure, how: Arithmetic) -> Enclosure:
    """The coordinates of a slot less their mean."""
    matrix = centring(slot.error.shape[-1])
    return matrix_product(Enclosure.common(Interval.point(matrix)), slot, how)


def _negative(slot: Enclosure) -> Enclosure:
    return Enclosure(slot.exact.times(-1.0), slot.actual.times(-1.0), slot.error)
