"""Values and derivatives against torch's own, and stationary points against sign changes."""

import cmath
from math import erfc, pi, sqrt

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from icgd.errors import UnknownNameError, UnsupportedActivationError
from icgd.problems.functions import (
    ACTIVATIONS,
    CLIP,
    DOUBLE,
    FUNCTIONS,
    LEAK,
    LOSSES,
    NEGATE,
    UNIT_ACTIVATIONS,
    activation_named,
    bending_activations,
    function_named,
    loss_named,
    unit_activation_named,
)
from tests.cases import SMOOTH

TORCH = {
    "relu": torch.relu,
    "leaky_relu": functional.leaky_relu,
    "identity": lambda z: z,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "softplus": functional.softplus,
}

# What activations that grow like a line are made of, besides activations.
TORCH_PARTS = {
    "normal_distribution": lambda z: torch.distributions.Normal(0.0, 1.0).cdf(z),
    "coin_entropy": lambda z: torch.distributions.Bernoulli(logits=z).entropy(),
}

TOWERS = {name: FUNCTIONS[name] for name in (*SMOOTH, *TORCH_PARTS)}
ORDERS = [(name, order) for name, f in TOWERS.items() for order in range(len(f.tower))]

# No point of the line falls on a kink.
LINE = torch.linspace(-12.0, 12.0, 24_002, dtype=torch.float64)


def slope_of(function, z: Tensor) -> Tensor:
    """By automatic differentiation."""
    z = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(z).sum(), z)
    return slope


def test_all_activations_are_tested():
    assert TORCH.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("name", TORCH)
