"""The fused run of functions; what it owes as a backend is in tests/contracts/functional.py."""

import pytest
import torch

import icgd
from icgd.backends.functional import FunctionDescent, recalled
from icgd.backends.run import RunOptions
from icgd.problems.data import Task
from tests.cases import KERNEL_CASES
from tests.contracts.executor import ExecutorContract


class TestFunctionDescent(ExecutorContract):
    traced = ("x", "y", "is_example")
    per_step = 1
    case = KERNEL_CASES[3]

    def task(self) -> Task:
        return self.case.task()

    def make(self, n_steps: int, task: Task, options: RunOptions) -> FunctionDescent:
        program = icgd.compile(self.case.problem, n_steps=n_steps).program
        return FunctionDescent(program, task, options)


def test_the_kernel_is_computed_once_unless_the_inputs_move():
    calls = []

    def counted(u: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(u.shape))
        return u @ w.mT

    icgd.register_kernel("counted", counted)
    case = KERNEL_CASES[0]
    for transforms, expected in (((), 1), (0.01, 4)):
        update = icgd.FunctionalStep(0.01, transforms=transforms)
        machine = icgd.KernelMachine(3, "counted")
        problem = icgd.Problem(machine, "squared", update, icgd.Domain(2.0, 4.0))
        program = icgd.compile(problem, n_steps=4).program
        task = icgd.as_task(problem, case.x, case.y, queries=case.queries)
        calls.clear()
        executor = FunctionDescent(program, task, RunOptions())
        for _ in range(4):
            executor.step()
        queries, examples = (3, 3), (7, 3)
        assert sorted(calls) == sorted([queries, examples] * expected)


def test_large_batches_run_in_groups_with_the_same_result(monkeypatch):
    case = KERNEL_CASES[3]
    x, y = case.x.expand(5, -1, -1), case.y * torch.arange(1, 6).double()[:, None, None] / 5
    compiled = icgd.compile(case.problem, n_steps=3)
    together = compiled.run(x, y)
    monkeypatch.setattr("icgd.backends.fused.NUMBERS_AT_ONCE", 2 * 7 * 7)
    calls: list[tuple[int, int]] = []
    grouped = compiled.run(x, y, on_progress=lambda *call: calls.append(call))
    assert torch.equal(together.parameters, grouped.parameters)
    assert calls[-1] == (9, 9)  # three groups of three steps


@pytest.mark.parametrize("case", KERNEL_CASES, ids=lambda case: case.name)
def test_what_is_learnt_at_examples_does_not_depend_on_queries(case):
    compiled = icgd.compile(case.problem, n_steps=3)
    alone = compiled.run(case.x, case.y, trace=["y"]).trace["y"]
    beside = compiled.run(case.x, case.y, queries=case.queries, trace=["y"]).trace["y"]
    assert torch.equal(beside[:, : len(case.x)], alone)


@pytest.mark.parametrize(
    "case",
    [case for case in KERNEL_CASES if not case.problem.update.transforms],
    ids=lambda case: case.name,
)
def test_predictions_are_recalled_bit_for_bit(case):
    compiled = icgd.compile(case.problem, n_steps=3)
    slots = {"y", "velocity"} & set(compiled.stack.layout.names)
    trace = compiled.run(case.x, case.y, trace=list(slots)).trace
    for queries in (case.queries, case.queries[:1]):
        whole = compiled.run(case.x, case.y, queries=queries)
        again = recalled(compiled.stack, compiled.task(case.x, case.y, queries=queries), trace)
        assert torch.equal(again, whole.predictions)


def test_an_interrupted_function_leaves_its_whole_steps():
    case = KERNEL_CASES[3]

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    whole = icgd.compile(case.problem, n_steps=2).run(case.x, case.y, queries=case.queries)
    with pytest.raises(icgd.errors.InterruptedRunError, match="after 2 of 5 steps") as caught:
        icgd.compile(case.problem, n_steps=5).run(
            case.x, case.y, queries=case.queries, on_progress=interrupt
        )
    assert torch.equal(caught.value.partial.parameters, whole.parameters)
    assert torch.equal(caught.value.partial.predictions, whole.predictions)
