"""Links against torch's autograd and scipy, and the functions that they are made of."""

from math import exp, inf, pi

import pytest
import torch
from scipy.special import exp1, spence

from icgd.errors import DataError, SettingError, UnknownNameError
from icgd.problems.linear_model import EXP, LINKS, LinearModel, link_named, require_data

# No further: probit's slope underflows beyond, poisson's values grow to 1e8.
LINE = torch.linspace(-18.0, 18.0, 4001, dtype=torch.float64)
SLOPES = {
    "identity": (1.0, 1.0),
    "logistic": (0.0, 0.25),
    "probit": (0.0, 1 / (2 * pi) ** 0.5),
    "poisson": (0.0, inf),
    "softplus": (0.0, 1.0),
    "cauchit": (0.0, 1 / pi),
    "cloglog": (0.0, exp(-1)),
    "tanh": (0.0, 1.0),
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


def test_the_integral_of_cloglog_is_an_exponential_integral():
    """Ein(e^z) = E_1(e^z) + z + gamma, which is 0 on the far left; ours is 0 at 0."""
    potential = LINKS["cloglog"].potential
    z = torch.linspace(-3, 20, 401, dtype=torch.float64)
    truth = torch.from_numpy(exp1(z.exp().numpy())) + z - float(exp1(1.0))
    torch.testing.assert_close(potential(z), truth, rtol=1e-13, atol=1e-14)


def test_every_derivative_of_exp_is_exp():
    for derivative in EXP.tower:
        assert torch.equal(derivative(LINE), LINE.exp())
    low, high = LINE[:-1], LINE[1:]
    for largest in (EXP.lipschitz(low, high), EXP.derivative().lipschitz(low, high)):
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
        "cauchit": "labels between 0 and 1",
        "cloglog": "labels between 0 and 1",
        "tanh": "labels between -1 and 1",
    }


def test_an_unknown_link_lists_the_known_ones_and_suggests_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        link_named("poison")
    assert str(caught.value) == (
        "Unknown link 'poison'; known are identity, logistic, probit, poisson, softplus, "
        "cauchit, cloglog, tanh. Did you mean 'poisson'?"
    )


@pytest.mark.parametrize("name", LINKS)
def test_no_loss_is_below_the_least_one(name):
    link, scores = LINKS[name], torch.linspace(-30, 30, 6001).double()
    for label in (0.0, 0.3, 1.0, *((2.5, 40.0) if link.largest_label > 1 else ())):
        label = torch.tensor(label, dtype=torch.float64)
        least = link.loss(scores, label).min()
        assert link.least_loss(label) <= least + 1e-12


# Coefficients, intercept, scale of the loss, and what data a linear model takes.


X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 4.0]], dtype=torch.float64)
Y = torch.tensor([[0.0], [1.0], [0.5]], dtype=torch.float64)


def test_the_intercept_is_the_last_coefficient_of_a_constant_input_without_penalty():
    model = LinearModel(2, intercept=True)
    assert model.n_parameters == 3
    assert model.design(X).tolist() == [[1, 2, 1], [3, -1, 1], [0, 4, 1]]
    assert model.penalised(X).tolist() == [1, 1, 0]
    assert model.initial_parameters((2,)).tolist() == [[0, 0, 0]] * 2


def test_without_intercept_the_inputs_are_all():
    model = LinearModel(2)
    assert model.n_parameters == 2
    assert torch.equal(model.design(X.float()), X)
    assert model.penalised(X).tolist() == [1, 1]


def test_the_risk_is_a_mean_or_a_sum():
    assert LinearModel(2).loss_scale(5) == 0.2
    assert LinearModel(2, reduction="sum").loss_scale(5) == 1.0


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"input_width": 0}, SettingError, "input_width must be a whole number of at least 1"),
        ({"link": "logit"}, UnknownNameError, "Unknown link 'logit'; .* mean 'logistic'?"),
        ({"reduction": "max"}, SettingError, "reduction must be one of mean, sum, got 'max'"),
    ],
)
def test_impossible_settings_are_refused(settings, error, text):
    with pytest.raises(error, match=text):
        LinearModel(**{"input_width": 2, **settings})


def changed(array, index, value):
    array = array.clone()
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("link", "x", "y", "text"),
    [
        ("logistic", X, changed(Y, (2, 0), 1.5), r"y\[2, 0\] is 1.5; the logistic link needs"),
        ("probit", X, changed(Y, (0, 0), -0.1), r"y\[0, 0\] is -0.1; the probit .* 0 and 1\."),
        (
            "poisson",
            X,
            changed(Y, (1, 0), -2),
            r"y\[1, 0\] is -2; the poisson link needs labels of",
        ),
        ("softplus", X, changed(Y, (1, 0), -1), r"y\[1, 0\] is -1; .*Recode the labels"),
        ("identity", changed(X, (1, 0), torch.nan), Y, r"X\[1, 0\] is nan; every entry"),
        ("identity", X, changed(Y, (1, 0), torch.inf), r"y\[1, 0\] is inf; every entry"),
        ("identity", X[:, :1], Y, r"X has shape \(3, 1\); expected \(n, 2\) or \(tasks, n, 2\)"),
        ("identity", X, Y[:2], r"y has shape \(2, 1\); expected \(3, 1\), a label for each row"),
        ("identity", X[:0], Y[:0], r"X is empty: its shape is \(0, 2\)"),
    ],
)
def test_data_that_do_not_fit_are_refused_with_the_place(link, x, y, text):
    with pytest.raises(DataError, match=text):
        require_data(LinearModel(2, link), x, y)


@pytest.mark.parametrize("link", LINKS)
def test_labels_at_the_ends_of_the_support_are_taken(link):
    require_data(LinearModel(2, link), X, Y)
    require_data(LinearModel(2, link), X.expand(4, 3, 2), Y.expand(4, 3, 1))
