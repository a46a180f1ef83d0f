"""The search for a setting that proves a tolerance."""

import re

import pytest
import torch

import icgd
from icgd.choice import Tolerance
from icgd.constructions.relu_stack import ReluStack
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.errors import (
    ConstructionError,
    DataError,
    SettingError,
    ToleranceError,
)


def problem_with(activation: str = "tanh", loss: str = "squared", box: float = 1.0) -> icgd.Problem:
    return icgd.Problem(
        target=icgd.MLP((2, 3, 1), activation),
        loss=loss,
        update=icgd.GradientStep(step_size=0.1, box=box),
        domain=icgd.Domain(x=1.0, y=1.0),
    )


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(6, 2, generator=generator, dtype=torch.float64)
    return x, x.mean(1, keepdim=True)


def pieces_of(compiled: icgd.Compiled) -> int:
    return compiled.program.relu_sum(compiled.problem.target.activation).n_pieces


def by_softmax(problem: icgd.Problem | None = None, n_steps: int = 2, **settings) -> icgd.Compiled:
    problem = problem or problem_with()
    return icgd.compile(problem, n_steps=n_steps, construction="softmax-stack", **settings)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_a_tolerance_is_proved_on_the_domain_with_about_the_fewest_pieces(tolerance):
    compiled = icgd.compile(problem_with(), "relu-stack", n_steps=2, tolerance=tolerance)
    assert compiled.certificate().domain_step <= tolerance
    fewer = icgd.compile(
        problem_with(), "relu-stack", n_steps=2, pieces=int(0.8 * pieces_of(compiled))
    )
    assert fewer.certificate().domain_step > tolerance


def test_a_tolerance_for_one_task_needs_fewer_pieces_and_is_proved_for_its_run():
    x, y = data()
    task = icgd.as_task(problem_with(), x, y, seed=1)
    for_run = icgd.compile(problem_with(), "relu-stack", n_steps=2, tolerance=1e-5, task=task)
    for_domain = icgd.compile(problem_with(), "relu-stack", n_steps=2, tolerance=1e-5)
    assert pieces_of(for_run) < pieces_of(for_domain)
    report = icgd.verify(for_run, x, y, seed=1)
    assert float(report.step_errors.max()) <= float(report.step_bounds.max()) <= 1e-5


def test_a_relu_network_reaches_a_tolerance_for_one_run_only():
    x, y = data()
    problem = problem_with("relu")
    with pytest.raises(ToleranceError, match=r"tolerance=1e-06 cannot be proved: .* with 4 pieces"):
        icgd.compile(problem, "relu-stack", n_steps=2, tolerance=1e-6)
    with pytest.raises(ToleranceError, match="Prove it for one run with task="):
        icgd.compile(problem, "relu-stack", n_steps=2, tolerance=1e-6)
    task = icgd.as_task(problem, x, y, seed=1)
    compiled = icgd.compile(problem, "relu-stack", n_steps=2, tolerance=1e-6, task=task)
    assert float(icgd.verify(compiled, x, y, seed=1).step_bounds.max()) <= 1e-6


def near_a_kink(problem: icgd.Problem) -> icgd.Task:
    """One example whose preactivations are 1.8e-5."""
    x, y = torch.full((1, 2), 1e-5).double(), torch.ones(1, 1).double()
    return icgd.as_task(problem, x, y, initial=torch.full((9,), 0.9).double())


def test_a_ramp_that_a_run_comes_to_lie_on_is_named_with_its_width():
    problem = problem_with("relu")
    task = near_a_kink(problem)
    with pytest.raises(ToleranceError) as refused:
        icgd.compile(
            problem, "relu-stack", n_steps=1, kink_width=2.0**-13, tolerance=1e-9, task=task
        )
    assert str(refused.value).endswith(
        "The run comes too close to a kink of the activation: 3 preactivations lie on the ramp "
        "that stands in for the jump of its slope; see report.near_kinks. Leave "
        "kink_width=0.00012207 out, or make it smaller."
    )


