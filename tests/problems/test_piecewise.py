"""Functions that a text defines: what they are, their ranges and rounding, and what is refused."""

from fractions import Fraction
from math import inf

import pytest
import torch
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

import icgd
from icgd.errors import SettingError, UnknownNameError, UnsupportedActivationError
from icgd.problems import balls
from icgd.problems.functions import (
    FUNCTIONS,
    OWN,
    activation_named,
    function_named,
    functions_in,
    rounding_of,
    slope_of,
)
from icgd.problems.piecewise import Function, read_function
from icgd.problems.scalar import EXACT

MISH = "x * tanh(log(1 + exp(x)))"
RELU6 = Function.pieces(knots=(0, 6), of=("0", "x", "6"), label="relu6")
SELU = Function.pieces((0,), ("1.05*1.67*(exp(x) - 1)", "1.05*x"), "selu")
SAWTOOTH = Function.pieces((-1, 2), ("x", "exp(x) - 3", "sin(3*x)"), "sawtooth")
THIRDS = Function.pieces(("-1/3", "0.1"), ("-1/3", "x", "x**2 + 0.09"), "thirds")
FUNCTIONS_OF_TEXT = (
    *(function for function in OWN.values() if function.name != "sin"),
    RELU6,
    SELU,
    SAWTOOTH,
    THIRDS,
    Function("snake", "x + sin(x)**2"),
    Function("gaussian", "exp(-x**2)"),
    Function("quick", "x / (1 + exp(-1.702*x))"),
    Function("cubic", "x**3 - 1e-3*x"),
    Function("cancels", "(x + 1000)**2 - 1000**2 - 2000*x", low=-20.0, high=20.0),
    Function("steep", "tanh(50*(x - 0.37))"),
)
over_functions = pytest.mark.parametrize("function", FUNCTIONS_OF_TEXT, ids=str)


