"""Networks on the ball: what they are, and how well they end."""

from dataclasses import asdict, replace

import pytest
import torch

from icgd.problems.mlp import MLP
from icgd.problems.oracles import predict
from icgd_papers.studies.ball import ball_sample
from icgd_papers.studies.wang_fitting import Budget
from icgd_papers.studies.wang_training import Study, mean_square

BUDGET = Budget(n_train=2000, n_curvature=500, n_test=2500, n_starts=2, n_iterations=25)
STUDY = Study(2, 3, 6, start=1, seed=4, budget=BUDGET)


def test_networks_are_those_that_constructions_take():
    assert STUDY.target == MLP((3, 6, 6, 1), "tanh")
    assert replace(STUDY, depth=2, dimension=5).target.widths == (6, 6, 1)


def test_the_error_is_the_mean_square_over_all_points():
    target, sample = MLP((3, 4, 1)), ball_sample(2, 4500, seed=0, index=0)
    weights = target.initial_parameters(0, 3.0)
    left = predict(target, weights, sample.x)[:, 0] - sample.y
    assert mean_square(target, weights, sample) == pytest.approx(left.square().mean().item())
    zero = torch.zeros_like(weights)
    assert mean_square(target, zero, sample) == pytest.approx(sample.y.mean().item())


def test_a_network_learns_the_ball_and_is_tested_on_fresh_points():
    found = STUDY.train()
    assert found.error < 0.06  # far below the 0.25 of the best constant
    assert found.training_error < found.error < 2 * found.training_error
    assert found.ended in ("converged", "low enough", "budget")
    assert found.n_iterations <= 25
    assert found.largest_weight > 0.5
    again = STUDY.train()
    assert replace(again, seconds=found.seconds) == found


def test_starts_are_first_weights():
    shallow = replace(STUDY, depth=2, budget=replace(BUDGET, n_iterations=1, n_train=500))
    errors = {replace(shallow, start=start).train().training_error for start in range(3)}
    assert len(errors) == 3
    later = replace(shallow, start=0, seed=5).target.initial_parameters(5, 3.0)
    assert torch.equal(later, shallow.target.initial_parameters(shallow.seed + 1, 3.0))


def test_an_outcome_is_read_back_from_json():
    found = replace(STUDY, budget=replace(BUDGET, n_iterations=1, n_train=200)).train()
    assert STUDY.outcome_of(asdict(found)) == found
