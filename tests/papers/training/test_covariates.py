"""The law of the inputs: its moments, its shape Sigma, and the matrices that are refused."""

import re

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from icgd.errors import DistributionError, SettingError
from icgd_papers.training.covariates import (
    Ellipsoid,
    Gaussian,
    GaussianMixture,
    ShiftedMixture,
    random_rotation,
)

N_TASKS = 20_000
SIGMA = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=torch.float64)


def tokens(covariates, n_tokens=1):
    return covariates.sample(N_TASKS, n_tokens, np.random.default_rng(1))


def assert_mean(samples, expected):
    """The mean over the first axis is `expected` within five sampling errors."""
    error = samples.std(0) / len(samples) ** 0.5
    assert ((samples.mean(0) - expected).abs() <= 5 * error).all(), (samples.mean(0), expected)


def products(left, right):
    return left[:, :, None] * right[:, None, :]


def test_the_papers_ellipsoid_has_its_spectrum_and_turns_with_the_seed():
    first, second = Ellipsoid.of_seed(1).covariance, Ellipsoid.of_seed(2).covariance
    spectrum = torch.tensor([0.25, 1.0, 1.0, 1.0, 2.25], dtype=torch.float64)
    assert_close(torch.linalg.eigvalsh(first), spectrum)
    assert_close(torch.linalg.eigvalsh(second), spectrum)
    assert (first - second).abs().max() > 0.1
    assert torch.equal(first, Ellipsoid.of_seed(1).covariance)


def test_points_of_the_ellipsoid_lie_on_it_and_spread_evenly():
    x = tokens(Ellipsoid(SIGMA))[:, 0]
    assert_close((x @ torch.linalg.inv(SIGMA) * x).sum(-1), torch.ones(N_TASKS).double())
    assert_mean(products(x, x), SIGMA / 2)
    assert_mean((x @ Ellipsoid(SIGMA).whitening)[:, 0] ** 4, 3 / 8)  # cos^4 of a uniform angle


def test_gaussian_inputs_have_covariance_sigma():
    x = tokens(Gaussian(SIGMA), 2)
    assert_mean(products(x[:, 0], x[:, 0]), SIGMA)
    assert_mean(products(x[:, 0], x[:, 1]), torch.zeros(2, 2).double())


@pytest.mark.parametrize("n_clusters", [1, 4])
def test_tokens_of_a_mixture_share_a_mean_as_often_as_a_cluster(n_clusters):
    x = tokens(GaussianMixture(SIGMA, n_clusters), 2)
    assert_mean(products(x[:, 0], x[:, 0]), 2 * SIGMA)
    assert_mean(products(x[:, 0], x[:, 1]), SIGMA / n_clusters)


def test_root_and_whitening_are_powers_of_sigma():
    law = Gaussian(SIGMA)
    assert_close(law.root @ law.root, SIGMA)
    assert_close(law.whitening @ SIGMA @ law.whitening, torch.eye(2).double())


def test_random_rotations_are_orthogonal_and_prefer_no_direction():
    generator = np.random.default_rng(0)
    rotations = torch.stack([random_rotation(3, generator) for _ in range(500)])
    assert_close(rotations @ rotations.mT, torch.eye(3).double().expand(500, 3, 3))
    assert_mean(rotations, torch.zeros(3, 3).double())  # QR alone has a biased diagonal
    assert_mean(rotations**2, torch.full((3, 3), 1 / 3).double())


def test_a_description_tells_laws_apart():
    laws = [Gaussian(SIGMA), Ellipsoid(SIGMA), Gaussian(2 * SIGMA)]
    laws += [GaussianMixture(SIGMA, 2), GaussianMixture(SIGMA, 3)]
    assert len({str(law.description()) for law in laws}) == len(laws)
    assert Gaussian(SIGMA).description() == Gaussian(SIGMA.clone()).description()


@pytest.mark.parametrize(
    ("matrix", "error", "message"),
    [
        ([[1.0, 0.0]], DistributionError, "covariance must be a square matrix"),
        ([[1.0, 0.5], [0.25, 1.0]], DistributionError, "it is 0.5 at [0, 1] and 0.25 mirrored"),
        ([[1.0, 2.0], [2.0, 1.0]], DistributionError, "its smallest eigenvalue is -1."),
        ([[1.0, 1.0], [1.0, 1.0]], DistributionError, "must be positive definite"),
        ([[float("nan")]], SettingError, "covariance must be a matrix of finite numbers"),
    ],
)
def test_a_matrix_without_a_law_is_refused(matrix, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Gaussian(torch.tensor(matrix))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianMixture(SIGMA, 0), "n_clusters must be a whole number of at least 1"),
        (lambda: Ellipsoid.sphere(0), "input_width must be a whole number of at least 1"),
        (lambda: Ellipsoid.of_seed(-1), "seed must be a whole number of at least 0, got -1"),
    ],
)
def test_impossible_counts_are_refused(make, message):
    with pytest.raises(SettingError, match=message):
        make()


def test_a_token_of_a_shifted_mixture_has_the_centre_of_its_component():
    mixture = ShiftedMixture(SIGMA, (0.7, 0.3), (-2.0, 3.0))
    x = tokens(mixture, 2)
    mean = torch.full((2,), 0.7 * -2 + 0.3 * 3).double()
    assert_mean(x[:, 0], mean)
    assert_mean(products(x[:, 0], x[:, 0]), SIGMA + (0.7 * 4 + 0.3 * 9))
    assert_mean(products(x[:, 0], x[:, 1]), torch.outer(mean, mean))  # tokens are independent


def test_weights_of_a_shifted_mixture_move_the_centres_and_not_the_noise():
    one, other = (ShiftedMixture.of_width(2, weights) for weights in ((1.0, 0.0), (0.5, 0.5)))
    gap = tokens(other) - tokens(one)
    assert torch.minimum(gap.abs(), (gap - 4).abs()).max() < 1e-12
    assert_mean((gap[:, 0, 0] > 2).double(), 0.5)
    assert_mean(tokens(one)[:, 0], torch.full((2,), -2.0).double())
    assert one.description() == {
        "law": "ShiftedMixture",
        "covariance": [[1.0, 0.0], [0.0, 1.0]],
        "weights": [1.0, 0.0],
        "centres": [-2.0, 2.0],
    }


@pytest.mark.parametrize(
    ("weights", "centres", "error", "message"),
    [
        ((0.5, 0.4), (-2.0, 2.0), DistributionError, "weights must be shares of at least 0 that"),
        ((1.5, -0.5), (-2.0, 2.0), DistributionError, "add up to 1; got (1.5, -0.5)."),
        ((), (), DistributionError, "add up to 1; got ()."),
        ((1.0,), (-2.0, 2.0), SettingError, "centres has 2 entries; expected 1, one for each"),
        ((1.0, 0.0), (-2.0, np.inf), SettingError, "centres must be a finite number, got inf."),
    ],
)
def test_mixtures_that_nothing_can_be_drawn_from_are_refused(weights, centres, error, message):
    with pytest.raises(error, match=re.escape(message)):
        ShiftedMixture(SIGMA, weights, centres)
