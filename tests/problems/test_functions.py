"""Functions of one variable: values against torch, ranges and slopes against dense samples."""

import cmath
from math import e, erfc, inf, pi, sqrt

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from icgd.errors import UnknownNameError, UnsupportedActivationError
from icgd.problems.functions import (
    ACTIVATIONS,
    CLIP,
    DOUBLE,
    FUNCTIONS,
    LEAK,
    NEGATE,
    OWN,
    RECIPROCAL,
    UNIT_ACTIVATIONS,
    KinkedFunction,
    SmoothFunction,
    StepFunction,
    activation_named,
    bending_activations,
    capped_exponential,
    function_named,
    numbered_function,
    reciprocal_deviation,
    reciprocal_root,
    unit_activation_named,
)
from icgd.problems.losses import LOSSES, loss_named
from icgd.problems.piecewise import Function
from icgd.problems.scalar import ScalarFunction
from tests.cases import SMOOTH

KNOWN = [name for name, f in FUNCTIONS.items() if not isinstance(f, Function)]
"""Those that a text defines have tests of their own."""
CONTINUOUS = [name for name in KNOWN if not isinstance(FUNCTIONS[name], StepFunction)]
CURVED = [name for name, f in FUNCTIONS.items() if isinstance(f, SmoothFunction)]
STAIRS = StepFunction("stairs", (-1.0, 2.0), (5.0, -3.0, 4.0))
ZIGZAG = KinkedFunction(
    "zigzag", lambda z: (z + 1).abs() - 2 * (z - 2).abs(), (-1.0, 2.0), (1.0, 3.0, -1.0)
)


ROUNDING = 1e-8
"""Of a chord's slope: 1e-15 |f| over the shortest chord, 0.01 / 4000."""


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def samples(low: float, high: float, n: int = 4001) -> Tensor:
    return torch.linspace(low, high, n, dtype=torch.float64)


def steepest_chord(function: ScalarFunction, low: float, high: float) -> float:
    """The steepest chord between neighbouring samples, or between neighbouring kinks."""
    kinks = [knot for knot in getattr(function, "knots", ()) if low < knot < high]
    ends = torch.tensor([low, *kinks, high], dtype=torch.float64)
    slopes = [(function(z).diff() / z.diff()).abs().max() for z in (samples(low, high), ends)]
    return float(max(slopes))


ends = st.floats(-8, 8).map(lambda z: round(z, 3))
few_intervals = settings(max_examples=25)  # of each function
intervals = st.tuples(ends, st.floats(0.01, 8)).map(lambda p: (p[0], round(p[0] + p[1], 3)))


def variation(function, low, high, distance):
    """How far values at points so far apart can differ: by slope or range, whichever is less."""
    least, largest = function.bounds(low, high)
    return torch.minimum(function.slope_times(low, high, distance), largest - least)


@pytest.mark.parametrize("name", KNOWN)
@few_intervals
@given(interval=intervals)
def test_the_range_holds_every_value_and_is_reached(name, interval):
    function, (low, high) = FUNCTIONS[name], interval
    least, largest = function.bounds(number(low), number(high))
    values = function(samples(low, high))
    slack = 1e-15
    assert least - slack <= values.min() <= least + 1e-4 * max(1.0, abs(float(least)))
    assert largest - 1e-4 * max(1.0, abs(float(largest))) <= values.max() <= largest + slack


@pytest.mark.parametrize("name", CONTINUOUS)
@few_intervals
@given(interval=intervals)
@example(interval=(1.0, 2.0))  # from one kink of clip on
@example(interval=(-1.0, 0.0))  # from one kink to another of relu
@example(interval=(0.999, 5.999))  # hardly anything before a kink of clip
def test_the_lipschitz_constant_holds_for_every_chord_and_is_reached(name, interval):
    function, (low, high) = FUNCTIONS[name], interval
    constant = float(function.lipschitz(number(low), number(high)))
    steepest = steepest_chord(function, low, high)
    assert steepest <= constant + ROUNDING
    assert steepest >= constant - 1e-2