@pytest.mark.parametrize("name", ["relu-stack", "softmax-stack", "recursion"])
def test_ramps_that_are_left_to_a_construction_do_not_stand_in_the_way(name):
    """recursion has wide ones, and narrower ones for a tolerance."""
    problem = problem_with("relu")
    task = near_a_kink(problem)
    compiled = icgd.compile(problem, name, n_steps=1, tolerance=1e-9, task=task)
    report = icgd.verify(compiled, task.x, task.y, initial=task.initial)
    assert float(report.step_errors.max()) <= float(report.step_bounds.max()) <= 1e-9
    (start, end), *_ = compiled.program.ramps("relu'")
    assert end < 1e-8
    if name == "recursion":
        assert (start, end) == (-(2.0**-30), 2.0**-30)
        (_, default), *_ = icgd.compile(problem, name, n_steps=1).program.ramps("relu'")
        assert default == 2.0**-13


def test_where_no_number_lies_on_a_ramp_rounding_is_to_blame():
    problem = problem_with("relu")
    task = near_a_kink(problem)
    with pytest.raises(ToleranceError, match="Rounding or the size of the domain stands in"):
        icgd.compile(problem, "relu-stack", n_steps=1, tolerance=1e-18, task=task)


def test_a_tolerance_below_rounding_is_refused(monkeypatch):
    monkeypatch.setattr(ReluStack, "finest", 256)
    with pytest.raises(ToleranceError, match=r"with 256 pieces\. Rounding or the size of the dom"):
        icgd.compile(problem_with(), "relu-stack", n_steps=1, tolerance=1e-14)


@pytest.mark.parametrize("tolerance", [1e-5, 1e-7, 1e-9])
def test_a_tolerance_is_proved_on_the_domain_with_about_the_fewest_registers(tolerance):
    compiled = by_softmax(tolerance=tolerance)
    assert compiled.certificate().domain_step <= tolerance
    fewer = by_softmax(registers=compiled.program.n_registers - 6)
    assert fewer.certificate().domain_step > tolerance


def test_a_tolerance_for_one_task_needs_fewer_registers_and_is_proved_for_its_run():
    x, y = data()
    task = icgd.as_task(problem_with(), x, y, seed=1)
    for_run, for_domain = by_softmax(tolerance=1e-7, task=task), by_softmax(tolerance=1e-7)
    assert for_run.program.n_registers < for_domain.program.n_registers
    report = icgd.verify(for_run, x, y, seed=1)
    assert float(report.step_errors.max()) <= float(report.step_bounds.max()) <= 1e-7


def test_a_tolerance_below_rounding_is_refused_with_the_best_number_of_registers():
    """More registers round more: the search stops where it gets no better."""
    with pytest.raises(ToleranceError) as refused:
        by_softmax(tolerance=1e-13)
    text = str(refused.value)
    best = int(text.split("with ")[1].split(" registers")[0])
    assert 60 < best < 120
    bound = by_softmax(registers=best).certificate().domain_step
    assert f"the smallest bound is {bound:.3g}, with {best} registers. Rounding" in text


def test_where_the_bound_says_nothing_the_search_ends_with_the_accuracy_of_functions(monkeypatch):
    """Weights are clipped to the box, so that a bound beyond it is the same for all settings."""
    tried = []

    def beyond_the_box(self, compiled: icgd.Compiled) -> float:
        tried.append(compiled.program.n_registers)
        return 2.0

    monkeypatch.setattr(Tolerance, "bound", beyond_the_box)
    with pytest.raises(ToleranceError, match=r"the smallest bound is 2, with \d\d registers"):
        by_softmax(tolerance=1e-3)
    assert max(tried) < 256


def test_the_search_goes_past_settings_that_are_too_coarse_for_the_ranges(monkeypatch):
    build = SoftmaxStack.build

    def picky(self, problem, n_steps):
        if self.registers < 50:
            raise ConstructionError(f"registers={self.registers} is too few here")
        return build(self, problem, n_steps)

    monkeypatch.setattr(SoftmaxStack, "build", picky)
    assert by_softmax(tolerance=1e-3).program.n_registers == 64
    monkeypatch.setattr(SoftmaxStack, "finest", 40)
    with pytest.raises(SettingError, match=r"^registers=40 is too few here$"):
        by_softmax(tolerance=1e-3)


