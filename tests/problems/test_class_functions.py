"""The capped exponential and the reciprocal: values, ranges, slopes, and names."""

from math import e

import pytest
import torch

from icgd.problems.functions import RECIPROCAL, capped_exponential, class_function_named

INTERVALS = ((-3.0, 0.5), (0.75, 1.5), (2.5, 9.0))


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


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
        assert class_function_named(capped_exponential(cap).name) is capped_exponential(cap)
    assert class_function_named("reciprocal") is RECIPROCAL
    for name in ("exp", "exp up to ", "exp up to x", "exp up to -1.0", "exp up to inf", "tanh"):
        assert class_function_named(name) is None


@pytest.mark.parametrize("function", [capped_exponential(2.0), RECIPROCAL], ids=["exp", "1/z"])
def test_their_slopes_are_no_functions_of_a_program(function):
    with pytest.raises(NotImplementedError, match="No proof needs the slope"):
        function.derivative()
