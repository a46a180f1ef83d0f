"""Bounds of linear models, with momentum and without."""

import random
from dataclasses import replace
from math import inf, log

import numpy as np
import pytest
import torch

import icgd
from icgd.backends.registry import BACKENDS
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.linear import (
    LinearBounds,
    Motion,
    Pair,
    Responses,
    Velocities,
    affine_distances,
    changes,
    grow_distances,
    is_affine,
    is_stable,
    lookahead_distance,
    multiply_norms,
    points_of,
)
from icgd.errors import ProgramError, SettingError, SizeError
from icgd.problems.linear_model import LINKS
from icgd.problems.mlp import MLP
from icgd.program.linear_instructions import DescendSquares
from tests.linear_cases import FISTA, HEAVY, PROBLEMS, compiled_of, data, problem_of, task_of


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("link", LINKS)
def test_bounds_hold_and_are_not_idle(link, backend):
    x, y, _ = data()
    compiled = compiled_of(PROBLEMS[link], n_steps=6)
    report = icgd.verify(compiled, x, y, backend=backend, rigorous=False)
    assert report.verdict.holds
    assert report.step_bounds.max() <= 1e-11
    assert report.trajectory_bounds.max() <= 1e-10
    assert report.step_bounds.max() <= report.certificate.domain_step <= 1e-10
    # The exponential is so steep at the end of the range that steps expand there.
    most = 2.0 + 1e-9 if link == "poisson" else 2e-9
    assert report.trajectory_bounds.max() <= report.certificate.domain_trajectory <= most
    assert report.near_kinks.count == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("problems", [FISTA, HEAVY], ids=["fista", "heavy"])
def test_bounds_with_momentum_hold_and_are_not_idle(link, backend, problems):
    x, y, queries = data()
    compiled = compiled_of(problems[link], n_steps=4)
    report = icgd.verify(compiled, x, y, queries=queries, backend=backend, rigorous=False)
    assert report.verdict.holds
    assert report.step_bounds.max() <= 2e-11
    assert report.trajectory_bounds.max() <= 1e-9
    assert report.step_bounds.max() <= report.certificate.domain_step <= 2e-9
    assert report.trajectory_bounds.max() <= report.certificate.domain_trajectory
    assert report.paper_trajectory is None


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4])
@pytest.mark.parametrize("link", ["identity", "logistic", "poisson"])
@pytest.mark.parametrize("problems", [PROBLEMS, FISTA], ids=["plain", "fista"])
def test_bounds_of_mirrored_heads_hold_and_are_at_most_200_times_too_large(link, problems, n_heads):
    x, y, queries = data()
    compiled = compiled_of(problems[link], n_steps=4, mirrored_heads=n_heads)
    for backend in ("dense", "literal"):
        report = icgd.verify(compiled, x, y, queries=queries, backend=backend, rigorous=False)
        assert report.verdict.holds
        assert report.step_bounds.max() <= 200 * report.step_errors.max()
        assert report.step_bounds.max() <= report.certificate.domain_step
        assert report.certificate.domain_step <= (3e-7 if n_heads == 1 else 1e-8)
    fused = icgd.verify(compiled, x, y, queries=queries, backend="fused", rigorous=False)
    assert fused.verdict.holds
    assert fused.step_bounds.max() <= 1e-12


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4])
def test_what_mirrored_heads_miss_is_proved_for_residuals_of_any_size(n_heads):
    """With scores so large that the heads miss much more than they round."""
    draw = torch.Generator().manual_seed(0)
    heads = DescendSquares("y", ("x",), ("w",), (1.0,), n_heads, 0.5 / n_heads, 1.0, 1.0, 1.0)
    ratios = []
    for _ in range(300):
        left, inputs = 2 * torch.rand(2, 3, dtype=torch.float64, generator=draw) - 1
        left = left / left.abs().max()
        returned = sum(
            gain * ((z := m * heads.probe * left).sinh() @ inputs) / z.cosh().sum()
            for m, gain in enumerate(heads.gains, start=1)
        )
        missed = (returned - (left * inputs).mean()).abs() / (left * inputs).abs().mean()
        ratios.append(float(missed / heads.truncation(left.abs().max())))
    assert 0.01 < max(ratios) <= 1.0


