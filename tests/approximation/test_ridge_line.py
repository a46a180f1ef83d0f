"""Functions of one variable: proved errors against dense samples, identities, coefficients."""

import pytest
import torch

from icgd.approximation import ridge as ridge_line
from icgd.approximation.ridge import LARGEST_COEFFICIENT, SQUARE, fit_line, units_of
from icgd.problems.activations import (
    CLIP,
    DOUBLE,
    IDENTITY_FUNCTION,
    LEAKY_RELU,
    RELU,
    SIGMOID,
    SILU,
    TANH,
    UNIT_ACTIVATIONS,
)
from icgd.problems.functions import ScalarFunction
from icgd.program.functions import RidgeSum, RidgeUnit


def sampled_error(
    fit: RidgeSum, function: ScalarFunction, dtype: torch.dtype = torch.float64
) -> float:
    draw = torch.Generator().manual_seed(0)
    z = fit.half_widths[0] * (2 * torch.rand(20_001, generator=draw, dtype=torch.float64) - 1)
    z = torch.cat([z, torch.tensor([-1.0, 1.0]).double() * fit.half_widths[0]]).to(dtype)
    return float(
        (units_of(fit, dtype)(z.unsqueeze(-1)).double() - function(z.double())).abs().max()
    )


def test_more_units_than_a_line_takes_cost_no_other_fit(monkeypatch):
    """A search for the number of units that would do comes by with ever more."""
    monkeypatch.setattr(ridge_line, "ENOUGH_UNITS", 8)
    monkeypatch.setattr(ridge_line, "MOST_ON_A_LINE", 12)
    fits = [fit_line(SILU, 77.0, "tanh", units) for units in (12, 24)]
    assert fits[0] == fits[1]
    monkeypatch.setattr(ridge_line, "_trials", lambda *_: pytest.fail("fitted again"))
    assert fit_line(SILU, 77.0, "tanh", 48) == fits[0]


# The error that 24 units prove for silu on [-3, 3].
REACHED = {
    "relu": 2e-3,
    "sigmoid": 1e-5,
    "tanh": 1e-5,
    "softplus": 1e-5,
    "gelu": 1e-5,
    "elu": 1e-3,
    "cos": 1e-5,
}


@pytest.mark.parametrize("activation", REACHED)
def test_the_error_is_proved_and_not_far_above_the_sampled_one(activation):
    fit = fit_line(SILU, 3.0, activation, 24)
    seen = sampled_error(fit, SILU)
    assert seen <= fit.error <= REACHED[activation]
    assert fit.error <= 1.25 * seen + 1e-11
    assert fit.n_units <= 24
    assert fit.largest_coefficient <= LARGEST_COEFFICIENT


@pytest.mark.parametrize("activation", ["sigmoid", "cos"])
def test_a_kinked_function_is_proved_between_its_kinks(activation):
    fit = fit_line(CLIP, 2.5, activation, 20)
    assert sampled_error(fit, CLIP) <= fit.error <= 1.25 * sampled_error(fit, CLIP)


@pytest.mark.parametrize("activation", ["softplus", "gelu", "silu", "elu"])
@pytest.mark.parametrize(("function", "n_units"), [(RELU, 1), (LEAKY_RELU, 2), (CLIP, 3)])
def test_units_that_bend_like_relu_take_a_kinked_function_for_a_sum_of_relus(
    function, n_units, activation
):
    fit = fit_line(function, 2.5, activation, 20)
    assert fit.n_units == n_units
    assert sampled_error(fit, function) <= fit.error + 1e-15 <= 3e-12
    assert sampled_error(fit, function, torch.float32) <= 1e-6


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "cos"])
@pytest.mark.parametrize("half_width", [0.01, 100.0])
def test_a_line_is_as_close_on_any_interval_as_on_one(activation, half_width):
    fit = fit_line(DOUBLE, half_width, activation, 16)
    assert sampled_error(fit, DOUBLE) <= fit.error <= 1e-12 * half_width
    assert fit.half_widths == (half_width,)


EXACT = [
    *((DOUBLE, name, 2) for name in ("relu", "softplus", "gelu", "silu", "elu")),
    (TANH, "tanh", 1),
    (TANH, "sigmoid", 2),
    (SIGMOID, "sigmoid", 1),
    (RELU, "relu", 1),
    (LEAKY_RELU, "relu", 2),
    (CLIP, "relu", 3),
]


@pytest.mark.parametrize(
    ("function", "activation", "n_units"), EXACT, ids=[f"{f.name}-{a}" for f, a, _ in EXACT]
)
def test_identities_are_exact(function, activation, n_units):
    fit = fit_line(function, 3.0, activation, 24)
    assert (fit.error, fit.n_units) == (0.0, n_units)
    assert sampled_error(fit, function) <= 2e-15


def test_a_line_of_softplus_is_the_difference_of_two():
    units = (RidgeUnit((1.0,), 0.0, 1.0), RidgeUnit((-1.0,), 0.0, -1.0))
    assert fit_line(IDENTITY_FUNCTION, 3.0, "softplus", 24).units == units


def test_no_more_units_are_used_than_float64_can_tell_apart():
    assert fit_line(TANH, 2.0, "softplus", 800).n_units == 96
    assert fit_line(TANH, 2.0, "elu", 200).n_units == 200


@pytest.mark.parametrize("activation", ["elu", "relu"])
def test_kinked_units_converge_as_their_number_grows(activation):
    few, many = (fit_line(TANH, 2.0, activation, units).error for units in (24, 96))
    assert many <= few / 12  # 4^2 for lines, 4^3 for nearly parabolas


def test_small_coefficients_are_preferred_where_rounding_is_coarse():
    fine, coarse = (
        fit_line(SQUARE, 2.0, "sigmoid", 25, LARGEST_COEFFICIENT, roundoff)
        for roundoff in (2.0**-53, 2.0**-24)
    )
    assert coarse.size <= fine.size / 3
    assert fine.error < 1e-10 < coarse.error
    single = [sampled_error(fit, SQUARE, torch.float32) for fit in (fine, coarse)]
    assert single[1] <= single[0] / 2


def test_a_bound_on_the_coefficients_is_kept():
    fit = fit_line(TANH, 2.3, "softplus", 12, 5.0)
    assert fit.largest_coefficient <= 5.0
    assert sampled_error(fit, TANH) <= fit.error <= 1e-2


def test_fits_are_the_same_every_time():
    first = fit_line(TANH, 2.0, "gelu", 16)
    fit_line.cache_clear()
    assert fit_line(TANH, 2.0, "gelu", 16) == first


def test_every_activation_is_tested():
    assert REACHED.keys() | {"silu"} == UNIT_ACTIVATIONS.keys()


@pytest.mark.parametrize("activation", ["softplus", "gelu", "silu", "elu"])
def test_a_wide_interval_is_met_by_corners_where_the_function_bends(activation):
    """Even units are too far apart there: 100 of silu leave 0.2 of sigmoid on [-300, 300]."""
    fit = fit_line(SIGMOID, 300.0, activation, 100)
    assert sampled_error(fit, SIGMOID) <= fit.error < 1e-4


def test_sigmoid_by_tanh_is_exact():
    fit = fit_line(SIGMOID, 5.0, "tanh", 24)
    assert fit.is_exact
    assert sampled_error(fit, SIGMOID) <= 1e-15
