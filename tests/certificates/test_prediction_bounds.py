"""No prediction is further from that of real training than is proved."""

from dataclasses import replace
from random import Random

import pytest
import torch

import icgd
from icgd import reprs
from icgd.backends.registry import BACKENDS
from icgd.certificates.balls import rounded_up
from icgd.certificates.report import Verdict, at_end, prediction_errors
from icgd.problems.linear_model import LINKS
from icgd.problems.mlp import MLP
from tests import linear_cases
from tests.backends import chain_cases
from tests.cases import FEW, KERNEL_CASES, Case, every_construction_on

DRAW = torch.Generator().manual_seed(2)
N_SAMPLES = 4
OTHER_CHAINS = [("relu", "dense"), ("tanh", "fused"), ("tanh", "dense")]


def verified(
    compiled: icgd.Compiled, task: icgd.Task, backend: str, rigorous: bool | None = None
) -> icgd.Report:
    given = {"queries": task.queries, "initial": task.initial}
    return icgd.verify(compiled, task.x, task.y, **given, backend=backend, rigorous=rigorous)


def moved(weights: torch.Tensor, error: torch.Tensor, number: int) -> torch.Tensor:
    """Weights within `error` of the given ones: corners, and points in between."""
    push = 2 * torch.rand(weights.shape, generator=DRAW, dtype=torch.float64) - 1
    return weights + error * (push.sign() if number % 2 else push)


def check_samples(compiled: icgd.Compiled, task: icgd.Task, backend: str, size: float) -> None:
    """Transformers that start from weights near those of training, and take no step."""
    oracle, box = compiled.problem.oracle, compiled.problem.box
    start = task.initial.double().clamp(size - box, box - size)
    real = start.unsqueeze(-2)
    rules = compiled.bounds_for(task, backend)
    sizes = size * torch.rand(start.shape, generator=DRAW, dtype=torch.float64)
    for error in (torch.full_like(start[..., :1], size), sizes):
        bound = rules.predictions(task, real, error)
        assert bound.shape == (*task.batch, task.n_queries, task.y.shape[-1])
        truth = oracle.predict(task, start)
        for number in range(N_SAMPLES):
            other = replace(task, initial=moved(start, error, number))
            found = compiled.run_task(other, backend=backend).predictions
            assert bool(((found - truth).abs() <= bound).all())


def check_closeness(report: icgd.Report) -> None:
    """What balls prove is as tight as the measurement: they add what float64 is off, twice."""
    errors, bounds = report.prediction_errors, report.prediction_bounds
    assert report.verdict.holds
    assert errors.shape == bounds.shape
    assert bool((errors <= bounds).all())
    assert bool((bounds <= 1.1 * (errors + 2 * report.rigorous.predictions_of_oracle)).all())


def compiled_case(construction, case: Case, n_steps: int) -> icgd.Compiled:
    settings = {"pieces": 64} if "pieces" in construction.settings() else {}
    return icgd.compile(case.problem, replace(construction, **settings), n_steps=n_steps)


@pytest.mark.parametrize("backend", BACKENDS)
@every_construction_on(FEW, fast=FEW[:2])
def test_runs_of_every_construction_predict_as_closely_as_proved(construction, case, backend):
    compiled = compiled_case(construction, case, n_steps=2)
    check_closeness(verified(compiled, case.task(), backend))


@pytest.mark.parametrize(
    ("activation", "backend"),
    [("relu", "fused"), *(pytest.param(*p, marks=pytest.mark.slow) for p in OTHER_CHAINS)],
)
def test_chains_predict_as_closely_as_proved(activation, backend):
    problem = chain_cases.problem_of(MLP((2, 3, 1), activation))
    compiled = icgd.compile(problem, "cot-network", n_steps=3)
    report = verified(compiled, chain_cases.task_of(problem), backend)
    check_closeness(report)
    assert 0 < float(report.prediction_bounds.max()) < 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("link", LINKS)
def test_linear_models_predict_as_closely_as_proved(link, backend):
    problem = linear_cases.problem_of(link)
    task = linear_cases.task_of(problem)
    for size in (1e-9, 1e-2):
        check_samples(linear_cases.compiled_of(problem, 0), task, backend, size)
    report = verified(linear_cases.compiled_of(problem), task, backend, rigorous=False)
    assert report.verdict.holds
    assert 0 < float(report.prediction_bounds.max()) < 1e-9


def test_the_bound_of_a_linear_model_is_reached_by_a_corner():
    """Of least squares: the prediction moves by exactly sum_j |x_j| error_j."""
    problem = linear_cases.problem_of("identity")
    task, compiled = linear_cases.task_of(problem), linear_cases.compiled_of(problem, 0)
    real, error = torch.zeros(1, 4, dtype=torch.float64), torch.full((1,), 1e-3).double()
    bound = compiled.bounds_for(task, "fused").predictions(task, real, error)
    corner = compiled.run_task(replace(task, initial=torch.full((4,), 1e-3).double()))
    torch.testing.assert_close(corner.predictions, bound, rtol=1e-9, atol=0)  # queries are >= 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", KERNEL_CASES, ids=str)
def test_functions_have_their_predictions_among_their_values(case, backend):
    compiled = icgd.compile(case.problem, n_steps=3)
    report = verified(compiled, case.task(), backend, rigorous=False)
    assert report.verdict.holds
    assert bool((report.prediction_bounds == report.trajectory_bounds[..., -1]).all())


