"""Sums of units: proofs of their errors, and the functions that they stand for."""

from itertools import pairwise
from math import exp, inf, prod, tanh

import pytest
import torch

from icgd.approximation import ridge
from icgd.approximation.ridge import (
    LARGEST_COEFFICIENT,
    SQUARE,
    Profile,
    accurate,
    by_bends,
    by_quotient,
    fit_bends,
    fit_gate,
    fit_line,
    fit_loss_slope,
    fit_product,
    fit_ridge_sum,
    fit_slope_product,
    joined,
    kinked_slope,
    proved_error,
    quotient_of,
    strip_of,
    units_of,
)
from icgd.errors import SettingError, UnknownNameError, UnsupportedActivationError
from icgd.problems.functions import (
    CLIP,
    DOUBLE,
    GELU,
    IDENTITY_FUNCTION,
    LEAKY_RELU,
    RELU,
    SIGMOID,
    SILU,
    TANH,
    UNIT_ACTIVATIONS,
    KinkedFunction,
    SmoothFunction,
    bending_activations,
)
from icgd.problems.losses import LOSSES
from icgd.problems.piecewise import Function
from icgd.problems.scalar import ScalarFunction
from icgd.program.functions import Band, RidgeSum, RidgeUnit
from tests.approximation.yardsticks import evaluate

# Proved errors of sums whose real error is known by hand.


ZERO = KinkedFunction("zero", torch.zeros_like, (), (0.0,))
SPIKE = KinkedFunction(
    "spike",
    lambda z: torch.relu(1 - 2000 * (z - 0.3005).abs()),
    (0.3, 0.3005, 0.301),
    (0.0, 2000.0, -2000.0, 0.0),
)


def cost_of_proof(target: Profile, fit: RidgeSum) -> float:
    """How many evaluations of units `proved_error` takes; inf if it has nowhere to compare."""
    axes = ridge._axes(target, units_of(fit))
    return float(prod(len(axis.points) for axis in axes) * fit.n_units) if axes else inf


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
    monkeypatch.setattr(ridge, "TAIL", 1e-3)
    assert proved_error(Profile(function, fit.half_widths), fit) >= 1.155 * error + 1e-3


def test_a_proof_that_would_take_too_long_proves_nothing(monkeypatch):
    function, fit, error = KNOWN[0]
    target = Profile(function, fit.half_widths)
    assert proved_error(target, fit) < 2 * error
    monkeypatch.setattr(ridge, "LONGEST_PROOF", cost_of_proof(target, fit) - 1)
    assert proved_error(target, fit) == inf


@pytest.mark.parametrize("width", [1, 2])
def test_a_proof_lays_out_its_points_once_whatever_it_may_cost(monkeypatch, width):
    fit = RidgeSum("f", "tanh", (0.5,) * width, (RidgeUnit((0.5,) * width, 0.3, 1.0),), inf)
    target, laid_out, axis_of = Profile(TANH, fit.half_widths), [], ridge._axis
    cost = cost_of_proof(target, fit)
    monkeypatch.setattr(ridge, "_axis", lambda *panels: laid_out.append(panels) or axis_of(*panels))
    assert proved_error(target, fit, most=cost) == proved_error(target, fit) < inf
    assert proved_error(target, fit, most=cost - 1) == inf
    assert len(laid_out) == 3 * width


@pytest.mark.parametrize("width", [1, 2])
def test_points_are_compared_in_parts_of_any_size(monkeypatch, width):
    fit = RidgeSum("f", "tanh", (0.5,) * width, (RidgeUnit((0.5,) * width, 0.3, 1.0),), inf)
    target = Profile(TANH, fit.half_widths)
    whole = proved_error(target, fit)
    monkeypatch.setattr(ridge, "NUMBERS_AT_ONCE", 100)
    assert proved_error(target, fit) == whole


def test_units_as_sharp_as_corners_are_too_dear_to_prove_by_panels():
    for slope, is_affordable in ((10.0, True), (2.0**40, False)):
        fit = RidgeSum("f", "softplus", (1.0,), (RidgeUnit((slope,), 0.0, 1.0),), inf)
        assert (cost_of_proof(Profile(TANH, (1.0,)), fit) < inf) is is_affordable


# Sums of relus by what bends like relu, and slopes that jump.


RELUS = (RidgeUnit((2.0, 1.0), -0.5, 3.0), RidgeUnit((-1.0, 0.0), 0.25, -1.0))
WIDTH = 2.0**-5

