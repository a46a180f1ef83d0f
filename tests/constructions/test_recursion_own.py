"""recursion and cot-network with activations that a text defines."""

import numpy as np
import pytest

import icgd
from icgd.errors import UnsupportedActivationError, UnsupportedProblemError
from tests.cases import make_case

TEXTS = {
    "mish": "x * tanh(log(1 + exp(x)))",
    "sin": "sin(x)",
    "erf": "erf(x)",
    "quick gelu": "x / (1 + exp(-1.702 * x))",
    "cauchit": "1 / 2 + atan(x) / pi",
    "snake": "x + sin(x)**2",
    "gaussian": "exp(-x**2)",
}


def case_of(activation, batch_size=None, loss="squared"):
    step = icgd.GradientStep(0.2, box=1.0, batch_size=batch_size)
    case = make_case(
        icgd.MLP((2, 3, 1), activation), loss, domain=icgd.Domain(1.0, 1.0), seed=4, box=1.0
    )
    return case, icgd.Problem(case.problem.network, loss, step, case.problem.domain)


def errors(compiled, case):
    task = case.task()
    report = icgd.verify(
        compiled, task.x, task.y, initial=task.initial, backend="literal", rigorous=False
    )
    assert (report.step_errors <= report.step_bounds).all()
    return float(report.step_errors.max()), float(report.step_bounds.max())


@pytest.mark.parametrize(
    "name", ["mish", *(pytest.param(n, marks=pytest.mark.slow) for n in TEXTS)]
)
def test_recursion_trains_analytic_activations(name):
    case, problem = case_of(icgd.Function(name, TEXTS[name]))
    compiled = icgd.compile(problem, "recursion", n_steps=2)
    measured, proved = errors(compiled, case)
    assert 0 < measured <= proved <= 1e-9
    assert compiled.program.activation == "softplus"


@pytest.mark.parametrize("name", ["relu6", "hardtanh"])
def test_recursion_trains_piecewise_linear_activations(name):
    case, problem = case_of(name)
    measured, _ = errors(icgd.compile(problem, "recursion", n_steps=2), case)
    assert measured <= 1e-12


@pytest.mark.parametrize(
    "name", ["mish", "snake", *(pytest.param(n, marks=pytest.mark.slow) for n in TEXTS)]
)
def test_cot_network_trains_analytic_activations(name):
    case, problem = case_of(icgd.Function(name, TEXTS[name]), batch_size=5)
    measured, proved = errors(icgd.compile(problem, "cot-network", n_steps=2), case)
    assert 0 < measured <= proved <= 1e-9


@pytest.mark.parametrize(
    ("activation", "loss"), [("elu", "squared"), ("softsign", "squared"), ("tanh", "l1")]
)
def test_recursion_says_what_its_units_cannot_follow(activation, loss):
    _, problem = case_of(activation, loss=loss)
    with pytest.raises(UnsupportedProblemError, match="analytic, or continuous and piecewise"):
        icgd.compile(problem, "recursion", n_steps=1)


def test_cot_network_refuses_what_it_has_no_heads_for():
    _, problem = case_of("relu6", batch_size=5)
    with pytest.raises(UnsupportedProblemError, match="no heads for relu6"):
        icgd.compile(problem, "cot-network", n_steps=1)
    _, problem = case_of(icgd.Function("narrow", "sin(x)", -1, 1), batch_size=5)
    with pytest.raises(UnsupportedProblemError, match=r"is defined on \[-1, 1\] only"):
        icgd.compile(problem, "cot-network", n_steps=1)


def own_units(units, biases=False):
    step, domain = icgd.GradientStep(0.05, box=1.0), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(icgd.MLP((2, 3, 1), "tanh", biases=biases), "squared", step, domain)
    return icgd.compile(problem, "recursion", n_steps=2, unit_activation=units, units=96)


@pytest.mark.parametrize(
    "units",
    [
        icgd.Function("u", "atan(x)"),
        *(
            pytest.param(units, marks=pytest.mark.slow)
            for units in ("erf", "mish", "sin", icgd.Function("g", "exp(-x**2)"))
        ),
    ],
)
def test_units_may_be_any_analytic_function(units, tmp_path):
    compiled = own_units(units)
    assert compiled.program.activation == getattr(units, "name", units)
    rng = np.random.default_rng(0)
    X, inner = rng.uniform(-1, 1, (6, 2)), rng.uniform(-0.6, 0.6, 9)
    for initial, most in ((inner, 1e-3), (np.ones(9), 0.1)):  # away from the box, and at it
        for backend in ("literal", "fused"):
            given = {"initial": initial, "backend": backend, "rigorous": False}
            report = icgd.verify(compiled, X, X.prod(1), **given)
            assert report.verdict.holds
            assert 0 < report.step_errors.max() <= report.step_bounds.max() <= most
    compiled.save(tmp_path / "run.safetensors")
    loaded = icgd.load(tmp_path / "run.safetensors")
    runs = [each.run(X, X.prod(1), initial=inner).parameters for each in (compiled, loaded)]
    assert runs[0].equal(runs[1])


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ("softsign", "softsign has knots, and the error bounds of units need an analytic function"),
        ("relu6", "relu6 has knots"),
        (icgd.Function("c", "1/2"), "0.5 on -64 to 64 is a polynomial"),
        (icgd.Function("p", "x**3 - x/2"), "is a polynomial. Sums of such units"),
        (icgd.Function("s", "tanh(2*x)"), "slopes up to 2 and the value 0 at 0; .* as in f"),
        (icgd.Function("h", "tanh(x) + 3"), "slopes up to 1 and the value 3 at 0"),
    ],
)
def test_units_that_no_fit_can_be_made_of_are_refused(units, message):
    with pytest.raises(UnsupportedActivationError, match=message):
        icgd.Recursion(unit_activation=units)


def test_biases_take_built_in_units():
    with pytest.raises(UnsupportedProblemError, match="divides by its unit's value at 1"):
        own_units("erf", biases=True)
