"""Networks with activations that a text defines, in relu-stack: exactness, proofs, files."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import icgd
from icgd.errors import ConstructionError, UnsupportedProblemError
from icgd.problems.functions import OWN
from icgd.problems.piecewise import Function
from tests.cases import make_case

L, A = "1.0507009873554805", "1.6732632423543772"
CATALOGUE = {
    "mish": Function("mish", "x * tanh(log(1 + exp(x)))"),
    "softsign": Function("softsign", "x / (1 + abs(x))"),
    "sin": Function("sin", "sin(x)"),
    "erf": Function("erf", "erf(x)"),
    "gelu-tanh": Function("gelu-tanh", "0.5*x*(1 + tanh(sqrt(2/pi)*(x + 0.044715*x**3)))"),
    "quick gelu": Function("quick gelu", "x / (1 + exp(-1.702*x))"),
    "elu": Function.pieces((0,), ("exp(x) - 1", "x")),
    "selu": Function.pieces((0,), (f"{L}*{A}*(exp(x) - 1)", f"{L}*x")),
    "celu": Function.pieces((0,), ("0.5*(exp(x/0.5) - 1)", "x")),
    "hardswish": Function.pieces((-3, 3), ("0", "x*(x + 3)/6", "x")),
    "relu6": Function.pieces((0, 6), ("0", "x", "6")),
    "hardtanh": Function.pieces((-1, 1), ("-1", "x", "1")),
    "log-cosh slope": Function("log-cosh slope", "tanh(x)"),
    "cauchit": Function("cauchit", "1/2 + atan(x)/pi"),
    "cloglog": Function("cloglog", "1 - exp(-exp(x))", low=-300.0, high=6.5),
    "snake": Function("snake", "x + sin(x)**2"),
    "gaussian": Function("gaussian", "exp(-x**2)"),
    "halves": Function.pieces((-0.5, 0.5), ("-0.5", "x", "0.5")),
    "huber slope": Function.pieces((-1, 1), ("-1", "x", "1")),
    "shifted": Function("shifted", "abs(x - 1/3)"),
}
JUMPS = ("selu", "hardswish", "relu6", "hardtanh", "halves", "huber slope", "shifted")
"""Their slopes jump, so that a step is proved for a task, and not on the whole domain."""

FEW = ("mish", "selu", "hardtanh", "softsign")
TOLERANCE = 1e-4


def case_of(activation, widths=(2, 3, 1), output="identity", box=1.0, **options):
    network = icgd.MLP(widths, activation, output, **options)
    return make_case(network, "squared", box=box, seed=4, step_size=0.2)


def verified(compiled, case, backend="literal"):
    task = case.task()
    return icgd.verify(
        compiled, task.x, task.y, initial=task.initial, backend=backend, rigorous=False
    )


def step_error(compiled, case, backend="literal"):
    """The largest error of a step of the transformer, which must be within its bound."""
    report = verified(compiled, case, backend)
    assert (report.step_errors <= report.step_bounds).all()
    return float(report.step_errors.max())


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in FEW else pytest.mark.slow) for n in CATALOGUE],
)
def test_a_step_is_as_accurate_as_is_proved(name):
    case = case_of(CATALOGUE[name])
    task = case.task()
    given = {"task": task} if name in JUMPS else {}
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=3, tolerance=TOLERANCE, **given)
    if name not in JUMPS:
        assert compiled.certificate().domain_step <= TOLERANCE
    report = verified(compiled, case)
    assert report.verdict is icgd.Verdict.HOLDS
    assert report.step_errors.max() <= report.step_bounds.max() <= 1.1 * TOLERANCE


@pytest.mark.parametrize("name", OWN)
def test_built_in_ones_take_their_name(name):
    case = case_of(name, output=name)
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2, pieces=96)
    assert verified(compiled, case).verdict.holds
    assert step_error(compiled, case) <= 2e-3


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
@pytest.mark.parametrize("activation", ["hardtanh", "relu6", CATALOGUE["halves"]], ids=str)
def test_slopes_are_right_on_both_sides_of_every_knot(construction, activation):
    """A slope that is read at relu(z) is wrong at knots below 0, and its bound with it."""
    case = case_of(activation, (2, 4, 1), box=2.0)
    compiled = icgd.compile(case.problem, construction, n_steps=2)
    assert step_error(compiled, case, "dense") <= 1e-9
    assert step_error(compiled, case, "fused") <= 1e-9


@pytest.mark.parametrize(
    "options", [{"biases": True}, {"norms": (1,)}, {"shortcuts": ((1, 2),)}], ids=str
)
@pytest.mark.parametrize("activation", ["selu", "hardtanh", "mish"])
def test_biases_norms_and_shortcuts_take_them_too(activation, options):
    widths = (2, 3, 3, 1) if "shortcuts" in options else (2, 3, 1)
    case = case_of(activation, widths, **options)
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2, pieces=256)
    assert step_error(compiled, case, "dense") <= 2e-3
    assert step_error(compiled, case, "fused") <= 2e-3


@pytest.mark.parametrize("name", ["mish", "selu", "hardtanh"])
def test_a_file_holds_the_text_and_runs_alike(name, tmp_path):
    case = case_of(CATALOGUE[name])
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2, pieces=24)
    compiled.save(tmp_path / "run.safetensors")
    again = icgd.load(tmp_path / "run.safetensors")
    assert again.problem == case.problem
    assert again.problem.target.activation == CATALOGUE[name].name
    assert again.program == compiled.program
    task = case.task()
    one, other = (
        part.run(task.x, task.y, initial=task.initial, backend="literal").parameters
        for part in (compiled, again)
    )
    assert torch.equal(one, other)
    assert verified(again, case).verdict.holds


def test_a_run_that_is_loaded_needs_no_arb(tmp_path):
    case = case_of(CATALOGUE["selu"])
    icgd.compile(case.problem, "relu-stack", n_steps=2, pieces=8).save(tmp_path / "run")
    torch.save({"x": case.task().x, "y": case.task().y}, tmp_path / "data.pt")
    source = (
        "import sys; sys.modules['flint'] = None\n"
        "import icgd, torch\n"
        "data = torch.load(sys.argv[2])\n"
        "run = icgd.load(sys.argv[1]).run(data['x'], data['y'], seed=0)\n"
        "print(run.parameters.isfinite().all())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path / "run"), str(tmp_path / "data.pt")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "tensor(True)"


def test_arguments_that_leave_the_domain_are_refused():
    narrow = Function("narrow", "x * sigmoid(x)", low=-2.0, high=3.0)
    with pytest.raises(UnsupportedProblemError) as caught:
        icgd.compile(case_of(narrow, box=2.0).problem, "relu-stack", n_steps=1)
    assert "the preactivations of layer 1 can reach 8 on the domain, and" in str(caught.value)
    assert "is defined on [-2, 3] only. Define it there, by low= and high=" in str(caught.value)


def test_a_function_that_is_too_steep_is_refused():
    steep = Function("steep", "tanh(1e12*x)")
    with pytest.raises(ConstructionError, match="is so steep near x = "):
        icgd.compile(case_of(steep).problem, "relu-stack", n_steps=1)


def test_constructions_without_heads_for_it_say_so():
    case = case_of(CATALOGUE["elu"])
    with pytest.raises(UnsupportedProblemError, match="which is defined by a text; use relu-stack"):
        icgd.compile(case.problem, "cot-network", n_steps=1)
    assert (
        icgd.compile(case.problem, n_steps=1, tolerance=1e-2).program.construction == "relu-stack"
    )


JUMPING = ("l1", "quantile_0.7", "sign(t - y - 0.3)", "t - y + 0.5*sign(t - y + 0.25)")


@pytest.mark.parametrize("loss", JUMPING)
def test_slopes_of_losses_that_jump_are_exact_to_rounding(loss):
    """A ramp that reads t - y itself lost |t - y| / width units of rounding: 1e-2 of a step."""
    source = np.random.default_rng(0)
    X, y = source.uniform(-1, 1, (20, 3)), source.uniform(-10, 10, 20)
    step, domain = icgd.GradientStep(0.1, box=1.0), icgd.Domain(1.0, 10.0)
    given = icgd.Loss(slope=loss) if "sign" in loss else loss
    problem = icgd.Problem(icgd.MLP((3, 4, 1), "relu"), given, step, domain)
    compiled = icgd.compile(problem, "relu-stack", n_steps=3)
    for backend in ("dense", "literal", "fused"):
        report = icgd.verify(compiled, X, y, seed=0, backend=backend, rigorous=False)
        assert report.step_errors.max() <= 1e-14
        assert report.step_bounds.max() <= 1e-12
        assert report.near_kinks.count == 0
    assert compiled.summary().layers_per_step == 2 * 2 + 3  # one of them for the sides of jumps
