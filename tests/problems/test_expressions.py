"""Expressions: what is read and what is refused, one form for equal trees, derivatives, balls."""

from fractions import Fraction

import pytest
import torch
from flint import acb, arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

from icgd.errors import SettingError, UnknownNameError
from icgd.problems import balls
from icgd.problems.expressions import (
    CALLS,
    NAMES,
    SLOPES,
    X,
    add,
    call,
    computed,
    derivative,
    fraction_text,
    multiply,
    number,
    parse,
    power,
    straight_line,
    text,
    variables,
)

MP = {
    **{name: getattr(mp, name) for name in ("exp", "expm1", "log", "log1p", "sin", "cos", "tanh")},
    **{name: getattr(mp, name) for name in ("sinh", "cosh", "erf", "erfc", "atan", "asinh")},
    "sigmoid": lambda u: 1 / (1 + mp.exp(-u)),
    "softplus": lambda u: mp.log1p(mp.exp(u)),
    "sech2": lambda u: mp.sech(u) ** 2,
    "abs": abs,
    "sign": mp.sign,
}
"""Every function that an expression may call, by another library."""


def real(source: str, x: float) -> object:
    """The value of a text as Python reads it, in mpmath."""
    names = MP | {"x": mp.mpf(x), "pi": mp.pi, "sqrt": mp.sqrt, "tan": mp.tan}
    with mp.workdps(40):
        return eval(source, {"__builtins__": {}}, names)


def value(source: str, x: float) -> float:
    argument = torch.tensor([x], dtype=torch.float64)
    return float(computed(straight_line(parse(source)), {"x": argument}))


TEXTS = (
    "x * tanh(log(1 + exp(x)))",
    "x / (1 + exp(-1.702*x))",
    "1 - exp(-exp(x))",
    "0.5*x*(1 + tanh(sqrt(2/pi)*(x + 0.044715*x**3)))",
    "exp(x)/(1 + exp(x))**2",
    "(exp(x) - exp(-x))/(exp(x) + exp(-x)) + sinh(x)/cosh(x)",
    "1 - tanh(x)**2 + tanh(x) - 1 + 1/(2 + 2*exp(x))",
    "log(cosh(x)) - abs(-3*x)/7 + atan(x)/pi",
    "-(x + 1)**2*3/(2*x**2 + 5)**1.5",
    "sin(-x)*cos(-2*x) + erf(-x/3) - (1 - erf(x))/2 + asinh(x)**2",
    "2*(x + 1)*(3*x - 6)/4 - (x**2 + 1)**0.5 + sqrt(x**2)",
    "log(sigmoid(x)) + log(1 + x**2) + tan(x/40)",
)


@pytest.mark.parametrize("source", TEXTS)
def test_a_tree_has_the_value_that_its_text_has(source):
    for x in (-3.7, -1.0, -1e-3, 0.3, 2.5, 6.0):
        expected = real(source, x)
        assert abs(value(source, x) - float(expected)) <= 1e-14 * (1 + abs(float(expected)))


@pytest.mark.parametrize("source", TEXTS)
def test_the_text_of_a_tree_and_of_its_derivatives_is_read_as_the_same_tree(source):
    node = parse(source)
    for _ in range(3):
        assert parse(text(node), is_canonical=True) == node
        node = derivative(node)


leaves = st.sampled_from([X, number(2), number(Fraction(-1, 3)), number(1)])


def grown(parts):
    whole = st.sampled_from([Fraction(n) for n in (-2, -1, 2, 3)])
    names = st.sampled_from(("exp", "tanh", "softplus", "sin", "erf", "abs", "sigmoid"))
    return st.one_of(
        st.builds(add, parts, parts),
        st.builds(multiply, parts, parts),
        st.builds(call, names, parts),
        st.builds(lambda part, n: power(add(power(part, 2), number(1)), n), parts, whole),
    )


@settings(max_examples=150, deadline=None)
@given(node=st.recursive(leaves, grown, max_leaves=8))
def test_every_text_is_read_back(node):
    assert parse(text(node), is_canonical=True) == node


