"""The networks of wang's lemmas beside formulas of their own, and their training in context."""

from math import atan, pi, sqrt

import numpy as np
import polars as pl
import pytest
import torch
from scipy.special import jv

from icgd.errors import SettingError
from icgd.problems.oracles import predict
from icgd_papers.figure import Job
from icgd_papers.studies import wang_classes
from icgd_papers.studies.ball import UniformRadii, ball_sample
from icgd_papers.studies.relu_networks import (
    BallIndicator,
    SmoothNetwork,
    cosines,
    fewest_knots,
    indicator_error,
    monomials,
    product,
    smallest_indicator,
    square,
)
from icgd_papers.studies.two_layers import HardBall
from icgd_papers.theorems.wang import classes


def column(values):
    return torch.as_tensor(values, dtype=torch.float64)[:, None]


# Squares and products.


@pytest.mark.parametrize("depth", [1, 2, 5, 9])
def test_a_square_is_the_interpolation_at_dyadic_points_and_errs_by_exactly_a_power_of_4(depth):
    network = square(depth)
    assert network.target.widths == (1, 2, *[3] * (depth - 1), 1)
    assert network.n_units == 3 * depth - 1
    x = np.arange(2 ** (depth + 1) + 1) / 2 ** (depth + 1)
    knots = x[::2]
    outputs = network(column(x))[:, 0].numpy()
    assert (outputs == np.interp(x, knots, knots**2)).all()  # all of it is exact in float64
    assert (outputs[1::2] - x[1::2] ** 2 == 4.0 ** -(depth + 1)).all()
    inside = np.random.default_rng(0).random(1000)
    expected = np.interp(inside, knots, knots**2)
    np.testing.assert_allclose(network(column(inside))[:, 0], expected, atol=1e-15)


@pytest.mark.parametrize("depth", [1, 4, 7])
def test_a_product_errs_by_as_much_as_a_square_and_is_0_with_a_factor_of_0(depth):
    network = product(depth)
    assert network.n_units == 6 * depth + 2
    allowed = 4.0 ** -(depth + 1)
    x = 2 * np.random.default_rng(1).random((4000, 2)) - 1
    errors = network(torch.from_numpy(x))[:, 0].numpy() - x.prod(1)
    assert allowed / 3 < np.abs(errors).max() <= allowed
    worst = torch.full((1, 2), 2.0 ** -(depth + 1), dtype=torch.float64)
    assert float(network(worst)) - float(worst.prod()) == allowed
    side = torch.linspace(-1, 1, 101, dtype=torch.float64)
    axes = torch.stack((side, torch.zeros_like(side)), dim=1)
    assert network(axes).abs().max() < 1e-15
    assert network(axes.flip(1)).abs().max() < 1e-15


# The indicator of a ball.


@pytest.mark.parametrize(("dimension", "n_knots"), [(1, 1), (3, 4), (6, 3)])
def test_the_indicator_is_a_ramp_of_interpolated_squares(dimension, n_knots):
    indicator = BallIndicator(dimension, n_knots)
    network, h = indicator.network, indicator.spacing
    assert network.target.widths == (dimension, 2 * dimension * n_knots, 2, 1)
    assert network.width == max(2 * dimension * n_knots, 2)
    x = 1.2 * np.random.default_rng(2).standard_normal((2000, dimension)) / sqrt(dimension)
    reach = (n_knots + 0.5) * h
    assert reach**2 == pytest.approx(1 + dimension * h**2 / 6 + indicator.ramp)
    last = reach - h
    knots = np.arange(-n_knots - 1, n_knots + 1) * h + h / 2
    squares = np.interp(x, knots, knots**2)
    slope = (2 * n_knots) * h  # beyond the last knot
    squares = np.where(np.abs(x) > last, last**2 + slope * (np.abs(x) - last), squares)
    total = squares.sum(1) - dimension * h**2 / 6
    ramp = np.clip((1 + indicator.ramp - total) / (2 * indicator.ramp), 0, 1)
    np.testing.assert_allclose(network(torch.from_numpy(x))[:, 0], ramp, atol=1e-10)
    norms = (x**2).sum(1)
    low, high = indicator.shell
    outside = (norms < low) | (norms > high)
    assert outside.sum() > 300
    np.testing.assert_allclose(ramp[outside], (norms <= 1)[outside], atol=1e-12)


