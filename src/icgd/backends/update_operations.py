"""The operations of optimisers: a rule for each instruction of `update_instructions.py`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from icgd.backends.look_up import Operation
from icgd.backends.machine import Machine, combined_in_steps, operation
from icgd.program.instructions import Combination
from icgd.program.update_instructions import Assignment, Recombine, TakeTurns

Terms = list[dict[str, float]]
"""The slots of a value with their coefficients, for each step, or once for all of them."""


@operation.register
def _to_recombine(instruction: Recombine, machine: Machine) -> Operation:
    """Slots change in place, in an order in which none is read after it changed.

    A value that reads another slot that changes is put in terms of that slot's new value, which is
    how optimisers write it: w - step_size * m with the new m. Where this leads to no order, values
    wait in buffers until all of them are computed.
    """
    variants = machine.variants(instruction)
    writes = [part.write for part in instruction.assignments]
    values = {
        write: [dict(each.assignments[number].value.terms()) for each in variants]
        for number, write in enumerate(writes)
    }
    bounds = {part.write: part.bound for part in instruction.assignments}
    order = _in_order(values)
    steps = (
        [_all_at_once(instruction, machine)]
        if order is None
        else [_in_place(write, terms, bounds[write], machine) for write, terms in order.items()]
    )
    steps += _averages(variants, machine)

    def recombine() -> None:
        for change in steps:
            change()

    return recombine


def _averages(variants: Sequence[Recombine], machine: Machine) -> list[Operation]:
    """What averages new values, which stand in their slots."""
    numbers = range(len(variants[0].assignments))
    return [
        _average([each.assignments[number] for each in variants], machine)
        for number in numbers
        if variants[0].assignments[number].average is not None
    ]


def _average(parts: Sequence[Assignment], machine: Machine) -> Operation:
    average, value = machine.at(parts[0].average or "", parts[0].write)
    table = [part.keeps for part in parts]

    def move() -> None:
        keeps = table[machine.step] if len(table) > 1 else table[0]
        average.mul_(keeps).add_(value, alpha=1.0 - keeps)

    return move


def _in_order(values: dict[str, Terms]) -> dict[str, Terms] | None:
    """The values in an order in which they may change in place, or None if there is none.

    What is remembered comes after the weights, and changes before them.
    """
    order: dict[str, Terms] = {}
    for write, terms in reversed(values.items()):
        changed = [slot for slot in order if slot in terms[0]]
        for slot in changed:
            new = values[slot]
            others = set(order) - {slot}
            if len(changed) > 1 or not all(step.get(slot) for step in new) or others & set(new[0]):
                return None
            terms = _in_terms_of(slot, new, terms)
        order[write] = terms
    return order


def _in_terms_of(slot: str, new: Terms, value: Terms) -> Terms:
    """A value that reads the old number in a slot, put in terms of the new one."""
    found: Terms = []
    for old, after in zip(value, new, strict=True):
        share = old[slot] / after[slot]
        rest = {name: old.get(name, 0.0) - share * after.get(name, 0.0) for name in old | after}
        size = {name: abs(old.get(name, 0.0)) + abs(share * after.get(name, 0.0)) for name in rest}
        found.append({n: 0.0 if abs(c) <= 1e-15 * size[n] else c for n, c in rest.items()})
        found[-1][slot] = share
    used = [name for name in found[0] if any(terms[name] for terms in found)]
    return [{name: terms[name] for name in used} for terms in found]


def _in_place(write: str, terms: Terms, bound: float | None, machine: Machine) -> Operation:
    """write = own * write + the other terms, clipped."""
    slot = machine.slots[write]
    table = [(step.get(write, 0.0), [c for n, c in step.items() if n != write]) for step in terms]
    others = machine.at(*(name for name in terms[0] if name != write))

    def change() -> None:
        own, factors = table[machine.step] if len(table) > 1 else table[0]
        rest = list(zip(others, factors, strict=True))
        if own != 1.0:
            first, factor = rest.pop(0)
            if factor == 1.0:
                torch.add(first, slot, alpha=own, out=slot)
            else:
                slot.mul_(own).add_(first, alpha=factor)
        for other, factor in rest:
            slot.add_(other, alpha=factor)
        if bound is not None:
            slot.clamp_(-bound, bound)

    return change


def _all_at_once(instruction: Recombine, machine: Machine) -> Operation:
    """All values are computed before any slot changes."""
    variants = machine.variants(instruction)
    parts = [
        _waiting(part, [each.assignments[number].value for each in variants], machine)
        for number, part in enumerate(instruction.assignments)
    ]

    def recombine() -> None:
        for compute, _ in parts:
            compute()
        for _, store in parts:
            store()

    return recombine


def _waiting(
    part: Assignment, values: Sequence[Combination], machine: Machine
) -> tuple[Operation, Operation]:
    """What computes the value of a step, and what stores it in its slot."""
    value, compute = combined_in_steps(values, machine.slots, machine)
    write, bound = machine.slots[part.write], part.bound

    def store() -> None:
        if bound is None:
            write.copy_(value)
        else:
            torch.clamp(value, -bound, bound, out=write)

    return compute, store


@operation.register
def _to_take_turns(instruction: TakeTurns, machine: Machine) -> Operation:
    """Only a trace shows whose turn it is: otherwise the machine has the batch alone."""
    if not machine.traced:
        return lambda: None
    place, waits = (
        machine.slots[name][..., machine.examples, :]
        for name in (instruction.place, instruction.waits)
    )
    n_examples, size = place.shape[-2], instruction.batch_size

    def count_on() -> None:
        place.sub_(size).remainder_(n_examples)
        waits.copy_(place >= size)

    return count_on
