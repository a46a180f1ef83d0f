"""Near-optimal knots, certified errors, and exactness where a function has corners already."""

from math import exp, inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from icgd.approximation.relu_sum import (
    fit_exponential,
    fit_reciprocal,
    fit_reciprocal_root,
    fit_relu_sum,
    fit_with_common_knots,
    shifted,
)
from icgd.errors import SettingError
from icgd.problems.functions import (
    FUNCTIONS,
    RECIPROCAL,
    KinkedFunction,
    SmoothFunction,
    StepFunction,
    capped_exponential,
    function_named,
    reciprocal_deviation,
    reciprocal_root,
)
from icgd.problems.piecewise import Function
from icgd.program.functions import ReluSum, joint_terms
from tests.approximation.yardsticks import asymptotic_optimum

SMOOTH = [name for name, f in FUNCTIONS.items() if isinstance(f, SmoothFunction)]
KNOWN = [name for name, f in FUNCTIONS.items() if not isinstance(f, Function)]
"""Those that a text defines are fitted in another way: test_marching."""
KINKED = [name for name, f in FUNCTIONS.items() if isinstance(f, KinkedFunction)]
STEPPED = [name for name, f in FUNCTIONS.items() if isinstance(f, StepFunction)]


def values(fit: ReluSum, z: torch.Tensor) -> torch.Tensor:
    """The sum of its terms at many points."""
    total = torch.zeros_like(z)
    for term in fit.terms():
        total += term.coefficient * torch.relu(term.scale * z + term.shift)
    return total


def gap(fit: ReluSum, z: torch.Tensor) -> torch.Tensor:
    return (values(fit, z) - function_named(fit.name)(z)).abs()


def inside(fit: ReluSum, each: int = 400) -> torch.Tensor:
    """Points of every piece, ends included: (piece, point)."""
    ends = torch.tensor([fit.low, *fit.knots, fit.high], dtype=torch.float64)
    share = torch.linspace(0, 1, each, dtype=torch.float64)
    return torch.lerp(ends[:-1, None], ends[1:, None], share)


@pytest.mark.parametrize("pieces", [1, 4, 15, 64])
@pytest.mark.parametrize("reach", [0.01, 3.0, 40.0])
@pytest.mark.parametrize("name", ["tanh", "sigmoid", "gelu", "silu", "softplus"])
def test_functions_with_common_knots_err_no_more_than_alone(name, reach, pieces):
    functions = tuple(function_named(part) for part in (name, f"{name}'"))
    fits = fit_with_common_knots(functions, -reach, reach, pieces)
    assert fits[0].knots == fits[1].knots
    assert pieces <= fits[0].n_pieces < 2 * max(pieces, 2)
    for function, fit in zip(functions, fits, strict=True):
        assert fit.error <= fit_relu_sum(function, -reach, reach, pieces).error
        room = 1e-12  # for the rounding of this sum
        assert bool((gap(fit, inside(fit)).amax(1) <= torch.tensor(fit.errors) + room).all())
    scale, shift, coefficients = joint_terms(fits)
    assert len(scale.numbers) <= fits[0].n_pieces + 2
    for fit, own in zip(fits, coefficients, strict=True):
        triples = zip(scale.numbers, shift.numbers, own.numbers, strict=True)
        assert {t for t in triples if t[2]} == {
            (term.scale, term.shift, term.coefficient) for term in fit.terms()
        }


def test_an_odd_function_with_common_knots_is_0_at_0():
    for pieces in (16, 64, 100):
        tanh, _ = fit_with_common_knots(
            (function_named("tanh"), function_named("tanh'")), -6.0, 6.0, pieces
        )
        assert tanh(0.0) == 0.0


def test_where_common_knots_save_nothing_each_has_its_own():
    """3 pieces for each of two functions are no more than 6 for both."""
    functions = tuple(function_named(name) for name in ("tanh", "tanh'"))
    fits = fit_with_common_knots(functions, -1.0, 1.0, 3)
    assert fits == tuple(fit_relu_sum(function, -1.0, 1.0, 3) for function in functions)
    assert fits[0].knots != fits[1].knots


