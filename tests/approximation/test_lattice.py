"""What a head returns against the real function, on dense samples, with its proved error."""

from math import exp, floor, pi

import pytest
import torch
from flint import acb, arb
from hypothesis import given
from hypothesis import strategies as st

from icgd import Function
from icgd.approximation import lattice
from icgd.approximation.lattice import (
    LARGEST_VALUE,
    fit_on_lattice,
    fit_to_accuracy,
    head,
    identity,
    line_lattice,
    nearest_point,
    square,
)
from icgd.errors import ConstructionError, SettingError
from icgd.problems.functions import FUNCTIONS, SmoothFunction, function_named
from icgd.program.functions import LatticeFunction
from tests.approximation.yardsticks import choose_lattice

SMOOTH = [
    name
    for name, function in FUNCTIONS.items()
    if isinstance(function, SmoothFunction) and name.rstrip("'") != "exp"  # 403 at 6
]
GROWING = ["gelu", "silu", "softplus"]
BOUNDED = [name for name in SMOOTH if name not in GROWING]
TANH = (function_named("tanh"), function_named("tanh'"))


def fit_lattice(function: SmoothFunction, reach: float, accuracy: float) -> LatticeFunction:
    return fit_to_accuracy((function,), reach, accuracy)[0]


def gap(fit: LatticeFunction, function, s: torch.Tensor) -> float:
    """Largest distance between head and function at `s`, in the arithmetic of `s`."""
    return float((head(fit, s).double() - function(s.double())).abs().max())


def sampled_error(fit: LatticeFunction, function) -> float:
    s = torch.linspace(-fit.reach, fit.reach, 20_001, dtype=torch.float64)
    return gap(fit, function, s)


def largest_value(fit: LatticeFunction) -> float:
    return max(abs(value) for value in fit.values)


def test_weights_are_a_softmax_of_scores_linear_in_s():
    grid = choose_lattice(1.0, 1e-9)
    points, s = grid.points(), torch.tensor([0.3], dtype=torch.float64)
    width = grid.ratio * grid.spacing
    scores = (0.3 * points - points**2 / 2) / width**2
    torch.testing.assert_close(grid.weights(s)[0], torch.softmax(scores, 0))
    assert len(points) == grid.n_points
    assert points[grid.half] == 0.0


def test_the_head_returns_the_mean_of_the_values_under_the_weights():
    fit = identity(choose_lattice(1.0, 1e-9))
    values = tuple(float(number) for number in range(len(fit.values)))
    changed = LatticeFunction("count", 1.0, fit.spacing, fit.ratio, values, 0.0, 0.0, 0.0)
    g = torch.arange(-fit.half, fit.half + 1, dtype=torch.float64)
    weights = torch.softmax((g * 0.3 / fit.spacing - g**2 / 2) / fit.ratio**2, 0)
    expected = float((weights * torch.arange(len(values))).sum())
    s = torch.tensor([0.3], dtype=torch.float64)
    assert float(head(changed, s)) == pytest.approx(expected, rel=1e-13)


def test_the_identity_is_right_to_1e_13_with_32_tokens():
    fit = identity(choose_lattice(1.0, 1e-13))
    assert len(fit.values) <= 32
    assert sampled_error(fit, lambda s: s) <= fit.error <= 1e-13


@pytest.mark.parametrize("half", [15, 40, 119])
def test_lines_and_squares_are_right_to_1e_12_on_every_grid_of_registers(half):
    line, squared = identity(line_lattice(1.0, half)), square(line_lattice(2.0, half))
    assert len(line.values) == len(squared.values) == 2 * half + 1
    assert sampled_error(line, lambda s: s) <= line.error <= 1e-13
    assert sampled_error(squared, torch.square) <= squared.error <= 1e-12


