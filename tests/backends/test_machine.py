"""Operations one by one; what they compute together is held by the backends' contract."""

import pytest

from icgd.backends.machine import argument_of
from icgd.backends.rules import Machine, operation
from icgd.errors import ProgramError
from icgd.program.instructions import ONE, ApplyUnits, Argument, ClipSlots, Combination, WipeSlots
from tests import cases
from tests.cases import Case, Juggle, build
from tests.contracts.backend import RELU_STACK


def machine_for(case: Case, times: float = 1.0) -> Machine:
    task = case.task()
    program = build(RELU_STACK, case, n_steps=0)
    return Machine(program, task.initial.clone() * times, task.x, task.y, task.queries)


def test_clipping_some_of_the_weights_leaves_the_others_alone():
    machine = machine_for(cases.FEW[1], times=100)
    operation(ClipSlots(("weights_1",), 0.5, ONE), machine)()
    assert machine.slots["weights_1"].abs().max() == 0.5
    assert machine.slots["weights_2"].abs().max() > 10


def test_an_instruction_without_an_operation_is_named():
    with pytest.raises(
        ProgramError, match=r"^Juggle: has no operation in backends/operations\.py$"
    ):
        operation(Juggle(), machine_for(cases.FEW[0]))


def test_an_argument_is_known_from_its_instruction():
    assert argument_of(ApplyUnits("V", "x", "tanh", "p")) == Argument(Combination.of("x"), "V")
    assert argument_of(WipeSlots(("p",))) is None
