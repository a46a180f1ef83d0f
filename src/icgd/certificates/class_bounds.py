"""Bounds of classes: a rule for each instruction of `class_instructions.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

import torch
from torch import Tensor

from icgd.certificates import enclosures
from icgd.certificates.bounds import Moment, State, combination_at, map_rounding, rule
from icgd.certificates.enclosures import Arithmetic, Enclosure
from icgd.certificates.intervals import ROOM, Interval
from icgd.problems.class_functions import SOFTMAX_ROUNDING
from icgd.program.class_instructions import MapDifferences, MapRowSums, ShareClasses
from icgd.program.instructions import Combination


@rule.register
def _bound_of_share_classes(instruction: ShareClasses, now: Moment) -> State:
    n_classes = len(instruction.classes)
    after = shares_of(now.slots[instruction.scores], n_classes + now.how.n_tokens, now.how)
    return {instruction.write: after}


def shares_of(scores: Enclosure, n_tokens: int, how: Arithmetic) -> Enclosure:
    """The softmax over the last axis, by heads that read `n_tokens` tokens.

    Shares rise with their own score and fall with all others. The slopes of a share p with respect
    to all scores add up to 2 p (1 - p), at most 1 / 2.
    """
    n_classes = scores.error.shape[-1]
    exact, actual = (_shares(part) for part in (scores.exact, scores.actual))
    high = torch.maximum(exact.high, actual.high)
    low = torch.minimum(exact.low, actual.low)
    slope = torch.minimum(2 * high, 2 * (1 - low)).clamp(max=0.5)
    moved = ROOM * slope * scores.error.amax(-1, keepdim=True)
    moved = torch.minimum(moved, exact.distance_to(actual))
    sizes = slope * scores.size.amax(-1, keepdim=True) + high
    rounding = how.sum_of(n_classes + n_tokens + SOFTMAX_ROUNDING, sizes)
    return Enclosure.around(exact, moved + rounding, actual.widened(rounding))


def _shares(scores: Interval) -> Interval:
    """The softmax of scores in intervals, with room for the rounding and underflow of values."""
    low, high = scores.low, scores.high
    ends = []
    for own, others in ((low, high), (high, low)):
        apart = others.unsqueeze(-2) - own.unsqueeze(-1)  # (class, other)
        apart = apart - torch.diag_embed(torch.diagonal(apart, dim1=-2, dim2=-1))
        ends.append(1 / apart.exp().sum(-1))
    room = 1 + 2.0**-40
    relative = torch.maximum(low.abs(), high.abs()).amax(-1, keepdim=True) * 2.0**-50
    high = (ends[1] * room * (1 + relative)).clamp(min=torch.finfo(torch.float64).tiny)
    return Interval(ends[0] / room * (1 - relative).clamp(min=0), high)


@rule.register
def _bound_of_map_differences(instruction: MapDifferences, now: Moment) -> State:
    source = now.slots[instruction.source]
    own, other = (source.mapped(_pairs(kind)) for kind in ("own", "other"))
    own, other = (_without_diagonal(part) for part in (own, other))
    apart = Combination(("other", "own"), (1.0, -1.0))
    argument = combination_at(apart, {"own": own, "other": other}, now.how)
    fit = now.program.relu_sum(instruction.function)
    rounding = map_rounding(fit, argument, now.how)
    found = enclosures.fitted_at(fit, argument.value, rounding)
    positive = Interval(-rounding, torch.full_like(rounding, inf))  # as the fit is, which rises
    actual = found.actual.within(positive)
    return {instruction.write: Enclosure.around(found.exact, found.error, actual)}


def _without_diagonal(pairs: Enclosure) -> Enclosure:
    """A score less itself is 0, exactly: so it is if both are taken as 0."""
    n_classes = round(pairs.error.shape[-1] ** 0.5)
    others = 1.0 - torch.eye(n_classes, dtype=torch.float64).flatten()
    return pairs.mapped(lambda part: part * others)


def _pairs(kind: str) -> Callable[[Tensor], Tensor]:
    """From a vector (z_k) to the pairs (k, j) of its entries, of which one is taken."""

    def change(vector: Tensor) -> Tensor:
        n_classes = vector.shape[-1]
        spread = vector.unsqueeze(-1) if kind == "own" else vector.unsqueeze(-2)
        shape = (*vector.shape[:-1], n_classes, n_classes)
        return spread.expand(shape).flatten(-2)

    return change


@rule.register
def _bound_of_map_row_sums(instruction: MapRowSums, now: Moment) -> State:
    source = now.slots[instruction.source]
    n_rows = now.program.layout.width_of(instruction.write)
    matrix = source.mapped(lambda part: part.unflatten(-1, (n_rows, -1)))
    columns = {str(j): matrix.mapped(partial(_column, j)) for j in range(n_rows)}
    argument = combination_at(Combination(tuple(columns), (1.0,) * n_rows), columns, now.how)
    fit = now.program.relu_sum(instruction.function)
    rounding = map_rounding(fit, argument, now.how)
    found = enclosures.fitted_at(fit, argument.value, rounding)
    missed = torch.full_like(found.error, instruction.missed)
    exact = Interval((found.exact.low - missed).clamp(min=0.0), found.exact.high)
    return {instruction.write: Enclosure(exact, found.actual, found.error + missed)}


def _column(number: int, matrix: Tensor) -> Tensor:
    return matrix[..., number]
