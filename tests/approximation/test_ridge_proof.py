"""Proved errors of sums whose real error is known by hand."""

from math import exp, inf, tanh

import pytest
import torch

from icgd.approximation import ridge as ridge_proof
from icgd.approximation.ridge import (
    Profile,
    joined,
    proved_error,
    strip_of,
    units_of,
)
from icgd.errors import UnknownNameError
from icgd.problems.activations import IDENTITY_FUNCTION, RELU, TANH
from icgd.problems.functions import KinkedFunction
from icgd.program.functions import RidgeSum, RidgeUnit

ZERO = KinkedFunction("zero", torch.zeros_like, (), (0.0,))
SPIKE = KinkedFunction(
    "spike",
    lambda z: torch.relu(1 - 2000 * (z - 0.3005).abs()),
    (0.3, 0.3005, 0.301),
    (0.0, 2000.0, -2000.0, 0.0),
)


def cost_of_proof(target: Profile, fit: RidgeSum) -> float:
    """How many evaluations of units `proved_error` takes."""
    units = units_of(fit)
    return ridge_proof._cost(ridge_proof._axes(target, units), units)


def line(activation: str, *units: tuple[float, float, float], width: float = 2.0) -> RidgeSum:
    """Units by slope, offset and coefficient."""
    return RidgeSum(
        "f", activation, (width,), tuple(RidgeUnit((a,), b, c) for a, b, c in units), inf
    )


KNOWN = [
    (TANH, line("tanh", (1.0, 0.0, 0.9)), 0.1 * tanh(2.0)),
    (IDENTITY_FUNCTION, line("elu", (1.0, 0.0, 1.0)), 1.0 + exp(-2.0)),  # z + 1 - exp(z) at -2
    (RELU, line("elu", (1.0, 0.25, 1.0), (0.0, 0.25, -1.0)), 1.25 - exp(-1.75)),
    (SPIKE, line("tanh"), 1.0),
    (ZERO, line("cos", (200.0, 0.5, 0.5)), 0.5),
    (ZERO, line("relu", (1.0, -1.999, 1000.0)), 1.0),
    (TANH, line("gelu", width=30.0), 1.0),
]


@pytest.mark.parametrize(("function", "fit", "error"), KNOWN, ids=[k[0].name for k in KNOWN])
def test_the_bound_lies_above_the_error_by_a_sixth_at_most(function, fit, error):
    proved = proved_error(Profile(function, fit.half_widths), fit)
    assert error * (1 - 1e-9) <= proved <= 1.16 * error


def test_in_two_variables_it_lies_above_by_a_third_at_most():
    """The largest value of s tanh'(t) is at t = 0, that of 2 tanh(t) / 3 at the corners."""
    target = Profile(TANH.derivative(), (3.0, 2.0))
    nothing = RidgeSum("f", "tanh", (3.0, 2.0), (), inf)
    something = RidgeSum("f", "tanh", (3.0, 2.0), (RidgeUnit((0.0, 1.0), 0.0, 2 / 3),), inf)
    z = torch.cartesian_prod(*(torch.linspace(-w, w, 401).double() for w in (3.0, 2.0)))
    sampled = float((target(z) - units_of(something)(z)).abs().max())
    assert 3.0 <= proved_error(target, nothing) <= 4.0
    assert sampled <= proved_error(target, something) <= 1.34 * sampled


def test_rounding_of_large_coefficients_is_part_of_the_bound():
    big = 1e10
    fit = line("tanh", (1.0, 0.0, big), (1.0, 0.0, 1.0), (1.0, 0.0, -big))
    unit = torch.tanh(torch.linspace(-2, 2, 999, dtype=torch.float64))
    in_order = big * unit + unit - big * unit  # a machine may add in another one
    assert float((in_order - unit).abs().max()) > 1e-8
    assert 1e-5 < proved_error(Profile(TANH, (2.0,)), fit) < 1e-4  # 18 roundings of 2e10