MOMENTA: list[dict[str, object]] = [
    {},
    {"momentum": 0.9},
    {"momentum": (0.0, 0.3, 0.9, 1.0, 0.2), "nesterov": True},
]


def random_problem(draw: random.Random) -> icgd.Problem:
    model = icgd.LinearModel(
        draw.randint(1, 5),
        draw.choice(list(LINKS)),
        draw.random() < 0.5,
        draw.choice(["mean", "sum"]),
    )
    update = icgd.ProximalStep(
        10 ** draw.uniform(-2, 0.3),
        draw.choice([0.0, 0.3]),
        draw.choice([0.0, 0.02]),
        0.5,
        **draw.choice(MOMENTA[: 2 if model.link == "poisson" else 3]),  # it cannot look far ahead
    )
    return icgd.Problem(model, "matching", update, icgd.Domain(2.0, 2.0))


def holds(seed: int) -> bool:
    draw, torch_draw = random.Random(seed), torch.Generator().manual_seed(seed)
    problem, n_examples = random_problem(draw), draw.randint(1, 8)
    shape = (*draw.choice([(), (2,)]), n_examples)
    x = 4 * torch.rand(*shape, problem.model.input_width, generator=torch_draw).double() - 2
    y = torch.rand(*shape, 1, generator=torch_draw).double()
    settings = {}
    if problem.model.reduction == "mean":
        settings["mirrored_heads"] = draw.randint(0, 4)
    compiled = icgd.compile(problem, n_steps=5, construction="linear-stack", **settings)
    dtype, backend = draw.choice(["float64", "float32"]), draw.choice(list(BACKENDS))
    return icgd.verify(compiled, x, y, backend=backend, dtype=dtype).verdict.holds


@pytest.mark.filterwarnings("ignore:Coefficient:UserWarning")
@pytest.mark.parametrize("part", range(4))
def test_random_problems_stay_within_their_certificates(part):
    assert [seed for seed in range(10 * part, 10 * part + 10) if not holds(seed)] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Coefficient:UserWarning")
def test_three_hundred_random_problems_stay_within_their_certificates():
    assert [seed for seed in range(100, 400) if not holds(seed)] == []


def test_a_step_that_is_off_by_more_than_its_bound_is_found():
    problem = PROBLEMS["logistic"]
    compiled, task = compiled_of(problem), task_of(problem)
    history = compiled.run_task(task).parameters
    arithmetic = Arithmetic.of(torch.float64, task.n_tokens, "fused")
    bounds = LinearBounds(problem, compiled.stack, arithmetic).steps(task, history)
    wrong = compiled_of(replace(problem, update=replace(problem.proximal_step, step_size=0.3001)))
    off = (wrong.run_task(task).parameters[1] - history[1]).abs().max()
    assert off > 1e6 * bounds.max()


def test_where_steps_expand_the_trajectory_bound_grows_by_their_lipschitz_constant():
    """A step of 3 / beta multiplies the steepest direction by -2."""
    problem = problem_of("identity", l2=0.0, l1=0.0, box=100.0, step_size=1.0, score=None)
    task = task_of(problem)
    beta = torch.linalg.eigvalsh(problem.model.design(task.x).mT @ problem.model.design(task.x) / 6)
    problem = replace(problem, update=replace(problem.proximal_step, step_size=3 / float(beta[-1])))
    compiled = compiled_of(problem, n_steps=5)
    real = problem.oracle.train(task, 5)
    arithmetic = Arithmetic.of(torch.float64, task.n_tokens, "fused")
    rules = LinearBounds(problem, compiled.stack, arithmetic)
    assert rules.lipschitz(task, real) == pytest.approx(2, rel=1e-8)
    history = compiled.run_task(task).parameters
    bounds = rules.run(task, history, real)
    added = torch.diff(bounds.paper, prepend=torch.zeros(1))
    expected = sum(2 ** (4 - step) * float(part) for step, part in enumerate(added))
    assert float(bounds.trajectory[-1]) == pytest.approx(expected, rel=1e-7)
    assert (history - real).abs().max() <= bounds.trajectory[-1]


