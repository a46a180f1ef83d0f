"""Ranges, Lipschitz constants and variations on intervals, against dense samples."""

from math import inf

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from icgd.problems.activations import FUNCTIONS
from icgd.problems.functions import KinkedFunction, ScalarFunction, SmoothFunction, StepFunction

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
