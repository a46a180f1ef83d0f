"""Sums of ReLUs for functions of text: few pieces, and errors that are proved."""

from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from flint import arb, ctx

from icgd.approximation import marching
from icgd.approximation.marching import fit_by_marching, unit_of
from icgd.approximation.relu_sum import fit_relu_sum, fit_with_common_knots
from icgd.errors import ConstructionError, SettingError
from icgd.problems import balls
from icgd.problems.functions import OWN, slope_of
from icgd.problems.piecewise import Function

L, A = "1.0507009873554805", "1.6732632423543772"


def on_six(label: str, text: str) -> Function:
    return Function(label, text, low=-6.0, high=6.0)


def pieces(label: str, knots: tuple[float, ...], of: tuple[str, ...]) -> Function:
    return Function.pieces(knots, of, label, low=-6.0, high=6.0)


CATALOGUE = {
    on_six("mish", "x * tanh(log(1 + exp(x)))"): 79,
    on_six("softsign", "x / (1 + abs(x))"): 91,
    on_six("sin", "sin(x)"): 239,
    on_six("erf", "erf(x)"): 79,
    on_six("gelu-tanh", "0.5*x*(1 + tanh(sqrt(2/pi)*(x + 0.044715*x**3)))"): 73,
    on_six("quick gelu", "x / (1 + exp(-1.702*x))"): 73,
    pieces("elu", (0,), ("exp(x) - 1", "x")): 50,
    pieces("selu", (0,), (f"{L}*{A}*(exp(x) - 1)", f"{L}*x")): 66,
    pieces("celu", (0,), ("0.5*(exp(x/0.5) - 1)", "x")): 38,
    pieces("hardswish", (-3, 3), ("0", "x*(x + 3)/6", "x")): 91,
    on_six("log-cosh slope", "tanh(x)"): 87,
    on_six("cauchit", "1/2 + atan(x)/pi"): 57,
    on_six("cloglog", "1 - exp(-exp(x))"): 56,
    on_six("snake", "x + sin(x)**2"): 324,
    on_six("gaussian", "exp(-x**2)"): 101,
}
"""Functions with curves on [-6, 6], and the most pieces with which each errs by 1e-4 at most."""

EXACT = (
    pieces("relu6", (0, 6 - 1e-9), ("0", "x", "6 - 1e-9")),
    pieces("hardtanh", (-1, 1), ("-1", "x", "1")),
    pieces("halves", (-0.5, 0.5), ("-0.5", "x", "0.5")),
    on_six("abs", "abs(x - 0.25) - 3"),
)
over_curves = pytest.mark.parametrize("function", CATALOGUE, ids=str)


def values(fit, z):
    intercepts, slopes = (
        torch.tensor(row, dtype=torch.float64) for row in (fit.intercepts(), fit.slopes)
    )
    piece = torch.searchsorted(torch.tensor(fit.knots, dtype=torch.float64), z)
    return intercepts[piece] + slopes[piece] * z, piece


def assert_within(fit, function, n_points=20_000):
    """No sample is farther from the function than is proved of its piece."""
    z = torch.linspace(fit.low, fit.high, n_points, dtype=torch.float64)
    found, piece = values(fit, z)
    gap = (found - function(z)).abs()
    assert (gap <= torch.tensor(fit.errors, dtype=torch.float64)[piece] + 1e-13).all()
    return float(gap.max())


@over_curves
def test_few_pieces_are_enough_and_what_is_proved_is_hardly_more_than_the_error(function):
    (fit,) = fit_by_marching((function,), -6.0, 6.0, CATALOGUE[function], [0.9965e-4])
    assert fit.n_pieces <= CATALOGUE[function]
    sampled = assert_within(fit, function)
    assert 0.97e-4 <= sampled <= fit.error <= 1.005e-4


@over_curves
def test_a_number_of_pieces_is_used_up(function):
    for number in (5, 24):
        fit = fit_relu_sum(function, -6.0, 6.0, number)
        assert fit.n_pieces <= number
        assert assert_within(fit, function) >= 0.95 * fit.error
        finer = fit_relu_sum(function, -6.0, 6.0, 2 * number)
        assert finer.error <= fit.error / 2.5


@pytest.mark.slow
@over_curves
def test_proved_errors_hold_at_100_000_points_and_on_a_partition(function):
    """On cells of a partition the gap of line and function is enclosed by Arb alone."""
    slope = slope_of(function).curve or function
    for part in (function, slope):
        fit = fit_relu_sum(part, -6.0, 6.0, 64)
        assert_within(fit, part, 100_000)
        ends = [Fraction(fit.low), *map(Fraction, fit.knots), Fraction(fit.high)]
        constants, slopes = exact_pieces(fit)
        with ctx.workprec(100):
            for k, (left, right) in enumerate(pairwise(ends)):
                for piece, a, b in part.spans(left, right):
                    for cell in range(200):
                        x = balls.interval(a + (b - a) * cell / 200, a + (b - a) * (cell + 1) / 200)
                        middle = arb(x.mid())
                        line, steep = balls.exact(constants[k]), balls.exact(slopes[k])
                        gap = line + steep * middle - part.ball(0, piece, middle)
                        spread = (steep - part.ball(1, piece, x)) * (x - middle)
                        assert balls.size(gap + spread) <= fit.errors[k] * 1.05 + 2e-6


