"""clip(w) - w by every activation, against its bands at points ever closer to the corners."""

from itertools import pairwise
from math import exp, isfinite, log, pi, sqrt

import pytest
import torch

from icgd.approximation.clipping import (
    BANDS,
    SMALLEST_BOUND,
    Halving,
    SoftClip,
    Step,
    clip_staircase,
    clip_wave,
    decay_for,
    fit_clip,
    halving_of,
    logistic_corner,
    moved_by_rounding,
    normal_corner,
    periodic_error,
    step_distance,
)
from icgd.approximation.ridge import units_of
from icgd.errors import SettingError, UnsupportedActivationError
from icgd.problems.functions import UNIT_ACTIVATIONS
from icgd.program.functions import RidgeSum, RidgeUnit
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


# Ramps of sigmoids, the bounds on their corners, and what halves them.


FINE, COARSE = 27.6, 20.1
X = torch.cat([torch.linspace(-50, 50, 2001), torch.linspace(-5, 5, 2001)]).double()


def ramp(x: torch.Tensor, far: float) -> torch.Tensor:
    """P(x), with more steps than matter."""
    distance = step_distance(far)
    places = distance * (torch.arange(400).double() + 0.5)
    return distance * torch.sigmoid(x.unsqueeze(-1) - places).sum(-1)


def bump_values(halving: Halving, x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x)
    for place, before, after in zip(halving.places, halving.before, halving.after, strict=True):
        for scale, coefficient in ((1, before), (2, after)):
            bump = torch.sigmoid(scale * x + place) - torch.sigmoid(scale * x - place)
            total += coefficient * bump
    return total


@pytest.mark.parametrize("far", [6.0, 10.0, COARSE])
def test_a_ramp_is_a_line_with_a_corner_below_that_of_softplus(far):
    excess = ramp(X, far) - torch.relu(X)
    corner = torch.log1p(torch.exp(-X.abs()))
    assert (excess <= corner + periodic_error(far) + 1e-13).all()
    assert (excess >= -periodic_error(far) - 1e-13).all()
    assert float(excess[X > 20].abs().max()) >= 0.9 * periodic_error(far) or far > 15


def test_the_corner_is_nearly_that_of_softplus():
    at_zero = ramp(torch.zeros(1, dtype=torch.float64), FINE)
    assert float(at_zero) == pytest.approx(0.693, abs=6e-3)


# The proof adds rounding, and in coarse arithmetic the periodic error beyond the panels.
@pytest.mark.parametrize(
    ("far", "n_bumps", "error"), [(FINE, 6, 2e-10), (FINE, 5, 1e-9), (COARSE, 4, 3e-7)]
)
def test_few_bumps_halve_a_corner_everywhere(far, n_bumps, error):
    halving = halving_of(far, n_bumps)
    seen = (bump_values(halving, X) - (ramp(2 * X, far) / 2 - ramp(X, far))).abs().max()
    assert float(seen) <= halving.error <= min(error, 3 * float(seen))


def test_coefficients_stay_small():
    halving = halving_of(FINE, 6)
    assert sum(abs(number) for number in (*halving.before, *halving.after)) <= 40


def test_places_are_even_and_the_second_kind_is_the_first_kind_of_the_next_scale():
    assert halving_of(FINE, 4).places == (0.5, 1.0, 1.5, 2.0)


def test_beyond_the_panels_the_periodic_error_counts():
    assert halving_of(12.0, 4).error >= 26 * exp(-12.0)


# What corners leave, by hand and by integration.


@pytest.mark.parametrize("x", [0.0, 0.5, 2.0, 6.0])
def test_a_normal_corner_is_an_average_of_relu(x):
    noise = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    density = torch.exp(-(noise**2) / 2) / sqrt(2 * pi)
    average = float(torch.trapezoid(torch.relu(noise - x) * density, noise))
    assert normal_corner(x) == pytest.approx(average, rel=1e-6)


def test_a_normal_corner_is_never_below_zero():
    assert all(normal_corner(0.25 * step) >= 0.0 for step in range(200))


def test_a_logistic_corner_is_what_softplus_leaves():
    assert logistic_corner(0.0) == pytest.approx(log(2), rel=1e-15)
    x = torch.tensor(3.0, dtype=torch.float64)
    assert logistic_corner(3.0) == pytest.approx(float(torch.logaddexp(x, x * 0) - x), rel=1e-12)


def test_what_a_corner_leaves_grows_with_its_width():
    soft = SoftClip((), 0.0, 0.25, logistic_corner, 30.0)
    assert soft.near(0.5) == pytest.approx(0.25 * logistic_corner(2.0), rel=1e-8)
    assert soft.near(0.5) > 0.25 * logistic_corner(2.0)


def test_away_from_corners_less_is_asked_of_coarse_arithmetic():
    assert decay_for(2.0**-53) == -log(1e-12)
    assert decay_for(2.0**-24) == pytest.approx(29 * log(2))


