"""Combinations that decay, and why others do not."""

import numpy as np
import pytest
import torch

import icgd
from icgd import general_decay
from icgd.approximation.general_decay import LARGEST_EXPONENT
from icgd.errors import UnsupportedActivationError
from icgd.problems.functions import UNIT_ACTIVATIONS

FIRST = ["sigmoid", "tanh"]
SECOND = ["relu", "softplus", "gelu", "silu", "elu"]
FAR = torch.cat([torch.linspace(0, 40, 9001), torch.logspace(1.6, 6, 999)]).double()


@pytest.mark.parametrize(("name", "order"), [(n, 1) for n in FIRST] + [(n, 2) for n in SECOND])
def test_a_difference_of_each_activation_decays_faster_than_any_exponent_tried(name, order):
    activation = UNIT_ACTIVATIONS[name]
    found = general_decay(activation, name)
    assert (found.order, found.exponent, found.period) == (order, LARGEST_EXPONENT, None)
    assert sum(found.weights) == 0.0
    x = torch.cat([-FAR, FAR])
    rounding = 2.0**-50 * (1 + x.abs())
    for part in (activation.value, activation.slope):
        value = found.combination(part, x).abs()
        bound = found.constant * (1 + x.abs()) ** -found.exponent
        assert (value <= bound + rounding).all()
    assert found.combination(activation.value, x).abs().max() > 0.2


def test_the_combination_of_relu_is_a_hat():
    found = general_decay(torch.relu)
    x = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 5.0], dtype=torch.float64)
    assert found.combination(torch.relu, x).tolist() == [0.0, 0.0, 0.5, 1.0, 0.75, 0.0, 0.0]


def softsign(x):
    return x / (1 + x.abs())


def test_slow_decay_is_told_from_fast_decay():
    found = general_decay(softsign)
    assert (found.order, found.exponent) == (1, 2.0)
    assert found.constant == pytest.approx(1.02 * 1.6875, rel=1e-3)
    assert found.activation == "softsign"


def test_an_activation_of_your_own_is_tried_through_the_public_surface():
    def bump(x):
        return 1 / (1 + x**2)

    found = icgd.general_decay(bump)
    x = torch.linspace(-900.0, 900.0, 10_001, dtype=torch.float64)
    by_hand = 1 / (1 + (x + 0.5) ** 2) - 1 / (1 + (x - 0.5) ** 2)
    assert (found.activation, found.order, found.exponent) == ("bump", 1, 3.0)
    assert torch.allclose(found.combination(bump, x), by_hand, atol=1e-15)
    assert (by_hand.abs() <= found.constant * (1 + x.abs()) ** -3).all()


def test_a_periodic_activation_is_handled_by_its_fourier_series():
    found = general_decay(torch.cos)
    assert (found.weights, found.order) == ((), 0)
    assert found.exponent == 0.0
    assert found.period == pytest.approx(6.283185307)
    assert found.constant == pytest.approx(1.0)


POLYNOMIALS = [
    ("one", lambda x: x**0, 0),
    ("identity", lambda x: x, 1),
    ("square", torch.square, 2),
    ("cube", lambda x: x**3 - x, 3),
]


@pytest.mark.parametrize(("name", "polynomial", "degree"), POLYNOMIALS)
def test_polynomials_are_refused_with_their_degree(name, polynomial, degree):
    with pytest.raises(
        UnsupportedActivationError, match=f"'{name}' is a polynomial of degree {degree}:"
    ):
        general_decay(polynomial, name)


@pytest.mark.parametrize("wild", [lambda x: x * torch.sin(x), lambda x: torch.exp(x / 100)])
def test_what_neither_decays_nor_repeats_is_refused(wild):
    with pytest.raises(
        UnsupportedActivationError, match=r"^Activation 'wild' has no general decay"
    ):
        general_decay(wild, "wild")


UNUSABLE = [
    (torch.exp, "Activation 'exp' has no finite value at x = 711,", True),
    (
        lambda x: x.sum(),
        "Activation 'mine' must be a function of a tensor, entry by entry, that torch can "
        "differentiate, but it does not return a tensor of the same shape with a derivative. "
        "Build it from torch functions, such as torch.tanh.",
        False,
    ),
    (
        3,
        "Activation 'mine' must be a function of a tensor, entry by entry, that torch can "
        "differentiate, but it is 3. Build it from torch functions, such as torch.tanh.",
        False,
    ),
    (
        lambda x: np.tanh(x.numpy()),
        "Activation 'mine' must be a function of a tensor, entry by entry, that torch can "
        "differentiate, but Can't call numpy() on Tensor that requires grad.",
        True,
    ),
]


@pytest.mark.parametrize(("activation", "message", "is_start"), UNUSABLE)
def test_what_is_no_activation_is_refused(activation, message, is_start):
    name = "exp" if activation is torch.exp else "mine"
    with pytest.raises(UnsupportedActivationError) as caught:
        general_decay(activation, name)
    assert str(caught.value)[: len(message) if is_start else None] == message
