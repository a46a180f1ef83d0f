"""Reciprocal roots: values, ranges and slopes against dense samples; their names say their eps."""

import pytest
import torch

from icgd.problems.functions import reciprocal_deviation, reciprocal_root, root_named

EPS = (1e-8, 1e-3, 2.0)
ROOTS = (reciprocal_root, reciprocal_deviation)
INTERVALS = ((-1.0, 0.5), (0.25, 9.0), (1e-12, 1e-11))


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


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
@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_ranges_and_slopes_hold_and_are_reached(kind, eps, low, high):
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


def test_a_name_gives_the_function_back():
    for kind in ROOTS:
        for eps in EPS:
            assert root_named(kind(eps).name) is kind(eps)
    for name in ("tanh", "reciprocal root of eps ", "reciprocal root of eps x"):
        assert root_named(name) is None
    for eps in ("0.0", "-1.0", "inf", "nan"):
        assert root_named(f"reciprocal root of eps {eps}") is None


def test_its_slope_is_no_function_of_a_program():
    with pytest.raises(NotImplementedError, match="slope of a reciprocal root"):
        reciprocal_root(1.0).derivative()
