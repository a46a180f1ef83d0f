"""Least squares over all weights: derivatives, steps, and why training ends."""

from dataclasses import replace

import pytest
import torch

from icgd.problems.mlp import MLP
from icgd.problems.oracles import predict
from icgd_papers.studies.ball import BallSample, ball_sample
from icgd_papers.studies.wang_fitting import Budget, Fit, damped_step, derivatives

BUDGET = Budget(n_train=300, n_curvature=300, n_test=100, n_starts=1, n_iterations=60)
TARGETS = [MLP((3, 5, 1)), MLP((3, 4, 4, 1))]


def fit_of(target, sample=None, **changes):
    return Fit(target, sample or ball_sample(2, 300, seed=0, index=0), replace(BUDGET, **changes))


def autograd_error(fit, weights):
    weights = weights.clone().requires_grad_()
    error = (predict(fit.target, weights, fit.sample.x)[:, 0] - fit.sample.y).square().mean()
    (gradient,) = torch.autograd.grad(error, weights)
    return error.item(), gradient


@pytest.mark.parametrize("target", TARGETS)
def test_error_and_slope_are_those_of_autograd(target):
    fit, weights = fit_of(target), target.initial_parameters(3, box=3.0)
    error, gradient = autograd_error(fit, weights)
    point = fit.at(weights)
    assert point.error == pytest.approx(error, rel=1e-5)
    assert torch.allclose(2 * point.slope, gradient, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_the_curvature_is_that_of_the_jacobian(target):
    fit, weights = fit_of(target), target.initial_parameters(3, box=3.0)
    jacobian = torch.autograd.functional.jacobian(
        lambda w: predict(target, w, fit.sample.x)[:, 0], weights
    )
    assert torch.allclose(fit._curvature(weights, 0), jacobian.mT @ jacobian / 300, atol=1e-5)


def test_curvature_takes_other_points_in_each_iteration():
    fit = fit_of(TARGETS[0], n_curvature=200)
    weights = TARGETS[0].initial_parameters(0, box=3.0)
    rows = torch.arange(200, 400) % 300
    other = Fit(fit.target, BallSample(fit.sample.x[rows], fit.sample.y[rows]), fit.budget)
    assert torch.allclose(fit._curvature(weights, 1), other._curvature(weights, 0), atol=1e-6)


def test_derivatives_of_the_last_layer_are_its_inputs():
    weights, x = TARGETS[0].initial_parameters(0, box=3.0), torch.rand(7, 3).double()
    outputs, deltas = derivatives(TARGETS[0], weights, x)
    assert torch.equal(deltas[-1], torch.ones(7, 1, dtype=torch.float64))
    assert torch.equal(outputs[1], torch.tanh(x @ TARGETS[0].matrices(weights)[0].mT))


def test_a_damped_step_solves_its_equations_and_is_none_for_what_is_indefinite():
    curvature, slope = torch.tensor([[2.0, 1.0], [1.0, 3.0]]).double(), torch.tensor([1.0, 2.0])
    step = damped_step(curvature, slope.double(), 0.5)
    expected = -torch.linalg.solve(curvature + 0.5 * torch.eye(2), slope.double())
    assert torch.allclose(step, expected)
    assert not damped_step(-curvature, slope.double(), 0.5).any()


def test_a_network_finds_what_a_network_of_its_shape_computes():
    target = MLP((3, 2, 1))
    real = torch.tensor([1.0, -1.0, 0.5, 0.5, 1.0, -0.5, 1.0, -1.0], dtype=torch.float64)
    x = ball_sample(2, 300, seed=0, index=0).x
    sample = BallSample(x, predict(target, real, x)[:, 0])
    fit = fit_of(target, sample, low_enough=1e-9)
    ends = [fit.from_start(target.initial_parameters(start, 3.0)) for start in range(4)]
    assert min(end.point.error for end in ends) <= 1e-9
    best = min(ends, key=lambda end: end.point.error)
    assert best.ended == "low enough"
    assert best.n_iterations < 60


def test_training_ends_at_a_minimum_or_with_the_budget():
    target = MLP((3, 2, 1))
    first = target.initial_parameters(0, 3.0)
    converged = fit_of(target).from_start(first)
    assert converged.ended == "converged"
    error, gradient = autograd_error(fit_of(target), converged.point.weights)
    assert error == pytest.approx(converged.point.error, rel=1e-4)
    assert gradient.abs().max() < 0.01
    cut = fit_of(target, n_iterations=3).from_start(first)
    assert (cut.ended, cut.n_iterations) == ("budget", 3)
    assert cut.point.error > converged.point.error


def test_a_point_that_no_step_improves_is_where_training_converged():
    sample = BallSample(torch.zeros(10, 3).double(), torch.ones(10).double())
    fit = fit_of(MLP((3, 2, 1)), sample)  # the network is 0 at 0, whatever its weights
    end = fit.from_start(torch.ones(8, dtype=torch.float64))
    assert (end.ended, end.n_iterations, end.point.error) == ("converged", 0, 1.0)
