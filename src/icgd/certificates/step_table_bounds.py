"""Error bounds of a table of whole steps: of what it is asked with, and of its answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

import torch
from torch import Tensor

from icgd.certificates import bounds, enclosures
from icgd.certificates.bounds import Moment, State, rule
from icgd.certificates.enclosures import Arithmetic, Enclosure, function_at
from icgd.certificates.intervals import ROOM, Interval
from icgd.problems.activations import activation_named
from icgd.program.functions import ReluSum
from icgd.program.instructions import IDENTITY
from icgd.program.stack import StackProgram
from icgd.program.table_instructions import AverageExamples, LookUpStep

FLAT = 7 / 32
"""A table of steps is constant this far around every key."""


@rule.register
def _bound_of_average_examples(instruction: AverageExamples, now: Moment) -> State:
    """Any mean lies between the least and the largest value."""
    value = bounds.combination_at(instruction.value, now.slots, now.how).value
    exact, actual = (
        Interval(part.low.amin(-2, keepdim=True), part.high.amax(-2, keepdim=True))
        for part in (value.exact, value.actual)
    )
    actual = actual.widened(now.how.sum_of(now.how.n_tokens, actual.size))
    return {instruction.write: Enclosure(exact, actual, ROOM * exact.distance_to(actual))}


@rule.register
def _bound_of_look_up_step(instruction: LookUpStep, now: Moment) -> State:
    """The exact step, from the levels instead of the entries themselves.

    If keys could be rounded beyond the flat parts of the table, only its range is known.
    """
    step, table = _step(instruction, now), now.program.relu_sum(instruction.table)
    reading, size = _reading(table, now.how), now.slots[instruction.write].actual.size
    rounding = reading.rounding + now.how.sum_of(reading.n_terms, size)
    is_found = key_error(instruction, now.program, now.how) <= FLAT
    off = table.error + rounding if is_found else torch.full_like(step.error, inf)
    known = Interval(reading.least - rounding, reading.largest + rounding)
    return {instruction.write: Enclosure.around(step.exact, step.error + off, known)}


def _step(instruction: LookUpStep, now: Moment) -> Enclosure:
    """w + scale * mean(s x), clipped, by the rules of instructions that compute it elsewhere."""
    x, y, w = (
        _scaled(now.slots[slot], size)
        for slot, size in zip(instruction.levels, instruction.ranges, strict=True)
    )
    argument = enclosures.matrix_product(w, x, now.how)
    activation = activation_named(instruction.activation)
    prediction = function_at(activation.value, argument)
    slope = bounds.loss_slope_at(instruction.loss, prediction, y, now.how)
    delta = enclosures.multiply(function_at(activation.derivative, argument), slope, now.how)
    before = replace(now, slots={"w": w})
    step = bounds.add_outer_product(before, "w", delta, x, instruction.scale)["w"]
    exact, actual = step.exact.clipped(instruction.bound), step.actual.clipped(instruction.bound)
    return Enclosure.around(exact, step.error, actual)


@dataclass(frozen=True)
class _Reading:
    """What reading a table can return, and how much its rounding adds."""

    least: float
    largest: float
    n_terms: int
    rounding: Tensor


@lru_cache(maxsize=16)
def _reading(table: ReluSum, how: Arithmetic) -> _Reading:
    """Only the terms on one side of the anchor are not zero, and they grow towards the end.

    A backend that looks pieces up returns the answer itself.
    """
    answers = table.intercepts()[::2]  # the flat pieces
    size = torch.tensor(max(map(abs, answers)), dtype=torch.float64)
    n_terms, rounding = 0, how.sum_of(0, size)
    rows = [(term.scale, term.shift, term.coefficient) for term in table.terms()]
    scale, shift, coefficient = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3).T
    for end in (table.low, table.high) if how.sums_terms else ():
        values = (scale * end + shift).relu()
        used = coefficient.abs() * (values > 0)
        n_terms = max(n_terms, int((used > 0).sum()))
        rounded_values = how.sum_of(2, 2 * used.sum() * max(abs(table.low), abs(table.high)))
        one_side = how.sum_of(n_terms, size + used @ values) + rounded_values
        rounding = torch.maximum(rounding, one_side)
    return _Reading(min(answers), max(answers), n_terms, rounding)


def key_error(instruction: LookUpStep, program: StackProgram, how: Arithmetic) -> float:
    """How far rounding can move a key, which is exact in the levels of x, y and w.

    Each level is rounded by r. Then scores are off by d = r sum|a| and their own rounding, which
    changes a weighted mean of values by at most d times their spread.
    """
    one = torch.ones(1, dtype=torch.float64)
    level = how.function(program.relu_sum(IDENTITY), 1, one, n_copies=1)
    table = program.relu_sum(instruction.table)
    error = how.sum_of(2, one * max(abs(table.low), abs(table.high)))
    instructions = [part for layer in program.block for part in layer.instructions]
    means = {part.write: part for part in instructions if isinstance(part, AverageExamples)}
    for slot, factor in instruction.key.terms():
        mean = means.get(slot)
        error += abs(factor) * (level if mean is None else _mean_error(mean, level, how))
    return float(error)


def _mean_error(mean: AverageExamples, level: Tensor, how: Arithmetic) -> Tensor:
    score, value = (sum(map(abs, part.coefficients)) for part in (mean.score, mean.value))
    one = torch.ones_like(level)
    off = score * level + how.sum_of(3, score * one) + how.sum_of(0, one)  # exp is rounded too
    return value * (level + 2 * off + how.sum_of(how.n_tokens + 3, one))


def _scaled(value: Enclosure, factor: float) -> Enclosure:
    return Enclosure(
        value.exact.times(factor), value.actual.times(factor), ROOM * abs(factor) * value.error
    )
