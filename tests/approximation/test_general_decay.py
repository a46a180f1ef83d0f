"""Combinations that decay, and why others do not."""

from math import comb

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


def test_a_function_of_icgd_is_called_by_its_name():
    assert general_decay(UNIT_ACTIVATIONS["tanh"].value).activation == "tanh"


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
    ("seventh power", lambda x: x**7 + x, 7),
]


@pytest.mark.parametrize(("name", "polynomial", "degree"), POLYNOMIALS)
def test_polynomials_are_refused_with_their_degree(name, polynomial, degree):
    with pytest.raises(
        UnsupportedActivationError,
        match=f"'{name}' is a polynomial of degree {degree} up to rounding",
    ):
        general_decay(polynomial, name)


@pytest.mark.parametrize("power", [3, 4, 5, 6])
def test_a_power_of_relu_needs_one_difference_more_and_leaves_a_spline(power):
    """Rounding hides ever more of the spline far out, and the result says from where on."""

    def powered(x):
        return torch.relu(x) ** power

    found = general_decay(powered)
    assert (found.order, found.exponent) == (power + 1, LARGEST_EXPONENT)
    x = torch.linspace(-5.0, 5.0, 101, dtype=torch.float64)
    half = (power + 1) / 2
    spline = sum(
        (-1) ** i * comb(power + 1, i) * torch.relu(x + half - i) ** power for i in range(power + 2)
    )
    value = found.combination(powered, x)
    assert (value - spline).abs().max() <= 1e-8
    assert value[x.abs() >= half + 1e-9].abs().max() <= 1e-8
    reaches = {3: 608.7, 4: 141.9, 5: 62.15, 6: 36.98}
    assert found.reach == pytest.approx(reaches[power], rel=1e-3)
    assert general_decay(torch.relu).reach == 1000.0


def wave_over_line(x):
    return torch.sin(x) / x


def decaying_wave(x):
    return torch.cos(x) / (1 + x**2).sqrt()


@pytest.mark.parametrize(
    ("wave", "apart"), [(torch.sinc, 1.0), (wave_over_line, np.pi), (decaying_wave, np.pi)]
)
def test_copies_half_a_period_apart_cancel_a_wave(wave, apart):
    found = general_decay(wave)
    assert (found.weights, found.exponent) == ((1.0, 1.0), 2.0)
    assert found.shifts == (apart / 2, -apart / 2)
    x = torch.linspace(20.0, 990.0, 100_001, dtype=torch.float64)
    for side in (x, -x):
        sides = (side + apart / 2).requires_grad_(), (side - apart / 2).requires_grad_()
        by_hand = wave(sides[0]) + wave(sides[1])
        slopes = torch.autograd.grad(by_hand.sum(), sides)
        for part in (by_hand, sum(slopes)):
            assert (part.abs() <= found.constant * (1 + x) ** -2).all()
        assert by_hand.abs().max() >= 0.2 * (1 + 20.0) ** -2


def test_waves_that_fall_slowly_take_more_copies_and_uneven_ones_a_whole_period():
    slow = general_decay(lambda x: torch.cos(x) / (1 + x**2) ** 0.125, "slow")
    assert (slow.weights, slow.exponent) == ((1.0, 2.0, 1.0), 2.0)
    uneven = general_decay(lambda x: torch.sin(x).abs() / (1 + x.abs()), "uneven")
    assert (uneven.weights, uneven.exponent) == ((1.0, -1.0), 2.0)
    assert sum(map(abs, uneven.shifts)) == pytest.approx(np.pi)
    beside_a_line = general_decay(lambda x: torch.relu(x) + torch.sinc(x), "both")
    assert beside_a_line.exponent == 3.0
    assert sum(beside_a_line.weights) == 0.0


@pytest.mark.parametrize(
    ("wave", "period"),
    [
        (lambda x: x * torch.sin(x), "6.28319"),
        (lambda x: x + torch.sin(x), "6.28319"),
        (lambda x: x + torch.sin(x) ** 2, "3.14159"),
    ],
)
def test_polynomials_with_waves_are_refused_because_a_combination_is_zero(wave, period):
    with pytest.raises(UnsupportedActivationError) as caught:
        general_decay(wave, "wild")
    assert str(caught.value).startswith(
        f"Activation 'wild' consists of polynomials and waves of period {period} up to rounding, "
        "because a combination of its shifted copies is zero."
    )


NOT_FOUND = (
    "No combination of shifted copies of activation 'wild' was found that decays (searched: "
    "differences up to order 8). That does not prove that there is none. Use relu, sigmoid or "
    "another activation that is nearly a line on either side."
)


@pytest.mark.parametrize(
    "wild",
    [
        lambda x: torch.exp(x / 100),
        lambda x: x**8,
        lambda x: torch.relu(x) ** 8,
        lambda x: torch.sin(x) + torch.sin(2**0.5 * x),
    ],
)
def test_what_is_not_found_is_not_said_to_have_none(wild):
    with pytest.raises(UnsupportedActivationError) as caught:
        general_decay(wild, "wild")
    assert str(caught.value) == NOT_FOUND


def test_the_sums_that_were_looked_at_are_named():
    with pytest.raises(UnsupportedActivationError) as caught:
        general_decay(lambda x: torch.sin(x) * torch.exp(-x / 300), "wild")
    sums = " and sums of copies 3.14159 apart, half a period, up to order 4)"
    assert str(caught.value) == NOT_FOUND.replace("order 8)", f"order 8{sums}")


def test_waves_of_any_period_repeat():
    found = general_decay(lambda x: torch.sin(7.3 * x), "fast")
    assert found.period == pytest.approx(2 * np.pi / 7.3)


UNUSABLE = [
    (torch.exp, "Activation 'exp' is not finite at x = 711,", True),
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
