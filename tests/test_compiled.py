from dataclasses import replace

import numpy as np
import pytest
import torch

import icgd
from icgd.errors import (
    DataError,
    DomainError,
    FileError,
    LayoutError,
    OverflowedRunError,
    SettingError,
    SizeError,
    UnknownNameError,
)
from icgd.problems import oracles as network
from tests import machines

PROBLEM = icgd.Problem(
    target=icgd.MLP((2, 3, 1), "tanh"),
    loss="squared",
    update=icgd.GradientStep(step_size=0.1, box=2.0),
    domain=icgd.Domain(x=1.0, y=1.0),
)
COMPILED = icgd.compile(PROBLEM, "relu-stack", n_steps=2, pieces=64)
X = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(4, 2)
Y = X.mean(1, keepdim=True)


def test_numpy_torch_and_lists_give_the_same_run():
    expected = COMPILED.run(X, Y).parameters
    assert torch.equal(COMPILED.run(X.numpy(), Y.numpy()).parameters, expected)
    assert torch.equal(COMPILED.run(X.tolist(), Y.tolist()).parameters, expected)
    assert torch.equal(COMPILED.run(X, Y[:, 0]).parameters, expected)


def test_the_same_seed_repeats_a_run_and_another_does_not():
    assert torch.equal(COMPILED.run(X, Y, seed=5).parameters, COMPILED.run(X, Y, seed=5).parameters)
    assert not torch.equal(COMPILED.run(X, Y, seed=6).parameters, COMPILED.run(X, Y).parameters)


def test_results_are_ordinary_tensors_that_autograd_accepts():
    weights = torch.ones(9, dtype=torch.float64, requires_grad=True)
    (COMPILED.run(X, Y).parameters[-1] * weights).sum().backward()
    assert weights.grad is not None


def test_the_data_are_not_changed():
    before = X.clone(), Y.clone()
    COMPILED.run(X, Y, queries=X)
    COMPILED.run(X, Y, queries=X, trace=True)
    assert torch.equal(X, before[0])
    assert torch.equal(Y, before[1])


def test_float32_runs_in_float32():
    run = COMPILED.run(X, Y, dtype="float32")
    assert run.parameters.dtype == torch.float32
    torch.testing.assert_close(
        run.parameters.double(), COMPILED.run(X, Y).parameters, atol=1e-6, rtol=0
    )


def test_a_trace_of_named_slots_has_only_those():
    run = COMPILED.run(X, Y, trace=["loss_slope", "weights_1"])
    assert set(run.trace) == {"loss_slope", "weights_1"}
    assert run.trace["loss_slope"].shape == (2 * 6 + 3 + 1, 4, 1)
    prediction = network.predict(PROBLEM.target, run.parameters[0], X)
    after_forward = run.trace["loss_slope"][3]
    torch.testing.assert_close(after_forward, 2 * (prediction - Y), atol=1e-3, rtol=0)


def test_a_misspelt_slot_is_named_with_the_nearest():
    with pytest.raises(LayoutError, match=r"no slot 'delta1'; it has .* Did you mean 'delta_1'"):
        COMPILED.run(X, Y, trace=["delta1"])


def test_unknown_backend_and_dtype_are_named():
    with pytest.raises(UnknownNameError, match="Unknown backend 'fussed'"):
        COMPILED.run(X, Y, backend="fussed")
    with pytest.raises(
        UnknownNameError, match="Unknown dtype 'float16'; known are float64, float32"
    ):
        COMPILED.run(X, Y, dtype=torch.float16)


def test_the_transformer_is_a_module_with_ordinary_weights():
    transformer = COMPILED.transformer()
    summary = COMPILED.summary()
    assert sum(p.numel() for p in transformer.parameters()) == summary.parameters
    n_terms = COMPILED.program.relu_sum("tanh").n_pieces + 1
    assert transformer.block[0].W_Q.shape == (3 * n_terms, summary.d_model, 3)
    assert all(p.dtype == torch.float32 for p in COMPILED.transformer("float32").parameters())


def test_a_dense_transformer_that_does_not_fit_is_refused_with_its_size(monkeypatch):
    machines.of_memory(monkeypatch, 2**20, "half")
    for build in (COMPILED.transformer, lambda: COMPILED.run(X, Y, backend="dense")):
        with pytest.raises(
            SizeError, match=r"takes about 0\.\d GiB; 0\.0 GiB may be used, half\. Run with b"
        ):
            build()
    assert COMPILED.run(X, Y).parameters.shape == (3, 9)


