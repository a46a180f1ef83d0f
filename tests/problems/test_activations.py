"""Values and derivatives against torch's own, and stationary points against sign changes."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from icgd.errors import UnknownNameError
from icgd.problems.activations import ACTIVATIONS, FUNCTIONS, LEAK, activation_named
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