def test_values_are_those_of_torch(name):
    torch.testing.assert_close(
        ACTIVATIONS[name].value(LINE), TORCH[name](LINE), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("name", TORCH)
def test_derivatives_are_those_of_torch(name):
    ours = ACTIVATIONS[name].derivative(LINE)
    torch.testing.assert_close(ours, slope_of(TORCH[name], LINE), rtol=1e-12, atol=1e-13)


def test_all_parts_of_activations_are_tested():
    parts = [(activation.gate, activation.rest) for activation in ACTIVATIONS.values()]
    names = {part.name for pair in parts for part in pair if part is not None}
    assert names == {"sigmoid"} | TORCH_PARTS.keys()


@pytest.mark.parametrize("name", TORCH_PARTS)
def test_values_of_parts_are_those_of_torch(name):
    torch.testing.assert_close(FUNCTIONS[name](LINE), TORCH_PARTS[name](LINE), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["gelu", "silu", "softplus"])
def test_an_activation_that_grows_is_its_argument_times_its_gate_and_a_bounded_rest(name):
    activation = ACTIVATIONS[name]
    rest = activation.rest(LINE) if activation.rest else 0.0
    parts = LINE * activation.gate(LINE) + rest
    torch.testing.assert_close(parts, TORCH[name](LINE), rtol=1e-13, atol=1e-13)


def test_which_activations_are_put_together_from_parts():
    gated = [name for name, activation in ACTIVATIONS.items() if activation.gate]
    assert gated == ["gelu", "silu", "softplus"]
    assert [name for name, activation in ACTIVATIONS.items() if activation.rest] == ["softplus"]


@pytest.mark.parametrize(("name", "order"), [(name, order) for name, order in ORDERS if order])
def test_each_derivative_is_the_slope_of_the_one_before(name, order):
    tower = TOWERS[name].tower
    expected = slope_of(tower[order - 1], LINE)
    torch.testing.assert_close(tower[order](LINE), expected, rtol=1e-10, atol=1e-13)


def next_derivative(name: str, order: int):
    """Derivative order + 1, by automatic differentiation where the tower ends."""
    tower = TOWERS[name].tower
    if order + 1 < len(tower):
        return tower[order + 1]
    return lambda z: slope_of(tower[order], z)


@pytest.mark.parametrize(("name", "order"), ORDERS)
def test_stationary_points_are_zeros_of_the_next_derivative(name, order):
    points = torch.tensor(TOWERS[name].stationary[order], dtype=torch.float64)
    assert (next_derivative(name, order)(points).abs() <= 1e-15).all()


@pytest.mark.parametrize(("name", "order"), ORDERS)
def test_no_stationary_point_is_missing(name, order):
    points = sorted(TOWERS[name].stationary[order])
    sign = next_derivative(name, order)(LINE).sign()
    changes = (sign[:-1] * sign[1:] < 0).nonzero().flatten()
    assert len(changes) == len(points)
    for change, point in zip(changes, points, strict=True):
        assert LINE[change] <= point <= LINE[change + 1]


@pytest.mark.parametrize("name", TOWERS)
def test_smooth_functions_stay_finite_far_out(name):
    far = torch.tensor([-1e4, -800.0, 800.0, 1e4], dtype=torch.float64)
    for derivative in TOWERS[name].tower:
        assert derivative(far).isfinite().all()


def test_which_activations_are_smooth():
    assert SMOOTH == ("tanh", "sigmoid", "gelu", "silu", "softplus")


def test_the_leak_is_that_of_torch():
    assert functional.leaky_relu(torch.tensor(-1.0)) == torch.tensor(-LEAK)


@pytest.mark.parametrize("name", TORCH)
def test_activations_are_found_by_name(name):
    assert activation_named(name).name == name
    assert activation_named(name).derivative.name == f"{name}'"


def test_an_unknown_activation_lists_the_known_ones_and_suggests_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        activation_named("tahn")
    assert str(caught.value) == (
        "Unknown activation 'tahn'; known are relu, leaky_relu, identity, tanh, sigmoid, gelu, "
        "silu, softplus. Did you mean 'tanh'?"
    )


# Values and slopes against torch's own, and the strips against complex arithmetic.


TORCH_UNITS = {
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
WIDE_LINE = torch.linspace(-12.0, 12.0, 802, dtype=torch.float64)


def test_all_are_tested():
    assert TORCH_UNITS.keys() == UNIT_ACTIVATIONS.keys()
    kinked = {name for name, activation in UNIT_ACTIVATIONS.items() if activation.kinked}
    assert kinked == {"relu", "elu"} == TORCH_UNITS.keys() - COMPLEX.keys()


@pytest.mark.parametrize("name", TORCH_UNITS)
def test_values_and_slopes_are_those_of_torch(name):
    z = WIDE_LINE.clone().requires_grad_()
    expected = TORCH_UNITS[name](z)
    (slope,) = torch.autograd.grad(expected.sum(), z)
    torch.testing.assert_close(
        UNIT_ACTIVATIONS[name](WIDE_LINE), expected.detach(), rtol=0, atol=1e-13
    )
    torch.testing.assert_close(UNIT_ACTIVATIONS[name].slope(WIDE_LINE), slope, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", COMPLEX)
def test_the_strip_bounds_the_activation_and_is_not_far_above_it(name):
    strip = UNIT_ACTIVATIONS[name].strip
    rows = [strip.height * share for share in (0.0, 0.3, 0.6, 0.8, 1.0)]
    values = [abs(COMPLEX[name](complex(x, y))) for x in WIDE_LINE.tolist() for y in rows]
    assert 0.01 * strip.size(12.0) <= max(values) <= 1.001 * strip.size(12.0)


@pytest.mark.parametrize("piece", [lambda z: z, lambda z: cmath.exp(z) - 1])
def test_the_strip_of_kinked_ones_bounds_either_side_beyond_the_kink(piece):
    strip = UNIT_ACTIVATIONS["elu"].strip
    reals = [x for x in WIDE_LINE.tolist() if piece(1) == 1 or x <= strip.height]
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


def test_it_holds_activations_their_derivatives_their_parts_and_those_of_losses():
    derivatives = {f"{name}'" for name in ACTIVATIONS}
    parts = {part.function.name for loss in LOSSES.values() for part in loss.slope_parts or ()}
    assert parts == {"double", "negate", "clip", "sigmoid"}
    gates_and_rests = {"normal_distribution", "coin_entropy", "sigmoid"}
    assert FUNCTIONS.keys() == ACTIVATIONS.keys() | derivatives | parts | gates_and_rests


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_found_by_its_own_name(name):
    assert function_named(name).name == name


def test_a_derivative_is_called_by_a_prime():
    assert function_named("gelu'") == ACTIVATIONS["gelu"].derivative


def test_an_unknown_function_suggests_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        function_named("clop")
    message = str(caught.value)
    assert message.startswith("Unknown function 'clop'; known are relu, leaky_relu, identity, ")
    assert message.endswith("Did you mean 'clip'?")


# Values and slopes of the losses against torch's own.


TORCH_LOSSES = {
    "squared": lambda p, y: functional.mse_loss(p, y, reduction="none").sum(-1),
    "logistic": lambda p, y: functional.binary_cross_entropy_with_logits(
        p, y, reduction="none"
    ).sum(-1),
    "huber": lambda p, y: functional.huber_loss(p, y, reduction="none").sum(-1),
    "cross_entropy": lambda p, y: functional.cross_entropy(p, y, reduction="none"),
}


def predictions_and_labels() -> tuple[torch.Tensor, torch.Tensor]:
    """Residuals on both sides of Huber's kinks; soft labels that sum to 1."""
    generator = torch.Generator().manual_seed(0)
    p = 3 * torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = torch.rand(40, 3, generator=generator, dtype=torch.float64)
    return p, y / y.sum(-1, keepdim=True)


def test_all_losses_are_tested():
    assert TORCH_LOSSES.keys() == LOSSES.keys()


@pytest.mark.parametrize("name", TORCH_LOSSES)
def test_values_of_losses_are_those_of_torch(name):
    p, y = predictions_and_labels()
    torch.testing.assert_close(
        LOSSES[name].value(p, y), TORCH_LOSSES[name](p, y), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("name", TORCH_LOSSES)
def test_slopes_are_those_of_torch(name):
    p, y = predictions_and_labels()
    p.requires_grad_()
    (expected,) = torch.autograd.grad(TORCH_LOSSES[name](p, y).sum(), p)
    torch.testing.assert_close(LOSSES[name].slope(p, y), expected, rtol=1e-12, atol=1e-12)


def test_cross_entropy_is_that_of_classes():
    p, _ = predictions_and_labels()
    classes = torch.arange(len(p)) % p.shape[-1]
    one_hot = torch.nn.functional.one_hot(classes, p.shape[-1]).double()
    expected = torch.nn.functional.cross_entropy(p, classes, reduction="none")
    torch.testing.assert_close(LOSSES["cross_entropy"].value(p, one_hot), expected)


@pytest.mark.parametrize("name", ["squared", "logistic", "huber"])
def test_the_parts_of_a_slope_sum_to_it(name):
    p, y = predictions_and_labels()
    parts = LOSSES[name].slope_parts
    total = sum(part.function(part.prediction * p + part.label * y) for part in parts)
    torch.testing.assert_close(total, LOSSES[name].slope(p, y))


def test_only_cross_entropy_couples_its_outputs():
    assert [name for name, loss in LOSSES.items() if loss.slope_parts is None] == ["cross_entropy"]


def test_which_losses_need_probabilities():
    needing = {name for name, loss in LOSSES.items() if loss.labels_are_probabilities}
    assert needing == {"logistic", "cross_entropy"}


@pytest.mark.parametrize(
    ("function", "values"),
    [(DOUBLE, (-6.0, -1.0, 4.0)), (NEGATE, (3.0, 0.5, -2.0)), (CLIP, (-1.0, -0.5, 1.0))],
)
def test_the_functions_of_one_variable(function, values):
    z = torch.tensor([-3.0, -0.5, 2.0], dtype=torch.float64)
    assert tuple(function(z).tolist()) == values
    pieces = [sum(knot < point for knot in function.knots) for point in z.tolist()]
    assert function.derivative()(z).tolist() == [function.slopes[piece] for piece in pieces]


def test_an_unknown_loss_lists_the_known_ones_and_suggests_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        loss_named("square")
    assert str(caught.value) == (
        "Unknown loss 'square'; known are squared, logistic, huber, cross_entropy. "
        "Did you mean 'squared'?"
    )
    assert loss_named("huber") is LOSSES["huber"]