@pytest.mark.parametrize("name", CURVED)
@few_intervals
@given(interval=intervals)
def test_the_curvature_holds_for_the_slope_and_is_reached(name, interval):
    function, (low, high) = FUNCTIONS[name], interval
    constant = float(function.derivative().lipschitz(number(low), number(high)))
    steepest = steepest_chord(function.derivative(), low, high)
    assert steepest <= constant + ROUNDING
    assert steepest >= constant - 1e-2


@pytest.mark.parametrize("name", KNOWN)
@few_intervals
@given(interval=intervals, share=st.floats(0.0, 1.0), place=st.floats(0.0, 1.0))
def test_the_variation_holds_for_every_pair_at_that_distance(name, interval, share, place):
    function, (low, high) = FUNCTIONS[name], interval
    distance = share * (high - low)
    a = low + place * (high - low - distance)
    change = abs(float(function(number(a + distance)) - function(number(a))))
    ends = number(low), number(high) + 1e-12
    assert change <= float(variation(function, *ends, number(distance))) * (1 + 1e-9) + 1e-14


def test_the_variation_is_the_smaller_of_slope_and_range():
    relu, ends = FUNCTIONS["relu"], (number(-1.0), number(2.0))
    assert variation(relu, *ends, number(0.5)) == 0.5
    assert variation(relu, *ends, number(100.0)) == 2.0
    assert variation(relu, *ends, number(0.0)) == 0.0


def assert_just_around(found, least: float, largest: float) -> None:
    """A range holds both numbers, and no more than rounding beyond them."""
    assert least - 1e-13 <= float(found[0]) <= least
    assert largest <= float(found[1]) <= largest + 1e-13


def test_a_step_varies_by_its_jump_however_close_the_points_but_not_at_distance_zero():
    ends = number(-1.5), number(0.0)
    assert variation(STAIRS, *ends, number(1e-9)) == pytest.approx(8.0, rel=1e-13)
    assert variation(STAIRS, *ends, number(0.0)) == 0.0


@pytest.mark.parametrize(
    ("z", "value"), [(-2.0, 5.0), (-1.0, 5.0), (-0.999, -3.0), (2.0, -3.0), (2.001, 4.0)]
)
def test_a_step_function_takes_its_left_value_at_a_knot(z, value):
    assert STAIRS(number(z)) == value


@pytest.mark.parametrize(
    ("low", "high", "least", "largest"),
    [
        (-3.0, -2.0, 5.0, 5.0),
        (-3.0, -1.0, 5.0, 5.0),  # the step at -1 is taken just after -1
        (-1.0, 0.0, -3.0, 5.0),
        (-1.0, -1.0, 5.0, 5.0),
        (-0.5, 2.0, -3.0, -3.0),
        (0.0, 3.0, -3.0, 4.0),
        (-3.0, 3.0, -3.0, 5.0),
    ],
)
def test_a_step_function_counts_the_steps_inside_only(low, high, least, largest):
    assert_just_around(STAIRS.bounds(number(low), number(high)), least, largest)
    is_flat = least == largest
    assert STAIRS.lipschitz(number(low), number(high)) == (0.0 if is_flat else inf)


@pytest.mark.parametrize(
    ("low", "high", "least", "largest", "slope"),
    [
        (-3.0, -1.0, -8.0, -6.0, 1.0),
        (-2.0, 0.0, -7.0, -3.0, 3.0),
        (0.0, 5.0, -3.0, 3.0, 3.0),
        (2.5, 4.0, 1.0, 2.5, 1.0),
    ],
)
def test_a_kinked_function_has_its_extremes_at_knots_and_ends(low, high, least, largest, slope):
    ends = number(low), number(high)
    assert_just_around(ZIGZAG.bounds(*ends), least, largest)
    assert ZIGZAG.lipschitz(*ends) == slope