def test_its_error_is_that_of_points_from_the_whole_law():
    indicator = BallIndicator(2, 2)
    x, inside = ball_sample(2, 400_000, seed=0, index=0)
    squares = (indicator.network(x[:, :2])[:, 0] - inside).square()
    error = indicator_error(indicator, UniformRadii(), 40_000, np.random.default_rng(0))
    spread = 5 * float(squares.std()) / sqrt(400_000)
    assert error == pytest.approx(float(squares.mean()), abs=spread)
    assert error < UniformRadii().probability(*indicator.shell)


def test_too_few_knots_are_refused_and_the_smallest_network_is_the_first_to_suffice():
    assert fewest_knots(40) == 3
    with pytest.raises(SettingError, match=r"^2 knots on each side .* give at least 3\.$"):
        _ = BallIndicator(40, 2).network
    assert BallIndicator(40, 3).spacing > 0
    found = smallest_indicator(5, UniformRadii(), 0.01)
    coarser = BallIndicator(5, found.n_knots - 1)
    assert UniformRadii().probability(*found.shell) <= 0.01
    assert UniformRadii().probability(*coarser.shell) > 0.01


# The law that is hard for 2 layers.


def test_the_mass_of_the_transform_is_that_of_the_ball():
    hard = HardBall(6)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    s, a = (nodes + 1) / 2, hard.scale * (nodes + 1) / 2
    transform = (hard.scale / 2 * weights * jv(3, a)) @ jv(2, np.outer(a, s))
    within = float((6 * s * transform**2 * weights / 2).sum())
    beyond = hard.least_error(0.0)
    assert within + beyond == pytest.approx(hard.probability(0.0, 1.0), rel=0.04)  # tail beyond 8
    assert within + beyond < hard.probability(0.0, 1.0)


def test_radii_follow_the_law():
    hard = HardBall(4)
    shares = np.linspace(0, 1, 2001)
    radii = hard.radii(0.25, 2.25, shares)
    assert (radii[0], radii[-1]) == pytest.approx((0.5, 1.5))
    inside = float((radii**2 <= 1).mean())
    expected = hard.probability(0.25, 1.0) / hard.probability(0.25, 2.25)
    assert inside == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("n_units", [1, 5])
def test_sums_of_functions_of_one_direction_err_by_more_than_the_bound(n_units):
    """Fit step functions of random directions, 20 steps each, to the indicator."""
    hard, generator = HardBall(4), np.random.default_rng(3)
    a = np.linspace(1e-3, 100 * hard.scale, 400_001)
    below = np.cumsum(4 * jv(2, a) ** 2 / a) * (a[1] - a[0])
    assert below[-1] == pytest.approx(1, abs=0.01)
    assert np.interp(hard.scale, a, below) == pytest.approx(hard.probability(0.0, 1.0), abs=1e-3)
    normal = generator.standard_normal((20_000, 4))
    radii = np.interp(generator.random(20_000) * below[-1], below, a) / hard.scale
    x = radii[:, None] * normal / np.linalg.norm(normal, axis=1, keepdims=True)
    directions = generator.standard_normal((4, n_units))
    heights = x @ directions / np.linalg.norm(directions, axis=0)
    edges = np.linspace(-1.5, 1.5, 20)
    features = np.concatenate([(h[:, None] > edges).astype(float) for h in heights.T], axis=1)
    features = np.concatenate((features, np.ones((len(x), 1))), axis=1)
    inside = (radii <= 1).astype(float)
    best, *_ = np.linalg.lstsq(features, inside, rcond=None)
    error = float(((features @ best - inside) ** 2).mean())
    assert 0.03 < hard.least_error(float(n_units)) < error


# Smooth functions.


@pytest.mark.parametrize(
    ("dimension", "order", "cells"), [(1, 1, 3), (1, 3, 2), (2, 2, 2), (3, 2, 1)]
)
def test_the_blocks_near_a_point_are_the_whole_network(dimension, order, cells):
    smooth = SmoothNetwork(dimension, order, cells)
    whole = smooth.network(cosines)
    assert whole.n_units == smooth.n_units
    assert len(whole.target.widths) - 2 == smooth.n_layers
    x = torch.rand(200, dimension, generator=torch.Generator().manual_seed(0)).double()
    values = smooth.values(cosines, x)
    torch.testing.assert_close(whole(x)[:, 0], values, atol=1e-12, rtol=0)
    errors = (values - torch.cos(x).prod(1)).abs()
    assert 0 < errors.max() <= smooth.bound
    other = smooth.network(classes.waves)
    same = [torch.equal(*pair) for pair in zip(whole.matrices, other.matrices, strict=True)]
    assert same == [True] * smooth.n_layers + [False]  # the function decides the output only