@settings(max_examples=60, deadline=None)
@given(a=leaves, b=st.recursive(leaves, grown, max_leaves=4), c=st.recursive(leaves, grown))
def test_sums_and_products_do_not_depend_on_the_order_or_on_parentheses(a, b, c):
    assert add(a, b, c) == add(c, add(a, b)) == add(add(b, c), a)
    assert multiply(a, b, c) == multiply(c, multiply(b, a))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("log(1 + exp(x))", "log(exp(x) + 1)"),
        ("1/(1 + exp(-x))", "sigmoid(x)"),
        ("x/(1 + exp(-x))", "x*sigmoid(x)"),
        ("exp(2*x) - 1", "expm1(x*2)"),
        ("1 - tanh(x)**2", "sech2(x)"),
        ("1 + erf(x)", "erfc(-x)"),
        ("1 + tanh(x)", "2*sigmoid(2*x)"),
        ("1 - 2*sigmoid(x)", "-tanh(x/2)"),
        ("0.1*x", "x/10"),
        ("tanh(-x)", "-tanh(x)"),
        ("cos(-x) + abs(-2*x)", "2*abs(x) + cos(x)"),
        ("arctan(x)", "atan(x)"),
    ],
)
def test_equal_texts_are_one_tree(one, other):
    assert parse(one) == parse(other)


@pytest.mark.parametrize(
    ("source", "x", "expected"),
    [
        ("log(1 + exp(x))", 800.0, 800.0),
        ("log(1 + exp(x))", -40.0, 4.248354255291589e-18),
        ("exp(x) - 1", 1e-12, 1.0000000000005e-12),
        ("1 - tanh(x)**2", 30.0, 3.5025917146590525e-26),
        ("1 - erf(x)", 8.0, 1.1224297172982928e-29),
        ("x * tanh(log(1 + exp(x)))", 800.0, 800.0),
    ],
)
def test_forms_that_overflow_or_cancel_are_computed_in_another_way(source, x, expected):
    assert value(source, x) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("source", TEXTS)
def test_a_derivative_is_the_one_that_autograd_finds(source):
    x = torch.linspace(-3.1, 4.3, 41, dtype=torch.float64, requires_grad=True)
    line = straight_line(parse(source))
    (expected,) = torch.autograd.grad(computed(line, {"x": x}).sum(), x)
    found = computed(straight_line(derivative(parse(source))), {"x": x.detach()})
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_there_may_be_two_variables():
    node = parse("tanh(t - y) * t", ("t", "y"))
    assert variables(node) == {"t", "y"}
    at = {"t": torch.tensor([0.5]).double(), "y": torch.tensor([-1.0]).double()}
    assert float(computed(straight_line(derivative(node, "y")), at)) == pytest.approx(
        -0.5 / torch.tensor(1.5).double().cosh().item() ** 2
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tahn(x)", "Unknown function 'tahn' in 'tahn(x)'; known are abs, "),
        ("tanhh(x)", "Did you mean 'tanh'?"),
        ("y + 1", "Unknown variable 'y' in 'y + 1'; known are x, pi."),
        ("__import__('os').system('ls')", "is not allowed"),
        ("__import__('os')", "Unknown function '__import__'"),
        ("x.real", "'x.real' is not allowed: an expression has numbers, + - * / **"),
    ],
)
def test_nothing_is_evaluated_that_is_not_a_known_function(source, message):
    with pytest.raises((SettingError, UnknownNameError)) as caught:
        parse(source)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x^2", "Write ** for powers, not ^."),
        ("2x", "Write 2*x, not 2x."),
        ("", "It is not an expression"),
        ("x if x else 1", "is not allowed"),
        ("lambda x: x", "is not allowed"),
        ("[x]", "is not allowed"),
        ("x < 1", "is not allowed"),
        ("'x'", "is not allowed"),
        ("True", "is not allowed"),
        ("1j*x", "is not allowed"),
        ("exp(x, 2)", "exp takes one argument."),
        ("exp(x=2)", "exp takes one argument."),
        (
            "x**x",
            "The exponent x is not an integer or half-integer of at most 64. Write a**b as exp(b",
        ),
        ("x**0.3", "The exponent 0.3 is not an integer or half-integer"),
        ("9**9**9", "The exponent 9 ** 9 is not an integer or half-integer"),
        ("((9**16)**16)**16", "bits"),
        ("1e999*x", "The number 1e999 is out of range, which is 1e-300 to 1e300."),
        ("1e-999999999*x", "The number 1e-999999999 is out of range"),
        ("1/0e99999999", "It divides by 0."),
        ("1/0", "It divides by 0."),
        ("x/(x - x)", "It divides by 0."),
        ("x" * 501, "It has 501 characters; at most 500 are allowed."),
        ("(" * 150 + "x" + ")" * 150 + "+" + "-" * 120 + "x", "nested more than 100 deep"),
        (
            "tanh(" * 17 + "x" + ")" * 17,
            "calls and powers are nested 17 deep; at most 16 is allowed",
        ),
        ("π*x", "It has characters that are not ASCII."),
    ],
)
def test_what_is_no_expression_is_refused_with_the_reason(source, reason):
    with pytest.raises(SettingError) as caught:
        parse(source)
    assert reason in str(caught.value)
    assert str(caught.value).startswith("Cannot read the expression")


