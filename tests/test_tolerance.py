"""The search for a setting that proves a tolerance."""

import pytest
import torch

import icgd
from icgd.constructions.relu_stack import ReluStack
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.errors import (
    SettingError,
    ToleranceError,
)
from icgd.tolerance import Tolerance


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


def test_a_run_through_a_kink_says_so():
    problem = problem_with("relu")
    x = torch.full((1, 2), 1e-5).double()
    initial = torch.full((9,), 0.9).double()
    task = icgd.as_task(problem, x, torch.ones(1, 1).double(), initial=initial)
    with pytest.raises(ToleranceError, match="comes too close to a kink"):
        icgd.compile(problem, "relu-stack", n_steps=1, tolerance=1e-9, task=task)


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
            raise SettingError.too_few_registers(self.registers)
        return build(self, problem, n_steps)

    monkeypatch.setattr(SoftmaxStack, "build", picky)
    assert by_softmax(tolerance=1e-3).program.n_registers == 64
    monkeypatch.setattr(SoftmaxStack, "finest", 40)
    with pytest.raises(SettingError, match=r"^registers=40 is too few for these ranges: the error"):
        by_softmax(tolerance=1e-3)


def test_a_tolerance_that_a_kink_forbids_says_so_for_chains_too():
    update = icgd.GradientStep(0.1, 1.0, batch_size=2)
    problem = icgd.Problem(icgd.MLP((2, 3, 1), "relu"), "squared", update, icgd.Domain(1.0, 1.0))
    with pytest.raises(ToleranceError, match=r"fall on a kink of the activation"):
        icgd.compile(problem, n_steps=1, construction="cot-network", tolerance=1e-6)


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