def test_the_functions_of_the_promise_are_all_here():
    names = ["tanh", "sigmoid", "gelu", "silu", "softplus"]
    parts = ["normal_distribution", "coin_entropy"]
    assert sorted(SMOOTH) == sorted(names + [f"{name}'" for name in names] + parts)


@pytest.mark.parametrize("name", SMOOTH)
def test_the_error_is_within_a_quarter_of_the_asymptotic_optimum(name):
    function = function_named(name)
    fit = fit_relu_sum(function, -6.0, 6.0, 64)
    assert fit.n_pieces == 64
    assert fit.error <= 1.25 * asymptotic_optimum(function, -6.0, 6.0, 64)


def test_the_asymptotic_optimum_of_a_parabola_is_known():
    """f'' = 2, so the integral of sqrt(2) over [-1, 3] is 4 sqrt(2); 32 / (16 64) = 1/32."""
    parabola = SmoothFunction(
        "parabola",
        (torch.square, lambda z: 2 * z, lambda z: torch.full_like(z, 2.0), torch.zeros_like),
        ((0.0,), (), (), ()),
    )
    assert asymptotic_optimum(parabola, -1.0, 3.0, 8) == pytest.approx(1 / 32, rel=1e-12)
    assert fit_relu_sum(parabola, -1.0, 3.0, 8).error == pytest.approx(1 / 32, rel=0.02)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(("reach", "pieces"), [(6.0, 64), (500.0, 64), (500.0, 7), (2.0, 300)])
def test_the_certified_error_is_above_the_real_one_by_two_percent_at_most(name, reach, pieces):
    fit = fit_relu_sum(function_named(name), -reach, reach, pieces)
    certified = torch.tensor(fit.errors, dtype=torch.float64)
    sampled = gap(fit, inside(fit)).amax(1)
    assert (sampled <= certified + 1e-15 * reach).all()
    assert fit.error <= 1.02 * float(sampled.max())


@pytest.mark.parametrize("name", SMOOTH)
def test_a_hundred_times_wider_interval_costs_little_because_the_function_is_straight_there(name):
    narrow = fit_relu_sum(function_named(name), -5.0, 5.0, 64)
    wide = fit_relu_sum(function_named(name), -500.0, 500.0, 64)
    assert wide.error <= 2 * narrow.error


@pytest.mark.parametrize("name", SMOOTH)
def test_the_error_falls_with_the_square_of_the_pieces(name):
    coarse, fine = (fit_relu_sum(function_named(name), -6.0, 6.0, n).error for n in (32, 128))
    assert 14 <= coarse / fine <= 19


@pytest.mark.parametrize(
    ("name", "terms"),
    [("relu", 1), ("leaky_relu", 2), ("identity", 2), ("clip", 3), ("double", 2), ("negate", 2)],
)
def test_kinked_functions_are_exact_with_few_terms(name, terms):
    fit = fit_relu_sum(function_named(name), -7.5, 3.0)
    assert fit.is_exact
    assert fit.errors == (0.0,) * fit.n_pieces
    assert len(fit.terms()) == terms
    assert gap(fit, torch.linspace(-7.5, 3.0, 1001, dtype=torch.float64)).max() <= 1e-15


def test_all_kinked_functions_are_tested():
    assert set(KINKED) == {"relu", "leaky_relu", "identity", "clip", "double", "negate"}


