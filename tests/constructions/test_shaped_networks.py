"""Shortcuts, layer norms and rates of examples in relu-stack, against the reference in float64."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import icgd
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import DataError, DomainError, ProofError, SettingError, UnsupportedProblemError
from icgd.problems.functions import reciprocal_deviation
from icgd.training import LearnableRun
from tests.problems.oracles.test_network import SHAPED

GOLDEN = Path(__file__).parents[1] / "golden"
TTT = SHAPED["ttt"]
KINKED = icgd.MLP((2, 4, 4, 4), "leaky_relu", norms=(1, 2), shortcuts=((1, 2), (2, 3)))
ALL = {**SHAPED, "kinked": KINKED}
over_all = pytest.mark.parametrize("target", ALL.values(), ids=ALL)
RATED = icgd.Domain(x=1.0, y=1.0, rate=1.0)


def problem_of(target: icgd.MLP, update=None, loss="squared", domain=None) -> icgd.Problem:
    update = update or icgd.GradientStep(0.1, box=2.0)
    return icgd.Problem(target, loss, update, domain or icgd.Domain(x=1.0, y=1.0))


def data_of(target: icgd.MLP, n_examples: int = 6, tasks: tuple[int, ...] = ()) -> dict:
    generator = torch.Generator().manual_seed(11)

    def numbers(*shape: int) -> torch.Tensor:
        return 2 * torch.rand(*tasks, *shape, generator=generator, dtype=torch.float64) - 1

    x, y = numbers(n_examples, target.input_width), numbers(n_examples, target.output_width)
    return {"X": x, "y": y, "queries": numbers(3, target.input_width)}


def rates_of(data: dict) -> dict:
    n_examples = data["X"].shape[-2]
    rates = torch.linspace(0, 1, n_examples, dtype=torch.float64)
    return data | {"rates": rates.expand(data["X"].shape[:-1])}


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@over_all
def test_20_steps_stay_within_what_is_proved_and_close_to_the_reference(target):
    compiled = icgd.compile(problem_of(target), "relu-stack", n_steps=20)
    report = icgd.verify(compiled, **data_of(target), seed=3)
    assert report.verdict.holds
    assert (report.step_errors <= report.step_bounds).all()
    assert (report.prediction_errors <= report.prediction_bounds).all()
    assert 0 < report.step_errors.max() < 3e-4
    assert report.trajectory_errors.max() < 2e-3


@over_all
@pytest.mark.parametrize("backend", ["fused", "dense"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bounds_hold_in_every_arithmetic(target, backend, dtype):
    compiled = icgd.compile(problem_of(target), icgd.ReluStack(pieces=16), n_steps=3)
    start = problem_of(target).oracle.target.initial_parameters(seed=3, box=2.0)
    for initial in (start, start / 64):  # with small weights deviations are small too
        settings = {"initial": initial, "backend": backend, "dtype": dtype}
        report = icgd.verify(compiled, **data_of(target), **settings)
        assert report.verdict.holds
        assert (report.step_errors <= report.step_bounds).all()
        assert report.step_bounds.isfinite().all()


EXACT = icgd.MLP((3, 3, 4, 3), "relu", shortcuts=((0, 1), (1, 3), (0, 3)), biases=True)


@pytest.mark.parametrize("target", [*ALL.values(), EXACT], ids=[*ALL, "exact"])
@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_bounds_hold_for_the_step_in_real_numbers(target, backend):
    balls = pytest.importorskip("tests.certificates.exact_step", reason="needs the extra proofs")
    problem = problem_of(target, domain=RATED)
    compiled = icgd.compile(problem, icgd.ReluStack(pieces=16), n_steps=1)
    data = rates_of(data_of(target, n_examples=4))
    run = compiled.run(**data, seed=3, backend=backend)
    start, x, y, rates = run.parameters[0], data["X"], data["y"], data["rates"]
    exact = balls.network_step(problem, start, x, y, rates)
    report = icgd.verify(compiled, **data, seed=3, backend=backend)
    missed, bound = balls.least_distance(run.parameters[1], exact), float(report.step_bounds[0])
    assert missed <= bound
    assert bound < 1e-12 if target is EXACT else missed > 1e-9
    real = problem.oracle.step(compiled.task(**data, seed=3), start)
    assert balls.least_distance(real, exact) < 1e-14


def test_more_pieces_prove_more():
    proved = []
    for pieces in (64, 256):
        compiled = icgd.compile(problem_of(TTT), icgd.ReluStack(pieces=pieces), n_steps=3)
        report = icgd.verify(compiled, **data_of(TTT), seed=3)
        proved.append((report.step_errors.max(), report.step_bounds.max()))
    assert proved[1][0] < proved[0][0] / 8
    assert proved[1][1] < proved[0][1] / 8


@over_all
def test_the_transformer_is_what_the_fused_backend_computes(target):
    rated = problem_of(target, domain=RATED)
    for tasks in ((), (2,)):
        compiled = icgd.compile(rated, icgd.ReluStack(pieces=8), n_steps=3)
        data = rates_of(data_of(target, tasks=tasks))
        fused, dense = (compiled.run(**data, seed=3, backend=name) for name in ("fused", "dense"))
        assert relative(fused.parameters, dense.parameters) < 1e-11
        assert relative(fused.predictions, dense.predictions) < 1e-11


UPDATES = {
    "batches": icgd.GradientStep(0.1, box=2.0, batch_size=4),
    "schedule": icgd.GradientStep((0.1, 0.05, 0.2), box=2.0),
    "momentum": icgd.MomentumStep(0.1, box=2.0, momentum=0.9),
    "adam": icgd.AdamStep(0.01, box=2.0, eps=1e-3),
}


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_every_update_trains_them(update):
    compiled = icgd.compile(problem_of(TTT, update, domain=RATED), "relu-stack", n_steps=3)
    data = rates_of(data_of(TTT))
    report = icgd.verify(compiled, **data, seed=3)
    assert report.verdict.holds
    assert report.step_errors.max() < 1e-3
    small = icgd.compile(problem_of(TTT, update, domain=RATED), icgd.ReluStack(8), n_steps=3)
    fused, dense = (small.run(**data, seed=3, backend=name) for name in ("fused", "dense"))
    assert relative(fused.parameters, dense.parameters) < 1e-11


def test_classes_and_float32():
    target = icgd.MLP((3, 4, 4), "gelu", norms=(2,), shortcuts=((1, 2),))
    compiled = icgd.compile(problem_of(target, loss="cross_entropy"), "relu-stack", n_steps=3)
    data = data_of(target) | {"y": torch.tensor([0, 1, 2, 3, 0, 1])}
    for dtype in ("float64", "float32"):
        report = icgd.verify(compiled, **data, seed=3, dtype=dtype)
        assert report.verdict.holds
        assert report.step_errors.max() < 1e-3


@pytest.mark.parametrize("eps", [1e-12, 1e-2, 1e6])
def test_every_eps_has_a_root_that_is_proved(eps):
    target = replace(TTT, norm_eps=eps)
    compiled = icgd.compile(problem_of(target), "relu-stack", n_steps=3)
    report = icgd.verify(compiled, **data_of(target), seed=3)
    assert report.verdict.holds
    assert report.step_errors.max() < 1e-3
    (root,) = (fit for fit in compiled.program.functions if fit.name.startswith("reciprocal"))
    assert float(root.name.rpartition(" ")[2]) == eps


def test_a_fitted_root_is_never_twice_too_large():
    """So a norm stays within what other functions are fitted for, however few pieces there are."""
    compiled = icgd.compile(problem_of(TTT), icgd.ReluStack(pieces=1), n_steps=1)
    root, function = compiled.stack.functions[-1], reciprocal_deviation(1e-5)
    assert root.name == function.name
    ends = torch.tensor([*root.knots, root.high], dtype=torch.float64)
    errors = torch.tensor(root.errors, dtype=torch.float64)
    assert (errors / function(ends)).max() < 0.1  # it falls, so that its least value is at the end


def test_equal_preactivations_are_no_danger():
    """All units are alike, so that the variance is 0, and only eps is divided by."""
    compiled = icgd.compile(problem_of(TTT), "relu-stack", n_steps=5)
    data = data_of(TTT)
    initial = torch.full((TTT.n_parameters,), 0.25, dtype=torch.float64)
    report = icgd.verify(compiled, **data, initial=initial)
    assert report.verdict.holds
    dense = compiled.run(**data, initial=initial, backend="dense")
    assert torch.isfinite(dense.parameters).all()


shapes = st.lists(st.integers(2, 4), min_size=2, max_size=4)


@given(widths=shapes, data=st.data())
@settings(max_examples=12, deadline=None)
def test_random_shapes(widths, data):
    layers = range(len(widths))
    pairs = [(i, j) for i in layers for j in layers if i < j and widths[i] == widths[j]]
    target = icgd.MLP(
        tuple(widths),
        data.draw(st.sampled_from(["relu", "tanh", "gelu", "leaky_relu"])),
        data.draw(st.sampled_from(["identity", "relu", "sigmoid"])),
        biases=data.draw(st.booleans()),
        shortcuts=tuple(data.draw(st.sets(st.sampled_from(pairs))) if pairs else ()),
        norms=tuple(data.draw(st.sets(st.sampled_from(layers[1:])))),
    )
    compiled = icgd.compile(problem_of(target, domain=RATED), icgd.ReluStack(16), n_steps=2)
    given_data = rates_of(data_of(target))
    report = icgd.verify(compiled, **given_data, seed=3)
    assert (report.step_errors <= report.step_bounds).all()
    fused, dense = (compiled.run(**given_data, seed=3, backend=b) for b in ("fused", "dense"))
    assert relative(fused.parameters, dense.parameters) < 1e-11


def test_a_norm_costs_five_layers_and_a_shortcut_and_rates_one_each():
    def layers(target: icgd.MLP, **domain: float) -> tuple[int, int]:
        problem = problem_of(target, domain=icgd.Domain(1.0, 1.0, **domain))
        program = icgd.compile(problem, "relu-stack", n_steps=1).program
        return len(program.block), len(program.prediction)

    plain = icgd.MLP((3, 6, 3), "gelu")
    assert layers(plain) == (8, 3)
    assert layers(replace(plain, shortcuts=((0, 2),))) == (9, 4)
    assert layers(replace(plain, norms=(2,))) == (13, 6)
    assert layers(TTT) == (14, 7)
    assert layers(TTT, rate=1.0) == (15, 7)
    assert layers(replace(plain, norms=(1,))) == (14, 7)


def test_the_golden_listing_of_the_inner_loop_of_a_ttt_mlp_layer():
    compiled = icgd.compile(problem_of(TTT, domain=RATED), "relu-stack", n_steps=2)
    assert compiled.listing() == (GOLDEN / "relu_stack_ttt_mlp.txt").read_text()


def test_a_loaded_file_runs_the_same(tmp_path):
    compiled = icgd.compile(problem_of(KINKED, domain=RATED), icgd.ReluStack(8), n_steps=2)
    compiled.save(tmp_path / "run.safetensors")
    loaded = icgd.load(tmp_path / "run.safetensors")
    assert loaded.problem == compiled.problem
    data = rates_of(data_of(KINKED))
    assert torch.equal(
        loaded.run(**data, seed=3).parameters, compiled.run(**data, seed=3).parameters
    )


def test_they_are_counted_and_drawn(tmp_path):
    compiled = icgd.compile(problem_of(TTT, domain=RATED), "relu-stack", n_steps=2)
    summary, transformer = compiled.summary(), compiled.transformer()
    weights = sum(part.numel() for part in transformer.parameters())
    assert summary.layers_per_step == 15
    assert weights == summary.parameters
    compiled.draw(tmp_path / "drawing.png")
    assert (tmp_path / "drawing.png").stat().st_size > 10_000
    run = compiled.run(**rates_of(data_of(TTT)), seed=3, trace=True)
    assert torch.equal(run.trace["rates"][0, :6, 0], torch.linspace(0, 1, 6, dtype=torch.float64))
    assert not run.trace["rates"][0, 6:].any()


@pytest.mark.parametrize("name", sorted(set(CONSTRUCTIONS) - {"relu-stack"}))
def test_no_other_construction_takes_them(name):
    for problem in (problem_of(TTT), problem_of(icgd.MLP((3, 2)), domain=RATED)):
        problem = replace(problem, update=icgd.GradientStep(0.1, box=2.0))
        reason = CONSTRUCTIONS[name].why_not(problem)
        assert reason
        with pytest.raises(UnsupportedProblemError, match=name):
            icgd.compile(problem, name, n_steps=1)
    assert icgd.compile(problem_of(TTT), n_steps=1).program.construction == "relu-stack"


def test_refusals_name_relu_stack():
    shaped, rated = problem_of(TTT), problem_of(icgd.MLP((3, 2)), domain=RATED)
    softmax_stack = CONSTRUCTIONS["softmax-stack"]
    assert softmax_stack.why_not(shaped) == (
        "its networks have no shortcuts and no layer norms; use relu-stack."
    )
    assert softmax_stack.why_not(rated) == "its examples have no rates; use relu-stack."


def test_rigorous_proofs_say_what_they_cannot_follow():
    data = data_of(TTT)
    compiled = icgd.compile(problem_of(TTT), "relu-stack", n_steps=1)
    with pytest.raises(
        ProofError, match="icgd-check cannot check networks with shortcuts or layer norms"
    ):
        icgd.verify(compiled, **data, rigorous=True)
    with pytest.raises(
        ProofError, match="icgd-check cannot check networks with shortcuts or layer norms"
    ):
        compiled.certify(data["X"], data["y"])
    plain = icgd.MLP((3, 3))
    rated = icgd.compile(problem_of(plain, domain=RATED), "relu-stack", n_steps=1)
    with pytest.raises(ProofError, match="icgd-check cannot check rates of examples"):
        icgd.verify(rated, **data, rigorous=True)


def test_rates_that_do_not_fit_are_refused():
    target = icgd.MLP((3, 2))
    rated = icgd.compile(problem_of(target, domain=RATED), "relu-stack", n_steps=1)
    data = data_of(target)
    with pytest.raises(DataError, match=r"rates has shape \(5,\)"):
        rated.run(**data, rates=[1.0] * 5)
    with pytest.raises(DataError, match=r"rates\[1\] is -0.5; a rate is a number from 0"):
        rated.run(**data, rates=[1.0, -0.5, 1.0, 1.0, 1.0, 1.0])
    with pytest.raises(DomainError, match=r"rates\[2\] is 1.5"):
        rated.run(**data, rates=[1.0, 0.5, 1.5, 1.0, 1.0, 1.0])
    with pytest.raises(DataError, match="rates"):
        rated.run(**data, rates=[1.0, 0.5, float("nan"), 1.0, 1.0, 1.0])
    plain = icgd.compile(problem_of(target), "relu-stack", n_steps=1)
    with pytest.raises(SettingError, match=r"rates has no effect without Domain\(rate=...\)"):
        plain.run(**data, rates=[1.0] * 6)


def test_examples_without_given_rates_have_the_rate_1():
    target = icgd.MLP((3, 2))
    data, plain = data_of(target), problem_of(target)
    rated = replace(plain, domain=RATED)
    ours, theirs = (icgd.compile(each, "relu-stack", n_steps=2) for each in (rated, plain))
    assert torch.equal(ours.run(**data).parameters, theirs.run(**data).parameters)


def test_an_example_of_rate_0_is_not_there():
    compiled = icgd.compile(problem_of(TTT, domain=RATED), "relu-stack", n_steps=3)
    data = data_of(TTT)
    rates = torch.ones(6, dtype=torch.float64)
    rates[2] = 0.0
    moved = data["X"].clone()
    moved[2] = 0.9
    for backend in ("fused", "dense"):
        ours, theirs = (
            compiled.run(**data | {"X": x}, rates=rates, seed=3, backend=backend).parameters
            for x in (data["X"], moved)
        )
        assert torch.equal(ours, theirs) or relative(ours, theirs) < 1e-15


def test_gradients_go_through_the_run():
    compiled = icgd.compile(problem_of(TTT, domain=RATED), "relu-stack", n_steps=2)
    data = data_of(TTT)
    learnable = LearnableRun(compiled, seed=3)
    predictions = learnable(data["X"], data["y"], data["queries"])
    run = compiled.run(**data, seed=3)
    torch.testing.assert_close(predictions.detach(), run.predictions, rtol=1e-11, atol=1e-12)
    predictions.square().sum().backward()
    assert learnable.step_sizes.grad.abs().min() > 0


def test_only_networks_have_rates():
    with pytest.raises(SettingError, match=r"domain.rate has no effect without a network"):
        icgd.Problem(icgd.KernelMachine(2, "rbf"), "squared", icgd.FunctionalStep(0.5), RATED)
    with pytest.raises(SettingError, match=r"domain.rate has no effect without a network"):
        icgd.Problem(icgd.LinearModel(2), "matching", icgd.ProximalStep(0.5), RATED)