def test_exact_descent_on_functions_has_no_closed_form_of_a_paper():
    """The paper says that it is exact; what is proved here is rounding."""
    machine = icgd.KernelMachine(3, "rbf")
    problem = icgd.Problem(machine, "squared", icgd.FunctionalStep(0.1), icgd.Domain(2.0, 1.0))
    certificate = icgd.compile(problem, n_steps=2).certificate()
    assert 0 < certificate.domain_step < 1e-8
    assert certificate.paper_step is None


def test_a_certificate_holds_for_longer_prompts_with_more_rounding():
    short, long = (COMPILED.certificate(n_tokens=n) for n in (4, 4096))
    assert short.domain_step < long.domain_step < short.domain_step * 1.001
    with pytest.raises(SettingError, match="n_tokens must be a whole number of at least 1, got 0"):
        COMPILED.certificate(n_tokens=0)


def test_the_listing_reads_like_the_algorithm():
    assert "slope_1 * (weights_2^T @ loss_slope)" in COMPILED.listing()


def test_compiled_runs_compare_by_value():
    assert icgd.compile(PROBLEM, "relu-stack", n_steps=2, pieces=64) == COMPILED
    assert icgd.compile(PROBLEM, "relu-stack", n_steps=3, pieces=64) != COMPILED


def test_queries_are_predicted_by_the_trained_network():
    queries = np.array([[0.5, -0.5], [0.25, 1.0]])
    run = COMPILED.run(X, Y, queries=queries)
    expected = network.predict(PROBLEM.target, run.parameters[-1], torch.from_numpy(queries))
    torch.testing.assert_close(run.predictions, expected, atol=1e-3, rtol=0)


def test_a_run_without_history_keeps_the_first_and_the_last_weights():
    full = COMPILED.run(X, Y, queries=X)
    for backend in ("fused", "dense"):
        for trace in (False, True):
            short = COMPILED.run(X, Y, queries=X, history=False, backend=backend, trace=trace)
            assert short.parameters.shape == (2, 9)
            torch.testing.assert_close(short.parameters, full.parameters[[0, -1]])
            torch.testing.assert_close(short.predictions, full.predictions)


def with_step(step_size: float) -> icgd.Compiled:
    problem = replace(PROBLEM, update=icgd.GradientStep(step_size, 2.0))
    return icgd.compile(problem, "relu-stack", n_steps=3)


@pytest.mark.parametrize("step_size", [1e39, 1e300])
def test_a_step_too_large_for_float32_is_an_error_of_ours(step_size):
    column = torch.cat([X[:, :1], torch.zeros(4, 1).double()], dim=1)
    with pytest.raises(OverflowedRunError, match="float32"):
        with_step(step_size).run(column, Y, dtype="float32")


def test_a_gradient_head_too_large_for_float32_is_refused_but_the_fused_backend_has_none():
    problem = replace(PROBLEM, update=icgd.GradientStep(1e30, 2.0))
    compiled = icgd.compile(problem, n_steps=1, construction="softmax-stack", dtype="float32")
    with pytest.raises(
        OverflowedRunError,
        match=r"weight of 'row 1 of .*' is -[\d.]+e\+4\d, outside the range of f",
    ):
        compiled.run(X, Y, dtype="float32", backend="dense")
    run = compiled.run(X, Y, dtype="float32")
    assert (run.parameters[-1].abs() == 2.0).any()


SOFTMAX = icgd.compile(PROBLEM, n_steps=2, construction="softmax-stack", registers=48)


@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_softmax_stack_agrees_with_the_reference_and_its_prompt_starts_with_registers(backend):
    run = SOFTMAX.run(X, Y, queries=X[:1], backend=backend, trace=["delta_1", "scale"])
    assert run.trace["delta_1"].shape == (2 * 5 + 3 + 1, 48 + 5, 3)
    assert run.trace["scale"][0, :, 0].tolist() == [
        1.0,
        *(g / 23 for g in range(-23, 24)),
        *[0.0] * 5,
    ]
    states = network.forward(PROBLEM.target, run.parameters[0], X)
    upstream = 2 * (states.outputs[-1] - Y) @ PROBLEM.target.matrices(run.parameters[0])[1]
    expected = upstream / torch.cosh(states.preactivations[0]) ** 2
    torch.testing.assert_close(run.trace["delta_1"][3, 48:52], expected, atol=1e-5, rtol=0)
    truth = network.predict(PROBLEM.target, run.parameters[-1], X[:1])
    torch.testing.assert_close(run.predictions, truth, atol=1e-5, rtol=0)


def test_the_transformer_of_softmax_stack_is_standard():
    transformer, summary = SOFTMAX.transformer(), SOFTMAX.summary()
    assert [type(layer).__name__ for layer in transformer.block] == [
        "SoftmaxAttention",
        "SoftmaxAttention",
        "SoftmaxAttention",
        "SoftmaxAttention",
        "MLPLayer",
    ]
    assert sum(p.numel() for p in transformer.parameters()) == summary.parameters
    assert summary.n_registers == 48
    assert summary.n_layers == 2 * 5 + 3


