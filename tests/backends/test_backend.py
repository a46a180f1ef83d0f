import pytest

import icgd
from icgd.backends.backend import AbstractBackend, Kind, kind_of
from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.errors import ProgramError
from tests import cases, linear_cases
from tests.backends import chain_cases
from tests.cases import KERNEL_CASES, build
from tests.contracts.backend import RELU_STACK

PROGRAMS = {
    Kind.STACK: build(RELU_STACK, cases.FEW[0]),
    Kind.FUNCTION: icgd.compile(KERNEL_CASES[0].problem, n_steps=2).program,
    Kind.CHAIN: chain_cases.program_of(chain_cases.problem_of(icgd.MLP((2, 1)))),
}


@pytest.mark.parametrize("kind", Kind)
def test_every_program_has_a_kind_and_every_backend_an_executor_for_it(kind):
    assert kind_of(PROGRAMS[kind]) is kind
    for backend in (FusedBackend, DenseBackend):
        assert callable(backend.executors[kind])


def test_what_trains_a_linear_model_is_a_stack():
    problem = linear_cases.PROBLEMS["logistic"]
    assert kind_of(linear_cases.compiled_of(problem).program) is Kind.STACK


def test_what_is_no_program_is_named():
    with pytest.raises(ProgramError, match="program: is a str, which no backend runs"):
        kind_of("relu-stack")


def test_a_backend_must_say_how_many_tasks_run_at_once():
    class Idle(AbstractBackend):
        name = "idle"

    with pytest.raises(TypeError, match=r"abstract method '?tasks_at_once'?"):
        Idle()