ZIGZAG = KinkedFunction(
    "zigzag",
    lambda z: 0.5 * z - 1.5 * torch.relu(z + 1) + 0.75 * torch.relu(z - 0.7),
    (-1.0, 0.7),
    (0.5, -1.0, -0.25),
)


def box(fit: RidgeSum) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    sides = torch.tensor(fit.half_widths, dtype=torch.float64)
    return sides * (2 * torch.rand(20_000, len(sides), generator=draw, dtype=torch.float64) - 1)


@pytest.mark.parametrize("activation", bending_activations())
def test_a_sum_of_relus_is_met_within_its_error(activation):
    fit = by_bends("f", activation, (2.0, 1.0), RELUS)
    real = by_bends("f", "relu", (2.0, 1.0), RELUS)
    z = torch.cat([box(fit), torch.tensor([[0.25, 0.0], [0.0, 0.5]], dtype=torch.float64)])
    gap = (evaluate(fit, z) - evaluate(real, z)).abs().max()
    expected = 4.0 * UNIT_ACTIVATIONS[activation].off_relu / 2.0**40
    assert fit.error == pytest.approx(expected, rel=1e-12)
    assert gap <= fit.error + 4e-15
    assert real.is_exact
    assert real.units == RELUS


def test_small_boxes_get_sharper_units():
    fit = by_bends("f", "elu", (0.3, 5.0), RELUS)
    assert fit.units[0] == RidgeUnit((2.0**43, 2.0**42), -(2.0**41), 3.0 / 2.0**42)
    assert fit.error == 4.0 / 2.0**42


def test_a_piecewise_linear_function_is_a_sum_of_relus():
    fit = fit_bends(CLIP, 3.0, "silu")
    z = box(fit)
    assert (evaluate(fit, z) - CLIP(z.squeeze(-1))).abs().max() <= fit.error + 1e-15 <= 1e-12
    assert fit.n_units == 3


@pytest.mark.parametrize("activation", bending_activations())
@pytest.mark.parametrize("function", [LEAKY_RELU, CLIP, ZIGZAG], ids=lambda f: f.name)
def test_slopes_that_jump_are_met_off_the_bands(function, activation):
    fit = kinked_slope(function, (3.0, 2.0), activation, WIDTH)
    s, t = box(fit).T
    gap = (evaluate(fit, box(fit)) - s * function.derivative()(t)).abs()
    allowed = torch.full_like(t, fit.error)
    for band in fit.bands:
        inside = (band.low < t) & (t < band.high)
        assert gap[inside].max() >= 0.8 * band.error
        allowed = torch.where(inside, allowed.clamp(min=band.error), allowed)
    assert (gap <= allowed + 2.0**-53 * fit.size).all()
    assert fit.error <= 1e-11
    assert fit.name == f"s {function.name}'(t)"


def test_every_knot_has_its_band_as_high_as_its_jump():
    bands = kinked_slope(ZIGZAG, (3.0, 2.0), "relu", WIDTH).bands
    assert bands == (
        Band(-1.0 - WIDTH, -1.0 + WIDTH, 4.5),
        Band(0.7 - WIDTH, 0.7 + WIDTH, 2.25),
    )


def test_jumps_of_neighbouring_knots_add_up_and_those_of_nothing_are_left_out():
    close = KinkedFunction("close", lambda z: z, (0.0, 0.05, 1.0), (0.0, 1.0, -1.0, -1.0))
    fit = kinked_slope(close, (2.0, 2.0), "relu", WIDTH)
    assert [band.error for band in fit.bands] == [6.0, 6.0]
    assert fit.n_units == 4


def test_jumps_go_inside_so_that_only_sums_are_rounded():
    first, second = kinked_slope(LEAKY_RELU, (3.0, 2.0), "relu", WIDTH).units[2:]
    assert first == RidgeUnit((0.99, 128.0), -0.0, 1.0)
    assert second == RidgeUnit((0.0, 128.0), -0.0, -1.0)


# Functions of one variable: proved errors against dense samples, identities, coefficients.


