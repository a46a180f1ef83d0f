import torch

from icgd.backends.fused_stack import FusedStack
from icgd.backends.run import RunOptions
from icgd.problems.task import Task
from tests import cases
from tests.cases import build
from tests.contracts.backend import RELU_STACK
from tests.contracts.executor import ExecutorContract

CASE = next(case for case in cases.FEW if case.name == "tanh-2-3-3-3-2-squared")


class TestFusedStack(ExecutorContract):
    def task(self) -> Task:
        return CASE.task()

    def make(self, n_steps: int, task: Task, options: RunOptions) -> FusedStack:
        return FusedStack(build(RELU_STACK, CASE, n_steps, pieces=16), task)


def test_weights_are_written_where_they_are_kept():
    """Without a copy: what a step reaches is the row of the history itself."""
    task = CASE.task()
    executor = FusedStack(build(RELU_STACK, CASE, pieces=16), task)
    row = torch.empty(3, *task.initial.shape, dtype=torch.float64)[1]
    assert executor.step(row) is row
    assert (row - task.initial).abs().max() > 1e-3