@pytest.mark.parametrize("name", STEPPED)
def test_a_ramp_is_wrong_only_inside_itself_and_by_its_jump_at_most(name):
    function, width = function_named(name), 2.0**-4
    fit = fit_relu_sum(function, -3.0, 3.0, kink_width=width)
    z = torch.linspace(-3.0, 3.0, 6001, dtype=torch.float64)
    on_ramp = torch.zeros_like(z, dtype=torch.bool)
    for knot in function.knots:
        on_ramp |= (z > knot) & (z < knot + width)
    assert gap(fit, z)[~on_ramp].max() <= 1e-13
    jump = max(
        (abs(b - a) for a, b in zip(function.levels, function.levels[1:], strict=False)), default=0
    )
    assert fit.error == jump
    assert gap(fit, z).max() <= jump
    if jump:
        assert gap(fit, z)[on_ramp].max() > 0.9 * jump


def test_a_ramp_is_as_wide_as_said_or_a_rounding_of_the_largest_argument():
    step = function_named("relu'")
    assert fit_relu_sum(step, -1.0, 1.0, kink_width=0.25).knots == (0.0, 0.25)
    assert fit_relu_sum(step, -1.0, 1.0).knots == (0.0, 2.0**-52)
    assert fit_relu_sum(step, -2.0, 5.0).knots == (0.0, 2.0**-50)
    assert fit_relu_sum(step, -(2.0**-200), 2.0**-200).knots == (0.0, 2.0**-252)