def line_error(
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
    monkeypatch.setattr(ridge, "ENOUGH_UNITS", 8)
    monkeypatch.setattr(ridge, "MOST_ON_A_LINE", 12)
    fits = [fit_line(SILU, 77.0, "tanh", units) for units in (12, 24)]
    assert fits[0] == fits[1]
    monkeypatch.setattr(ridge, "_trials", lambda *_: pytest.fail("fitted again"))
    assert fit_line(SILU, 77.0, "tanh", 48) == fits[0]


# The error that 24 units prove for silu on [-3, 3].
REACHED_ON_A_LINE = {
    "relu": 2e-3,
    "sigmoid": 1e-5,
    "tanh": 1e-5,
    "softplus": 1e-5,
    "gelu": 1e-5,
    "elu": 1e-3,
    "cos": 1e-5,
}


@pytest.mark.parametrize("activation", REACHED_ON_A_LINE)
def test_the_error_is_proved_and_not_far_above_the_sampled_one(activation):
    fit = fit_line(SILU, 3.0, activation, 24)
    seen = line_error(fit, SILU)
    assert seen <= fit.error <= REACHED_ON_A_LINE[activation]
    assert fit.error <= 1.25 * seen + 1e-11
    assert fit.n_units <= 24
    assert fit.largest_coefficient <= LARGEST_COEFFICIENT


@pytest.mark.parametrize("activation", ["sigmoid", "cos"])
def test_a_kinked_function_is_proved_between_its_kinks(activation):
    fit = fit_line(CLIP, 2.5, activation, 20)
    assert line_error(fit, CLIP) <= fit.error <= 1.25 * line_error(fit, CLIP)


@pytest.mark.parametrize("activation", ["softplus", "gelu", "silu", "elu"])
@pytest.mark.parametrize(("function", "n_units"), [(RELU, 1), (LEAKY_RELU, 2), (CLIP, 3)])
def test_units_that_bend_like_relu_take_a_kinked_function_for_a_sum_of_relus(
    function, n_units, activation
):
    fit = fit_line(function, 2.5, activation, 20)
    assert fit.n_units == n_units
    assert line_error(fit, function) <= fit.error + 1e-15 <= 3e-12
    assert line_error(fit, function, torch.float32) <= 1e-6


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "cos"])
@pytest.mark.parametrize("half_width", [0.01, 100.0])
def test_a_line_is_as_close_on_any_interval_as_on_one(activation, half_width):
    fit = fit_line(DOUBLE, half_width, activation, 16)
    assert line_error(fit, DOUBLE) <= fit.error <= 1e-12 * half_width
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
    assert line_error(fit, function) <= 2e-15


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
    single = [line_error(fit, SQUARE, torch.float32) for fit in (fine, coarse)]
    assert single[1] <= single[0] / 2


def test_a_bound_on_the_coefficients_is_kept():
    fit = fit_line(TANH, 2.3, "softplus", 12, 5.0)
    assert fit.largest_coefficient <= 5.0
    assert line_error(fit, TANH) <= fit.error <= 1e-2


def test_fits_are_the_same_every_time():
    first = fit_line(TANH, 2.0, "gelu", 16)
    fit_line.cache_clear()
    assert fit_line(TANH, 2.0, "gelu", 16) == first


def test_every_activation_is_tested():
    assert REACHED_ON_A_LINE.keys() | {"silu"} == UNIT_ACTIVATIONS.keys()


@pytest.mark.parametrize("activation", ["softplus", "gelu", "silu", "elu"])
def test_a_wide_interval_is_met_by_corners_where_the_function_bends(activation):
    """Even units are too far apart there: 100 of silu leave 0.2 of sigmoid on [-300, 300]."""
    fit = fit_line(SIGMOID, 300.0, activation, 100)
    assert line_error(fit, SIGMOID) <= fit.error < 1e-4


def test_sigmoid_by_tanh_is_exact():
    fit = fit_line(SIGMOID, 5.0, "tanh", 24)
    assert fit.is_exact
    assert line_error(fit, SIGMOID) <= 1e-15


# s r'(t) against random samples of the box, with its proved error.


ROUNDOFF, SINGLE = 2.0**-53, 2.0**-24


def fitted(
    activation: str, units: int, function: SmoothFunction = TANH, roundoff: float = ROUNDOFF
) -> RidgeSum:
    return by_quotient(function, (2.0, 2.0), activation, units, roundoff=roundoff)


def slope_error(
    fit: RidgeSum, function: SmoothFunction, dtype: torch.dtype = torch.float64
) -> float:
    draw = torch.Generator().manual_seed(0)
    z = 2 * torch.rand(20_000, 2, generator=draw, dtype=torch.float64) - 1
    z = (z * torch.tensor(fit.half_widths, dtype=torch.float64)).to(dtype)
    s, t = z.double().T
    seen = torch.cat([units_of(fit, dtype)(rows) for rows in z.split(2000)]).double()
    return float((seen - s * function.tower[1](t)).abs().max())


