"""The guard itself is tested on both backends in test_grid_kernels.py."""

from icgd.backends.dense_stack import DenseStack
from icgd.backends.run import RunOptions
from icgd.backends.scored_stack import ScoredStack
from icgd.problems.task import Task
from icgd.weights.lowering import lower_program
from tests.contracts.executor import ExecutorContract
from tests.linear_cases import PROBLEMS, compiled_of, task_of

PROBLEM = PROBLEMS["logistic"]


class TestScoredStack(ExecutorContract):
    traced = ("w", "y")
    per_step = 3

    def task(self) -> Task:
        return task_of(PROBLEM)

    def overflowing(self) -> None:
        return None

    def make(self, n_steps: int, task: Task, options: RunOptions) -> ScoredStack:
        program = compiled_of(PROBLEM, n_steps).program
        stack = DenseStack(program, task, lower_program(program), self.traced)
        return ScoredStack(program, task, stack)
