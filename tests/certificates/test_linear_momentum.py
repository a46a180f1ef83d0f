"""Momentum on linear models: where gradients are taken, and how far errors spread."""

import pytest
import torch

import icgd
from icgd.certificates.linear import (
    Kept,
    Pair,
    affine_distances,
    apart,
    changes,
    grown,
    is_affine,
    points_of,
)
from tests.linear_cases import FISTA, data, problem_of

UPDATE = icgd.ProximalStep(0.1, box=1.0, momentum=(0.0, 0.5, 0.25), nesterov=True)
RUN = torch.tensor([[0.0], [1.0], [4.0], [5.0]], dtype=torch.float64)


def test_gradients_are_taken_ahead_of_the_weights():
    assert changes(RUN).flatten().tolist() == [0, 1, 3, 1]
    assert points_of(UPDATE, RUN).flatten().tolist() == [0, 1 + 0.5, 4 + 0.25 * 3]
    assert points_of(icgd.ProximalStep(0.1, momentum=0.5), RUN).flatten().tolist() == [0, 1, 4]
    assert points_of(icgd.ProximalStep(0.1), RUN).flatten().tolist() == [0, 1, 4]


def test_what_is_kept_has_a_row_for_each_step():
    kept = Kept.of(UPDATE, -RUN[:-1])
    assert kept.momentum.flatten().tolist() == kept.ahead.flatten().tolist() == [0, 0.5, 0.25]
    assert kept.change.flatten().tolist() == [0, 1, 3]
    assert not kept.apart.any()


def test_distances_grow_by_what_is_taken_along():
    now = Pair(torch.tensor(2.0).double(), torch.tensor(4.0).double())
    assert float(apart(now, 0.0)) == 2.0
    assert float(apart(now, 0.5)) == 4.0
    for momentum, ahead, left in ((0.0, 0.0, 1.0), (0.5, 0.0, 3.0), (0.5, 0.5, 2.0)):
        moved = grown(now, 0.5, momentum, ahead)
        assert float(moved.left) == pytest.approx(left)
        assert float(moved.change) == pytest.approx(left + 2.0)
    nothing = Pair(*(torch.zeros(()).double(),) * 2)
    assert float(grown(nothing, float("inf"), 0.5, 0.5).left) == 0.0


def test_only_least_squares_without_l1_that_the_box_does_not_touch_are_affine():
    errors, run = torch.full((3, 1), 1e-12).double(), RUN / 10
    least_squares = problem_of("identity", l1=0.0, momentum=0.5)
    assert is_affine(least_squares, (run, run), errors)
    assert not is_affine(least_squares, (run, 2 * run), errors)
    assert not is_affine(problem_of("identity", momentum=0.5), (run, run), errors)
    assert not is_affine(FISTA["logistic"], (run, run), errors)


@pytest.mark.parametrize("nesterov", [False, True])
def test_affine_distances_bound_runs_that_err_and_are_close_to_the_worst(nesterov):
    """Each step of a run of ridge regression is pushed by 1e-3 in a direction of its own."""
    problem = problem_of("identity", l1=0.0, box=9.0, momentum=0.8, nesterov=nesterov)
    x, y, _ = data()
    task, n_steps = icgd.as_task(problem, x, y), 40
    real = problem.oracle.train(task, n_steps)
    added = torch.full((n_steps,), 1e-3, dtype=torch.float64)
    bounds = torch.stack(list(affine_distances(problem, task, added)))
    draw, worst = torch.Generator().manual_seed(0), torch.zeros(n_steps).double()
    for _ in range(30):
        push = torch.randn(4, generator=draw).double()
        push = 1e-3 * push / push.norm()
        run = [task.initial, task.initial]
        for _ in range(n_steps):
            ahead = run[-1] + 0.8 * (run[-1] - run[-2])
            slope = problem.linear_oracle.gradient(task, ahead if nesterov else run[-1])
            run.append(ahead - 0.3 * slope + push)
        off = (torch.stack(run[1:]) - real).norm(dim=-1)[1:]
        assert (off <= bounds).all()
        worst = torch.maximum(worst, off)
    assert (worst >= bounds / 20).all()
    assert bounds[-1] <= 0.2