def test_rounding_moves_large_arguments_more():
    unit = RidgeUnit((10.0,), 5.0, 2.0)
    assert moved_by_rounding("tanh", 3.0, [unit]) == 4 * 2.0**-53 * 2.0 * (1 + 30 + 5)


# Staircases with sharpened ends, for all w.


FAR = 27.6


def staircase_values(soft: SoftClip, activation: str, w: torch.Tensor) -> torch.Tensor:
    return units_of(RidgeSum("clip", activation, (1.0,), soft.units, 0.0))(w.unsqueeze(-1))


def around_corners(bound: float) -> torch.Tensor:
    near = torch.logspace(-9, 9, 600, dtype=torch.float64)
    return torch.cat([near - bound, bound - near, near, torch.zeros(1).double()])


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
@pytest.mark.parametrize(("bound", "units"), [(1.0, 4), (2.0, 84), (0.3, 200), (1.0, 700)])
def test_it_is_close_for_all_w(activation, bound, units):
    soft = clip_staircase(bound, activation, units, FAR)
    w = around_corners(bound)
    gap = (staircase_values(soft, activation, w) - w.clamp(-bound, bound)).abs()
    distances = (w.abs() - bound).abs().tolist()
    near = torch.tensor([soft.near(distance) for distance in distances], dtype=torch.float64)
    assert (gap <= soft.error + near).all()
    assert len(soft.units) <= units


@pytest.mark.parametrize(
    ("units", "n_steps", "n_halvings"),
    [(84, 84, 0), (184, 40, 5), (384, 24, 14), (3000, 64, 31)],
)
def test_units_are_shared_such_that_corners_are_sharpest(units, n_steps, n_halvings):
    soft = clip_staircase(1.0, "tanh", units, FAR)
    assert len(soft.units) == n_steps + (24 * (n_halvings + 1) if n_halvings else 0)
    slope = 2 * torch.pi**2 / FAR * n_steps / 2
    assert soft.width == pytest.approx(1 / (slope * 2**n_halvings), rel=1e-12)


def test_coarse_arithmetic_takes_fewer_bumps_and_wider_corners():
    soft = clip_staircase(1.0, "tanh", 3000, 20.1)
    assert len(soft.units) == 64 + 16 * 21
    assert soft.error <= 1e-7


def test_few_steps_are_a_plain_staircase():
    soft = clip_staircase(2.0, "sigmoid", 5, FAR)
    assert [unit.coefficient for unit in soft.units] == [1.0, 1.0, 1.0, 1.0, -4.0]
    assert [-unit.offset / unit.direction[0] for unit in soft.units[:4]] == [-1.5, -0.5, 0.5, 1.5]


def test_a_step_by_a_tanh_lies_lower_by_half_its_height():
    step = Step(3.0, 0.5, 4.0)
    w = torch.linspace(-2, 2, 41, dtype=torch.float64)
    by_sigmoid, by_tanh = (
        units_of(RidgeSum("step", name, (2.0,), (step.unit(name),), 0.0))(w.unsqueeze(-1))
        for name in ("sigmoid", "tanh")
    )
    torch.testing.assert_close(by_sigmoid, by_tanh + 2.0, rtol=0, atol=1e-14)
    assert float(by_sigmoid[25]) == pytest.approx(2.0, rel=1e-14)  # at its place


# Cosines that clip for a quarter of their period.


@pytest.mark.parametrize(
    ("bound", "reach", "units", "far"),
    [
        (1.0, 2.0, 84, 27.6),
        (1.0, 1.1, 40, 27.6),
        (0.5, 3.0, 84, 10.0),
        (1.0, 2.0, 9, 27.6),  # at the reach another corner is as close
        (1.0, 9.0, 6, 27.6),
    ],
)
def test_it_is_close_up_to_the_reach(bound, reach, units, far):
    soft = clip_wave(bound, reach, units, far)
    w = torch.linspace(-reach, reach, 2001, dtype=torch.float64)
    fit = RidgeSum("clip", "cos", (reach,), soft.units, 0.0)
    gap = (units_of(fit)(w.unsqueeze(-1)) - w.clamp(-bound, bound)).abs()
    distances = (w.abs() - bound).abs().tolist()
    near = torch.tensor([soft.near(distance) for distance in distances], dtype=torch.float64)
    assert (gap <= soft.error + near).all()
    assert soft.error + float(near.max()) <= 2.2 * float(gap.max())
    assert len(soft.units) == units


def test_a_wave_that_just_reaches_is_as_wide_as_two_bounds():
    soft = clip_wave(1.0, 1.1, 40, 27.6)
    assert soft.units[0].direction == (pi / 4,)
    assert soft.width == pytest.approx(sqrt(2 * 27.6) / (81 * pi / 4))
    assert clip_wave(1.0, 3.0, 40, 27.6).units[0].direction == (pi / 6,)


def test_few_waves_leave_corners_of_half_the_bound():
    """Terms left out are counted: the width would need 16 times as many."""
    soft = clip_wave(1.0, 9.0, 6, 27.6)
    assert soft.width == 0.5
    assert soft.error >= 0.05
