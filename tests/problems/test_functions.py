"""Ranges, Lipschitz constants and variations on intervals, against dense samples."""

from math import e, inf

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from icgd.problems.functions import (
    FUNCTIONS,
    RECIPROCAL,
    KinkedFunction,
    ScalarFunction,
    SmoothFunction,
    StepFunction,
    capped_exponential,
    numbered_function,
    reciprocal_deviation,
    reciprocal_root,
)

CONTINUOUS = [name for name, f in FUNCTIONS.items() if not isinstance(f, StepFunction)]
SMOOTH = [name for name, f in FUNCTIONS.items() if isinstance(f, SmoothFunction)]
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


@pytest.mark.parametrize("name", FUNCTIONS)
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


@pytest.mark.parametrize("name", SMOOTH)
@few_intervals
@given(interval=intervals)
def test_the_curvature_holds_for_the_slope_and_is_reached(name, interval):
    function, (low, high) = FUNCTIONS[name], interval
    constant = float(function.curvature(number(low), number(high)))
    steepest = steepest_chord(function.derivative(), low, high)
    assert steepest <= constant + ROUNDING
    assert steepest >= constant - 1e-2


@pytest.mark.parametrize("name", FUNCTIONS)
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
    assert RECIPROCAL.curvature(z).tolist() == [16.0, 2.0, 2 / 30.0**3]


def test_a_name_gives_the_function_back():
    for cap in (3.0, 11.0):
        assert numbered_function(capped_exponential(cap).name) is capped_exponential(cap)
    assert numbered_function("reciprocal") is RECIPROCAL
    for name in ("exp", "exp up to ", "exp up to x", "exp up to -1.0", "exp up to inf", "tanh"):
        assert numbered_function(name) is None


@pytest.mark.parametrize("function", [capped_exponential(2.0), RECIPROCAL], ids=["exp", "1/z"])
def test_their_slopes_are_no_functions_of_a_program(function):
    with pytest.raises(NotImplementedError, match="No proof needs the slope"):
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
    torch.testing.assert_close(kind(eps).curvature(z.detach()), second)
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
    with pytest.raises(NotImplementedError, match="slope of reciprocal root"):
        reciprocal_root(1.0).derivative()
