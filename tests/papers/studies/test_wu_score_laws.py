"""The laws of wu-score: their scores, their samples, and what they refuse."""

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from icgd.errors import DistributionError, SettingError, UnknownNameError
from icgd_papers.studies.wu_score_laws import LAWS, Mixture, decay, law_named, spread
from icgd_papers.theorems.wu.score import score as two_point_score
from icgd_papers.training.tasks import generator_of

DIMENSIONS = {"ring": 2, "pinwheel": 2, "digits": 4}


def density(mixture, time):
    """The law of x_t, as torch has it."""
    at = torch.tensor(time, dtype=torch.float64)
    m, s = decay(at), spread(at)
    noise = s.square() * torch.eye(mixture.dimension, dtype=torch.float64)
    parts = MultivariateNormal(m * mixture.means, m.square() * mixture.covariances + noise)
    return MixtureSameFamily(Categorical(mixture.shares), parts)


@pytest.mark.parametrize("name", LAWS)
def test_scores_are_slopes_of_the_log_density_of_noisy_points(name):
    mixture = law_named(name, DIMENSIONS[name], seed=0).mixture
    times = torch.tensor([0.02, 0.3, 5.0], dtype=torch.float64)
    x = torch.randn(3, mixture.dimension, dtype=torch.float64).requires_grad_()
    found = mixture.score(x.detach(), times)
    for row, time in enumerate(times.tolist()):
        (slope,) = torch.autograd.grad(density(mixture, time).log_prob(x)[row], x)
        assert found[row] == pytest.approx(slope[row], rel=1e-9, abs=1e-9)


def test_the_score_of_two_points_is_that_of_lemma_19():
    shares, means = torch.full((2,), 0.5).double(), torch.tensor([[-1.0], [1.0]]).double()
    points = Mixture(shares, means, torch.zeros(2, 1, 1, dtype=torch.float64))
    x, times = torch.linspace(-2, 2, 9).double(), torch.full((9,), 0.3).double()
    assert points.score(x[:, None], times)[:, 0] == pytest.approx(two_point_score(x, times))


@pytest.mark.parametrize("name", LAWS)
def test_samples_have_the_mean_and_covariance_of_the_law(name):
    law = law_named(name, DIMENSIONS[name], seed=0)
    shares, means = law.mixture.shares[:, None], law.mixture.means
    centre = (shares * means).sum(0)
    inner = (shares[..., None] * law.mixture.covariances).sum(0)
    expected = inner + (shares * (means - centre)).mT @ (means - centre)
    x = law.mixture.sample(100_000, generator_of(0, 0))
    assert x.mean(0) == pytest.approx(centre, abs=0.02)
    assert x.mT.cov() == pytest.approx(expected, abs=0.03)
    assert expected.diagonal().mean() == pytest.approx(1.0, abs=1e-9 if name != "digits" else 0.05)


def test_a_law_of_fewer_dimensions_has_the_first_coordinates():
    whole, line = law_named("pinwheel", 2, 0).mixture, law_named("pinwheel", 1, 0).mixture
    assert torch.equal(line.means, whole.means[:, :1])
    assert torch.equal(line.covariances, whole.covariances[:, :1, :1])


def test_the_law_of_digits_has_a_component_for_each_and_holds_half_of_them_out():
    law = law_named("digits", 4, seed=3)
    assert law.known.shape == (899, 4)
    assert law.held_out.shape == (898, 4)
    everything = torch.cat((law.known, law.held_out))
    assert len(everything.unique(dim=0)) == 1797
    assert law.mixture.means.shape == (10, 4)
    assert law.mixture.shares.sum() == pytest.approx(1.0)
    mean = (law.mixture.shares[:, None] * law.mixture.means).sum(0)
    assert mean == pytest.approx(law.known.mean(0))
    drawn = law.clean(50, generator_of(0, 1))
    assert all((point == law.known).all(1).any() for point in drawn)
    fresh = law.fresh(898, generator_of(0, 2))
    assert torch.equal(fresh.unique(dim=0), law.held_out.unique(dim=0))
    assert not torch.equal(law.known, law_named("digits", 4, seed=4).known)


def test_a_law_whose_scores_overflow_is_refused_with_time_and_place():
    means = torch.tensor([[1e200], [-1e200]], dtype=torch.float64)
    shares = torch.full((2,), 0.5, dtype=torch.float64)
    far = Mixture(shares, means, torch.ones(2, 1, 1, dtype=torch.float64))
    with pytest.raises(DistributionError, match=r"not a finite number at t = 0\.5, x = \(0\)\."):
        far.score(torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64))


def test_what_the_data_do_not_have_is_refused():
    with pytest.raises(SettingError, match=r"^dimension must be at most 2, got 3\.$"):
        law_named("ring", 3, seed=0)
    with pytest.raises(SettingError, match=r"^dimension must be at most 64, got 65\.$"):
        law_named("digits", 65, seed=0)
    with pytest.raises(SettingError, match=r"^n_samples must be at most 898, got 899\.$"):
        law_named("digits", 2, seed=0).fresh(899, generator_of(0, 0))
    with pytest.raises(UnknownNameError, match=r"^Unknown law 'rings'; known are ring, pinwheel"):
        law_named("rings", 2, seed=0)
