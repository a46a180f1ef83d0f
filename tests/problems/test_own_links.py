"""Links of one's own: which are taken, their losses, their heads, their files."""

import subprocess
import sys
from math import inf

import pytest
import torch
from flint import arb, ctx

import icgd
from icgd.approximation.lattice import mean_of_link
from icgd.errors import ConstructionError, SettingError
from icgd.problems.linear_model import LinearModel, link_named
from tests.approximation.test_grid_mean import exact_head

ASINH = icgd.Function("asinh", "asinh(x)")
BOUNDED = icgd.Function("bounded", "1/2 + x / (2 * sqrt(1 + x**2))")

LABEL = torch.tensor(0.7, dtype=torch.float64)


def problem_of(link, **domain):
    step = icgd.ProximalStep(0.3, l2=0.1, l1=0.02, box=1.0)
    return icgd.Problem(LinearModel(3, link), "matching", step, icgd.Domain(2.0, 2.0, **domain))


def data():
    draw = {"generator": torch.Generator().manual_seed(0), "dtype": torch.float64}
    x = torch.randn(6, 3, **draw).clamp(-2, 2)
    return x, torch.rand(6, 1, **draw)


@pytest.mark.parametrize("function", [ASINH, BOUNDED, icgd.Function("cube", "x**3 + x", -8, 8)])
def test_the_loss_is_the_integral_of_the_link(function):
    link = link_named(function.name)
    z = torch.linspace(-7, 7, 1001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(link.loss(z, LABEL).sum(), z)
    torch.testing.assert_close(slope, function(z.detach()) - 0.7, rtol=1e-12, atol=1e-12)
    losses = link.loss(z.detach(), LABEL)
    assert float(link.potential(torch.zeros(1).double())) == pytest.approx(0, abs=1e-13)
    assert float(link.least_loss(LABEL)) <= float(losses.min())
    assert link.labels == "any finite labels"


@pytest.mark.parametrize("function", [ASINH, BOUNDED])
def test_the_head_of_a_link_is_within_its_proved_error_in_real_numbers(function):
    fit = mean_of_link(function.name, 5.0)
    assert fit.error <= 1e-10
    with ctx.workprec(200):
        for share in range(-64, 65):
            s = arb(5) * share / 64
            off = exact_head(fit, s) - function.ball(0, 0, s)
            assert float(off.abs_upper()) <= fit.error


@pytest.mark.parametrize("link", [ASINH, BOUNDED], ids=str)
def test_the_literal_transformer_descends_the_loss_of_a_link(link, tmp_path):
    problem, (x, y) = problem_of(link), data()
    compiled = icgd.compile(problem, "linear-stack", n_steps=5)
    report = icgd.verify(compiled, x, y, backend="literal", rigorous=False)
    assert (report.step_errors <= report.step_bounds).all()
    assert 0 < float(report.step_bounds.max()) <= 1e-9
    compiled.save(tmp_path / "run.safetensors")
    loaded = icgd.load(tmp_path / "run.safetensors")
    assert loaded.problem == problem
    assert torch.equal(loaded.run(x, y).parameters, compiled.run(x, y).parameters)


@pytest.mark.parametrize("link", ["cauchit", "cloglog", "tanh", ASINH], ids=str)
def test_whole_runs_are_proved_by_the_independent_checker(link):
    compiled = icgd.compile(problem_of(link), "linear-stack", n_steps=3)
    assert "proved: the whole run is within" in str(icgd.verify(compiled, *data()))


def test_a_link_is_saved_in_a_description_by_its_text_or_by_a_table():
    problem = problem_of(ASINH)
    assert icgd.Problem.from_data(problem.to_data()) == problem
    data = problem.to_data()
    data["target"]["link"] = "mine"
    data["functions"] = {"mine": {"of": ["asinh(x)"]}}
    assert icgd.Problem.from_data(data) == problem


@pytest.mark.parametrize(
    ("function", "place"),
    [
        (icgd.Function("bump", "exp(-x**2)"), r"x = "),
        (icgd.Function("square", "x**2"), "x = -32"),
        (icgd.Function("sign", "sign(x)"), "x = 0"),
        (icgd.Function("wave", "x + 2 * sin(x)"), "x = "),
    ],
    ids=lambda part: getattr(part, "label", None),
)
def test_a_link_must_rise(function, place):
    with pytest.raises(
        SettingError, match=rf"^A link must be increasing and continuous.* not at {place}"
    ):
        LinearModel(2, function)


@pytest.mark.parametrize(
    "text", ["x", "x**3", "asinh(x)", "x + sin(x)", "tanh(x)", "1 - exp(-exp(x / 16))"]
)
def test_what_rises_is_taken(text):
    assert icgd.Function("f", text).where_it_falls() == ""


def test_kinks_and_scores_outside_the_domain_are_refused_with_the_reason():
    kinked = icgd.Function.pieces((0,), ("x", "2*x"), label="kinked")
    with pytest.raises(ConstructionError, match=r"only if the link is analytic, and .* knots at 0"):
        icgd.compile(problem_of(kinked), "linear-stack", n_steps=1)
    narrow = icgd.Function("narrow", "asinh(x)", -1, 1)
    with pytest.raises(
        ConstructionError, match=r"Scores can reach .* is defined on \[-1, 1\] only"
    ):
        icgd.compile(problem_of(narrow), "linear-stack", n_steps=1)


def test_a_step_size_for_all_scores_needs_a_bound_on_them():
    end = torch.tensor(inf, dtype=torch.float64)
    assert link_named(ASINH.name).slopes(-end, end)[1] == inf
    assert float(link_named("cauchit").slopes(-end, end)[1]) == pytest.approx(0.3183, abs=1e-4)


@pytest.mark.slow
def test_the_command_line_takes_a_link_from_a_table(tmp_path):
    lines = ["target = {input_width = 3, link = 'mine'}", "update = {step_size = 0.1, box = 1.0}"]
    lines += ["domain = {x = 2.0, y = 2.0}", "steps = 2", "functions.mine.of = ['asinh(x)']"]
    (tmp_path / "f.toml").write_text("\n".join(lines))
    line = "icgd compile f.toml -o run.safetensors"
    done = subprocess.run(
        [sys.executable, "-m", *line.split()], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert icgd.load(tmp_path / "run.safetensors").problem.model.link == ASINH.name


@pytest.mark.parametrize("construction", ["linear-stack", "cot-glm"])
def test_a_line_is_a_link(construction):
    model = icgd.LinearModel(2, icgd.Function("double", "2*x"))
    problem = icgd.Problem(
        model, "matching", icgd.ProximalStep(0.1, box=2.0), icgd.Domain(1.0, 1.0)
    )
    settings = {"n_examples": 4} if construction == "cot-glm" else {}
    compiled = icgd.compile(problem, construction, n_steps=3, **settings)
    X = torch.tensor([[0.5, 1.0], [-1.0, 0.25], [0.75, -0.5], [0.0, 1.0]], dtype=torch.float64)
    report = icgd.verify(compiled, X, X.sum(1).clamp(-1, 1), rigorous=False)
    assert 0 < report.step_errors.max() <= report.step_bounds.max() <= 1e-12