# With 200 units; the last column is how far the proof may lie above the samples.
REACHED_BY_SLOPES = [
    ("relu", 5e-3, 1.5),
    ("sigmoid", 1e-11, 100.0),  # only rounding is left to prove
    ("tanh", 1e-11, 100.0),
    ("softplus", 1e-9, 3.0),
    ("elu", 5e-4, 3.0),
    ("cos", 2e-9, 3.0),
]


@pytest.mark.parametrize(("activation", "error", "ratio"), REACHED_BY_SLOPES)
def test_200_units_reach_their_accuracy_with_a_proof(activation, error, ratio):
    fit = fitted(activation, 200)
    seen = slope_error(fit, TANH)
    assert seen <= fit.error <= min(error, ratio * seen)
    assert fit.n_units <= 200
    assert fit.largest_coefficient <= 1e3


@pytest.mark.parametrize("activation", ["cos", "elu"])
@pytest.mark.parametrize("function", [SIGMOID, GELU], ids=lambda f: f.name)
def test_other_functions_are_proved_too(activation, function):
    fit = fitted(activation, 48, function)
    seen = slope_error(fit, function)
    assert seen <= fit.error <= 3 * seen
    assert fit.error <= 2e-2


def test_800_units_of_an_activation_that_is_not_the_function_reach_1e_9():
    fit = fitted("softplus", 800)
    assert slope_error(fit, TANH) <= fit.error <= 1e-9


def test_the_function_itself_as_activation_takes_a_unit_for_each_direction():
    fit = fitted("tanh", 12)
    assert fit.n_units == 12
    assert {unit.direction[1] for unit in fit.units} == {1.0}
    assert all(unit.offset == 0.0 for unit in fit.units)
    assert fit.error <= 1e-11


def test_the_error_grows_in_proportion_to_the_first_side_of_the_box():
    small, large = (
        by_quotient(TANH, (size, 2.0), "cos", 48, roundoff=ROUNDOFF) for size in (1.0, 10.0)
    )
    assert large.error == pytest.approx(10 * small.error, rel=1e-3)
    assert slope_error(large, TANH) <= large.error


@pytest.mark.parametrize("activation", ["tanh", "cos"])
def test_float32_evaluates_what_was_fitted_for_it_to_1e_5(activation):
    fit = fitted(activation, 200, roundoff=SINGLE)
    assert slope_error(fit, TANH, torch.float32) <= 1e-5


def test_a_quotient_is_odd_and_more_directions_bring_it_closer():
    quotients = [quotient_of(TANH, 2.0, pairs, 0.3) for pairs in (1, 2, 3, 4)]
    errors = [quotient.error for quotient in quotients]
    assert all(after < before / 50 for before, after in pairwise(errors))
    for quotient in quotients:
        assert sum(quotient.factors) == pytest.approx(0.0, abs=1e-9)
        slope = sum(c * h for c, h in zip(quotient.factors, quotient.shifts, strict=True))
        assert slope == pytest.approx(1.0, abs=1e-2)


def test_neither_units_nor_coefficients_exceed_what_is_allowed():
    """Without the bound, the coefficients of this one would be 3000."""
    fit = fitted("tanh", 24, GELU)
    assert fit.n_units <= 24
    assert fit.largest_coefficient <= 1e3
    assert fitted("sigmoid", 8).n_units == 8


# What a construction asks for: a function, a product, the slope of a loss, on a box.


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
    assert f"kink, and {activation} units cannot fit a jump" in str(caught.value)
    assert "Use units of relu, softplus, gelu, silu, elu, or a smooth" in str(caught.value)


def test_a_step_has_no_slope_to_fit():
    with pytest.raises(UnknownNameError, match="Unknown kind of function 'StepFunction'"):
        fit_slope_product(RELU.derivative(), (2.0, 2.0), "relu", 60)


def test_the_width_of_a_band_is_a_power_of_two():
    with pytest.raises(SettingError, match="kink_width must be a power of two"):
        fit_slope_product(RELU, (2.0, 2.0), "relu", 60, kink_width=0.3)


def test_a_loss_that_couples_outputs_is_refused():
    with pytest.raises(SettingError, match="slope of the cross_entropy loss is not a sum of"):
        fit_loss_slope(LOSSES["cross_entropy"], (2.0, 1.0), "relu", 60)


