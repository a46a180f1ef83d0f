import torch

from icgd.backends.run import RunOptions
from icgd.backends.traced_stack import TracedStack
from icgd.problems.task import Task
from tests import linear_cases
from tests.backends.test_fused_stack import CASE
from tests.cases import build
from tests.contracts.backend import RELU_STACK
from tests.contracts.executor import ExecutorContract

PROGRAM = build(RELU_STACK, CASE, pieces=16)


class TestTracedStack(ExecutorContract):
    traced = ("y", "one", "weights_1", "delta_2")
    per_step = len(PROGRAM.block)

    def task(self) -> Task:
        return CASE.task()

    def make(self, n_steps: int, task: Task, options: RunOptions) -> TracedStack:
        return TracedStack(build(RELU_STACK, CASE, n_steps, pieces=16), task, self.traced)


def test_predictions_from_an_earlier_step_are_those_of_a_machine_at_its_weights():
    task = CASE.task()
    executor = TracedStack(PROGRAM, task, ("y",))
    first = executor.step()
    executor.step()
    again = TracedStack(PROGRAM, task, ("y",))
    expected = again.predictions(again.step())
    assert torch.equal(executor.predictions(first), expected)


def test_a_traced_score_out_of_range_names_its_own_step():
    problem = linear_cases.problem_of("logistic", step_size=2.0, score=0.2)
    compiled, task = linear_cases.compiled_of(problem), linear_cases.task_of(problem)
    messages = set()
    for trace in ([], ["w"]):
        try:
            compiled.run_task(task, trace=trace)
        except ArithmeticError as error:
            messages.add(str(error))
    assert len(messages) == 1
    assert "at step 2, example" in messages.pop()
