"""The operations of optimisers: a rule for each instruction of `update_instructions.py`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from icgd.backends.look_up import Operation
from icgd.backends.machine import Machine, combined_in_steps, operation
from icgd.program.instructions import Combination
from icgd.program.update_instructions import Assignment, Recombine, TakeTurns


@operation.register
def _to_recombine(instruction: Recombine, machine: Machine) -> Operation:
    """All values are computed before any slot changes."""
    variants = machine.variants(instruction)
    parts = [
        _assignment(part, [each.assignments[number].value for each in variants], machine)
        for number, part in enumerate(instruction.assignments)
    ]

    def recombine() -> None:
        for compute, _ in parts:
            compute()
        for _, store in parts:
            store()

    return recombine


def _assignment(
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
