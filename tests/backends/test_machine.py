"""The slots of a machine, and the arguments and steps of its instructions."""

import pytest
import torch

import icgd
from icgd.backends.machine import argument_of
from icgd.backends.rules import Machine, operation
from icgd.errors import ProgramError
from icgd.program.instructions import ApplyUnits, Argument, Combination, WipeSlots
from tests import cases
from tests.cases import Case, Juggle, build
from tests.contracts.backend import RELU_STACK


def machine_for(case: Case, times: float = 1.0) -> Machine:
    task = case.task()
    program = build(RELU_STACK, case, n_steps=0)
    return Machine(program, task.initial.clone() * times, task.x, task.y, task.queries)


def scheduled(**options: object) -> Machine:
    """A machine for a schedule of two steps on batches of 2 of 3 examples, with one query."""
    update = icgd.GradientStep((0.5, 0.25), 2.0, batch_size=2)
    problem = icgd.Problem(icgd.MLP((1, 1)), "squared", update, icgd.Domain(1.0, 1.0))
    program = icgd.compile(problem, "relu-stack", n_steps=2).program
    x = torch.tensor([[1.0], [0.5], [-1.0]], dtype=torch.float64)
    weights = torch.tensor([0.5], dtype=torch.float64)
    return Machine(program, weights, x, x, x[:1], **options)


def test_an_instruction_without_an_operation_is_named():
    with pytest.raises(
        ProgramError, match=r"^Juggle: has no operation in backends/operations\.py$"
    ):
        operation(Juggle(), machine_for(cases.FEW[0]))


def test_an_argument_is_known_from_its_instruction():
    assert argument_of(ApplyUnits("V", "x", "tanh", "p")) == Argument(Combination.of("x"), "V")
    assert argument_of(WipeSlots(("p",))) is None


def test_an_instruction_of_a_schedule_is_another_one_in_every_step():
    machine = scheduled()
    update = machine.program.block_of(0)[-1].instructions[0]
    first, second = machine.variants(update)
    assert first is update
    assert [part.assignments[0].value.coefficients for part in (first, second)] == [
        (1.0, -0.5),
        (1.0, -0.25),
    ]
    wipe = machine.program.block_of(0)[-1].instructions[1]
    assert machine.variants(wipe) == (wipe,)


def test_a_machine_of_a_trace_knows_who_waits_and_others_have_the_batch_alone():
    traced = scheduled(traced=True)
    assert traced.waiting.tolist() == [[0.0], [0.0], [1.0]]
    assert traced.slots["place"].flatten().tolist() == [0.0, 1.0, 2.0, 0.0]
    assert scheduled().waiting is None
    assert "place" not in scheduled().slots


def test_what_all_tokens_share_has_no_rows():
    machine = scheduled()
    assert machine.part("gradient_1", machine.queries).shape == (1, 1)
    assert machine.part("x", machine.examples).shape == (3, 1)