def test_numbers_of_any_line_are_read():
    assert parse("(1.5*x +\n 2.5)") == parse("1.5*x + 2.5")
    assert parse("0.25*tanh(x) + \\\n7.5") == parse("0.25*tanh(x) + 7.5")


def test_a_text_must_be_a_text():
    with pytest.raises(SettingError, match=r"^An expression must be a string, such as"):
        parse(3)


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [
        (Fraction(1, 8), "0.125"),
        (Fraction(-7), "-7"),
        (Fraction(2, 3), "2/3"),
        (Fraction(-1, 10), "-0.1"),
    ],
)
def test_numbers_are_written_as_short_as_they_are_exact(fraction, expected):
    assert fraction_text(fraction) == expected


def test_all_names_of_functions_have_values_slopes_and_balls():
    assert {*NAMES.values()} - {"sqrt", "tan"} == {*SLOPES} == {*CALLS} == {*MP}
    assert {*balls.REAL} == {*balls.COMPLEX} == {*balls.ULPS} == {*CALLS}


# Balls.


@pytest.mark.parametrize("name", sorted(balls.REAL))
def test_a_ball_holds_the_values_of_every_argument_in_it(name):
    low, high = (0.25, 3.0) if name in ("log", "log1p") else (-2.0, 3.0)
    with ctx.workprec(80), mp.workdps(30):
        ball = balls.REAL[name](balls.interval(low, high))
        for k in range(41):
            x = low + (high - low) * k / 40
            expected = arb(mp.nstr(MP[name](mp.mpf(x)), 28))
            assert ball.contains(arb(expected.mid()))
            assert abs(float(balls.REAL[name](arb(x)) - expected)) < 1e-20
            if x:  # not analytic there, for some
                assert abs(float(balls.COMPLEX[name](acb(x)).real - expected)) < 1e-20


@pytest.mark.parametrize("source", TEXTS)
def test_enclosures_hold_all_values_on_an_interval(source):
    node = parse(source)
    lines = straight_line(node), straight_line(derivative(node))
    low, high = (-1.5, -0.75)
    with ctx.workprec(80):
        x = balls.interval(low, high)
        wide, slope = (balls.enclosed(line, {"x": x}) for line in lines)
        ball = balls.narrowed(wide, lines[0], slope, x)
        for k in range(21):
            expected = real(source, low + (high - low) * k / 20)
            assert abs(float(ball.mid()) - float(expected)) <= float(ball.rad()) + 1e-12


@pytest.mark.parametrize(
    "source", ["log(x)", "sqrt(x)", "abs(x)", "sign(x)", "asinh(x)", "atan(x)"]
)
def test_complex_balls_across_a_branch_cut_are_not_finite(source):
    across = (
        acb(arb(0, 0.5), arb(2, 1.5))
        if source[0] == "a" and source[1] in "st"
        else acb(arb(-1, 1.5), arb(0, 1))
    )
    beside = acb(arb(1.5, 0.25), arb(0, 0.25))
    line = straight_line(parse(source))
    assert not balls.enclosed(line, {"x": across}, is_complex=True).is_finite()
    assert balls.enclosed(line, {"x": beside}, is_complex=True).is_finite()


@pytest.mark.parametrize(
    "n_points", [pytest.param(150, id="few"), pytest.param(4000, id="many", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", sorted(CALLS))
def test_no_function_of_torch_is_off_by_more_than_the_table_says(name, n_points):
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(4, n_points, generator=generator, dtype=torch.float64) * 2 - 1
    x = torch.cat([drawn[0] * 8, drawn[1] * 40, drawn[2] * 300, drawn[3] * 10.0 ** (12 * drawn[0])])
    if name in ("log", "log1p"):
        x = x.abs()
    if name == "log1p":
        x = torch.cat([x, -torch.rand(n_points, generator=generator, dtype=torch.float64)])
    half = len(x) // 2
    alone = torch.stack([CALLS[name](point) for point in x[half:]])
    values = torch.cat([CALLS[name](x[:half]), alone])
    with ctx.workprec(160):
        for argument, found in zip(x.tolist(), values.tolist(), strict=True):
            exact = balls.REAL[name](arb(argument))
            size = float(abs(exact).upper())
            if size < balls.LARGEST:
                off = float(abs(arb(found) - exact).upper())
                assert off <= balls.ROUNDOFF * balls.ULPS[name] * size + balls.UNDERFLOW, argument