def test_many_tasks_have_bounds_of_their_own():
    case = FEW[0]
    x = torch.stack([case.x, case.x / 2])
    y, queries = torch.stack([case.y] * 2), torch.stack([case.queries, case.queries / 2])
    compiled = icgd.compile(case.problem, "relu-stack", n_steps=2, pieces=64)
    both = icgd.verify(compiled, x, y, queries=queries, seed=1)
    initial = both_initial(compiled, x, y)
    for number in range(2):
        alone = icgd.verify(
            compiled, x[number], y[number], queries=queries[number], initial=initial[number]
        )
        torch.testing.assert_close(both.prediction_bounds[number], alone.prediction_bounds)


def both_initial(compiled: icgd.Compiled, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return compiled.task(x, y, seed=1).initial


def test_a_prediction_beyond_its_bound_breaks_the_verdict():
    case = FEW[0]
    report = verified(icgd.compile(case.problem, n_steps=1), case.task(), "fused")
    assert report.verdict.holds
    wrong = replace(report, prediction_errors=report.prediction_bounds * 1.01 + 1e-300)
    assert wrong.verdict is icgd.Verdict.BROKEN


def test_without_queries_there_is_nothing_to_bound():
    case = FEW[0]
    report = icgd.verify(icgd.compile(case.problem, n_steps=1), case.x, case.y, seed=0)
    assert report.prediction_errors.numel() == report.prediction_bounds.numel() == 0
    assert report.verdict.holds


def test_the_last_bound_is_that_of_every_weight_at_the_end():
    assert at_end(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [[2.0], [4.0]]
    assert at_end(torch.zeros(3, 0)).tolist() == [[0.0]] * 3


def test_measured_distances_are_those_from_the_end_of_the_real_run():
    case = FEW[0]
    task = case.task()
    real = case.problem.oracle.train(task, 2)
    truth = case.problem.oracle.predict(task, real[-1])
    found = prediction_errors(case.problem, task, truth + 0.25, real)
    torch.testing.assert_close(found, torch.full_like(truth, 0.25))


def random_run(draw: Random) -> tuple[icgd.Problem, icgd.Task]:
    """A small network, data over its whole domain, and queries at its corners and inside."""
    widths = tuple(draw.randint(1, 4) for _ in range(draw.randint(2, 4)))
    names = ["relu", "leaky_relu", "tanh", "sigmoid", "gelu"]
    target = MLP(widths, draw.choice(names), draw.choice(["identity", *names]))
    update = icgd.GradientStep(draw.uniform(0.01, 0.5), box=draw.uniform(0.3, 2.0))
    loss, domain = draw.choice(["squared", "huber"]), icgd.Domain(draw.uniform(0.5, 2.0), 1.0)
    x, queries = (
        domain.x * (2 * torch.rand(5, widths[0], generator=DRAW, dtype=torch.float64) - 1)
        for _ in range(2)
    )
    y = 2 * torch.rand(5, widths[-1], generator=DRAW, dtype=torch.float64) - 1
    corners = domain.x * queries[:2].sign()
    problem = icgd.Problem(target, loss, update, domain)
    seed = draw.randint(0, 99)
    return problem, icgd.as_task(problem, x, y, queries=torch.cat([queries, corners]), seed=seed)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "settings"), [("relu-stack", {"pieces": 8}), ("softmax-stack", {"registers": 32})]
)
def test_random_networks_predict_as_closely_as_proved_of_the_run_and_of_the_domain(
    name, settings, backend
):
    """Coarse functions err visibly, and bounds on the domain, too, prove something of some."""
    draw, proved, erred = Random(3), 0, 0
    for _ in range(8):
        problem, task = random_run(draw)
        compiled = icgd.compile(problem, name, n_steps=draw.randint(1, 4), **settings)
        report = verified(compiled, task, backend)
        assert report.verdict.holds
        error, domain = report.prediction_errors, report.certificate.domain_predictions
        assert bool((error <= report.prediction_bounds).all())
        assert float(error.max()) <= domain
        proved += domain < 10
        erred += float(error.max()) > 1e-6
    assert proved >= 2
    assert erred >= 2


def test_a_bound_on_the_domain_that_is_broken_breaks_the_verdict():
    problem, task = random_run(Random(3))
    compiled = icgd.compile(problem, "relu-stack", n_steps=2, pieces=8)
    report = verified(compiled, task, "fused")
    assert report.verdict.holds
    small = float(report.prediction_errors.max()) / 2
    certificate = replace(report.certificate, domain_predictions=small)
    assert replace(report, certificate=certificate).verdict is Verdict.BROKEN


def test_a_report_shows_the_error_of_predictions_and_its_bound_if_there_are_queries():
    problem, task = random_run(Random(3))
    compiled = icgd.compile(problem, "relu-stack", n_steps=2, pieces=8)
    report = verified(compiled, task, "fused")
    error = reprs.number(float(report.prediction_errors.max()))
    bound = reprs.number(rounded_up(float(report.prediction_bounds.max())))
    words = f"{error}, the bound of the run is {bound}"
    assert report.facts()["error of predictions"] == words
    assert words in repr(report)
    assert words in report._repr_html_()
    without = icgd.verify(compiled, task.x, task.y, initial=task.initial)
    assert "error of predictions" not in without.facts()