@pytest.mark.parametrize("name", ["relu'", "leaky_relu'"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_narrow_ramp_rounds_nothing_where_it_is_evaluated(name, dtype):
    """At relu(z) every ReLU but one is off, and the slope is right to the last bit or two."""
    function = function_named(name)
    fit = fit_relu_sum(function, -9.0, 9.0)
    z = torch.arange(-1800, 1801, dtype=dtype) / 200
    assert (values(fit, z.clamp(min=0.0)) - function(z)).abs().max() <= torch.finfo(dtype).eps


def test_steps_of_both_signs_become_ramps():
    stairs = StepFunction("stairs", (-1.0, 2.0), (5.0, -3.0, 4.0))
    fit = fit_relu_sum(stairs, -3.0, 3.0, kink_width=0.5)
    assert [fit(z) for z in (-2.0, -1.0, -0.75, -0.5, 2.0, 2.25, 3.0)] == [5, 5, 1, -3, -3, 0.5, 4]
    assert fit.errors == (0.0, 8.0, 0.0, 7.0, 0.0)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize(("low", "high"), [(-6.0, 6.0), (-500.0, 500.0), (-0.3, 2.9)])
def test_knots_lie_on_a_dyadic_grid_inside_the_interval(name, low, high):
    fit = fit_relu_sum(function_named(name), low, high, 20)
    assert fit.knot_unit.hex().startswith("0x1.0000000000000p")
    assert all((knot / fit.knot_unit).is_integer() for knot in fit.knots)
    assert list(fit.knots) == sorted(set(fit.knots))
    if name in SMOOTH:
        assert low < fit.knots[0] < fit.knots[-1] < high


@pytest.mark.parametrize("name", KNOWN)
def test_terms_are_the_function_of_slopes_and_intercepts(name):
    fit = fit_relu_sum(function_named(name), -9.0, 9.0, 50, kink_width=2.0**-13)
    z = inside(fit, each=21)
    slopes = torch.tensor(fit.slopes, dtype=torch.float64)[:, None]
    intercepts = torch.tensor(fit.intercepts(), dtype=torch.float64)[:, None]
    # The steepest function is a ramp of slope 2^13: 9 * 2^13 * 2^-53 = 8e-12.
    assert (values(fit, z) - (slopes * z + intercepts)).abs().max() <= 1e-10


@settings(max_examples=25)
@given(
    name=st.sampled_from(SMOOTH),
    low=st.floats(-60, -1e-2),
    high=st.floats(1e-2, 60),
    pieces=st.integers(1, 200),
)
def test_every_interval_around_zero_and_number_of_pieces_is_certified(name, low, high, pieces):
    fit = fit_relu_sum(function_named(name), low, high, pieces)
    assert fit.n_pieces == len(fit.errors) == pieces
    certified = torch.tensor(fit.errors, dtype=torch.float64)
    # A wide piece hides a narrow bend between few samples.
    sampled = gap(fit, inside(fit, each=max(100, 2000 // pieces))).amax(1)
    assert (sampled <= certified + 1e-15 * max(-low, high)).all()
    assert fit.error <= 1.02 * float(sampled.max()) + 1e-12


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("tanh", 50.0, 100.0), ("gelu", -13.2, -12.9), ("silu", -90.0, -41.0)],
)
def test_an_interval_far_from_the_curve_is_certified_too(name, low, high):
    assert fit_relu_sum(function_named(name), low, high, 8).error <= 1e-13


@pytest.mark.parametrize("pieces", [0, -3])
def test_there_is_at_least_one_piece(pieces):
    message = f"^pieces must be a whole number of at least 1, got {pieces}\\.$"
    with pytest.raises(SettingError, match=message):
        fit_relu_sum(function_named("tanh"), -1.0, 1.0, pieces)


@pytest.mark.parametrize("width", [0.3, 0.0, -0.25, nan, inf])
def test_the_width_of_a_ramp_is_a_power_of_two(width):
    with pytest.raises(SettingError) as caught:
        fit_relu_sum(function_named("relu'"), -1.0, 1.0, kink_width=width)
    assert str(caught.value) == (
        "kink_width must be a power of two, such as 2**-13, so that dividing by it is exact, "
        f"got {width!r}."
    )


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (0.0, inf), (nan, 1.0)])
def test_an_interval_that_is_none_is_refused(low, high):
    with pytest.raises(SettingError, match=r"^An interval needs finite ends low < high, got \["):
        fit_relu_sum(function_named("tanh"), low, high)


# Reciprocal roots as sums of ReLUs: certified errors, relative to values over powers of ten.


CASES = [(1e-1, 4.0, 1e-2), (1e-3, 100.0, 1e-4), (1e-8, 1e6, 1e-3), (10.0, 1e-3, 1e-4)]
over_cases = pytest.mark.parametrize(("eps", "high", "error"), CASES)
over_roots = pytest.mark.parametrize("root", [reciprocal_root, reciprocal_deviation])


@over_roots
@over_cases
def test_every_value_is_within_the_certified_error_of_its_piece(root, eps, high, error):
    function = root(eps)
    fit = fit_reciprocal_root(function, high, error)
    z = inside(fit)[1:]  # no argument is below 0
    certified = torch.tensor(fit.errors[1:], dtype=torch.float64)
    rounding = 1e-15 * fit.n_pieces * function(z).amax(1)
    assert ((values(fit, z) - function(z)).abs().amax(1) <= certified + rounding).all()


@over_roots
@over_cases
def test_the_error_is_as_small_everywhere_relative_to_the_value(root, eps, high, error):
    function = root(eps)
    fit = fit_reciprocal_root(function, high, error)
    ends = torch.tensor([*fit.knots, fit.high], dtype=torch.float64)
    relative = torch.tensor(fit.errors[1:], dtype=torch.float64) / function(ends[1:])
    assert relative.max() <= 1.5 * error
    # Below 0 the root is constant.
    assert fit.errors[0] <= error * 1.5 * function(ends[0])


def test_smaller_eps_costs_pieces_only_by_its_logarithm():
    n_pieces = [fit_reciprocal_root(reciprocal_root(10.0**-k), 1.0, 1e-4).n_pieces for k in (2, 4)]
    finer = fit_reciprocal_root(reciprocal_root(1e-6), 1.0, 1e-4).n_pieces
    assert finer - n_pieces[1] == pytest.approx(n_pieces[1] - n_pieces[0], rel=0.1)


def test_that_of_a_norm_needs_fewer_pieces_as_it_is_not_steep_at_0():
    fits = [
        fit_reciprocal_root(reciprocal_deviation(eps), 1e4, 1e-4).n_pieces
        for eps in (1e-12, 1e-5, 1e-3)
    ]
    assert fits == [799, 450, 350]
    assert fits[1] < fit_reciprocal_root(reciprocal_root(1e-5), 1e4, 1e-4).n_pieces


def test_no_term_cancels_another_between_0_and_the_last_knot():
    fit = fit_reciprocal_root(reciprocal_root(1e-3), 10.0, 1e-3)
    inner = [term for term in fit.terms() if term.scale < 0 and term.shift > 0]
    assert len(inner) == fit.n_pieces - 2
    assert all(term.coefficient > 0 for term in inner)


def test_shifted_chords_of_a_convex_function_err_to_both_sides_alike():
    ends = shifted(RECIPROCAL, torch.tensor([1.0, 2.0], dtype=torch.float64))
    z = torch.linspace(1.0, 2.0, 1001, dtype=torch.float64)
    gap = torch.lerp(ends[0], ends[1], z - 1.0) - RECIPROCAL(z)
    # The sag of the chord is 3/2 - sqrt(2), as its gap to 1/z is largest at sqrt(2).
    assert float(gap.max()) == pytest.approx((1.5 - 2**0.5) / 2, rel=1e-3)
    assert float(gap.min()) == pytest.approx(-(1.5 - 2**0.5) / 2, rel=1e-3)


# Exponentials and reciprocals of shares as sums of ReLUs, with certified relative errors.


ERRORS = (2.0**-4, 2.0**-8, 2.0**-14)  # of which roots are powers of two


@pytest.mark.parametrize("error", [0.4, *ERRORS])
@pytest.mark.parametrize(("cap", "reach"), [(3.0, 20.0), (11.0, 22.0), (5.0, 1e6)])
def test_an_exponential_is_within_the_certified_error_of_every_piece(cap, reach, error):
    function = capped_exponential(cap)
    fit = fit_exponential(function, reach, error)
    z = inside(fit)
    certified = torch.tensor(fit.errors, dtype=torch.float64)
    rounding = 1e-15 * fit.n_pieces * reach * exp(cap)
    assert ((values(fit, z) - function(z)).abs().amax(1) <= certified + rounding).all()


@pytest.mark.parametrize("error", ERRORS)
def test_an_exponential_errs_by_the_same_share_of_its_value(error):
    fit = fit_exponential(capped_exponential(8.0), 16.0, error)
    largest = torch.tensor(fit.knots[1:], dtype=torch.float64).exp()
    relative = torch.tensor(fit.errors[1:-1], dtype=torch.float64) / largest
    assert relative.max() <= 1.5 * error
    assert fit.errors[0] <= exp(-8.0) * (1 + error)  # below -8 it is taken as constant


def test_an_exponential_is_constant_beyond_its_cap():
    fit = fit_exponential(capped_exponential(3.0), 50.0, 1e-4)
    assert (fit.slopes[0], fit.slopes[-1]) == (0.0, 0.0)
    assert fit(50.0) == pytest.approx(exp(3.0), rel=1e-4)
    assert fit(-50.0) == pytest.approx(exp(-3.0), rel=1e-4)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("high", [1.0, 60.0, 1e7])
def test_a_reciprocal_is_within_the_certified_error_of_every_piece(high, error):
    fit = fit_reciprocal(high, error)
    z = inside(fit)[1:]  # the first piece ends where the function begins
    certified = torch.tensor(fit.errors[1:], dtype=torch.float64)
    rounding = 1e-14 * fit.n_pieces
    assert ((values(fit, z) - RECIPROCAL(z)).abs().amax(1) <= certified + rounding).all()
    least = RECIPROCAL(torch.tensor([*fit.knots[1:], high], dtype=torch.float64))
    assert (certified / least).max() <= 2 * error


def test_a_wider_reciprocal_costs_pieces_only_by_the_logarithm():
    pieces = [fit_reciprocal(10.0**k / 2, 1e-3).n_pieces for k in (2, 4)]
    assert pieces[1] == pytest.approx(2 * pieces[0], abs=2)