def test_a_block_is_the_monomials_under_a_hat():
    block = monomials(2, 3, 12)
    t = 2.4 * torch.rand(500, 2, generator=torch.Generator().manual_seed(1)).double() - 1.2
    a, b = t.unbind(1)
    hat = (1 - a.abs()).clamp_min(0) * (1 - b.abs()).clamp_min(0)
    expected = torch.stack([hat, hat * b, hat * a, hat * b * b, hat * a * b, hat * a * a], dim=1)
    assert (block(t) - expected).abs().max() < 4 * 4.0**-13


# The lemmas' checks.


def test_a_line_runs_within_a_ring_for_less_than_the_angle_of_the_bound():
    thickness = 0.01
    angles = np.linspace(-pi, pi, 2_000_001)
    widest = 0.0
    for distance in (0.95, 0.985, 0.9900001, 0.995, 1.0, 1.009):
        with np.errstate(divide="ignore"):
            radii = np.where(np.cos(angles) > 0, distance / np.cos(angles), np.inf)
        widest = max(widest, 2 * pi * float((np.abs(radii - 1) < thickness).mean()))
    assert 0.999 * 4 * atan(0.1) < widest <= 4 * atan(0.1)
    # one unit in each layer: 4 cells
    expected = (1 - 4 * 4 * atan(0.1) / (2 * pi)) / 8
    assert classes.thin_ring_error(1, thickness) == pytest.approx(expected)
    assert classes.thin_ring_error(100, 0.1) == 0


def test_pieces_are_counted():
    assert [classes.pieces_on_a_line(square(depth), 1000) for depth in (1, 3, 5)] == [2, 8, 32]


# The figure.


def test_exponents_are_those_of_powers():
    errors = [10.0**-k for k in range(6)]
    assert wang_classes.exponent([3 * e**-0.5 for e in errors], errors) == pytest.approx(0.5)
    curve = pl.DataFrame({"size": [e**-0.25 * (1 - np.log(e)) for e in errors], "error": errors})
    fitted = wang_classes.exponent(wang_classes.without_logarithm(curve), errors)
    assert fitted == pytest.approx(0.25)


def test_shallow_networks_have_as_many_weights():
    counts = {
        start: network.n_parameters
        for starts in wang_classes.STARTS.values()
        for start, (network, _) in starts.items()
    }
    assert set(counts.values()) == {45, 28, 29}


def stepped(network, weights, x, y, step_size, n_steps):
    for _ in range(n_steps):
        weights = weights.detach().requires_grad_()
        error = (predict(network, weights, x)[:, 0] - y).square().mean() / 2
        (slope,) = torch.autograd.grad(error, weights)
        weights = (weights - step_size * slope).clamp(-8, 8)
    return weights.detach()


def test_the_literal_transformer_trains_as_autograd_does():
    training = wang_classes.Training(4, 10, 6, 1, 2, (0.1,))
    setting = wang_classes.Setting(
        wang_classes.TRAINED_SMOOTH, "4 layers, Lemma 3", 5, 1, 1, (), 100, training
    )
    rows = wang_classes.run(setting, Job())
    assert rows["size"].to_list() == [0, 1, 2, 3, 4]
    network = wang_classes.SAWTOOTH
    examples, tests = [], []
    for index in (10_000, 10_001):
        x, y = wang_classes.wave_task(5, index, 16)
        assert ((x >= 0) & (x <= 1)).all()
        weights = stepped(network.target, network.parameters, x[:10], y[:10], 0.1, 4)
        errors = (predict(network.target, weights, x)[:, 0] - y).square()
        examples.append(float(errors[:10].mean()))
        tests.append(float(errors[10:].mean()))
    last = rows.row(-1, named=True)
    assert last["exact"] == pytest.approx(sum(examples) / 2, rel=1e-5)
    assert last["exact_test"] == pytest.approx(sum(tests) / 2, rel=1e-5)
    assert last["error"] == pytest.approx(last["exact"], rel=1e-3)
    assert last["test"] == pytest.approx(last["exact_test"], rel=1e-3)
    assert last["off_descent"] < 5e-3  # near kinks
    assert rows["test"].null_count() == 4
    assert (last["heads"], last["weights"]) == (173, 258_324)


def test_balls_lie_within_reach_of_the_points():
    x, y = wang_classes.ball_task(0, 3, 4000)
    inside = x[y == 1]
    centre = (inside.amax(0) + inside.amin(0)) / 2
    radius = float((inside - centre).norm(dim=1).max())
    assert centre.abs().max() < 0.6
    assert 0.6 < radius < 1.4
    assert float((x[y == 0] - centre).norm(dim=1).min()) > 0.9 * radius