def test_errors_of_parts_add_up_and_exact_parts_stay_exact():
    part = RidgeSum("f", "tanh", (1.0, 1.0), (RidgeUnit((1.0, 1.0), 0.0, 1.0),), 0.25)
    target = Profile(IDENTITY_FUNCTION, (1.0, 1.0))
    both = joined("g", (1.0, 1.0), [part, part], target)
    assert both.units == part.units * 2
    assert 0.5 < both.error < 0.5 + 1e-13
    assert joined("g", (1.0, 1.0), [part.without_error()] * 2, target).error == 0.0


def test_kinks_across_a_plane_are_never_proved_by_panels():
    target = Profile(IDENTITY_FUNCTION, (1.0, 1.0))
    unit = RidgeUnit((1.0, 1.0), 0.0, 1.0)
    costs = [
        cost_of_proof(target, RidgeSum("f", activation, (1.0, 1.0), (unit,), inf))
        for activation in ("elu", "relu", "tanh")
    ]
    assert costs[:2] == [inf, inf]
    assert 1e3 < costs[2] < 1e5


def test_a_derivative_is_bounded_in_half_the_strip_of_its_function():
    strip = strip_of(TANH.derivative())
    assert strip.height == 0.65
    y = torch.tensor(0.65, dtype=torch.float64)
    assert 1 / float(torch.cos(y)) ** 2 <= strip.size(0.0) <= 6


def test_a_function_with_jumps_is_refused():
    with pytest.raises(UnknownNameError, match="Unknown kind of function 'StepFunction'"):
        strip_of(RELU.derivative())


def test_what_a_polynomial_of_lower_degree_leaves_is_counted(monkeypatch):
    function, fit, error = KNOWN[0]
    monkeypatch.setattr(ridge_proof, "TAIL", 1e-3)
    assert proved_error(Profile(function, fit.half_widths), fit) >= 1.155 * error + 1e-3


def test_a_proof_that_would_take_too_long_proves_nothing(monkeypatch):
    function, fit, error = KNOWN[0]
    target = Profile(function, fit.half_widths)
    assert proved_error(target, fit) < 2 * error
    monkeypatch.setattr(ridge_proof, "LONGEST_PROOF", cost_of_proof(target, fit) - 1)
    assert proved_error(target, fit) == inf


@pytest.mark.parametrize("width", [1, 2])
def test_a_proof_lays_out_its_points_once_whatever_it_may_cost(monkeypatch, width):
    fit = RidgeSum("f", "tanh", (0.5,) * width, (RidgeUnit((0.5,) * width, 0.3, 1.0),), inf)
    target, laid_out, axis_of = Profile(TANH, fit.half_widths), [], ridge_proof._axis
    cost = cost_of_proof(target, fit)
    monkeypatch.setattr(
        ridge_proof, "_axis", lambda *panels: laid_out.append(panels) or axis_of(*panels)
    )
    assert proved_error(target, fit, most=cost) == proved_error(target, fit) < inf
    assert proved_error(target, fit, most=cost - 1) == inf
    assert len(laid_out) == 3 * width


@pytest.mark.parametrize("width", [1, 2])
def test_points_are_compared_in_parts_of_any_size(monkeypatch, width):
    fit = RidgeSum("f", "tanh", (0.5,) * width, (RidgeUnit((0.5,) * width, 0.3, 1.0),), inf)
    target = Profile(TANH, fit.half_widths)
    whole = proved_error(target, fit)
    monkeypatch.setattr(ridge_proof, "NUMBERS_AT_ONCE", 100)
    assert proved_error(target, fit) == whole


def test_units_as_sharp_as_corners_are_too_dear_to_prove_by_panels():
    for slope, is_affordable in ((10.0, True), (2.0**40, False)):
        fit = RidgeSum("f", "softplus", (1.0,), (RidgeUnit((slope,), 0.0, 1.0),), inf)
        assert (cost_of_proof(Profile(TANH, (1.0,)), fit) < inf) is is_affordable
