"""The operations of optimisers: a rule for each instruction of `update_instructions.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from icgd.backends.look_up import Operation
from icgd.backends.machine import Machine, combined_in_steps, operation
from icgd.program.instructions import Combination
from icgd.program.update_instructions import Assignment, Recombine, TakeTurns


@operation.register
def _to_recombine(instruction: Recombine, machine: Machine) -> Operation:
    """Slots change in place, in an order in which none is read after it changed.

    Where there is no such order, a value waits in a buffer until all others were computed.
    """
    numbers, variants = range(len(instruction.assignments)), machine.variants(instruction)
    in_steps = {n: [each.assignments[n].value for each in variants] for n in numbers}
    first: list[Operation] = []
    last: list[Operation] = []
    left = dict(enumerate(instruction.assignments))
    while left:
        free = [n for n, part in left.items() if not _is_read(part.write, n, left)]
        number = free[0] if free else next(iter(left))
        part = left.pop(number)
        if free:
            first.append(_in_place(part, in_steps[number], machine))
        else:
            compute, store = _waiting(part, in_steps[number], machine)
            first.append(compute)
            last.append(store)

    def recombine() -> None:
        for change in first:
            change()
        for store in last:
            store()

    return recombine


def _is_read(slot: str, number: int, left: Mapping[int, Assignment]) -> bool:
    """Whether another assignment that is left reads a slot."""
    return any(slot in part.value.slots for other, part in left.items() if other != number)


def _in_place(part: Assignment, values: Sequence[Combination], machine: Machine) -> Operation:
    """write = own * write + the other terms, clipped."""
    write, bound, names = machine.slots[part.write], part.bound, values[0].slots
    others = [
        (place, machine.slots[name]) for place, name in enumerate(names) if name != part.write
    ]
    own = names.index(part.write) if part.write in names else None
    table = [value.coefficients for value in values]

    def change() -> None:
        factors = table[machine.step] if len(table) > 1 else table[0]
        rest = others
        if own is None:
            (place, slot), *rest = others
            torch.mul(slot, factors[place], out=write)
        elif factors[own] != 1.0:
            write.mul_(factors[own])
        for place, slot in rest:
            write.add_(slot, alpha=factors[place])
        if bound is not None:
            write.clamp_(-bound, bound)

    return change


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
