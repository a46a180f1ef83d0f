"""The small mathematics of the checks of wu: constants, lower bounds, scores, quantisers."""

from math import exp, log, pi, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from icgd_papers.theorems.wu.approximation import (
    CONSTANTS,
    BackwardBounds,
    evaluate_mlp,
    forward_constant,
    least_coefficients,
    loss_mlp,
    printed_bound,
    ridge_fit,
    true_reach,
    two_variables,
    wave,
)
from icgd_papers.theorems.wu.experiments import prompts, simple_baselines, unexplained
from icgd_papers.theorems.wu.oracle import SumOfRelus, deltas, outputs, sigmoid
from icgd_papers.theorems.wu.score import FIRST, LAST, REACH, distance, network, score
from icgd_papers.theorems.wu.softmax import (
    ETA,
    RISKS,
    FourLayers,
    lemma_bound,
    log10_separation,
    moved_by_mean,
    quantiser,
    steepest,
    weighted_mean,
)
from icgd_papers.theorems.wu.transformers import BOX, projection_norm


def test_the_constant_of_the_forward_pass_is_the_printed_sum():
    # K = 4, L_r B_v = 3: growth 6 over three layers, times sqrt(9) of the output
    assert forward_constant((2, 4, 4, 9), 1.0, 3.0) == (1 + 6 + 36) * 3


def test_no_argument_exceeds_the_true_reach_and_one_exceeds_the_printed_bound():
    first = np.zeros((9, 2))
    first[:, 0] = 1.0
    p = outputs([first], first[:1], np.tanh)[-1]
    argument = float(p[0] @ np.full(9, 1 / 3))
    assert printed_bound(np.tanh, 1.0, 1.0, depth=2) < argument
    assert argument <= true_reach(np.tanh, 1.0, 1.0, (2, 9, 1), room=0.0) + 1e-12


def test_two_layers_add_what_the_recursion_adds():
    bounds = BackwardBounds(2, 2.0, 3.0, 0.5, 4.0, 6.0, 7.0, forward=1.0)
    ratio, size = 0.5 * 3.0 * 2.0, 3.0 * 0.5 * 4.0
    assert bounds.size == size
    assert bounds.error(0.0, 1.0, 0.0) == 2.0 * size * 3.0 + ratio * 4.0
    by_value = 18.0 * 2.0 * size * 3.0 + ratio * (4.0 * 18.0 + 0.5 * 7.0)
    assert bounds.error(1.0, 0.0, 0.0) == by_value


@given(st.integers(0, 2**32 - 1))
def test_backward_sizes_stay_within_their_bound(seed):
    rng = np.random.default_rng(seed)
    matrices = [rng.uniform(-1, 1, (4, 4)) for _ in range(3)]
    bends, u = [rng.uniform(-1, 1, (1, 4)) for _ in range(3)], rng.uniform(-1, 1, (1, 4))
    row = max(np.linalg.norm(m, axis=axis).max() for m in matrices for axis in (0, 1))
    bound = BackwardBounds(3, 2.0, float(row), 1.0, 1.0).size
    assert max(np.abs(s).max() for s in deltas(matrices, bends, u)) <= bound


def test_the_mlp_of_lemma_4_is_its_sum_of_relus_on_examples_and_zero_on_queries():
    fit = SumOfRelus(sigmoid, 4.0, 32)
    mlp = loss_mlp(fit, np.array([[1.0, -1.0], [-1.0, 1.0]]), reach=2.0)
    p, y = np.array([[1.5, -0.5]]), np.array([[1.0, 0.0]])
    wanted = [[fit(np.array(2.0)) - 1.0, fit(np.array(-2.0))]]
    np.testing.assert_allclose(evaluate_mlp(mlp, p, y, 1.0), wanted, atol=1e-12)
    assert not evaluate_mlp(mlp, p, y, 0.0).any()


def test_what_a_wave_needs_lies_below_the_coefficients_of_a_fit_and_grows():
    fit = SumOfRelus(wave(50), 1.0, 100)
    assert fit.error <= 1 / 200
    # The coefficients count bends at z by 1 + |z|; the bound counts them once.
    assert 0.2 * fit.total < least_coefficients(50) < fit.total
    assert least_coefficients(1000) / least_coefficients(100) > 9
    assert least_coefficients(100) > CONSTANTS[1]


