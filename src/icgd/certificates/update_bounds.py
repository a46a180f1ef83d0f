"""Bounds of optimisers: a rule for each instruction of `update_instructions.py`."""

from __future__ import annotations

from torch import Tensor

from icgd.certificates import enclosures
from icgd.certificates.bounds import Moment, State, apart_by, combination_within, drift_of, rule
from icgd.certificates.enclosures import Enclosure
from icgd.program.update_instructions import Assignment, Recombine, TakeTurns


@rule.register
def _bound_of_recombine(instruction: Recombine, now: Moment) -> State:
    written: State = {}
    highest = now.highest.get(instruction, instruction)
    for part, other in zip(instruction.assignments, highest.assignments, strict=True):
        written |= _assigned(part, other, now)
    return written


def _assigned(part: Assignment, highest: Assignment, now: Moment) -> State:
    """A slot's new value and its average, and how far their copies in registers lie apart then.

    The layer adds the change to what the slot holds, and the oracle may add in any order.
    """
    value = combination_within(part.value, highest.value, now.slots, now.how)
    before = now.slots[part.write]
    sizes = value.sizes + 2 * before.size
    rounding = now.how.sum_of(2 * value.n_terms + 4, sizes)
    exact = value.value.exact.widened(now.how.oracle.sum_of(value.n_terms + 2, value.sizes))
    after = Enclosure.around(
        exact, value.value.error + rounding, value.value.actual.widened(rounding)
    )
    if part.bound is not None:
        after = enclosures.clipped(after, part.bound, rounding)
    written = {part.write: after, **_drift(part, highest, rounding, now)}
    if part.average is None:
        return written
    return written | _averaged(part, highest, part.average, written, now)


def _averaged(
    part: Assignment, highest: Assignment, name: str, written: State, now: Moment
) -> State:
    """The average of what was written; the layer makes it of the same terms."""
    after, before = written[part.write], now.slots[name]
    value = combination_within(part.value, highest.value, now.slots, now.how)
    share, sizes = 1.0 - part.keeps, value.sizes + 2 * before.size + after.size
    rounding = now.how.sum_of(2 * value.n_terms + 6, sizes)
    oracle = now.how.oracle.sum_of(2, sizes)
    exact = (after.exact.times(share) + before.exact.times(part.keeps)).widened(oracle)
    actual = (after.actual.times(share) + before.actual.times(part.keeps)).widened(rounding)
    error = share * after.error + part.keeps * before.error + rounding
    found = {name: Enclosure.around(exact, error, actual)}
    if drift_of(name) in now.slots:
        apart = share * written[drift_of(part.write)].error
        found[drift_of(name)] = apart_by(
            apart + part.keeps * now.slots[drift_of(name)].error + 2 * rounding
        )
    return found


def _drift(part: Assignment, highest: Assignment, rounding: Tensor, now: Moment) -> State:
    name = drift_of(part.write)
    if name not in now.slots:
        return {}
    apart = 2 * rounding
    for (slot, low), high in zip(part.value.terms(), highest.value.coefficients, strict=True):
        if drift_of(slot) in now.slots:
            apart = apart + max(abs(low), abs(high)) * now.slots[drift_of(slot)].error
    return {name: apart_by(apart)}


@rule.register
def _bound_of_take_turns(instruction: TakeTurns, now: Moment) -> State:
    """Whole numbers are counted exactly; who waits is known beforehand, and is no enclosure."""
    return {}