def test_derivatives_are_named_by_a_prime_and_chain():
    relu = FUNCTIONS["relu"]
    assert relu.derivative() == StepFunction("relu'", (0.0,), (0.0, 1.0))
    assert relu.derivative().derivative() == StepFunction("relu''", (), (0.0,))
    assert FUNCTIONS["tanh"].derivative().derivative().name == "tanh''"
    z = samples(-3.0, 3.0)
    slope = relu.derivative()
    assert torch.equal(slope(z), (z > 0).double())
    assert not slope.derivative()(z).any()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_many_intervals_at_once_give_what_each_gives_alone(name):
    function = FUNCTIONS[name]
    low = torch.tensor([[-3.0, -1.0], [0.0, 1.5]], dtype=torch.float64)
    high, distance = low + 1.25, torch.full_like(low, 0.5)
    together = (
        *function.bounds(low, high),
        function.lipschitz(low, high),
        variation(function, low, high, distance),
    )
    for index in ((0, 0), (0, 1), (1, 0), (1, 1)):
        a, b, d = low[index], high[index], distance[index]
        alone = (*function.bounds(a, b), function.lipschitz(a, b), variation(function, a, b, d))
        assert tuple(part[index] for part in together) == alone


# The capped exponential and the reciprocal: values, ranges, slopes, and names.


INTERVALS = ((-3.0, 0.5), (0.75, 1.5), (2.5, 9.0))


def test_values_are_capped():
    z = torch.tensor([-1.0, 0.0, 1.0, 50.0], dtype=torch.float64)
    torch.testing.assert_close(capped_exponential(1.0)(z), torch.tensor([1 / e, 1, e, e]).double())
    z = torch.tensor([-5.0, 0.25, 0.5, 1.0, 4.0], dtype=torch.float64)
    assert RECIPROCAL(z).tolist() == [2.0, 2.0, 2.0, 1.0, 0.25]


@pytest.mark.parametrize("function", [capped_exponential(2.0), RECIPROCAL], ids=["exp", "1/z"])
@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_ranges_and_slopes_hold_and_are_reached(function, low, high):
    z = torch.linspace(low, high, 4001, dtype=torch.float64)
    values = function(z)
    least, largest = function.bounds(number(low), number(high))
    assert least < values.min() <= least * (1 + 1e-12)
    assert largest * (1 - 1e-12) <= values.max() < largest
    steepest = float((values.diff() / z.diff()).abs().max())
    constant = float(function.lipschitz(number(low), number(high)))
    assert steepest <= constant + 1e-9
    if low > 0.5:
        assert constant <= 1.01 * steepest + 1e-9


def test_the_curvature_of_the_reciprocal_is_its_second_derivative():
    z = torch.tensor([0.5, 1.0, 30.0], dtype=torch.float64)
    assert RECIPROCAL.curvature(z, z).tolist() == [16.0, 2.0, 2 / 30.0**3]


def test_a_name_gives_the_function_back():
    for cap in (3.0, 11.0):
        assert numbered_function(capped_exponential(cap).name) is capped_exponential(cap)
    assert numbered_function("reciprocal") is RECIPROCAL
    for name in ("exp", "exp up to ", "exp up to x", "exp up to -1.0", "exp up to inf", "tanh"):
        assert numbered_function(name) is None


@pytest.mark.parametrize("function", [capped_exponential(2.0), RECIPROCAL], ids=["exp", "1/z"])
def test_their_slopes_are_no_functions_of_a_program(function):
    with pytest.raises(NotImplementedError, match="has no derivative here"):
        function.derivative()


# Reciprocal roots: values, ranges and slopes against dense samples; their names say their eps.


EPS = (1e-8, 1e-3, 2.0)
ROOTS = (reciprocal_root, reciprocal_deviation)
ROOT_INTERVALS = ((-1.0, 0.5), (0.25, 9.0), (1e-12, 1e-11))


def test_it_is_what_adam_divides_by_and_constant_below_0():
    root = reciprocal_root(0.5)
    z = torch.tensor([-4.0, 0.0, 0.25, 4.0], dtype=torch.float64)
    assert root(z).tolist() == [2.0, 2.0, 1.0, 0.4]


def test_that_of_norms_has_eps_below_the_root():
    root = reciprocal_deviation(0.25)
    z = torch.tensor([-4.0, 0.0, 0.75, 3.75], dtype=torch.float64)
    assert root(z).tolist() == [2.0, 2.0, 1.0, 0.5]