def test_the_trajectory_bound_holds_of_exact_descent_that_leaves_the_run():
    """In float64 log(2) is a fixed point; exact descent leaves it, and the slope rises there."""
    update = icgd.ProximalStep(step_size=15.0, box=1e9)
    problem = icgd.Problem(
        icgd.LinearModel(1, "poisson"), "matching", update, icgd.Domain(1.0, 4.0, score=4.0)
    )
    ones, start = torch.ones(1, 1, dtype=torch.float64), torch.tensor([log(2)], dtype=torch.float64)
    compiled = compiled_of(problem, n_steps=18)
    report, by_contraction = (
        icgd.verify(compiled, ones, 2 * ones, initial=start, rigorous=rigorous, backend="fused")
        for rigorous in (True, False)
    )
    assert report.trajectory_errors.max() == 0.0
    assert report.rigorous.least.max() > 1e8
    assert (report.rigorous.least <= by_contraction.trajectory_bounds).all()
    assert report.verdict.holds


@pytest.mark.parametrize("box", [300.0, 354.8, 400.0])
def test_where_slopes_are_beyond_all_numbers_nothing_is_known(box):
    """At 2 * 354.8 the slope of poisson is a number, and four times it is none."""
    domain = icgd.Domain(2.0, 4.0, score=4.0)
    update = icgd.ProximalStep(step_size=15.0, box=box)
    problem = icgd.Problem(icgd.LinearModel(2, "poisson"), "matching", update, domain)
    task = icgd.as_task(problem, [[2.0, 0.0], [0.0, 2.0]], [[2.0], [2.0]])
    arithmetic = Arithmetic.of(torch.float64, 3, "fused")
    rules = LinearBounds(problem, compiled_of(problem).stack, arithmetic)
    start = torch.zeros(2, 2, dtype=torch.float64)
    factor = rules.lipschitz(task, start, margin=1e9)
    assert factor == inf if box > 300 else factor > 1e200
    assert rules.lipschitz(task, start) == pytest.approx(29, rel=1e-6)


def test_short_steps_never_expand():
    problem = problem_of("logistic", l2=0.2)
    task = task_of(problem)
    arithmetic = Arithmetic.of(torch.float64, task.n_tokens, "fused")
    rules = LinearBounds(problem, compiled_of(problem).stack, arithmetic)
    factor = rules.lipschitz(task, problem.oracle.train(task, 4))
    assert 0.9 < factor <= 1 + 1e-8


def test_clipped_coefficients_differ_by_no_more_than_the_box():
    problem = problem_of("poisson", step_size=50.0)
    compiled = compiled_of(problem, n_steps=60)
    arithmetic = Arithmetic.of(torch.float32, 9, "fused")
    assert LinearBounds(problem, compiled.stack, arithmetic).domain().trajectory == 2.0


@pytest.mark.filterwarnings("ignore:Coefficient:UserWarning")
def test_a_bound_that_knows_no_more_than_the_box_says_nothing():
    """Steps of poisson may expand at the end of its range, those of identity may not."""
    x, y, _ = data()
    reports = {
        link: icgd.verify(compiled_of(problem_of(link, step_size=5.0), n_steps=60), x, y)
        for link in ("poisson", "identity")
    }
    told = reports["poisson"].certificate
    assert told.widest == 2.0 <= told.domain_trajectory
    assert told.empty == ("domain_trajectory",)
    assert "domain_trajectory" in reports["poisson"].empty
    assert reports["identity"].verdict.holds


