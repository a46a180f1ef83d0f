"""Links against torch's autograd and scipy, and the functions that they are made of."""

from math import exp, inf, pi

import pytest
import torch
from scipy.special import spence

from icgd.errors import UnknownNameError
from icgd.problems.linear_model import EXP, LINKS, link_named

# No further: probit's slope underflows beyond, poisson's values grow to 1e8.
LINE = torch.linspace(-18.0, 18.0, 4001, dtype=torch.float64)
SLOPES = {
    "identity": (1.0, 1.0),
    "logistic": (0.0, 0.25),
    "probit": (0.0, 1 / (2 * pi) ** 0.5),
    "poisson": (0.0, inf),
    "softplus": (0.0, 1.0),
}


def slope_of(function, z):
    z = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(z).sum(), z)
    return slope


@pytest.mark.parametrize("name", LINKS)
def test_the_slope_of_the_loss_is_the_mean_less_the_label(name):
    link = LINKS[name]
    labels = torch.full_like(LINE, 0.7)
    slope = slope_of(lambda z: link.loss(z, labels), LINE)
    torch.testing.assert_close(slope, link.mean(LINE) - 0.7, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LINKS)
def test_the_slopes_of_the_mean_hold_on_an_interval_and_everywhere(name):
    link = LINKS[name]
    inside = LINE[(LINE >= -1.5) & (LINE <= 0.8)]
    sampled = slope_of(link.mean, inside)
    least, largest = link.slopes(inside[0], inside[-1])
    assert float(least) == pytest.approx(float(sampled.min()), rel=1e-4)
    assert float(largest) == pytest.approx(float(sampled.max()), rel=1e-4)
    ends = torch.tensor(inf, dtype=torch.float64)
    assert tuple(map(float, link.slopes(-ends, ends))) == pytest.approx(SLOPES[name])


def test_the_integral_of_softplus_is_a_dilogarithm():
    ours = LINKS["softplus"].potential(LINE)
    truth = torch.from_numpy(-spence((1 + LINE.exp()).numpy()))
    away = LINE > -1  # scipy loses exp(z) in the sum below
    torch.testing.assert_close(ours[away], truth[away], rtol=1e-14, atol=0)
    series = LINE.exp() - (2 * LINE).exp() / 4 + (3 * LINE).exp() / 9
    far = LINE < -12
    torch.testing.assert_close(ours[far], series[far], rtol=1e-15, atol=0)
    middle = float(LINKS["softplus"].potential(torch.zeros(()).double()))
    assert middle == pytest.approx(pi**2 / 12, rel=1e-15)


def test_every_derivative_of_exp_is_exp():
    for derivative in EXP.tower:
        assert torch.equal(derivative(LINE), LINE.exp())
    low, high = LINE[:-1], LINE[1:]
    for largest in (EXP.lipschitz(low, high), EXP.curvature(low, high)):
        assert bool((largest >= high.exp()).all())
        assert torch.allclose(largest, high.exp(), rtol=1e-14, atol=0.0)
    assert float(EXP.bounds(LINE[0], LINE[-1])[0]) == pytest.approx(exp(-18), rel=1e-15)


def test_the_labels_of_each_link():
    assert {name: link.labels for name, link in LINKS.items()} == {
        "identity": "any finite labels",
        "logistic": "labels between 0 and 1",
        "probit": "labels between 0 and 1",
        "poisson": "labels of at least 0",
        "softplus": "labels of at least 0",
    }


def test_an_unknown_link_lists_the_known_ones_and_suggests_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        link_named("poison")
    assert str(caught.value) == (
        "Unknown link 'poison'; known are identity, logistic, probit, poisson, softplus. "
        "Did you mean 'poisson'?"
    )


@pytest.mark.parametrize("name", LINKS)
def test_no_loss_is_below_the_least_one(name):
    link, scores = LINKS[name], torch.linspace(-30, 30, 6001).double()
    for label in (0.0, 0.3, 1.0, *((2.5, 40.0) if link.largest_label > 1 else ())):
        label = torch.tensor(label, dtype=torch.float64)
        least = link.loss(scores, label).min()
        assert link.least_loss(label) <= least + 1e-12
