from functools import cache

from icgd.backends.dense import DenseStack
from icgd.backends.run import RunOptions
from icgd.layers import Transformer
from icgd.problems.data import Task
from icgd.weights.lowering import lower_program
from tests.backends.test_fused_stack import CASE
from tests.cases import build
from tests.contracts.backend import RELU_STACK
from tests.contracts.executor import ExecutorContract
from tests.linear_cases import PROBLEMS, compiled_of, task_of


@cache
def transformer() -> Transformer:
    """The block does not depend on the number of steps."""
    return lower_program(build(RELU_STACK, CASE, pieces=16))


class TestDenseStack(ExecutorContract):
    traced = ("y", "weights_1", "delta_2")
    per_step = len(build(RELU_STACK, CASE, pieces=16).block)

    def task(self) -> Task:
        return CASE.task()

    def make(self, n_steps: int, task: Task, options: RunOptions) -> DenseStack:
        program = build(RELU_STACK, CASE, n_steps, pieces=16)
        return DenseStack(program, task, transformer(), self.traced)


class TestDenseStackOfALinearModel(ExecutorContract):
    """What becomes of scores out of range is tested in test_grid_operations.py."""

    traced = ("w", "y")
    per_step = 3

    def task(self) -> Task:
        return task_of(PROBLEMS["logistic"])

    def overflowing(self) -> None:
        return None

    def make(self, n_steps: int, task: Task, options: RunOptions) -> DenseStack:
        program = compiled_of(PROBLEMS["logistic"], n_steps).program
        return DenseStack(program, task, lower_program(program), self.traced)