def number(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def test_a_function_is_what_its_simplified_text_says():
    mish = Function("mish", MISH)
    assert mish.name == "x*tanh(softplus(x)) on -64 to 64"
    assert mish == Function("another name", "tanh(log(exp(x) + 1)) * x")
    assert mish != Function("mish", MISH, high=65.0)
    assert hash(mish) == hash(Function("m", MISH))
    assert RELU6.name == "0 up to 0, x up to 6, 6 on -64 to 64"
    assert Function("abs", "abs(x - 1)").name == "-x + 1 up to 1, x - 1 on -64 to 64"


@over_functions
def test_a_name_is_read_as_the_same_function(function):
    for name in (function.name, f"{function.name}'"):
        assert function_named(name).name == name
    if function.label not in OWN or function is RELU6:
        assert read_function(function.name) == function
        assert read_function(function.name).nodes == function.nodes


@pytest.mark.parametrize(
    ("function", "kind", "of_slope"),
    [
        (Function("mish", MISH), "smooth", "smooth"),
        (Function("line", "2*x - 1/3"), "kinked", "step"),
        (Function("abs", "abs(x - 1)"), "kinked", "step"),
        (Function("sign", "sign(x)"), "step", "step"),
        (Function("softsign", "x / (1 + abs(x))"), "pieces", "pieces"),
        (RELU6, "kinked", "step"),
        (SELU, "pieces", "pieces"),
        (SAWTOOTH, "pieces", "pieces"),
    ],
    ids=str,
)
def test_its_kind_says_what_it_is_made_of(function, kind, of_slope):
    assert (function.kind, function.derivative().kind) == (kind, of_slope)


def test_jumps_are_found_and_those_of_slopes():
    assert RELU6.jumps == (0.0, 0.0)
    assert RELU6.derivative().jumps == (1.0, -1.0)
    assert SAWTOOTH.jumps == pytest.approx((-1.6321205588, -4.6684715971))
    assert Function.pieces((1,), ("exp(x)", "exp(1)*x")).jumps == (0.0,)
    assert SELU.derivative().jumps == pytest.approx((1.05 - 1.05 * 1.67,))


def test_a_piece_holds_its_right_end():
    z = torch.tensor([-1.0, -0.5, 2.0, 2.5], dtype=torch.float64)
    expected = [-1.0, z[1].exp() - 3, z[2].exp() - 3, (3 * z[3]).sin()]
    assert SAWTOOTH(z).tolist() == pytest.approx([float(part) for part in expected])
    assert Function("sign", "sign(x)")(number(0.0)) == -1.0


@over_functions
@settings(max_examples=12, deadline=None)
@given(centre=st.floats(-9, 9), width=st.floats(1e-3, 12.0), order=st.sampled_from([0, 1]))
def test_ranges_and_slopes_hold_what_is_sampled_and_no_more(function, centre, width, order):
    for _ in range(order):
        function = function.derivative()
    low, high = number(round(centre, 3)), number(round(centre, 3) + width)
    z = torch.linspace(float(low), float(high), 4001, dtype=torch.float64)
    inside = [torch.tensor([k, k + 1e-9]) for k in function.knots if float(low) < k < float(high)]
    values = function(torch.cat([z, *inside]).sort().values)
    least, largest = (float(end) for end in function.bounds(low, high))
    room = 1e-4 * max(1.0, float(values.abs().max())) * (1 + 200 * (function.label == "steep'"))
    assert least <= float(values.min()) <= least + room
    assert largest - room <= float(values.max()) <= largest
    steepest, chord = float(function.lipschitz(low, high)), (function(z).diff() / z.diff()).abs()
    noise = 2 * float(function.rounding.at(values.abs().max())) / float(z.diff().min())
    assert float(chord.max()) <= steepest * (1 + 1e-9) + 1e-8 + noise


def test_the_slope_on_the_other_side_of_a_knot_does_not_count():
    low, high = torch.tensor([6.0, 0.0, -1.0]).double(), torch.tensor([7.0, 6.0, 0.0]).double()
    assert RELU6.lipschitz(low, high).tolist() == [0.0, 1.0, 0.0]
    assert SELU.lipschitz(number(0.0), number(1.0)) == pytest.approx(1.05, rel=1e-14)
    assert RELU6.derivative().lipschitz(low, high).tolist() == [inf, inf, 0.0]


def test_a_knot_that_is_no_float_may_be_on_either_side_of_its_float():
    z = torch.tensor([0.1, 0.7], dtype=torch.float64)  # above 1/10, and below 7/10
    for text, slopes in (("abs(x - 0.1)", ([-1, 1], [1, 1])), ("abs(x - 0.7)", ([-1, -1],) * 2)):
        slope = Function("v", text).derivative()
        for high in (z, z.clone()):
            least, largest = slope.bounds(z, high)
            assert (least.tolist(), largest.tolist()) == slopes
    slope, below = Function("v", "abs(x - 0.1)").derivative(), number(0.1).nextafter(number(0.0))
    assert slope.lipschitz(below, number(0.1)) == inf
    assert slope.lipschitz(number(0.1), number(0.2)) == 0.0
    bend = Function.pieces(("0.7",), ("3*x - 2.1", "x - 0.7"))
    assert bend.lipschitz(number(0.7), number(0.8)) == 3.0  # on the way from its float to 7/10


@pytest.mark.parametrize(
    "text", ["x*log(-1)", "x + log(0)", "sqrt(-1)", "x*exp(1000)", "x*tan(pi/2)"]
)
def test_a_line_must_have_a_value(text):
    with pytest.raises(SettingError, match="near x = -64"):
        Function("f", text)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("abs(x**2 - 1)", "abs"),
        ("sign(x)", "kinks are not given as knots"),
        ("0 up to 0e99999999, abs(x)", "kinks are not given as knots"),
        ("0 up to 1e99999999, x", "out of range"),
        ("0 up to 1, x - 1 up to 0, -1", "knots must increase"),
    ],
)
def test_a_text_of_a_function_has_all_its_knots_in_order(body, reason):
    with pytest.raises(SettingError, match=reason):
        read_function(f"{body} on -64 to 64")


