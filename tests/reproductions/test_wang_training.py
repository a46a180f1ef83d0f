"""Networks on the ball: what they see, what they are, and that they learn."""

from dataclasses import replace

import pytest
import torch

from icgd.problems.oracles.network import predict
from icgd.reproductions.wang_training import (
    BallTask,
    Budget,
    Networks,
    Outcome,
    Study,
    squared_errors,
)

STUDY = Study(2, 3, 8, seed=1, budget=Budget(n_steps=25, batch_size=64, n_test=500, n_seeds=2))


@pytest.mark.parametrize("dimension", [1, 2, 8])
def test_half_of_the_points_lie_in_the_ball_whatever_the_dimension(dimension):
    batch = BallTask(dimension).sample(4000, seed=0, index=0)
    points, ones = batch.x[0, :, :-1], batch.x[0, :, -1]
    radii = points.norm(dim=1)
    assert points.shape == (4000, dimension)
    assert (ones == 1).all()
    assert ((radii <= 1).double() == batch.y[0]).all()
    quarters = torch.histc(radii, 4, 0.0, 2.0) / 4000
    assert (quarters - 0.25).abs().max() < 0.03
    assert points.mean(0).abs().max() < 0.06
    assert (batch.y[0] - 0.5).square().mean() == 0.25  # the best constant


def test_networks_are_those_that_constructions_take():
    target = STUDY.target
    assert target.widths == (3, 8, 8, 1)
    assert replace(STUDY, depth=2, dimension=5).target.widths == (6, 8, 1)
    networks = Networks(target, range(4, 6))
    x = torch.rand(1, 7, 3, dtype=torch.float64)
    alone = predict(target, target.initial_parameters(5, box=3.0), x[0])
    assert torch.allclose(networks(x)[1], alone)


def test_the_error_of_each_network_is_its_mean_square():
    networks = Networks(replace(STUDY, depth=2).target, range(2))
    with torch.no_grad():
        networks.weights[1] = 0.0
    batch = BallTask(2).sample(100, seed=0, index=0)
    errors = squared_errors(networks, batch)
    left = predict(networks.target, networks.weights[0], batch.x[0])[:, 0] - batch.y[0]
    assert errors[0].item() == pytest.approx((left**2).mean().item())
    assert errors[1].item() == pytest.approx(batch.y.mean().item())  # g = 0


def test_seeds_are_trained_as_if_alone_and_beat_the_best_constant():
    both = STUDY.train()
    alone = replace(STUDY, seed=1, budget=replace(STUDY.budget, n_seeds=1)).train()
    assert both.errors[0] == pytest.approx(alone.errors[0], rel=1e-3)
    assert max(both.errors) < 0.25
    assert len(both.largest_weights) == 2
    assert both.largest_weights[0] == pytest.approx(alone.largest_weights[0], rel=1e-3)


def test_the_best_network_is_that_of_the_least_error():
    assert Outcome((0.3, 0.1, 0.2), (1.0, 5.0, 2.0), 1.0).best == 1


def test_an_outcome_is_read_back_from_json():
    data = {"errors": [0.3, 0.1], "largest_weights": [1.0, 2.0], "seconds": 0.5}
    assert STUDY.outcome_of(data) == Outcome((0.3, 0.1), (1.0, 2.0), 0.5)
