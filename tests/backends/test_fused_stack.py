import pytest
import torch

import icgd
from icgd.backends.fused import STEPS_BETWEEN, FusedStack
from icgd.backends.run import RunOptions
from icgd.problems.data import Task
from tests import cases
from tests.cases import build
from tests.contracts.backend import RELU_STACK
from tests.contracts.executor import ExecutorContract

CASE = next(case for case in cases.FEW if case.name == "tanh-2-3-3-3-2-squared")

REMEMBERING = {
    "momentum": icgd.Problem(
        icgd.MLP((2, 3, 1), "relu"), "squared", icgd.MomentumStep(0.1, 2.0), icgd.Domain(1.0, 1.0)
    ),
    "linear momentum": icgd.Problem(
        icgd.LinearModel(2),
        "matching",
        icgd.ProximalStep(0.1, box=2.0, momentum=0.9),
        icgd.Domain(1.0, 1.0),
    ),
}
"""Problems whose steps take over more than the weights."""


class TestFusedStack(ExecutorContract):
    def task(self) -> Task:
        return CASE.task()

    def make(self, n_steps: int, task: Task, options: RunOptions) -> FusedStack:
        return FusedStack(build(RELU_STACK, CASE, n_steps, pieces=16), task)


def test_an_earlier_step_is_found_again_bit_by_bit():
    """Weights change in place; those that were set aside lead to all steps since."""
    task = CASE.task()
    executor = FusedStack(build(RELU_STACK, CASE, pieces=16), task)
    rows = torch.empty(2 * STEPS_BETWEEN + 4, *task.initial.shape, dtype=torch.float64)
    for row in rows:
        executor.read(executor.step(), row)
    assert executor.at_hand(len(rows), len(rows)) == (2 * STEPS_BETWEEN, 2 * STEPS_BETWEEN)
    again = torch.empty_like(task.initial)
    for step in (2 * STEPS_BETWEEN, len(rows) - 1, len(rows)):
        executor.read(step, again)
        assert torch.equal(again, rows[step - 1])


@pytest.mark.parametrize("name", ["momentum", "linear momentum"])
def test_what_a_step_takes_over_is_set_aside_too(name):
    """What an optimiser remembers, also where it is not among the parameters."""
    problem = REMEMBERING[name]
    compiled = icgd.compile(problem, n_steps=STEPS_BETWEEN + 3)
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(6, 2, generator=generator, dtype=torch.float64)
    task = compiled.task(x, x[:, :1])
    executor = FusedStack(compiled.program, task)
    found, again = torch.empty(2, *task.initial.shape, dtype=torch.float64)
    for _ in range(STEPS_BETWEEN + 2):
        reached = executor.step()
    executor.read(reached, found)
    executor.step()
    executor.read(reached, again)
    assert torch.equal(again, found)