def test_nothing_is_known_outside_the_domain():
    function = Function("log", "log(x)", low=0.5, high=8.0)
    low, high = torch.tensor([0.25, 1.0, 1.0]).double(), torch.tensor([1.0, 2.0, 9.0]).double()
    least, largest = function.bounds(low, high)
    assert least.tolist() == pytest.approx([-inf, 0.0, -inf], abs=1e-12)
    assert largest.tolist() == pytest.approx([inf, 0.6931471805599453, inf])
    assert function.lipschitz(low, high).tolist() == pytest.approx([inf, 1.0, inf])


def test_a_range_with_many_turns_is_that_of_all_of_them():
    snake, low = (
        Function("snake", "sin(x) + sin(x*sqrt(2))/3"),
        torch.linspace(-60, 20, 41).double(),
    )
    for width in (0.1, 2.0, 9.0, 39.0):
        least, largest = snake.bounds(low, low + width)
        z = low + width * torch.linspace(0, 1, 20001, dtype=torch.float64)[:, None]
        assert (snake(z).amin(0) - least).abs().max() <= 1e-5
        assert (snake(z).amax(0) - largest).abs().max() <= 1e-5
        assert (snake(z) >= least).all()
        assert (snake(z) <= largest).all()


@pytest.mark.parametrize(
    "n_points",
    [pytest.param(300, id="few"), pytest.param(20_000, id="many", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("order", [0, 1])
@over_functions
def test_no_computed_value_is_off_by_more_than_is_proved(function, order, n_points):
    generator = torch.Generator().manual_seed(1)
    drawn = torch.rand(4, n_points // 3, generator=generator, dtype=torch.float64) * 2 - 1
    z = torch.cat([drawn[0] * 20, drawn[1] * 3, drawn[2] * 10.0 ** (12 * drawn[3] - 12)])
    computed = function.derivative() if order else function
    values, rounding = computed(z), computed.rounding
    with ctx.workprec(200):
        for argument, value in zip(z.tolist(), values.tolist(), strict=True):
            piece = sum(knot < argument for knot in function.knots)
            exact = function.ball(order, piece, arb(argument))
            off, size = float(abs(arb(value) - exact).upper()), float(abs(exact).upper())
            assert off <= float(rounding.at(number(size))), argument


def test_rounding_is_that_of_the_text_and_not_a_constant():
    cancels = next(function for function in FUNCTIONS_OF_TEXT if function.label == "cancels")
    assert rounding_of(cancels.name) == cancels.rounding
    assert cancels.rounding.absolute + cancels.rounding.relative * 400 > 1e6
    assert RELU6.rounding == EXACT
    assert RELU6.derivative().rounding == EXACT


def test_slopes_that_jump_are_a_curve_and_steps():
    z = torch.linspace(-5, 5, 1001, dtype=torch.float64)
    for name in ("selu", "hardswish", "hardtanh", "relu6"):
        slope, derivative = slope_of(OWN[name]), OWN[name].derivative()
        total = slope.curve(z) if slope.curve else torch.zeros_like(z)
        for jump in slope.jumps:
            total = total + jump.steps(jump.positive(z))
        assert (total - derivative(z)).abs().max() <= 1e-15, name
        for part in (slope.curve, *(jump.steps for jump in slope.jumps)):
            if part is not None:
                assert function_named(part.name)(z).tolist() == part(z).tolist()
                assert rounding_of(part.name) == part.rounding
    assert not slope_of(OWN["elu"]).jumps
    places = [jump.place for jump in slope_of(OWN["hardtanh"]).jumps]
    assert places == [-1.0, 1.0]
    assert slope_of(OWN["hardtanh"]).jumps[0].positive(number(-0.25)) == 0.75
    assert all(jump.steps.rounding == EXACT for jump in slope_of(OWN["hardtanh"]).jumps)


@pytest.mark.parametrize("value", [0.1, -2.0 / 3.0, 5e-324, -1.7e308, 3])
def test_a_number_is_its_ball_in_any_precision(value):
    with balls.precision(10):
        ball = balls.exact(value)
    assert ball.is_exact()
    assert Fraction(int(ball.man_exp()[0])) * Fraction(2) ** int(ball.man_exp()[1]) == value


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_balls_of_built_in_functions_hold_their_values(function):
    for z in (-9.0, -2.3, -0.4, 0.7, 2.9, 5.5, 8.25):
        piece = sum(knot < z for knot in function.knots)
        ball = function.ball(0, piece, arb(z))
        value = float(function(number(z)))
        assert abs(float(ball) - value) <= 1e-14 * (1 + abs(value))


@pytest.mark.parametrize(
    ("text", "low", "high", "words"),
    [
        ("1/x", -6, 6, "no finite value near x = 0, or"),
        pytest.param(
            "sqrt(1 - cos(x))",
            -6,
            6,
            "e-07, or none that float64 can compute",
            marks=pytest.mark.slow,
        ),
        ("tan(x)", -6, 6, "no finite value near x = -4.71239"),
        ("log(x)", -1, 6, "no finite value near x = -1"),
        ("sqrt(x)", 0, 6, "no finite value near x = 0"),
        ("sin(x)/x", -6, 6, "no finite value near x = 0"),
        ("1/(x**2 - 2)", -6, 6, "no finite value near x = -1.41421"),
        ("exp(x)", -6, 800, "overflows in float64 near x = 709."),
        ("abs(x**2 - 1)", -6, 6, "icgd.Function.pieces(knots=..., of=...)"),
        ("exp(x)", 3, 3, "low must be less than high, got 3 and 3."),
        ("exp(x)", -inf, 3, "low must be a finite number"),
    ],
)
def test_a_function_that_is_not_finite_is_refused_with_the_place(text, low, high, words):
    with pytest.raises(SettingError) as caught:
        Function("f", text, float(low), float(high))
    assert words in str(caught.value)


def test_functions_that_come_close_to_that_are_accepted():
    for text in ("1/(x**2 + 1e-8)", "log(1 + exp(x))", "1/(1 + abs(x))", "sqrt(x**2 + 1e-6)"):
        assert Function("f", text, -50.0, 50.0).rounding.relative < 1e9


@pytest.mark.parametrize(
    ("knots", "of", "words"),
    [
        ((0,), ("0", "x", "6"), "of has 3 pieces for 1 knots"),
        (
            (3, 1),
            ("0", "x", "6"),
            "knots must increase and lie inside the domain [-64, 64], got 3, 1.",
        ),
        (
            (0, 99),
            ("0", "x", "6"),
            "knots must increase and lie inside the domain [-64, 64], got 0, 99.",
        ),
        ((0,), ("abs(x + 1)", "x"), "abs(x + 1) has a kink at -1, inside its piece"),
        ((0,), ("0", "1/(x - 1)"), "no finite value near x = 1"),
        ((0,), ("1/x", "x"), "is undefined at the knot 0: a piece divides by 0 there"),
        (("a",), ("0", "x"), "Unknown variable 'a'"),
        ((inf,), ("0", "x"), "A knot must be a finite number, got inf."),
        (0, ("0", "x"), "knots and of must be sequences"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(knots, of, words):
    with pytest.raises((SettingError, UnknownNameError)) as caught:
        Function.pieces(knots, of)
    assert words in str(caught.value)


def test_an_activation_must_be_continuous():
    with pytest.raises(UnsupportedActivationError, match=r"sin\(3\*x\) on -64 to 64 jumps at -1;"):
        activation_named(SAWTOOTH.name)


@pytest.mark.parametrize("function", [RELU6, SELU, THIRDS, Function("mish", MISH)], ids=str)
def test_a_table_defines_the_same_function(function):
    assert Function.from_data("again", function.to_data()) == function


def test_tables_name_activations_of_a_problem():
    network, step = icgd.MLP((2, 3, 1), "tanh"), icgd.GradientStep(0.1, box=1.0)
    data = icgd.Problem(network, "squared", step, icgd.Domain(1.0, 1.0)).to_data()
    data["functions"] = {"swoosh": {"version": 1, "of": [MISH], "low": -9.0, "high": 9.0}}
    data["target"]["activation"] = "swoosh"
    problem = icgd.Problem.from_data(data)
    assert problem.target.activation == "x*tanh(softplus(x)) on -9 to 9"
    assert icgd.Problem.from_data(problem.to_data()) == problem


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"tanh": {"of": ["sin(x)"]}}, "functions.tanh differs from the activation 'tanh' of icgd"),
        ({"f": {"knots": [0]}}, "functions.f must have a list of formulas"),
        ({"f": {"of": "x"}}, "functions.f must have a list of formulas"),
        ({"f": {"of": ["x"], "wide": 1}}, "Unknown key 'wide' in functions.f; known are of,"),
        (
            {"f": {"of": ["x"], "version": 2}},
            "functions.f has version 2; this icgd reads version 1",
        ),
        ({"f": {"of": ["y"]}}, "Unknown variable 'y'"),
        (3, "functions must have a table for each function, got 3."),
    ],
)
def test_tables_that_define_no_function_are_refused(tables, words):
    with pytest.raises((SettingError, UnknownNameError)) as caught:
        functions_in(tables)
    assert words in str(caught.value)


def test_a_table_may_repeat_what_is_built_in():
    assert (
        functions_in({"mish": {"of": [MISH]}, "tanh": {"of": ["tanh(x)"]}})["mish"].kind == "smooth"
    )


def test_the_gate_of_a_product_is_its_other_factor():
    assert Function("mish", MISH).gate == Function("gate", "tanh(softplus(x))")
    assert Function("sin", "sin(x)").gate is None


def test_tables_hold_texts_that_are_longer_than_a_user_s():
    text = "x"
    for _ in range(5):
        text = f"log(cosh({text}))"
    function = icgd.Function("f", text)
    assert len(function.to_data()["of"][0]) > 500
    assert icgd.Function.from_data("f", function.to_data()) == function
    with pytest.raises(
        SettingError, match=r"Its simplified form has .* parts; at most 20,000 are allowed"
    ):
        icgd.Function("f", "log(cosh(" * 25 + "x" + "))" * 25)


def test_numbers_that_float32_cannot_hold_are_rounded():
    assert icgd.Function("f", "x + 16777217", -1, 1).rounding.absolute > 2**24
    assert icgd.Function("f", "x + 16777216", -1, 1).rounding.absolute < 2**25


def test_knots_that_floats_do_not_tell_apart_are_refused():
    """Their jumps had one name, so that a step erred by 0.25 where 7e-14 was proved."""
    for text in ("abs(3*x - 1) + abs(x - 0.3333333333333333)", "abs(x) + abs(x - 1e-400)"):
        with pytest.raises(SettingError, match=r"knots must increase and lie|out of range"):
            Function("f", text)
    with pytest.raises(SettingError, match=r"got 0.10000000000000001, 0.10000000000000001\."):
        Function.pieces((0.1, "0.1000000000000000001"), ("0", "x - 0.1", "2*x - 0.2"))


def test_a_search_for_turns_ends_after_so_many_operations(monkeypatch):
    waves = Function("waves", "sin(x)*tanh(x)", low=-100.0, high=100.0)
    monkeypatch.setattr(balls, "MOST_OPERATIONS", 10_000)
    end = torch.ones((), dtype=torch.float64)
    with pytest.raises(SettingError, match="too many extrema"):
        waves.bounds(-end, end)


def test_a_pole_at_a_knot_is_refused_with_its_place():
    with pytest.raises(
        SettingError, match="is undefined at the knot 0: a piece divides by 0 there"
    ):
        Function.pieces((0,), ("1/x", "x"))