def test_a_tolerance_that_a_kink_forbids_says_so_for_chains_too():
    update = icgd.GradientStep(0.1, 1.0, batch_size=2)
    problem = icgd.Problem(icgd.MLP((2, 3, 1), "relu"), "squared", update, icgd.Domain(1.0, 1.0))
    with pytest.raises(ToleranceError, match=r"fall on a kink of the activation"):
        icgd.compile(problem, n_steps=1, construction="cot-network", tolerance=1e-6)


def task_with_queries(problem: icgd.Problem) -> icgd.Task:
    x, y = data()
    return icgd.as_task(problem, x, y, queries=x[:3] / 2, seed=1)


def proved_and_measured(compiled: icgd.Compiled, task: icgd.Task, of: str) -> tuple[float, float]:
    """The bound of a whole run, and the error, both largest."""
    report = icgd.verify(compiled, task.x, task.y, queries=task.queries, initial=task.initial)
    assert report.verdict.holds
    if of == "weights":
        return float(report.trajectory_bounds[-1]), float(report.trajectory_errors[-1])
    return float(report.prediction_bounds.max()), float(report.prediction_errors.max())


@pytest.mark.parametrize("of", ["weights", "predictions"])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
def test_a_tolerance_of_a_whole_run_is_proved_for_it_with_few_pieces(of, tolerance):
    problem = problem_with()
    task = task_with_queries(problem)
    settings = {"tolerance": tolerance, "task": task}
    compiled = icgd.compile(problem, "relu-stack", n_steps=20, tolerance_of=of, **settings)
    bound, error = proved_and_measured(compiled, task, of)
    assert error <= bound <= tolerance
    for_step = icgd.compile(problem, "relu-stack", n_steps=20, **settings)
    assert pieces_of(for_step) < pieces_of(compiled)
    fewer = icgd.compile(problem, "relu-stack", n_steps=20, pieces=pieces_of(compiled) // 4)
    assert proved_and_measured(fewer, task, of)[0] > tolerance


@pytest.mark.parametrize("of", ["weights", "predictions"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_softmax_stack_proves_a_tolerance_of_a_whole_run(of, activation):
    problem = problem_with(activation)
    task = task_with_queries(problem)
    compiled = by_softmax(problem, 20, tolerance=1e-7, tolerance_of=of, task=task)
    bound, error = proved_and_measured(compiled, task, of)
    assert error <= bound <= 1e-7


def test_the_best_construction_is_chosen_for_a_whole_run_too():
    problem = problem_with("relu")
    task = task_with_queries(problem)
    compiled = icgd.compile(
        problem, n_steps=5, tolerance=1e-9, tolerance_of="predictions", task=task
    )
    assert compiled.chosen_because == (
        "no other construction proves tolerance=1e-09 of the predictions with fewer weights"
    )
    bound, error = proved_and_measured(compiled, task, "predictions")
    assert error <= bound <= 1e-9


@pytest.mark.parametrize("of", ["weights", "predictions"])
def test_without_a_task_a_short_run_is_proved_for_the_whole_domain(of):
    compiled = icgd.compile(
        problem_with(), "relu-stack", n_steps=3, tolerance=1e-2, tolerance_of=of
    )
    certificate = compiled.certificate()
    bounds = {
        "weights": certificate.domain_trajectory,
        "predictions": certificate.domain_predictions,
    }
    assert bounds[of] <= 1e-2
    task = task_with_queries(compiled.problem)
    assert proved_and_measured(compiled, task, of)[1] <= bounds[of]


def test_without_a_task_a_long_run_says_that_the_bound_proves_nothing(monkeypatch):
    monkeypatch.setattr(ReluStack, "finest", 64)
    with pytest.raises(ToleranceError) as refused:
        icgd.compile(
            problem_with(), "relu-stack", n_steps=500, tolerance=1e-3, tolerance_of="weights"
        )
    assert str(refused.value) == (
        "tolerance=0.001 of the final weights cannot be proved: the smallest bound is 2, with 64 "
        "pieces. The bound of the weights grows from step to step, and after 500 steps it proves "
        "nothing but that they stay in the box. Prove it for one run with task=...; or "
        "icgd.verify(..., rigorous=True) proves how far the weights of one run are off."
    )


def test_a_run_that_is_too_long_for_its_bound_says_after_which_step(monkeypatch):
    monkeypatch.setattr(ReluStack, "finest", 8)
    target, update = icgd.MLP((2, 4, 4, 1), "tanh"), icgd.GradientStep(0.5, box=4.0)
    problem = icgd.Problem(target, "squared", update, icgd.Domain(1.0, 1.0))
    task = task_with_queries(problem)
    goal = {"tolerance": 1e-6, "tolerance_of": "predictions", "task": task}
    with pytest.raises(ToleranceError) as refused:
        icgd.compile(problem, "relu-stack", n_steps=40, **goal)
    text = str(refused.value)
    assert text.startswith("tolerance=1e-06 of the predictions cannot be proved: the smallest bou")
    where = int(text.split("and after ")[1].split(" of 40 steps it proves nothing")[0])
    compiled = icgd.compile(problem, "relu-stack", n_steps=40, pieces=8)
    report = icgd.verify(compiled, task.x, task.y, initial=task.initial)
    assert 1 < where < 10
    assert (report.trajectory_bounds[: where - 1] < 4).all()
    assert report.trajectory_bounds[where - 1] >= 4


def test_a_bound_that_grows_but_proves_something_says_by_how_much(monkeypatch):
    monkeypatch.setattr(ReluStack, "finest", 64)
    problem = problem_with()
    task = task_with_queries(problem)
    with pytest.raises(
        ToleranceError, match=r"A step errs by at most .* to .* after 40\. Take few"
    ):
        icgd.compile(
            problem, "relu-stack", n_steps=40, tolerance=1e-9, tolerance_of="weights", task=task
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"tolerance": 1e-3, "tolerance_of": "predicitons"},
            "Unknown tolerance_of 'predicitons'; known are step, weights, predictions. Did you "
            "mean 'predictions'?",
        ),
        (
            {"tolerance_of": "weights"},
            "tolerance_of has no effect without tolerance; give both or neither.",
        ),
    ],
)
def test_what_a_tolerance_is_of_is_checked(settings, message):
    with pytest.raises(ValueError, match=r"^" + re.escape(message) + "$"):
        icgd.compile(problem_with(), n_steps=1, **settings)