def test_functions_of_two_variables_are_the_sums_of_their_ridges():
    z = np.random.default_rng(0).uniform(-1, 1, (20, 2))
    for name, ridges, function, _ in two_variables():
        total = sum(profile(z @ direction) for direction, profile, _ in ridges)
        np.testing.assert_allclose(total, function(z), atol=1e-4, err_msg=name)
        coarse, fine = (ridge_fit(ridges, function, eps)[0] for eps in (1e-1, 1e-2))
        assert fine < 0.2 * coarse


def test_the_norm_of_the_projection_is_least_at_the_best_scale():
    n_weights = 20
    scales = np.linspace(0.01, 2, 2000)
    norms = 2 * scales * n_weights * BOX + 1 / scales
    assert 0 <= norms.min() - projection_norm(n_weights) < 1e-3
    assert projection_norm(n_weights) == 2 * sqrt(2 * n_weights * BOX)


@pytest.mark.parametrize("risk", RISKS, ids=lambda risk: risk.name)
def test_four_layers_take_the_step_of_the_mean_gradient_and_project(risk):
    rng, block = np.random.default_rng(1), FourLayers(risk, 400)
    x, y = rng.uniform(-1, 1, (2, 5))
    np.testing.assert_allclose(
        sum(profile(np.stack([x, y, 0 * x + 0.3], 1) @ a) for a, profile in risk.ridges),
        risk.gradient(x, y, np.full(5, 0.3)),
        atol=1e-12,
    )
    tokens = np.zeros((5, 6))
    tokens[:, 0], tokens[:4, 1], tokens[:, 2], tokens[:4, 3] = x, y[:4], 0.3, 1.0
    step = ETA * risk.gradient(x[:4], y[:4], np.full(4, 0.3)).mean()
    wanted = tokens.copy()
    wanted[:, 2] = np.clip(0.3 - step, -1, 1)
    np.testing.assert_allclose(block(tokens), wanted, atol=1e-4)


def test_the_bound_of_lemma_16_falls_like_one_over_the_levels():
    assert lemma_bound(2.0, 3, 1, 40) == pytest.approx(lemma_bound(2.0, 3, 1, 10) / 4)


def test_the_steepest_slopes_are_those_of_the_derivative():
    assert steepest(lambda z: 3 * z, 2, 2) == pytest.approx(3.0)
    assert steepest(moved_by_mean, 1, 2) == pytest.approx(2.0, rel=1e-6)  # at 0
    assert np.allclose(weighted_mean(np.array([[0.0, np.log(3)], [4.0, 8.0]]))[1], 7.0)


def test_the_quantiser_rounds_up_to_its_levels():
    z = np.array([-1.0, 0.1, 0.6, 1.1, 1.9, 3.0])
    np.testing.assert_allclose(quantiser(z, 2.0, 4, last=2.0), [0.0, 0.5, 1.0, 1.5, 2.0, 0.0])


def test_the_separation_is_the_printed_one_where_a_float_holds_it():
    growth = 2**4 * (2 * log(2) + 3) * pi
    delta = 2 * log(2) ** 2 * 0.5**2 * 0.5 / growth * exp(-growth / (4 * 0.5 * 0.5))
    assert log10_separation(1, 1, 2, 0.5, 1.0, 0.5) == pytest.approx(log(delta) / log(10))


def test_the_best_constant_leaves_all_of_the_variance():
    labels = torch.tensor([1.0, 2.0, 6.0])
    assert unexplained((labels - 3.0) ** 2, labels) == 1.0
    assert unexplained(torch.zeros(3), labels) == 0.0


def test_ridge_regression_leaves_less_than_the_mean_of_the_labels():
    assert abs(float(prompts(50, depth=3, seed=0)[0].mean()) + 2) < 0.02
    mean, ridge = simple_baselines(depth=3, seed=5, n_prompts=100)
    assert 0.0 < ridge < mean < 0.4


def test_the_score_is_the_gradient_of_the_log_density():
    time = 0.7
    x = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    mean = exp(-time / 2)
    bells = [-((x - c) ** 2) / (2 * (1 - mean**2)) for c in (-mean, mean)]
    (slope,) = torch.autograd.grad(torch.logaddexp(*bells).sum(), x)
    torch.testing.assert_close(score(x.detach(), torch.tensor(time).double()), slope)


def test_the_network_has_the_score_at_its_nodes_and_converges_quadratically():
    x = torch.linspace(-REACH, REACH, 9, dtype=torch.float64)
    time = exp((log(FIRST) + log(LAST)) / 2)
    exact = score(x, torch.tensor(time, dtype=torch.float64))
    torch.testing.assert_close(network(x, time, n_x=9, n_t=3), exact)
    assert distance(0.57, 33, 9) / distance(0.57, 65, 17) == pytest.approx(4, rel=0.35)
