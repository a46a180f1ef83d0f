from dataclasses import replace

import pytest
import torch

import icgd
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.errors import (
    SettingError,
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


def by_softmax(problem: icgd.Problem | None = None, n_steps: int = 2, **settings) -> icgd.Compiled:
    problem = problem or problem_with()
    return icgd.compile(problem, n_steps=n_steps, construction="softmax-stack", **settings)


def test_look_ups_made_for_float32_need_fewer_registers():
    for_float64, for_float32 = by_softmax(), by_softmax(dtype="float32")
    assert 30 <= for_float32.program.n_registers < for_float64.program.n_registers <= 80
    errors = [max(f.error for f in c.program.functions) for c in (for_float64, for_float32)]
    assert errors[0] <= 1e-11 < 1e-8 < errors[1] <= 1e-6


def test_registers_are_what_was_asked_for():
    assert by_softmax(registers=66).program.n_registers == 66
    assert by_softmax(registers=SoftmaxStack.coarsest).program.n_registers == 32


def test_a_saved_softmax_stack_is_loaded_as_it_was(tmp_path):
    compiled = by_softmax(registers=40)
    compiled.save(tmp_path / "run.safetensors")
    loaded = icgd.load(tmp_path / "run.safetensors")
    assert loaded == compiled
    x, y = data()
    for backend in ("fused", "dense"):
        ours, theirs = (c.run(x, y, queries=x, backend=backend) for c in (loaded, compiled))
        assert torch.equal(ours.parameters, theirs.parameters)
        assert torch.equal(ours.predictions, theirs.predictions)
    assert loaded.certificate() == compiled.certificate()


def test_settings_of_another_construction_are_refused():
    for given, construction, own, owner in (
        ("pieces", "softmax-stack", "registers, kink_width, dtype", "relu-stack"),
        ("registers", "relu-stack", "pieces, kink_width", "softmax-stack"),
    ):
        with pytest.raises(SettingError) as refused:
            icgd.compile(problem_with(), n_steps=1, construction=construction, **{given: 40})
        assert str(refused.value) == (
            f"{construction} has no setting {given!r}; its settings are {own}. {given} is a "
            f"setting of {owner}."
        )


def test_a_name_with_settings_is_short_for_an_object():
    by_name = icgd.compile(problem_with(), "relu-stack", n_steps=2, pieces=9)
    assert by_name == icgd.compile(problem_with(), icgd.ReluStack(pieces=9), n_steps=2)
    assert by_name != icgd.compile(problem_with(), icgd.ReluStack(), n_steps=2)
    assert by_name.chosen_because is None
    with pytest.raises(SettingError, match=r"Pass it to the object: ReluStack\(pieces=9\)"):
        icgd.compile(problem_with(), icgd.ReluStack(), n_steps=2, pieces=9)
    with pytest.raises(SettingError, match="Give either pieces or tolerance, not both"):
        icgd.compile(problem_with(), icgd.ReluStack(pieces=9), n_steps=2, tolerance=0.1)


@pytest.mark.parametrize(
    ("registers", "message"),
    [
        (31, "registers must lie between 32 and 1024, got 31."),
        (1025, "registers must lie between 32 and 1024, got 1025."),
        (True, "registers must be a whole number of at least 1, got True."),
    ],
)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_impossible_numbers_of_registers_are_refused(activation, registers, message):
    with pytest.raises(SettingError) as refused:
        by_softmax(problem_with(activation), registers=registers)
    assert str(refused.value) == message


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(SettingError, match="Give either registers or tolerance, not both"):
        by_softmax(registers=40, tolerance=1e-3)
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
        icgd.compile(problem_with("relu"), "relu-stack", **{"n_steps": 1, **settings})
    assert str(error.value).startswith(message)


def test_an_unknown_construction_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'relu-stack'"):
        icgd.compile(problem_with(), n_steps=1, construction="relu_stack")


@pytest.mark.parametrize(
    ("construction", "reason"), [("recursion", "its MLP layer"), ("cot-network", "its blocks")]
)
def test_a_construction_that_cannot_serve_says_why(construction, reason):
    with pytest.raises(
        UnsupportedProblemError, match=f"{construction} cannot compile this problem: {reason}"
    ):
        icgd.compile(problem_with(loss="cross_entropy"), n_steps=1, construction=construction)


def test_a_precision_that_is_not_offered_is_refused():
    with pytest.raises(UnknownNameError, match="Unknown dtype 'float16'; known are float64"):
        by_softmax(dtype="float16")


def test_no_steps_leave_the_weights_alone():
    x, y = data()
    compiled = icgd.compile(problem_with(), n_steps=0)
    run = compiled.run(x, y, queries=x[:2], seed=3)
    assert torch.equal(run.parameters[0], problem_with().target.initial_parameters(3, 1.0))
    assert run.predictions.shape == (2, 1)
    assert icgd.verify(compiled, x, y).verdict.holds


@pytest.mark.parametrize("batch_size", [None, 4])
def test_queries_are_verified_in_float32(batch_size):
    x, y = data()
    update = icgd.MomentumStep(0.1, box=1.0, batch_size=batch_size)
    compiled = icgd.compile(replace(problem_with(), update=update), "relu-stack", n_steps=2)
    report = icgd.verify(compiled, x, y, queries=x[:2], dtype="float32")
    assert report.verdict.holds
    assert report.dtype == "float32"
    assert 0 < report.prediction_errors.max() <= report.prediction_bounds.max() < 1e-2


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_a_broken_transformer_is_found_out(monkeypatch, construction):
    """A wrong sign in one kernel: the verdict must not hold."""
    x, y = data()
    compiled = icgd.compile(problem_with(), n_steps=2, construction=construction)
    right = compiled.run(x, y, seed=0)
    wrong = icgd.Run(2 * right.parameters[0] - right.parameters, right.predictions)
    monkeypatch.setattr(icgd.Compiled, "_run", lambda *_a, **_k: wrong)
    assert icgd.verify(compiled, x, y, seed=0).verdict is icgd.Verdict.BROKEN


@pytest.mark.parametrize("rigorous", [None, True, False])
@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack", "cot-network"])
def test_progress_goes_on_from_the_run_to_its_bounds_and_its_proof(construction, rigorous):
    x, y = data()
    update = icgd.GradientStep(0.1, box=1.0, batch_size=2)
    problem, seen = replace(problem_with(), update=update), []
    compiled = icgd.compile(problem, construction, n_steps=3)
    icgd.verify(compiled, x, y, rigorous=rigorous, on_progress=lambda *call: seen.append(call))
    total = 6 if rigorous is False else 9
    assert seen == [(done, total) for done in range(1, total + 1)]


def test_fits_are_made_by_one_thread_so_that_programs_do_not_depend_on_how_many_there_are(
    monkeypatch,
):
    seen, build = [], icgd.SoftmaxStack.build
    monkeypatch.setattr(
        icgd.SoftmaxStack,
        "build",
        lambda *args: seen.append(torch.get_num_threads()) or build(*args),
    )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        by_softmax()
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)
