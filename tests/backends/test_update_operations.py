"""Operations of optimisers: combinations of slots, step by step, and turns."""

import pytest
import torch

from icgd.backends.rules import operation
from icgd.program.instructions import Combination
from icgd.program.update_instructions import Assignment, Recombine, TakeTurns
from tests.backends.test_machine import scheduled


def test_all_slots_are_read_before_any_is_written():
    machine = scheduled()
    machine.slots["gradient_1"].fill_(3.0)
    swap = (
        Assignment(Combination.of("gradient_1"), "weights_1", bound=2.0),
        Assignment(Combination(("weights_1", "gradient_1"), (2.0, -1.0)), "gradient_1"),
    )
    operation(Recombine(swap, "one"), machine)()
    assert machine.slots["weights_1"].tolist() == [[2.0]]
    assert machine.slots["gradient_1"].tolist() == [[2 * 0.5 - 3.0]]


@pytest.mark.parametrize("order", [1, -1])
def test_an_average_is_of_the_clipped_value(order):
    """Slots change in place, or, where they read each other, after all were computed."""
    machine = scheduled()
    machine.slots["gradient_1"].fill_(3.0)
    machine.slots["average_1"] = torch.full((1, 1), 1.0, dtype=torch.float64)
    moved = Assignment(Combination.of("gradient_1"), "weights_1", 2.0, "average_1", 0.75)
    swapped = Assignment(Combination(("weights_1", "gradient_1"), (2.0, -1.0)), "gradient_1")
    parts = (moved,) if order > 0 else (moved, swapped)
    operation(Recombine(parts, "one"), machine)()
    assert machine.slots["weights_1"].tolist() == [[2.0]]
    assert machine.slots["average_1"].tolist() == [[0.75 * 1.0 + 0.25 * 2.0]]


def test_every_step_has_its_own_coefficients():
    machine = scheduled()
    update = operation(machine.program.block_of(0)[-1].instructions[0], machine)
    moved = []
    for step in range(2):
        machine.step = step
        machine.slots["weights_1"].fill_(0.5)
        machine.slots["gradient_1"].fill_(1.0)
        update()
        moved.append(machine.slots["weights_1"].item())
    assert moved == [0.5 - 0.5, 0.5 - 0.25]


@pytest.mark.parametrize(("n_examples", "size"), [(1, 1), (3, 3), (3, 2), (5, 3), (4, 1)])
def test_turns_go_round(n_examples, size):
    machine = scheduled(traced=True)
    machine.examples = slice(0, n_examples)
    for name in ("place", "out_of_batch"):
        machine.slots[name] = torch.zeros(n_examples + 1, 1)
    machine.slots["place"][:n_examples, 0] = torch.arange(float(n_examples))
    count_on = operation(TakeTurns(size, "place", "out_of_batch", "n_examples"), machine)
    for step in range(1, 2 * n_examples):
        count_on()
        wanted = {number % n_examples for number in range(step * size, (step + 1) * size)}
        waits = machine.slots["out_of_batch"][:n_examples, 0]
        assert {number for number, flag in enumerate(waits) if not flag} == wanted
        assert machine.slots["place"][n_examples].item() == 0.0


def test_without_a_trace_nobody_counts():
    machine = scheduled()
    before = {name: slot.clone() for name, slot in machine.slots.items()}
    operation(TakeTurns(2, "place", "out_of_batch", "n_examples"), machine)()
    assert all(torch.equal(slot, before[name]) for name, slot in machine.slots.items())
