"""Coefficients, intercept, scale of the loss, and what data a linear model takes."""

import pytest
import torch

from icgd.errors import DataError, SettingError, UnknownNameError
from icgd.problems.linear_model import LinearModel, require_data

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


@pytest.mark.parametrize("link", ["identity", "logistic", "probit", "poisson", "softplus"])
def test_labels_at_the_ends_of_the_support_are_taken(link):
    require_data(LinearModel(2, link), X, Y)
    require_data(LinearModel(2, link), X.expand(4, 3, 2), Y.expand(4, 3, 1))
