import pytest
import torch

import icgd
from icgd import pipeline
from icgd.errors import (
    SettingError,
    ToleranceError,
    UnknownNameError,
    UnsupportedProblemError,
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


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_a_tolerance_is_proved_on_the_domain_with_about_the_fewest_pieces(tolerance):
    compiled = icgd.compile(problem_with(), n_steps=2, tolerance=tolerance)
    assert compiled.certificate().domain_step <= tolerance
    fewer = icgd.compile(problem_with(), n_steps=2, pieces=int(0.8 * pieces_of(compiled)))
    assert fewer.certificate().domain_step > tolerance


def test_a_tolerance_for_one_task_needs_fewer_pieces_and_is_proved_for_its_run():
    x, y = data()
    task = icgd.as_task(problem_with(), x, y, seed=1)
    for_run = icgd.compile(problem_with(), n_steps=2, tolerance=1e-5, task=task)
    for_domain = icgd.compile(problem_with(), n_steps=2, tolerance=1e-5)
    assert pieces_of(for_run) < pieces_of(for_domain)
    report = icgd.verify(for_run, x, y, seed=1)
    assert float(report.step_errors.max()) <= float(report.step_bounds.max()) <= 1e-5


def test_a_relu_network_reaches_a_tolerance_for_one_run_only():
    x, y = data()
    problem = problem_with("relu")
    with pytest.raises(ToleranceError, match=r"tolerance=1e-06 cannot be proved: .* with 4 pieces"):
        icgd.compile(problem, n_steps=2, tolerance=1e-6)
    with pytest.raises(ToleranceError, match="Prove it for one run with task="):
        icgd.compile(problem, n_steps=2, tolerance=1e-6)
    task = icgd.as_task(problem, x, y, seed=1)
    compiled = icgd.compile(problem, n_steps=2, tolerance=1e-6, task=task)
    assert float(icgd.verify(compiled, x, y, seed=1).step_bounds.max()) <= 1e-6


def test_a_run_through_a_kink_says_so():
    problem = problem_with("relu")
    x = torch.full((1, 2), 1e-5).double()
    initial = torch.full((9,), 0.9).double()
    task = icgd.as_task(problem, x, torch.ones(1, 1).double(), initial=initial)
    with pytest.raises(ToleranceError, match="comes too close to a kink"):
        icgd.compile(problem, n_steps=1, tolerance=1e-9, task=task)


def test_a_tolerance_below_rounding_is_refused(monkeypatch):
    monkeypatch.setattr(pipeline, "MOST_PIECES", 256)
    with pytest.raises(ToleranceError, match=r"with 256 pieces\. Rounding or the size of the dom"):
        icgd.compile(problem_with(), n_steps=1, tolerance=1e-14)


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(SettingError, match="Give either pieces or tolerance, not both"):
        icgd.compile(problem_with(), n_steps=1, pieces=4, tolerance=1e-3)
    x, y = data()
    task = icgd.as_task(problem_with(), x, y)
    with pytest.raises(SettingError, match="task has no effect without tolerance"):
        icgd.compile(problem_with(), n_steps=1, task=task)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": -1}, "n_steps must be a whole number of at least 0, got -1."),
        ({"pieces": 0}, "pieces must be a whole number of at least 1, got 0."),
        ({"tolerance": 0.0}, "tolerance must be a positive finite number, got 0.0."),
        ({"tolerance": float("nan")}, "tolerance must be a positive finite number, got nan."),
        ({"kink_width": 0.3}, "kink_width must be a power of two"),
    ],
)
def test_impossible_settings_are_named_with_their_value(settings, message):
    with pytest.raises(SettingError) as error:
        icgd.compile(problem_with("relu"), **{"n_steps": 1, **settings})
    assert str(error.value).startswith(message)


def test_an_unknown_construction_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'relu-stack'"):
        icgd.compile(problem_with(), n_steps=1, construction="relu_stack")


def test_a_construction_that_cannot_serve_says_why():
    with pytest.raises(
        UnsupportedProblemError, match="relu-stack cannot compile this problem: the"
    ):
        icgd.compile(problem_with(loss="cross_entropy"), n_steps=1)


def test_no_steps_leave_the_weights_alone():
    x, y = data()
    compiled = icgd.compile(problem_with(), n_steps=0)
    run = compiled.run(x, y, queries=x[:2], seed=3)
    assert torch.equal(run.parameters[0], problem_with().target.initial_parameters(3, 1.0))
    assert run.predictions.shape == (2, 1)
    assert icgd.verify(compiled, x, y).verdict is icgd.Verdict.HOLDS


def test_a_broken_transformer_is_found_out(monkeypatch):
    """A wrong sign in one kernel: the verdict must not hold."""
    x, y = data()
    compiled = icgd.compile(problem_with(), n_steps=2)
    right = compiled.run(x, y, seed=0)
    wrong = icgd.Run(2 * right.parameters[0] - right.parameters, right.predictions)
    monkeypatch.setattr(icgd.Compiled, "run_task", lambda *_a, **_k: wrong)
    assert icgd.verify(compiled, x, y, seed=0).verdict is icgd.Verdict.BROKEN


def test_progress_is_passed_on():
    x, y = data()
    seen = []
    compiled = icgd.compile(problem_with(), n_steps=3)
    icgd.verify(compiled, x, y, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