@pytest.mark.filterwarnings("ignore:Coefficient:UserWarning")
def test_a_clip_that_rounds_is_within_the_bound_of_every_run():
    """Steps of 1e8 in float32 leave no digits of a box of 1; machines add in different orders."""
    errors = []
    for step_size in (1e8, 1.5e8, 2e8, 3e8, 5e8, 7e8, 1e9):
        problem = problem_of("identity", step_size=step_size, l2=0.0, l1=0.0, score=None)
        report = icgd.verify(compiled_of(problem), *data()[:2], backend="dense", dtype="float32")
        assert report.verdict.holds
        errors.append(float(report.trajectory_errors.max()))
    assert max(errors) > 2.0


def test_tiny_errors_have_a_bound_that_is_not_0():
    x, y, _ = data()
    problem = problem_of("identity", l2=0.0, l1=0.0, score=None)
    report = icgd.verify(compiled_of(problem), 1e-154 * x, y, rigorous=False)
    assert report.verdict.holds
    assert report.trajectory_bounds[0] > 0


def test_steps_beyond_all_numbers_are_bounded_by_the_box():
    problem = problem_of("probit", step_size=6e304, intercept=False, l2=0.0, l1=100.0, box=1e-3)
    arithmetic = Arithmetic.of(torch.float64, 9, "fused")
    bound = LinearBounds(problem, compiled_of(problem).stack, arithmetic).domain()
    assert bound.trajectory >= 2e-3


def test_a_program_of_another_kind_has_no_such_bound():
    network = icgd.Problem(
        MLP((2, 1)), "squared", icgd.GradientStep(0.1, 1.0), icgd.Domain(1.0, 1.0)
    )
    program = icgd.compile(network, "relu-stack", n_steps=1).program
    arithmetic = Arithmetic.of(torch.float64, 9, "dense")
    with pytest.raises(ProgramError, match="relu-stack has no step on a linear model"):
        LinearBounds(PROBLEMS["logistic"], program, arithmetic).domain()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_momentum_that_is_a_little_off_breaks_its_bound(backend, nesterov):
    x, y, _ = data()
    right, wrong = (
        problem_of("logistic", momentum=momentum, nesterov=nesterov)
        for momentum in (0.6, 0.6 + 1e-9)
    )
    assert icgd.verify(compiled_of(right), x, y, backend=backend).verdict.holds
    other = replace(compiled_of(wrong), problem=right)
    assert icgd.verify(other, x, y, backend=backend).verdict is icgd.Verdict.BROKEN


def test_least_squares_with_momentum_have_a_small_bound_after_many_steps():
    problem = problem_of("identity", l1=0.0, momentum=0.6, nesterov=True)
    x, y, _ = data()
    report = icgd.verify(compiled_of(problem, n_steps=300), x, y, rigorous=False)
    assert report.trajectory_bounds.max() <= 1e-10
    assert report.trajectory_errors.max() <= report.trajectory_bounds.max()


@pytest.mark.parametrize("kept", [{}, {"momentum": 0.5}, {"momentum": 0.5, "nesterov": True}])
@pytest.mark.parametrize("step_size", [0.5, 1e-3])
def test_steps_after_the_first_are_bounded_as_if_they_were_followed(kept, step_size, monkeypatch):
    step = icgd.ProximalStep(step_size, box=4.0, **kept)
    problem = icgd.Problem(icgd.LinearModel(2), "matching", step, icgd.Domain(x=1.0, y=1.0))
    run = icgd.compile(problem, "linear-stack", n_steps=1500)
    found = run.certificate().domain_trajectory
    monkeypatch.setattr("icgd.certificates.linear.STEPS_ONE_BY_ONE", 1500)
    followed = run.certificate().domain_trajectory
    assert followed <= found <= followed * (1 + 1e-10)


@pytest.mark.parametrize("kept", [{}, {"momentum": 0.5}])
def test_a_billion_steps_are_certified_at_once(kept):
    step = icgd.ProximalStep(0.5, box=4.0, **kept)
    problem = icgd.Problem(icgd.LinearModel(2), "matching", step, icgd.Domain(x=1.0, y=1.0))
    assert icgd.compile(problem, n_steps=10**9).certificate().domain_trajectory <= 8.001