def test_the_error_of_a_line_is_the_one_that_poisson_summation_gives():
    grid = choose_lattice(1.0, 1e-6)
    rho, h = grid.ratio, grid.spacing
    s = torch.linspace(-1, 1, 101, dtype=torch.float64)
    wave = 4 * pi * rho**2 * h * exp(-2 * (pi * rho) ** 2) * torch.sin(2 * pi * s / h)
    gaps = s - head(identity(grid), s)
    torch.testing.assert_close(gaps, wave, rtol=0, atol=1e-4 * float(wave.max()))


@given(reach=st.floats(0.1, 100.0), digits=st.integers(3, 13))
def test_the_chosen_lattice_keeps_its_accuracy_for_every_reach(reach, digits):
    accuracy = 10.0**-digits * max(reach, 1.0)
    fit = identity(choose_lattice(reach, accuracy))
    assert sampled_error(fit, lambda s: s) <= fit.error
    assert sampled_error(fit, lambda s: s) <= accuracy


@given(u=st.floats(-1, 1), v=st.floats(-1, 1))
def test_two_squares_give_the_product_of_two_features(u, v):
    fit = square(choose_lattice(2.0, 1e-13))
    total, difference = head(fit, torch.tensor([u + v, u - v], dtype=torch.float64)).tolist()
    assert (total - difference) / 4 == pytest.approx(u * v, abs=fit.error / 2)
    assert fit.error <= 1e-11


def test_tanh_is_right_to_1e_11_with_110_tokens_and_values_of_moderate_size():
    fit = fit_lattice(function_named("tanh"), 6.0, accuracy=1e-11)
    assert sampled_error(fit, torch.tanh) <= fit.error <= 1e-11
    assert len(fit.values) <= 110
    assert largest_value(fit) <= 10


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("accuracy", [1e-1, 1e-4, 1e-8, 1e-11])
def test_every_smooth_function_is_certified(name, accuracy):
    function = function_named(name)
    fit = fit_lattice(function, 6.0, accuracy=accuracy)
    assert fit.name == name
    assert sampled_error(fit, function) <= fit.error <= accuracy
    assert largest_value(fit) <= max(LARGEST_VALUE, 2 * 6.01)


FAR = torch.logspace(0, 6, 2000, dtype=torch.float64)


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("accuracy", [1e-2, 1e-6, 1e-11])
def test_a_saturating_fit_keeps_its_error_far_beyond_its_grid(name, accuracy):
    function = function_named(name)
    fit = fit_lattice(function, 1000.0, accuracy=accuracy)
    assert fit.saturates
    assert fit.half * fit.spacing < 40.0
    assert gap(fit, function, torch.cat([-FAR, FAR])) <= fit.error <= accuracy


@pytest.mark.parametrize("half", [3, 4, 6, 20])
@pytest.mark.parametrize("name", BOUNDED)
def test_a_grid_that_ends_early_counts_what_it_misses_in_its_error(name, half):
    function = function_named(name)
    (fit,) = fit_on_lattice((function,), 1000.0, half)
    assert fit.saturates
    assert gap(fit, function, torch.cat([-FAR, FAR])) <= fit.error


@pytest.mark.parametrize("end", [0.9, 1.2, 2.0])
@pytest.mark.parametrize("half", [15, 20, 40, 80])
def test_a_grid_that_ends_where_a_slope_is_about_to_overshoot_counts_that_too(half, end):
    """silu' is 0.9 at 0.92, 1 at 1.28 and 1.0998 at 2.4 before it falls to its limit 1."""
    slope = function_named("silu'")
    (fit,) = lattice._fit_all((slope,), 1000.0, half, end)
    assert gap(fit, slope, torch.cat([-FAR, FAR])) <= fit.error


def test_what_a_function_does_far_out_in_its_domain_counts_too():
    """It has levelled off at 5, and rises again at two millions."""
    late = Function("late", "tanh(x) + sigmoid(x/1000 - 2000)", low=-1e9, high=1e9)
    (fit,) = fit_on_lattice((late,), 1e7, 40)
    assert gap(fit, late, torch.tensor([-3e6, 3e6], dtype=torch.float64)) > 0.9
    assert fit.error > 0.9


