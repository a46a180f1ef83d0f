"""What a construction asks for: a function, a product, the slope of a loss, on a box."""

import pytest
import torch

from icgd.approximation.ridge import (
    accurate,
    fit_loss_slope,
    fit_product,
    fit_ridge_sum,
    fit_slope_product,
)
from icgd.errors import SettingError, UnknownNameError, UnsupportedActivationError
from icgd.problems.activations import IDENTITY_FUNCTION, RELU, TANH
from icgd.problems.losses import LOSSES
from icgd.program.functions import RidgeSum
from tests.approximation.yardsticks import evaluate


def points(fit: RidgeSum) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    box = torch.tensor(fit.half_widths, dtype=torch.float64)
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * len(box))
    inside = 2 * torch.rand(10_000, len(box), generator=draw, dtype=torch.float64) - 1
    return box * torch.cat([corners.reshape(-1, len(box)), inside])


def sampled_error(fit: RidgeSum, function) -> float:
    z = points(fit)
    columns = z.T.unsqueeze(-1)
    return float((evaluate(fit, z).unsqueeze(-1) - function(*columns)).abs().max())


PRODUCTS = [
    ("relu", 5e-4),
    ("sigmoid", 1e-11),
    ("tanh", 1e-11),
    ("softplus", 1e-11),
    ("gelu", 1e-11),
    ("silu", 1e-11),
    ("elu", 4e-6),
    ("cos", 1e-11),
]


@pytest.mark.parametrize(("activation", "error"), PRODUCTS)
def test_a_product_by_200_units(activation, error):
    fit = fit_product((2.0, 2.0), activation, 200)
    assert sampled_error(fit, torch.mul) <= fit.error <= error
    assert fit.n_units <= 200
    assert fit.largest_coefficient <= 1e3


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_the_proof_of_a_product_is_close(activation):
    fit = fit_product((2.0, 2.0), activation, 50)
    assert fit.error <= 3 * sampled_error(fit, torch.mul)


def test_a_product_on_a_long_box_has_two_directions():
    fit = fit_product((0.5, 8.0), "softplus", 60)
    assert {
        unit.direction[0] / unit.direction[1] for unit in fit.units[:-1] if unit.direction[0]
    } == {
        16.0,
        -16.0,
    }
    assert sampled_error(fit, torch.mul) <= fit.error <= 1e-9


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "elu"])
@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
def test_slopes_of_losses(loss, activation):
    fit = fit_loss_slope(LOSSES[loss], (2.0, 1.0), activation, 60)
    seen = sampled_error(fit, LOSSES[loss].slope)
    assert seen <= fit.error + 1e-14
    assert fit.error <= {"squared": 1e-11, "logistic": 2e-4, "huber": 3e-2}[loss]
    assert fit.name == f"slope of {loss}"


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_what_is_a_line_is_exact(activation):
    assert fit_loss_slope(LOSSES["squared"], (2.0, 1.0), activation, 60).is_exact
    assert fit_ridge_sum(IDENTITY_FUNCTION, 2.0, activation, 60).is_exact
    fit = fit_slope_product(IDENTITY_FUNCTION, (2.0, 2.0), activation, 60)
    assert fit.is_exact
    assert sampled_error(fit, lambda s, t: s) <= 1e-15


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_slope_that_jumps_is_met_off_its_bands(activation):
    fit = accurate(
        lambda n: fit_slope_product(RELU, (3.0, 2.0), activation, n, kink_width=2.0**-4), 8, 1e-11
    )
    s, t = points(fit).T
    gap = (evaluate(fit, points(fit)) - s * (t > 0)).abs()
    on_band = t.abs() < 2.0**-4
    assert gap[~on_band].max() <= fit.error + 2e-14
    assert 2.5 <= gap[on_band].max() <= fit.largest_error <= 3.0 + 1e-11
    (band,) = fit_slope_product(RELU, (3.0, 2.0), activation, 8).bands
    assert (band.low, band.high) == (-(2.0**-13), 2.0**-13)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "cos"])
def test_a_slope_that_jumps_is_refused_by_units_that_do_not_bend(activation):
    with pytest.raises(SettingError) as caught:
        fit_slope_product(RELU, (2.0, 2.0), activation, 60)
    assert f"kink, and {activation} units have no kink" in str(caught.value)
    assert "Use units of relu, softplus, gelu, silu, elu, or a smooth" in str(caught.value)


def test_a_step_has_no_slope_to_fit():
    with pytest.raises(UnknownNameError, match="Unknown kind of function 'StepFunction'"):
        fit_slope_product(RELU.derivative(), (2.0, 2.0), "relu", 60)


def test_the_width_of_a_band_is_a_power_of_two():
    with pytest.raises(SettingError, match="kink_width must be a power of two"):
        fit_slope_product(RELU, (2.0, 2.0), "relu", 60, kink_width=0.3)


def test_a_loss_that_couples_outputs_is_refused():
    with pytest.raises(SettingError, match="slope of the cross_entropy loss couples all outputs"):
        fit_loss_slope(LOSSES["cross_entropy"], (2.0, 1.0), "relu", 60)


def test_a_box_too_large_says_what_would_result_and_what_would_do():
    fit = fit_ridge_sum(TANH, 20.0, "relu", 8)
    with pytest.raises(SettingError) as caught:
        accurate(lambda n: fit_ridge_sum(TANH, 20.0, "relu", n), 8, 1e-3)
    assert str(caught.value) == (
        "The box [-20, 20] is too large for 8 relu units: the error of tanh would be "
        f"{fit.error:.3g}, above accuracy=0.001. About 32 would do; or use a smaller box."
    )
    assert accurate(lambda n: fit_ridge_sum(TANH, 20.0, "relu", n), 32, 1e-3).error <= 1e-3
    assert fit_ridge_sum(TANH, 20.0, "relu", 16).error > 1e-3


def test_a_box_too_large_for_any_number_of_units_says_so():
    with pytest.raises(SettingError, match=r"\. Even 3200 would not do: use a smaller box\.$"):
        accurate(lambda n: fit_product((100.0, 100.0), "relu", n), 800, 1e-6)


@pytest.mark.parametrize("half_widths", [(0.0, 1.0), (1.0, float("inf")), (1.0, -2.0)])
def test_a_box_without_inside_is_refused(half_widths):
    with pytest.raises(SettingError, match="half_width must be a positive finite number"):
        fit_product(half_widths, "relu", 60)


def test_too_few_or_too_many_units_and_unknown_activations_are_refused():
    with pytest.raises(SettingError, match="units must be a whole number of at least 8, got 7"):
        fit_product((1.0, 1.0), "relu", 7)
    with pytest.raises(SettingError, match="units must be at most 3200, got 3201"):
        fit_product((1.0, 1.0), "relu", 3201)
    with pytest.raises(UnknownNameError, match="Unknown unit activation 'exp'"):
        fit_product((1.0, 1.0), "exp", 60)
    with pytest.raises(UnsupportedActivationError, match="'identity' is a polynomial of degree 1"):
        fit_product((1.0, 1.0), "identity", 60)