def test_a_task_of_another_problem_is_refused():
    other = replace(PROBLEM, target=icgd.MLP((3, 3, 1)))
    task = icgd.as_task(other, torch.rand(4, 3).double(), Y)
    with pytest.raises(DataError, match=r"X has shape \(4, 3\); expected \(n, 2\)"):
        COMPILED.run_task(task)


def test_a_task_outside_the_domain_is_refused():
    wide = replace(PROBLEM, domain=icgd.Domain(9.0, 9.0))
    task = icgd.as_task(wide, 5 * X, Y)
    with pytest.raises(DomainError, match=r"X\[0, 0\] is -5, outside \[-1, 1\]"):
        COMPILED.run_task(task)


def test_float32_weights_on_the_edge_of_the_box_run():
    edge = replace(PROBLEM, update=icgd.GradientStep(0.1, 0.1))
    initial = torch.full((9,), 0.1, dtype=torch.float64)
    run = icgd.compile(edge, "relu-stack", n_steps=1).run(X, Y, initial=initial, dtype="float32")
    assert run.parameters.dtype == torch.float32


def test_one_slot_may_be_traced_by_its_bare_name():
    assert list(COMPILED.run(X, Y, trace="delta_1").trace) == ["delta_1"]


def test_a_linear_model_is_counted_and_proved_for_prompts_of_any_length():
    problem = icgd.Problem(
        icgd.LinearModel(1), "matching", icgd.ProximalStep(0.1, box=1.0), icgd.Domain(1.0, 1.0)
    )
    compiled = icgd.compile(problem, n_steps=1)
    assert (compiled.summary().n_tokens, compiled.certificate().n_tokens) == (33, 1024)
    assert (compiled.summary(7).n_tokens, compiled.certificate(n_tokens=5).n_tokens) == (7, 5)


@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_an_overflow_of_inputs_that_move_blames_the_transforms(backend):
    update = icgd.FunctionalStep(0.01, transforms=[[5.0, 0.0], [-7.0, 1.0]])
    problem = icgd.Problem(
        icgd.KernelMachine(2, "linear"), "squared", update, icgd.Domain(x=2.0, y=2.0)
    )
    X = torch.tensor([[1.0, 2.0], [-1.5, 0.5], [2.0, -2.0]], dtype=torch.float64)
    with pytest.raises(OverflowedRunError, match="float64: transforms with entries of up to 7 are"):
        icgd.compile(problem, n_steps=200).run(X, X[:, 0], backend=backend)


def test_it_shows_itself_in_a_line():
    assert repr(COMPILED) == (
        "Compiled(target: 2-3-1 tanh network; loss: squared; update: gradient steps of 0.1, box 2; "
        "domain: |x| <= 1, |y| <= 1; construction: relu-stack; steps: 2; "
        "layers: 6 layers used 2 times, 3 to predict; d_model: 27 in 13 slots)"
    )
    assert COMPILED._repr_html_().startswith("<strong>Compiled</strong><table>")


def test_it_draws_itself(tmp_path):
    picture = COMPILED.draw(tmp_path / "a.svg")
    assert picture.title == "relu-stack trains a 2-3-1 tanh network"
    assert "units_1 = tanh(weights_1 @ x)" in (tmp_path / "a.svg").read_text()
    COMPILED.draw(tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    with pytest.raises(FileError, match=r"must end in .svg or .png"):
        COMPILED.draw(tmp_path / "a.gif")


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack", "cot-network"])
@pytest.mark.parametrize(
    "options", [{}, {"backend": "dense"}, {"trace": True}], ids=["fused", "dense", "traced"]
)
def test_a_batch_without_a_gradient_does_not_stop_a_run(construction, options):
    """The first example moves nothing, and the second does: a pass is two steps."""
    step = icgd.GradientStep(0.5, box=2.0, batch_size=1)
    problem = icgd.Problem(icgd.MLP((1, 1)), "squared", step, icgd.Domain(x=1.0, y=1.0))
    compiled = icgd.compile(problem, construction, n_steps=4)
    data = {"X": [[0.0], [1.0]], "y": [[0.0], [1.0]], "initial": [0.0]}
    run = compiled.run(**data, stop_below=1e-9, **options)
    assert run.stopped_after is None
    assert run.parameters[:, 0].tolist() == pytest.approx([0.0, 0.0, 0.5, 0.5, 0.75], abs=1e-9)
    still = compiled.run([[0.0], [0.0]], [[0.0], [0.0]], initial=[0.5], stop_below=1e-9, **options)
    assert still.stopped_after == 2
