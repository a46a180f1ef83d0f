"""Behaviour that every backend owes when a function is trained; joins the backend's contract."""

import pytest
import torch
from torch import Tensor

import icgd
from icgd.backends.run import AbstractBackend, Run, RunOptions
from icgd.problems.data import Task
from tests.cases import KERNEL_CASES, Case, over, tasks_of

N_STEPS = 3


def run_case(backend: AbstractBackend, case: Case, task: Task, **settings: object) -> Run:
    program = icgd.compile(case.problem, n_steps=N_STEPS).program
    return backend.run(program, task, RunOptions(**settings))


def batch_task(case: Case) -> Task:
    """The case, and the same with labels and queries changed, as a batch."""
    parts = (case.x, case.y, case.queries)
    stacked = [torch.stack([part, part.flip(0)]) for part in parts]
    stacked[1][1] *= 0.5
    x, y, queries = stacked
    return icgd.as_task(case.problem, x, y, queries=queries)


def largest(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


class FunctionalContract:
    """Subclasses say how to make the backend."""

    def make_backend(self) -> AbstractBackend:
        raise NotImplementedError

    @over(KERNEL_CASES)
    def test_every_layer_is_a_step_of_functional_descent(self, case: Case):
        task = case.task()
        values = run_case(self.make_backend(), case, task).parameters
        real = case.problem.oracle.train(task, N_STEPS)
        assert values.shape == (N_STEPS + 1, task.n_tokens * task.y.shape[-1])
        assert not values[0].any()
        assert (real[1:] - real[:-1]).abs().amax(-1).min() > 1e-3
        assert largest(values, real) <= 1e-12
        assert largest(values[1:], case.problem.oracle.stepped(task, values)) < 1e-12

    @over(KERNEL_CASES)
    def test_predictions_are_the_values_at_the_queries(self, case: Case):
        task = case.task()
        run = run_case(self.make_backend(), case, task)
        assert torch.equal(run.predictions, case.problem.oracle.predict(task, run.parameters[-1]))

    @over(KERNEL_CASES)
    def test_a_batch_equals_its_tasks_one_by_one(self, case: Case):
        batch = batch_task(case)
        together = run_case(self.make_backend(), case, batch)
        alone = [run_case(self.make_backend(), case, task) for task in tasks_of(batch)]
        assert largest(together.parameters, torch.stack([r.parameters for r in alone])) <= 1e-12
        assert largest(together.predictions, torch.stack([r.predictions for r in alone])) <= 1e-12

    @over(KERNEL_CASES)
    def test_the_trace_shows_what_is_left_to_learn(self, case: Case):
        task = case.task()
        run = run_case(self.make_backend(), case, task, trace=("x", "y", "is_example"))
        labels = torch.cat([task.y, task.y.new_zeros(3, task.y.shape[-1])])
        left = labels - run.parameters.unflatten(-1, labels.shape)
        assert largest(run.trace["y"], left) <= 1e-14
        assert run.trace["is_example"][:, :, 0].tolist() == [[1.0] * 7 + [0.0] * 3] * 4
        moves = bool(case.problem.functional_step.transforms)
        points = task.points
        assert torch.equal(run.trace["x"][0], points)
        assert torch.equal(run.trace["x"][-1], points) is not moves

    @over(KERNEL_CASES)
    def test_float32_is_close_to_float64(self, case: Case):
        single = run_case(self.make_backend(), case, case.task("float32"))
        double = run_case(self.make_backend(), case, case.task())
        assert single.parameters.dtype is single.predictions.dtype is torch.float32
        assert largest(single.parameters.double(), double.parameters) <= 1e-5

    @over(KERNEL_CASES[8:])
    def test_queries_do_not_change_what_is_learnt(self, case: Case):
        task = case.task()
        alone = icgd.as_task(case.problem, case.x, case.y)
        crowd = run_case(self.make_backend(), case, task)
        run = run_case(self.make_backend(), case, alone)
        assert run.predictions.shape == (0, task.y.shape[-1])
        n_values = alone.initial.shape[-1]
        assert largest(run.parameters, crowd.parameters[:, :n_values]) <= 1e-13

    @pytest.mark.parametrize("trace", [(), ("y",)], ids=["untraced", "traced"])
    def test_functional_progress_is_reported_after_every_step(self, trace):
        calls: list[tuple[int, int]] = []
        run_case(
            self.make_backend(),
            KERNEL_CASES[0],
            KERNEL_CASES[0].task(),
            trace=trace,
            on_progress=lambda *call: calls.append(call),
        )
        assert calls == [(1, 3), (2, 3), (3, 3)]

    @over(KERNEL_CASES[8:])
    def test_without_history_only_the_ends_are_kept(self, case: Case):
        whole = run_case(self.make_backend(), case, case.task())
        ends = run_case(self.make_backend(), case, case.task(), history=False)
        assert torch.equal(ends.parameters, whole.parameters[[0, -1]])
        assert torch.equal(ends.predictions, whole.predictions)
