"""clip(w) - w by every activation, against its bands at points ever closer to the corners."""

from itertools import pairwise
from math import isfinite

import pytest
import torch

from icgd.approximation.clipping import BANDS, SMALLEST_BOUND, fit_clip
from icgd.errors import SettingError, UnsupportedActivationError
from icgd.problems.activations import UNIT_ACTIVATIONS
from icgd.program.functions import RidgeSum
from tests.approximation.yardsticks import evaluate

SINGLE = 2.0**-24


def points(bound: float, reach: float) -> torch.Tensor:
    near = bound * torch.logspace(-12, 0, 400, dtype=torch.float64)
    ends = reach * torch.linspace(-1, 1, 401, dtype=torch.float64)
    inside = bound * torch.linspace(-1, 1, 801, dtype=torch.float64)
    w = torch.cat([bound + near, bound - near, near - bound, -near - bound, ends, inside])
    return w[w.abs() <= reach]


def gap(fit: RidgeSum, bound: float, w: torch.Tensor) -> torch.Tensor:
    seen = evaluate(fit, w.unsqueeze(-1)).double()
    return (seen - (w.clamp(-bound, bound) - w).double()).abs()


def certified(fit: RidgeSum, w: torch.Tensor) -> torch.Tensor:
    error = torch.full_like(w, fit.error, dtype=torch.float64)
    for band in fit.bands:
        inside = (band.low <= w) & (w <= band.high)
        error = torch.where(inside, error.clamp(min=band.error), error)
    return error


@pytest.mark.parametrize("activation", UNIT_ACTIVATIONS)
@pytest.mark.parametrize("bound", [1e-300, 5e-324])
def test_a_bound_beyond_the_range_of_slopes_is_refused_but_by_relus(activation: str, bound: float):
    if activation == "relu":
        assert fit_clip(bound, 1.0, activation, 64).largest_error == 0.0
        return
    with pytest.raises(SettingError, match=f"^{activation} units cannot clip to .*{bound:g}"):
        fit_clip(bound, 1.0, activation, 64)


@pytest.mark.parametrize("activation", UNIT_ACTIVATIONS)
def test_the_smallest_bound_is_clipped_to_by_finite_numbers(activation: str):
    fit = fit_clip(SMALLEST_BOUND, 2 * SMALLEST_BOUND, activation, 3200)
    numbers = [n for unit in fit.units for n in (*unit.direction, unit.offset, unit.coefficient)]
    assert all(map(isfinite, numbers))
    assert fit.largest_error <= 0.01 * SMALLEST_BOUND


BOXES = [(1.0, 2.0), (3.0, 3.1), (0.01, 1.0), (1.0, 1e4)]


@pytest.mark.parametrize("activation", UNIT_ACTIVATIONS)
@pytest.mark.parametrize(("bound", "reach"), BOXES)
def test_the_error_is_within_its_bands(activation, bound, reach):
    fit = fit_clip(bound, reach, activation, 200)
    w = points(bound, reach)
    assert (gap(fit, bound, w) <= certified(fit, w) + 1e-15 * reach).all()
    assert (fit.name, fit.half_widths) == ("clip", (reach,))
    assert fit.n_units <= 200


# Largest error, and away from the corners, on [-2, 2] with a bound of 1.
REACHED = [
    ("relu", 8, 0.0, 0.0),
    ("softplus", 8, 1.3e-12, 1.3e-12),
    ("gelu", 8, 4e-13, 4e-13),
    ("silu", 8, 6e-13, 6e-13),
    ("elu", 8, 1.9e-12, 1.9e-12),
    ("sigmoid", 100, 2.4e-2, 2e-12),
    ("sigmoid", 200, 1.7e-3, 5e-11),
    ("sigmoid", 400, 5.1e-6, 5e-11),
    ("sigmoid", 800, 1e-10, 5e-11),
    ("tanh", 400, 5.0e-6, 4e-11),
    ("cos", 100, 2.3e-2, 2e-13),
    ("cos", 400, 5.0e-3, 2e-13),
]


@pytest.mark.parametrize(("activation", "units", "largest", "error"), REACHED)
def test_what_is_reached(activation, units, largest, error):
    fit = fit_clip(1.0, 2.0, activation, units)
    assert fit.largest_error <= largest
    assert fit.error <= error


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "cos"])
def test_at_a_corner_the_bound_is_tight(activation):
    fit = fit_clip(1.0, 2.0, activation, 200)
    corners = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    assert (gap(fit, 1.0, corners) >= 0.98 * fit.largest_error).all()


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "cos"])
def test_bands_close_in_on_the_corners(activation):
    fit = fit_clip(1.5, 4.0, activation, 200)
    for corner, bands in ((-1.5, fit.bands[:BANDS]), (1.5, fit.bands[BANDS:])):
        assert all((band.low + band.high) / 2 == pytest.approx(corner) for band in bands)
        for inner, outer in pairwise(bands):
            assert outer.low < inner.low < inner.high < outer.high
            assert outer.error < inner.error
    assert fit.error <= 2 * fit.bands[-1].error < 1e-9


@pytest.mark.parametrize("activation", UNIT_ACTIVATIONS)
def test_float32_evaluates_what_was_fitted_for_it(activation):
    fit = fit_clip(1.0, 2.0, activation, 200, roundoff=SINGLE)
    w = points(1.0, 2.0).float()
    assert (gap(fit, 1.0, w) <= certified(fit, w) + 3e-6).all()


@pytest.mark.parametrize("activation", ["relu", "softplus", "gelu", "silu", "elu"])
def test_a_reach_of_a_million_overflows_nowhere(activation):
    fit = fit_clip(1.5, 1e6, activation, 8)
    w = torch.tensor([-1e6, -2.0, -1.5, 0.0, 1.25, 1.75, 1e6], dtype=torch.float32)
    assert fit.n_units == 2
    assert gap(fit, 1.5, w).max() <= 2e-12


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "cos"])
def test_even_few_units_are_certified(activation):
    fit = fit_clip(1.0, 2.0, activation, 8)
    w = points(1.0, 2.0)
    assert fit.n_units == 8
    assert (gap(fit, 1.0, w) <= certified(fit, w)).all()
    assert fit.largest_error <= 1.0


def test_a_reach_within_the_bound_is_refused():
    with pytest.raises(SettingError, match=r"^reach=2 must exceed bound=2: "):
        fit_clip(2.0, 2.0, "relu", 8)


@pytest.mark.parametrize(
    ("bound", "reach", "name"),
    [(0.0, 1.0, "bound"), (1.0, float("inf"), "reach"), (float("nan"), 1.0, "bound")],
)
def test_numbers_must_be_positive_and_finite(bound, reach, name):
    with pytest.raises(SettingError, match=f"^{name} must be a positive finite number"):
        fit_clip(bound, reach, "tanh", 60)


def test_units_and_activation_are_checked():
    with pytest.raises(SettingError, match="units must be a whole number of at least 8, got 7"):
        fit_clip(1.0, 2.0, "tanh", 7)
    with pytest.raises(UnsupportedActivationError, match="'cube' is a polynomial of degree 3"):
        fit_clip(1.0, 2.0, "cube", 60)