def test_a_look_up_of_asinh_is_proved_on_both_sides_by_few_balls(monkeypatch):
    function, seen = Function("far", "asinh(x - 8)", low=-1000.0, high=1000.0), list[object]()
    complex_ball = Function.complex_ball
    monkeypatch.setattr(
        Function, "complex_ball", lambda *given: seen.append(given) or complex_ball(*given)
    )
    (fit,) = fit_on_lattice((function,), 1000.0, 30)
    assert sampled_error(fit, function) <= fit.error
    assert len(seen) < 1000


@pytest.mark.parametrize("name", GROWING)
def test_a_function_that_grows_never_saturates(name):
    fit = fit_lattice(function_named(name), 20.0, accuracy=1e-6)
    assert not fit.saturates
    assert fit.half * fit.spacing > 20.0


def test_a_bounded_function_is_cut_off_only_where_that_saves_tokens():
    near, far = (fit_lattice(TANH[0], reach, accuracy=1e-11) for reach in (6.0, 1000.0))
    assert not near.saturates
    assert near.reach == 6.0
    assert far.saturates
    assert len(near.values) < len(far.values)


def test_the_error_falls_exponentially_with_the_number_of_tokens():
    fits = [fit_lattice(TANH[0], 6.0, accuracy=10.0**-d) for d in (3, 6, 9)]
    first, second, third = (len(fit.values) for fit in fits)
    assert second - first <= 35
    assert third - second <= 25


def test_functions_of_one_fit_share_their_grid_and_all_reach_the_accuracy():
    fits = fit_to_accuracy(TANH, 6.0, 1e-9)
    assert len({(len(fit.values), fit.spacing, fit.ratio) for fit in fits}) == 1
    for fit, function in zip(fits, TANH, strict=True):
        assert sampled_error(fit, function) <= fit.error <= 1e-9


def test_a_fit_takes_at_least_the_tokens_it_is_given_and_about_the_fewest_that_suffice():
    assert fit_to_accuracy(TANH, 6.0, 1e-2, 15)[0].half == 15
    fewest = fit_to_accuracy(TANH, 6.0, 1e-9)
    fewer = fit_on_lattice(TANH, 6.0, fewest[0].half - 2)
    assert max(fit.error for fit in fewer) > 1e-9


@pytest.mark.parametrize("reach", [1.0, 6.0, 40.0])
def test_a_given_grid_is_used_as_well_as_it_can_be(reach):
    """Coarse grids end where the functions are flat, fine ones cover the whole reach."""
    errors = []
    for half in (15, 30, 60):
        fits = fit_on_lattice(TANH, reach, half)
        s = torch.linspace(-reach, reach, 4001, dtype=torch.float64)
        for fit, function in zip(fits, TANH, strict=True):
            assert len(fit.values) == 2 * half + 1
            assert gap(fit, function, s) <= fit.error
        errors.append(max(fit.error for fit in fits))
    assert errors[0] <= {1.0: 1e-12, 6.0: 1e-3, 40.0: 1e-3}[reach]
    assert errors[1] <= {1.0: 1e-12, 6.0: 1e-6, 40.0: 1e-5}[reach]
    assert errors[2] <= {1.0: 1e-12, 6.0: 1e-12, 40.0: 1e-8}[reach]