def exact_pieces(fit):
    """The constants and slopes of the pieces in rational numbers, from the terms."""
    ends = [fit.low, *fit.knots, fit.high]
    slopes, constants = [Fraction(s) for s in fit.slopes], []
    for k, slope in enumerate(slopes):
        z = (Fraction(ends[k]) + Fraction(ends[k + 1])) / 2
        terms = [
            (Fraction(t.coefficient), Fraction(t.scale) * z + Fraction(t.shift))
            for t in fit.terms()
        ]
        constants.append(sum(c * max(a, 0) for c, a in terms) - slope * z)
    return constants, slopes


@pytest.mark.parametrize("function", EXACT, ids=str)
def test_lines_between_dyadic_knots_are_exact(function):
    fit = fit_relu_sum(function, -6.0, 6.0)
    assert fit.error <= 1e-15
    assert fit.is_exact or function.label == "relu6"
    assert_within(fit, function)
    assert all((knot / fit.knot_unit).is_integer() for knot in fit.knots)


def test_an_interval_may_begin_or_end_at_a_knot():
    fit = fit_relu_sum(pieces("relu6", (0, 5), ("0", "x", "5")), 0.0, 6.0)
    assert (fit.knots, fit.slopes, fit.error) == ((5.0,), (1.0, 0.0), 0.0)
    fit = fit_relu_sum(pieces("relu6", (0, 5), ("0", "x", "5")), -1.0, 5.0)
    assert (fit.knots, fit.slopes, fit.error) == ((0.0,), (0.0, 1.0), 0.0)


def test_an_interval_outside_the_domain_is_refused():
    with pytest.raises(SettingError, match=r"outside the domain of tanh, \[-6, 6\]"):
        fit_relu_sum(on_six("tanh", "tanh(x)"), 7.0, 8.0)


def test_lines_are_met_exactly_beside_a_curve():
    fit = fit_relu_sum(OWN["elu"], -6.0, 6.0, 20)
    assert fit.errors[-1] <= 1e-15
    assert max(fit.errors[:-1]) > 1e-5


@pytest.mark.parametrize("name", ["mish", "softsign", "elu", "gelu_tanh", "erf"])
def test_a_function_and_its_slope_share_knots_and_err_no_more_than_alone(name):
    pair = OWN[name], OWN[name].derivative()
    fits = fit_with_common_knots(pair, -20.0, 20.0, 40)
    assert fits[0].knots == fits[1].knots
    assert fits[0].n_pieces < 65
    for fit, function in zip(fits, pair, strict=True):
        assert_within(fit, function)
        assert fit.error <= 1.02 * fit_relu_sum(function, -20.0, 20.0, 40).error


@pytest.mark.parametrize("function", [OWN["mish"], OWN["elu"], OWN["softsign"]], ids=str)
def test_wide_intervals_are_no_harder(function):
    fit = fit_relu_sum(function, -1e6, 1e6, 64)
    assert_within(fit, function)
    assert fit.error <= 0.05


def test_a_spike_that_samples_miss_is_seen_by_the_proof():
    function = on_six("spike", "tanh(x) + exp(-1e6*(x - 0.3712)**2)")
    fit = fit_relu_sum(function, -6.0, 6.0, 64)
    z = 0.3712 + torch.linspace(-0.01, 0.01, 20_001, dtype=torch.float64)
    found, piece = values(fit, z)
    gap = (found - function(z)).abs()
    assert (gap <= torch.tensor(fit.errors, dtype=torch.float64)[piece] + 1e-13).all()
    assert fit.error <= 0.05


def test_a_function_too_steep_for_any_knots_is_refused_with_the_place():
    with pytest.raises(ConstructionError, match=r"^f is so steep near x = 0\.37"):
        fit_relu_sum(on_six("f", "tanh(1e12*(x - 0.37))"), -6.0, 6.0, 64)


def test_a_jump_is_refused():
    sawtooth = pieces("sawtooth", (0,), ("x", "exp(x)"))
    with pytest.raises(
        SettingError, match=r"^sawtooth jumps, and a sum of ReLUs is continuous\. Use "
    ):
        fit_relu_sum(sawtooth, -6.0, 6.0)


def test_the_fit_is_on_the_part_of_the_interval_that_is_in_the_domain():
    fit = fit_relu_sum(on_six("erf", "erf(x)"), -50.0, 50.0, 20)
    assert (fit.low, fit.high) == (-6.0, 6.0)


@pytest.mark.parametrize(
    ("knots", "unit"), [((), 1.0), ((0.0, 6.0), 1.0), ((-0.5, 3.0), 0.5), ((0.1,), 2.0**-55)]
)
def test_the_unit_of_knots_is_the_largest_power_of_two_that_divides_them(knots, unit):
    assert unit_of(knots) == unit


def test_goals_that_were_set_without_a_spike_are_not_pursued(monkeypatch):
    """At the points of a grid the spike of f'' underflows, so that the goal is an error of 0."""
    function, seen, largest_gap = (
        on_six("kink", "erf(100000*x)*x"),
        list[object](),
        marching._largest_gap,
    )
    monkeypatch.setattr(
        marching, "_largest_gap", lambda *given: seen.append(given) or largest_gap(*given)
    )
    fit, slope = fit_with_common_knots((function, function.derivative()), -2.0, 3.0, 20)
    assert fit.n_pieces <= 20
    assert slope.n_pieces <= 20
    assert fit.error < 1e-6
    assert len(seen) < 200


def test_a_piece_across_many_waves_errs_by_no_more_than_the_range_of_both():
    fit = fit_relu_sum(on_six("waves", "sin(1000*x)"), -6.0, 6.0, 64)
    assert fit.error <= 6.0