def test_a_tolerance_of_predictions_needs_queries():
    x, y = data()
    task = icgd.as_task(problem_with(), x, y, seed=1)
    with pytest.raises(DataError, match="and the task has none"):
        icgd.compile(
            problem_with(), n_steps=1, tolerance=1e-3, tolerance_of="predictions", task=task
        )


def test_a_tolerance_for_an_optimiser_that_remembers_is_proved_for_one_run_only():
    update, domain = icgd.AdamStep(0.1, 2.0), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(icgd.MLP((2, 3, 1), "tanh"), "squared", update, domain)
    with pytest.raises(ToleranceError) as refused:
        icgd.compile(problem, "relu-stack", n_steps=2, tolerance=1e-2)
    assert str(refused.value) == (
        "tolerance=0.01 cannot be proved: the smallest bound is inf, with any setting. On the "
        "whole domain nothing is known of the first moment and second moment that a step starts "
        "with. Prove it for one run with task=..."
    )
    task = icgd.as_task(problem, torch.tensor([[0.5, -0.25], [1.0, 0.5]]), torch.tensor([1.0, 0.0]))
    compiled = icgd.compile(problem, "relu-stack", n_steps=2, tolerance=1e-2, task=task)
    report = icgd.verify(compiled, task.x, task.y, initial=task.initial)
    assert float(report.step_bounds.max()) <= 1e-2


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_a_tolerance_for_momentum_is_proved_on_the_whole_domain(construction):
    update, domain = icgd.MomentumStep(0.1, 0.5, nesterov=True), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(icgd.MLP((2, 3, 1), "tanh"), "squared", update, domain)
    compiled = icgd.compile(problem, construction, n_steps=3, tolerance=1e-4)
    assert compiled.certificate(backend="fused").domain_step <= 1e-4
    task = icgd.as_task(problem, torch.tensor([[0.5, -0.25], [1.0, 0.5]]), torch.tensor([1.0, 0.0]))
    report = icgd.verify(compiled, task.x, task.y, initial=task.initial)
    assert report.verdict is icgd.Verdict.HOLDS
    assert float(report.step_errors.max()) <= 1e-4