@pytest.mark.parametrize("name", BOUNDED)
def test_size_and_sensitivity_bound_what_rounded_scores_change(name):
    """Every score off by a relative 1e-6 of its terms, whichever way hurts: signs at random."""
    function = function_named(name)
    fit = fit_lattice(function, 6.0, accuracy=1e-9)
    generator = torch.Generator().manual_seed(0)
    s = torch.linspace(-6, 6, 201, dtype=torch.float64).unsqueeze(-1)
    g = torch.arange(-fit.half, fit.half + 1, dtype=torch.float64)
    signs = torch.randint(0, 2, (201, len(g)), generator=generator) * 2.0 - 1.0
    exact = (g * s / fit.spacing - g**2 / 2) / fit.ratio**2
    sizes = (g.abs() * s.abs() / fit.spacing + g**2 / 2) / fit.ratio**2
    values = torch.tensor(fit.values, dtype=torch.float64)
    weights, rounded = (torch.softmax(e, -1) for e in (exact, exact + 1e-6 * signs * sizes))
    change = ((rounded - weights) @ values).abs().max()
    assert 0 < float(change) <= 1.001e-6 * fit.sensitivity
    assert float((weights @ values.abs()).max()) <= 1.001 * fit.size


@pytest.mark.parametrize("n_points", [60, 120])
def test_the_published_form_errs_by_the_slope_over_the_number_of_points(n_points):
    fit = nearest_point(function_named("tanh"), 6.0, n_points)
    assert fit.error == pytest.approx(6.0 / n_points)
    assert 0.95 * fit.error <= sampled_error(fit, torch.tanh) <= fit.error


def test_the_published_form_answers_with_the_value_of_the_nearest_point():
    fit = nearest_point(function_named("tanh"), 6.0, 60)
    s = torch.tensor([0.05, 0.13, -3.97], dtype=torch.float64)
    nearest = torch.tensor([0.0, 0.2, -4.0], dtype=torch.float64)
    torch.testing.assert_close(head(fit, s), torch.tanh(nearest), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "tanh'", "normal_distribution"])
@pytest.mark.parametrize("reach", [6.0, 40.0])
def test_float32_heads_err_by_less_than_1e_6(name, reach):
    fit = fit_lattice(function_named(name), reach, accuracy=1e-6)
    error = gap(fit, function_named(name), torch.linspace(-reach, reach, 10_001))
    assert 1e-8 < error <= 6e-7


def test_an_accuracy_below_rounding_is_refused_with_the_best_error():
    with pytest.raises(SettingError, match=r"^accuracy=1e-15 cannot be proved with 1024 lattice p"):
        fit_lattice(function_named("tanh"), 6.0, accuracy=1e-15)


# Functions of one's own: nothing is assumed of them but their text.

ANALYTIC = {  # the points that 1e-10 takes on [-6, 6]
    "mish": ("x * tanh(log(1 + exp(x)))", 59),
    "sin": ("sin(x)", 29),
    "erf": ("erf(x)", 37),
    "gelu of tanh": ("x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2", 53),
    "quick gelu": ("x / (1 + exp(-1.702 * x))", 67),
    "slope of log-cosh": ("tanh(x)", 81),
    "cauchit": ("1 / 2 + atan(x) / pi", 97),
    "cloglog": ("1 - exp(-exp(x))", 73),
    "snake": ("x + sin(x)**2", 39),
    "gaussian": ("exp(-x**2)", 39),
}


def own(name: str) -> Function:
    return Function(name, ANALYTIC[name][0], *((-6.0, 6.0) if name == "cloglog" else ()))


@pytest.mark.parametrize("name", ANALYTIC)
def test_every_analytic_function_is_certified(name):
    fit = fit_lattice(own(name), 6.0, accuracy=1e-10)
    assert sampled_error(fit, own(name)) <= fit.error <= 1e-10
    assert len(fit.values) <= ANALYTIC[name][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ANALYTIC)
