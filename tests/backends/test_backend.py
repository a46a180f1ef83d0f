import pytest

import icgd
from icgd.backends.dense import DenseBackend
from icgd.backends.fused import FusedBackend
from icgd.backends.run import AbstractBackend
from icgd.errors import ProgramError
from icgd.program.program import AbstractProgram
from tests import cases, linear_cases
from tests.backends import chain_cases
from tests.cases import KERNEL_CASES, build
from tests.contracts.backend import RELU_STACK

PROGRAMS = {
    "network": build(RELU_STACK, cases.FEW[0]),
    "linear model": linear_cases.compiled_of(linear_cases.PROBLEMS["logistic"]).program,
    "function": icgd.compile(KERNEL_CASES[0].problem, n_steps=2).program,
    "chain": chain_cases.program_of(chain_cases.problem_of(icgd.MLP((2, 1)))),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_every_backend_has_an_executor_for_every_program(kind):
    for backend in (FusedBackend, DenseBackend):
        assert callable(backend.executors[type(PROGRAMS[kind])])


@pytest.mark.parametrize("backend", [FusedBackend(), DenseBackend()], ids=["fused", "dense"])
def test_a_program_that_no_backend_runs_is_named(backend):
    other = type("Loop", (AbstractProgram,), dict.fromkeys(AbstractProgram.__abstractmethods__))()
    with pytest.raises(ProgramError, match=f"Loop has no executor in the {backend.name} backend"):
        backend.run(other, cases.FEW[0].task())


def test_a_backend_must_say_how_many_tasks_run_at_once():
    class Idle(AbstractBackend):
        name = "idle"

    with pytest.raises(TypeError, match=r"abstract method '?tasks_at_once'?"):
        Idle()