def test_a_box_too_large_says_what_would_result_and_what_would_do():
    fit = fit_ridge_sum(TANH, 20.0, "relu", 8)
    with pytest.raises(SettingError) as caught:
        accurate(lambda n: fit_ridge_sum(TANH, 20.0, "relu", n), 8, 1e-3)
    assert str(caught.value) == (
        "The box [-20, 20] is too large for 8 relu units: the error of tanh would be "
        f"{fit.error:.3g}, above accuracy=0.001. Use about 32 units, or use a smaller box."
    )
    assert accurate(lambda n: fit_ridge_sum(TANH, 20.0, "relu", n), 32, 1e-3).error <= 1e-3
    assert fit_ridge_sum(TANH, 20.0, "relu", 16).error > 1e-3


def test_a_box_too_large_for_any_number_of_units_says_so():
    with pytest.raises(SettingError, match=r"\. Even 3200 do not suffice: use a smaller box\.$"):
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


# A number where the flag is 1, and nothing where it is 0.


def errors(fit: RidgeSum, dtype: torch.dtype = torch.float64) -> tuple[float, float]:
    """With the flag off, and on."""
    z = fit.half_widths[0] * torch.linspace(-1, 1, 401, dtype=dtype)
    off, on = torch.zeros_like(z), torch.ones_like(z)
    closed = evaluate(fit, torch.stack([z, off], dim=-1))
    opened = evaluate(fit, torch.stack([z, on], dim=-1)) - z
    return float(closed.abs().max()), float(opened.abs().max())


@pytest.mark.parametrize("activation", UNIT_ACTIVATIONS)
@pytest.mark.parametrize("reach", [0.1, 5.0, 1e4])
def test_only_what_is_flagged_passes(activation, reach):
    fit = fit_gate(reach, activation, 64)
    off, on = errors(fit)
    assert max(off, on) <= fit.error + 4e-16 * reach
    assert fit.error <= 2e-12 * max(reach, 1.0)
    assert (fit.name, fit.half_widths) == ("z where flagged", (reach, 1.0))


def test_relu_is_exact_with_two_units():
    fit = fit_gate(5.0, "relu", 8)
    assert fit.is_exact
    assert fit.units == (RidgeUnit((1.0, 16.0), -16.0, 1.0), RidgeUnit((-1.0, 16.0), -16.0, -1.0))
    assert errors(fit)[0] == 0.0


@pytest.mark.parametrize("activation", ["tanh", "cos", "silu"])
def test_float32_keeps_six_digits(activation):
    fit = fit_gate(50.0, activation, 64, roundoff=SINGLE)
    off, on = errors(fit, torch.float32)
    assert max(off, on) <= 1e-4


def test_a_reach_must_be_positive():
    with pytest.raises(SettingError, match="half_width must be a positive finite number"):
        fit_gate(0.0, "relu", 8)


@pytest.mark.parametrize("activation", ["elu", "softplus", "relu"])
def test_wide_intervals_take_lines_at_once(monkeypatch, activation):
    """Units spread evenly over 12,000 meet nothing of a sigmoid, and are not tried."""
    monkeypatch.setattr(ridge, "_least_squares", lambda *args: pytest.fail("tried"))
    fit = fit_line(SIGMOID, 6080.0, activation, 200)
    assert fit.error <= 1e-3


@pytest.mark.parametrize("function", [SIGMOID, TANH, GELU, SILU], ids=lambda f: f.name)
def test_a_quotient_on_a_wide_box_is_as_good_as_where_its_function_bends(function):
    """Proved up to |t| = 64, it holds beyond."""
    wide = by_quotient(function, (1.0, 3000.0), function.name, 200, roundoff=ROUNDOFF)
    s, t = torch.cartesian_prod(
        torch.linspace(-1, 1, 21, dtype=torch.float64),
        torch.cat([torch.linspace(-3000, 3000, 601), torch.linspace(-70, 70, 701)]).double(),
    ).T
    found = units_of(wide)(torch.stack([s, t], dim=-1))
    assert (found - s * function.derivative()(t)).abs().max() <= wide.error <= 1e-6


def test_a_fit_that_is_worse_at_a_point_than_another_is_not_proved(monkeypatch):
    monkeypatch.setattr(ridge, "proved_error", lambda *args: pytest.fail("proved"))
    fit = ridge._least_squares.__wrapped__(TANH, 40.0, "elu", 24, 1e3, ROUNDOFF, 1e-9)
    assert fit.error == inf


def test_units_whose_domain_is_too_narrow_say_how_far_they_reach():
    narrow = Function("narrow", "tanh(x)", low=-0.5, high=0.5)
    with pytest.raises(SettingError, match=r"leave \[-0.25, 0.25\], half of the domain"):
        fit_line(TANH, 2.0, narrow.name, 40)
