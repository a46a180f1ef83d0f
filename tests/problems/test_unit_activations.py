"""Values and slopes against torch's own, and the strips against complex arithmetic."""

import cmath
from math import erfc, pi, sqrt

import pytest
import torch
from torch.nn import functional

from icgd.errors import UnknownNameError, UnsupportedActivationError
from icgd.problems.activations import (
    UNIT_ACTIVATIONS,
    bending_activations,
    unit_activation_named,
)

TORCH = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "elu": functional.elu,
    "cos": torch.cos,
}


def normal_distribution(z: complex) -> complex:
    """Up from the real line, by the trapezoidal rule over the density."""
    steps = torch.linspace(0.0, z.imag, 301, dtype=torch.float64)
    density = torch.exp(-((z.real + 1j * steps) ** 2) / 2) / sqrt(2 * pi)
    return 0.5 * erfc(-z.real / sqrt(2)) + 1j * complex(torch.trapezoid(density, steps))


COMPLEX = {
    "sigmoid": lambda z: 1 / (1 + cmath.exp(-z)),
    "tanh": cmath.tanh,
    "softplus": lambda z: cmath.log(1 + cmath.exp(z)),
    "gelu": lambda z: z * normal_distribution(z),
    "silu": lambda z: z / (1 + cmath.exp(-z)),
    "cos": cmath.cos,
}

# No point of the line falls on a kink.
LINE = torch.linspace(-12.0, 12.0, 802, dtype=torch.float64)


def test_all_are_tested():
    assert TORCH.keys() == UNIT_ACTIVATIONS.keys()
    kinked = {name for name, activation in UNIT_ACTIVATIONS.items() if activation.kinked}
    assert kinked == {"relu", "elu"} == TORCH.keys() - COMPLEX.keys()


@pytest.mark.parametrize("name", TORCH)
def test_values_and_slopes_are_those_of_torch(name):
    z = LINE.clone().requires_grad_()
    expected = TORCH[name](z)
    (slope,) = torch.autograd.grad(expected.sum(), z)
    torch.testing.assert_close(UNIT_ACTIVATIONS[name](LINE), expected.detach(), rtol=0, atol=1e-13)
    torch.testing.assert_close(UNIT_ACTIVATIONS[name].slope(LINE), slope, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", COMPLEX)
def test_the_strip_bounds_the_activation_and_is_not_far_above_it(name):
    strip = UNIT_ACTIVATIONS[name].strip
    rows = [strip.height * share for share in (0.0, 0.3, 0.6, 0.8, 1.0)]
    values = [abs(COMPLEX[name](complex(x, y))) for x in LINE.tolist() for y in rows]
    assert 0.01 * strip.size(12.0) <= max(values) <= 1.001 * strip.size(12.0)


@pytest.mark.parametrize("piece", [lambda z: z, lambda z: cmath.exp(z) - 1])
def test_the_strip_of_kinked_ones_bounds_either_side_beyond_the_kink(piece):
    strip = UNIT_ACTIVATIONS["elu"].strip
    reals = [x for x in LINE.tolist() if piece(1) == 1 or x <= strip.height]
    assert max(abs(piece(complex(x, strip.height))) for x in reals) <= strip.size(12.0)


@pytest.mark.parametrize("name", ["relu", "softplus", "gelu", "silu", "elu"])
def test_what_bends_like_relu_is_as_far_from_it_as_said(name):
    activation = UNIT_ACTIVATIONS[name]
    z = torch.linspace(-40.0, 40.0, 80_001, dtype=torch.float64)
    seen = float((activation(z) - torch.relu(z)).abs().max())
    assert seen <= activation.off_relu <= 1.001 * seen
    far = torch.tensor([-1e18, 1e18], dtype=torch.float32)
    assert (activation(far) - torch.relu(far)).abs().max() <= activation.off_relu


def test_the_others_do_not_bend_like_relu():
    assert bending_activations() == ["relu", "softplus", "gelu", "silu", "elu"]
    assert not UNIT_ACTIVATIONS["cos"].bends


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("identity", "'identity' is a polynomial of degree 1: "),
        ("square", "'square' is a polynomial of degree 2: "),
        ("cube", "'cube' is a polynomial of degree 3: "),
        ("polynomial", "'polynomial' is a polynomial: "),
    ],
)
def test_a_polynomial_is_told_why_not(name, text):
    with pytest.raises(UnsupportedActivationError, match=text):
        unit_activation_named(name)


def test_an_unknown_one_lists_the_known_ones():
    with pytest.raises(UnknownNameError) as caught:
        unit_activation_named("xyz")
    assert str(caught.value) == (
        "Unknown unit activation 'xyz'; known are relu, sigmoid, tanh, softplus, gelu, silu, "
        "elu, cos."
    )
    assert unit_activation_named("cos").name == "cos"