def test_more_different_momenta_than_can_be_written_down_are_refused():
    step = icgd.ProximalStep(0.5, box=4.0, momentum=icgd.fista_momenta(10**6), nesterov=True)
    problem = icgd.Problem(icgd.LinearModel(2), "matching", step, icgd.Domain(x=1.0, y=1.0))
    with pytest.raises(SettingError, match="n_steps must be at most 30,000 here, got 1,000,000"):
        icgd.compile(problem, "linear-stack", n_steps=10**6)


def linear(x=1.0, y=1.0, box=0.5, step_size=0.1, width=2):
    step = icgd.ProximalStep(step_size, l2=0.1, box=box)
    model, domain = icgd.LinearModel(width, "identity"), icgd.Domain(x=x, y=y)
    return icgd.compile(icgd.Problem(model, "matching", step, domain), "linear-stack", n_steps=2)


@pytest.mark.parametrize("sizes", [(0.3, 0.7, 1.3), (1.0, 1e-46, 1e-46), (1e39, 1.0, 0.5)])
def test_the_domain_is_not_rounded_to_the_default_precision(sizes):
    x, y, box = sizes
    found = []
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        usual = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            found.append(linear(x, y, box).certificate())
        finally:
            torch.set_default_dtype(usual)
    assert found[0] == found[1] == found[2]
    assert 0 < found[0].domain_step < inf


def test_a_step_whose_bound_is_no_number_has_an_infinite_one():
    report = icgd.verify(linear(x=2.0, step_size=1e308), [[1.0, 0.5], [0.25, 2.0]], [1.0, 0.5])
    assert report.certificate.domain_trajectory == inf
    assert report.verdict.holds


def test_tokens_that_do_not_fit_into_memory_are_refused():
    with pytest.raises(SizeError, match=r"^Bounding steps on 1,000,000,000,000 tokens takes about"):
        linear().certificate(n_tokens=10**12)
    machine, step = icgd.KernelMachine(10**12, "rbf"), icgd.FunctionalStep(0.1)
    problem = icgd.Problem(machine, "squared", step, icgd.Domain(x=1.0, y=1.0))
    with pytest.raises(SizeError, match=r"^Bounding 1,000,000,000,000 inputs takes about"):
        icgd.compile(problem, n_steps=1).certificate()


@pytest.mark.filterwarnings("ignore:Coefficient:UserWarning")
@pytest.mark.parametrize("width", [1, 2, 3])
def test_of_inputs_whose_squares_overflow_only_balls_know_something(width):
    x = torch.tensor([[1e300] * width, [0.5] * width], dtype=torch.float64)
    by_contraction, report = (
        icgd.verify(linear(x=1e300, width=width), x, [1.0, 0.5], backend="fused", rigorous=rigorous)
        for rigorous in (False, True)
    )
    assert by_contraction.verdict is icgd.Verdict.HOLDS_EMPTY
    assert float(by_contraction.trajectory_bounds[-1]) == inf
    assert float(report.trajectory_bounds[-1]) == 0.0, "both end at the box"


# Momentum on linear models: where gradients are taken, and how far errors spread.


UPDATE = icgd.ProximalStep(0.1, box=1.0, momentum=(0.0, 0.5, 0.25), nesterov=True)
RUN = torch.tensor([[0.0], [1.0], [4.0], [5.0]], dtype=torch.float64)


def test_gradients_are_taken_ahead_of_the_weights():
    assert changes(RUN).flatten().tolist() == [0, 1, 3, 1]
    assert points_of(UPDATE, RUN).flatten().tolist() == [0, 1 + 0.5, 4 + 0.25 * 3]
    assert points_of(icgd.ProximalStep(0.1, momentum=0.5), RUN).flatten().tolist() == [0, 1, 4]
    assert points_of(icgd.ProximalStep(0.1), RUN).flatten().tolist() == [0, 1, 4]