@pytest.mark.parametrize("kind", ROOTS)
@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize(("low", "high"), ROOT_INTERVALS)
def test_ranges_and_slopes_of_roots_hold_and_are_reached(kind, eps, low, high):
    root, z = kind(eps), torch.linspace(low, high, 4001, dtype=torch.float64)
    values = root(z)
    least, largest = root.bounds(number(low), number(high))
    assert least < values.min() <= least * (1 + 1e-12)
    assert largest * (1 - 1e-12) <= values.max() < largest
    steepest = float((values.diff() / z.diff()).abs().max())
    constant = float(root.lipschitz(number(low), number(high)))
    rounding = 2.0**-51 * float(values.max() / z.diff().min())
    assert steepest <= constant * (1 + 1e-9) + rounding
    if low > 0:
        assert constant <= steepest * 1.1
    assert float(root.lipschitz(number(-2.0), number(-1.0))) == 0.0


@pytest.mark.parametrize("kind", ROOTS)
@pytest.mark.parametrize("eps", EPS)
def test_the_curvature_is_the_second_derivative_and_bends_are_its_relative_root(kind, eps):
    z = torch.tensor([0.01, 1.0, 30.0], dtype=torch.float64, requires_grad=True)
    value = kind(eps)(z)
    (slope,) = torch.autograd.grad(value.sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), z)
    torch.testing.assert_close(kind(eps).curvature(z.detach(), z.detach()), second)
    relative = (z**2 * second / value).detach().sqrt()
    torch.testing.assert_close(kind(eps).bend(z.detach()), relative)


def test_a_name_gives_the_root_back():
    for kind in ROOTS:
        for eps in EPS:
            assert numbered_function(kind(eps).name) is kind(eps)
    for name in ("tanh", "reciprocal root of eps ", "reciprocal root of eps x"):
        assert numbered_function(name) is None
    for eps in ("0.0", "-1.0", "inf", "nan"):
        assert numbered_function(f"reciprocal root of eps {eps}") is None


def test_its_slope_is_no_function_of_a_program():
    with pytest.raises(NotImplementedError, match="has no derivative here"):
        reciprocal_root(1.0).derivative()


# Activations, units and losses: values and derivatives against torch's own.


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
    assert TORCH.keys() == ACTIVATIONS.keys() - OWN.keys()


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
    parts = [(ACTIVATIONS[name].gate, ACTIVATIONS[name].rest) for name in TORCH]
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
    assert gated == ["gelu", "silu", "softplus", "mish", "gelu_tanh"]
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
        "silu, softplus, relu6, hardtanh, hardswish, elu, selu, mish, softsign, sin, erf, "
        "gelu_tanh. Did you mean 'tanh'?"
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
        ("identity", "'identity' is a polynomial of degree 1. "),
        ("square", "'square' is a polynomial of degree 2. "),
        ("cube", "'cube' is a polynomial of degree 3. "),
        ("polynomial", "'polynomial' is a polynomial. "),
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


@pytest.mark.usefixtures("wrong_types")
def test_a_list_is_an_unknown_one():
    with pytest.raises(UnknownNameError, match=r"^Unknown unit activation \['relu'\]; known are"):
        unit_activation_named(["relu"])


def test_it_holds_activations_their_derivatives_their_parts_and_those_of_losses():
    derivatives = {f"{name}'" for name in ACTIVATIONS}
    parts = {"double", "negate", "clip", "sigmoid"}
    for loss in LOSSES.values():
        for part in loss.slope_terms or ():
            assert function_named(part.function.name) == part.function
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
    "log_cosh": lambda p, y: (p - y).cosh().log().sum(-1),
    "l1": lambda p, y: functional.l1_loss(p, y, reduction="none").sum(-1),
    "poisson": lambda p, y: functional.poisson_nll_loss(p, y, reduction="none").sum(-1),
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
    parts = LOSSES[name].slope_terms
    total = sum(part.function(part.prediction * p + part.label * y) for part in parts)
    torch.testing.assert_close(total, LOSSES[name].slope(p, y))


def test_only_cross_entropy_couples_its_outputs():
    assert [name for name, loss in LOSSES.items() if loss.slope_terms is None] == ["cross_entropy"]


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
        "Unknown loss 'square'; known are squared, logistic, huber, cross_entropy, log_cosh, l1, "
        "poisson, smooth_l1_BETA, quantile_LEVEL. Did you mean 'squared'?"
    )
    assert loss_named("huber") is LOSSES["huber"]
