import torch

from icgd.backends.fused import FusedBackend
from icgd.certificates import run_bound
from icgd.certificates.bounds import Arithmetic
from icgd.certificates.run_bound import stepwise_bounds, trajectory_bounds
from icgd.constructions.registry import construction_named
from icgd.problems import reference
from icgd.problems.mlp import MLP
from tests.cases import batch_of, build, make_case, tasks_of

CASE = make_case(MLP((3, 4, 4, 2), "tanh"), "squared")
PROGRAM = build(construction_named("relu-stack"), CASE, n_steps=4, pieces=32)
HOW = Arithmetic.of(torch.float64, n_tokens=7, backend="fused")


def bounds_of(task):
    history = FusedBackend().run(PROGRAM, task).parameters
    real = reference.train(CASE.problem, task.initial, task.x, task.y, 4)
    return (
        stepwise_bounds(PROGRAM, task, history, HOW),
        trajectory_bounds(PROGRAM, CASE.problem, task, real, HOW),
    )


def test_a_batch_gets_the_bounds_of_its_tasks():
    batch = batch_of(CASE, 3).task()
    together = bounds_of(batch)
    for number, task in enumerate(tasks_of(batch)):
        for ours, alone in zip(together, bounds_of(task), strict=True):
            torch.testing.assert_close(ours[number], alone, rtol=1e-9, atol=0)


def test_steps_bounded_in_groups_equal_steps_bounded_at_once(monkeypatch):
    at_once, _ = bounds_of(CASE.task())
    monkeypatch.setattr(run_bound, "NUMBERS_AT_ONCE", 1)
    in_groups, _ = bounds_of(CASE.task())
    assert at_once.shape == (4,)
    torch.testing.assert_close(in_groups, at_once, rtol=1e-9, atol=0)


def test_the_first_step_of_a_trajectory_is_a_single_step_and_later_ones_carry_its_error():
    stepwise, trajectory = bounds_of(CASE.task())
    torch.testing.assert_close(trajectory[0], stepwise[0], rtol=1e-9, atol=0)
    assert (trajectory[1:] > trajectory[:-1]).all()
    assert (trajectory[1:] > stepwise[1:]).all()