def test_what_is_kept_has_a_row_for_each_step():
    kept = Velocities.of(UPDATE, -RUN[:-1])
    assert kept.momentum.flatten().tolist() == kept.ahead.flatten().tolist() == [0, 0.5, 0.25]
    assert kept.change.flatten().tolist() == [0, 1, 3]
    assert not kept.mismatch.any()


def test_distances_grow_by_what_is_taken_along():
    now = Pair(torch.tensor(2.0).double(), torch.tensor(4.0).double())
    assert float(lookahead_distance(now, 0.0)) == 2.0
    assert float(lookahead_distance(now, 0.5)) == 4.0
    for momentum, ahead, left in ((0.0, 0.0, 1.0), (0.5, 0.0, 3.0), (0.5, 0.5, 2.0)):
        moved = grow_distances(now, 0.5, momentum, ahead)
        assert float(moved.value) == pytest.approx(left)
        assert float(moved.change) == pytest.approx(left + 2.0)
    nothing = Pair(*(torch.zeros(()).double(),) * 2)
    assert float(grow_distances(nothing, float("inf"), 0.5, 0.5).value) == 0.0


def test_only_least_squares_without_l1_that_the_box_does_not_touch_are_affine():
    errors, run = torch.full((3, 1), 1e-12).double(), RUN / 10
    least_squares = problem_of("identity", l1=0.0, momentum=0.5)
    assert is_affine(least_squares, (run, run), errors)
    assert not is_affine(least_squares, (run, 2 * run), errors)
    assert not is_affine(problem_of("identity", momentum=0.5), (run, run), errors)
    assert not is_affine(FISTA["logistic"], (run, run), errors)


@pytest.mark.parametrize("nesterov", [False, True])
def test_affine_distances_bound_runs_that_err_and_are_close_to_the_worst(nesterov):
    """Each step of a run of ridge regression is pushed by 1e-3 in a direction of its own."""
    problem = problem_of("identity", l1=0.0, box=9.0, momentum=0.8, nesterov=nesterov)
    x, y, _ = data()
    task, n_steps = icgd.as_task(problem, x, y), 40
    real = problem.oracle.train(task, n_steps)
    added = torch.full((n_steps,), 1e-3, dtype=torch.float64)
    bounds = torch.stack(list(affine_distances(problem, task, added)))
    draw, worst = torch.Generator().manual_seed(0), torch.zeros(n_steps).double()
    for _ in range(30):
        push = torch.randn(4, generator=draw).double()
        push = 1e-3 * push / push.norm()
        run = [task.initial, task.initial]
        for _ in range(n_steps):
            ahead = run[-1] + 0.8 * (run[-1] - run[-2])
            slope = problem.linear_oracle.gradient(task, ahead if nesterov else run[-1])
            run.append(ahead - 0.3 * slope + push)
        off = (torch.stack(run[1:]) - real).norm(dim=-1)[1:]
        assert (off <= bounds).all()
        worst = torch.maximum(worst, off)
    assert (worst >= bounds / 20).all()
    assert bounds[-1] <= 0.2


# Errors of descent with momentum: their norms, and steps whose products stay small.


EIGENVALUES = torch.tensor([0.1, 1.0, 4.0], dtype=torch.float64)


def propagated(size, momentum, ahead, left, change):
    """One exact step on errors along the three eigenvectors."""
    read = left + ahead * change
    change = momentum * change - size * EIGENVALUES * read
    return left + change, change