def test_no_point_of_a_fit_is_off_by_more_than_is_proved(name):
    """100,000 points, and in real numbers every point of a partition."""
    function = own(name)
    fit = fit_lattice(function, 6.0, accuracy=1e-10)
    draw = torch.Generator().manual_seed(0)
    s = 12 * torch.rand(100_000, generator=draw, dtype=torch.float64) - 6
    assert max(gap(fit, function, part) for part in s.split(10_000)) <= fit.error
    numbers = range(-fit.half, fit.half + 1)
    for place in range(-600, 601):
        point = arb(place) / 100
        scores = [
            (point / arb(fit.spacing) * g - arb(g * g) / 2) / arb(fit.ratio) ** 2 for g in numbers
        ]
        weights = [score.exp() for score in scores]
        mean = sum((w * arb(v) for w, v in zip(weights, fit.values, strict=True)), arb(0))
        off = mean / sum(weights, arb(0)) - function.ball(0, 0, point)
        assert float(off.abs_upper()) <= fit.error


def test_a_spike_between_the_points_that_are_compared_is_not_missed():
    """Its width is 1e-5; with an assumed strip the distance was proved to be 7e-15, and is 1."""
    spike = Function("spike", "tanh(x) + exp(-1e10 * (x - 0.37)**2)", -1.0, 1.0)
    (fit,) = fit_on_lattice((spike,), 1.0, 20)
    at_spike = gap(fit, spike, torch.tensor([0.37], dtype=torch.float64))
    assert 0.9 < at_spike <= fit.error


def test_values_that_cancel_are_rounded_by_as_much_as_is_proved():
    """It is x^2, of which float64 leaves 1e-10; 16 units of roundoff would be 1e-15."""
    function = Function("square", "(x + 1000)**2 - 1000**2 - 2000 * x", -1.0, 1.0)
    (fit,) = fit_on_lattice((function,), 1.0, 15)
    s = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    assert gap(fit, torch.square, s) <= fit.error
    assert 1e-11 < fit.error < 1e-7


def test_a_kink_is_met_piece_by_piece_and_no_better_than_it_can_be():
    softsign = Function("softsign", "x / (1 + abs(x))", -6.0, 6.0)
    (fit,) = fit_on_lattice((softsign,), 6.0, 64)
    assert 1e-5 < sampled_error(fit, softsign) <= fit.error <= 2e-3


def test_a_singularity_beyond_the_domain_is_no_obstacle():
    function = Function("log", "log(3 + x)", -2.5, 2.5)
    fit = fit_lattice(function, 2.5, accuracy=1e-8)
    assert sampled_error(fit, function) <= fit.error


def test_what_is_not_analytic_is_refused_at_its_place():
    steep = Function("steep", "x / sqrt(x**2 + 1e-20)")
    with pytest.raises(ConstructionError, match=r"^steep is not analytic near .*e-"):
        fit_on_lattice((steep,), 1.0, 20)


@pytest.mark.parametrize("half", [1, 2, 3, 9])
def test_the_weights_have_no_pole_in_the_strip(half):
    """For all s up to 9 spacings beyond the lattice, and a turn by up to 90 degrees from a point to
    the next: sum w >= |sum w e^(i g turn)| >= sum w / (4 e^(turn^2 rho^2 / 2)).

    What is not decided by balls is halved. Of more points than 9 to a side only those within 9 of
    s have a weight that could change anything.
    """
    rho, waiting = arb(1.4), [(float(x), x + 1.0, 0.0, 0.5) for x in range(half + 9)]
    while waiting:
        low, high, least, most = waiting.pop()
        x, turn = arb(low).union(arb(high)), arb.pi() * arb(least).union(arb(most))
        near = min(floor(low), half)  # all weights are taken relative to this point's
        numbers = range(-half - near, half - near + 1)
        weights = [(g * (2 * (x - near) - g) / (2 * rho**2)).exp() for g in numbers]
        turned = (acb(w) * acb(0, g * turn).exp() for g, w in zip(numbers, weights, strict=True))
        bound = sum(weights, arb(0)) / (4 * (turn**2 * rho**2 / 2).exp())
        if not abs(sum(turned, acb(0))) > bound:
            assert high - low > 1e-3
            middle, half_turn = (low + high) / 2, (least + most) / 2
            for ends in ((low, middle), (middle, high)):
                waiting += [(*ends, least, half_turn), (*ends, half_turn, most)]