@pytest.mark.parametrize("ahead", [0.0, 0.5])
def test_norms_bound_every_error_and_are_met_by_some(ahead):
    """Errors of norm 1 are added at every step, along one eigenvector or another."""
    size, momentum, n_steps = 0.4, 0.5, 30
    responses, norms = Responses(EIGENVALUES), Pair(*(torch.zeros(1, 1).double(),) * 2)
    for _ in range(n_steps):
        one = torch.ones(1, 1).double()
        norms = responses.after(size, momentum, ahead, one, norms)
    draw, found = np.random.default_rng(0), []
    for _ in range(200):
        left = change = torch.zeros(3).double()
        for _ in range(n_steps):
            left, change = propagated(size, momentum, ahead, left, change)
            added = torch.from_numpy(draw.normal(size=(2, 3)))
            added = added / added.norm(dim=-1, keepdim=True)
            left, change = left + added[0], change + added[1]
        assert left.norm() <= norms.value
        assert change.norm() <= norms.change
        found.append(float(left.norm()))
    assert max(found) >= float(norms.value) / 10


def test_one_error_is_followed_to_rounding():
    """It is added in the first step along the smallest eigenvalue, which shrinks most slowly."""
    nothing, one = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
    responses, norms = Responses(EIGENVALUES[:1]), Pair(nothing, nothing)
    norms = responses.after(0.4, 0.5, 0.0, one, norms)
    assert float(norms.value) == pytest.approx(2.0 - 1.0)  # what it adds itself is not moved on
    left, change = torch.ones(1).double(), torch.ones(1).double()
    for _ in range(20):
        read = left
        change = 0.5 * change - 0.4 * 0.1 * read
        left = left + change
        norms = responses.after(0.4, 0.5, 0.0, nothing, norms)
        assert float(norms.value) >= float(left.abs()) - 1e-12
    assert float(norms.value) <= 3 * float(left.abs())


def test_batches_have_norms_of_their_own():
    values = torch.stack([EIGENVALUES, EIGENVALUES / 2])
    together, norms = Responses(values), Pair(*(torch.zeros(2, 1, 1).double(),) * 2)
    alone = [Responses(part) for part in values]
    parts = [Pair(*(torch.zeros(1, 1).double(),) * 2)] * 2
    for step in range(5):
        added = torch.tensor([[[1.0 + step]], [[2.0]]]).double()
        norms = together.after(0.4, 0.5, 0.5, added, norms)
        parts = [
            each.after(0.4, 0.5, 0.5, added[task], parts[task]) for task, each in enumerate(alone)
        ]
    for task, part in enumerate(parts):
        torch.testing.assert_close(norms.value[task], part.value)
        torch.testing.assert_close(norms.change[task], part.change)


def test_where_kernels_differ_norms_are_multiplied():
    now = Pair(torch.tensor(2.0), torch.tensor(3.0))
    numbers = (torch.tensor(number) for number in (0.5, 0.25, 0.75, 1.0))
    after = multiply_norms(*numbers, now)
    assert float(after.value) == pytest.approx(0.5 * 2 + 0.75 * 3 + 1)
    assert float(after.change) == pytest.approx(0.25 * 2 + 0.75 * 3 + 1)


@pytest.mark.parametrize(("nesterov", "limit"), [(False, 3.0), (True, 1.5)])
def test_steps_are_stable_up_to_the_eigenvalue_at_which_they_diverge(nesterov, limit):
    update = icgd.FunctionalStep(1.0, momentum=0.5, nesterov=nesterov)
    assert is_stable(update, 0.999 * limit)
    assert not is_stable(update, 1.001 * limit)
    values = torch.linspace(0.0, limit, 101, dtype=torch.float64)
    kept = 0.5 * (1 - values) if nesterov else 0.5 * torch.ones_like(values)
    matrices = torch.stack([1 - values, kept, -values, kept], dim=-1).unflatten(-1, (2, 2))
    assert torch.linalg.eigvals(matrices).abs().max() <= 1 + 1e-12


def test_steps_that_differ_or_move_inputs_are_not_called_stable():
    assert not is_stable(icgd.FunctionalStep(0.1, momentum=(0.0, 0.5)), 1.0)
    assert not is_stable(icgd.FunctionalStep(0.1, transforms=0.1, momentum=0.5), 1.0)


def test_no_motion_is_zero():
    motion = Motion.none(torch.ones(2, 1))
    assert not any(part.any() for part in motion)
