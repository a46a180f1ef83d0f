"""The literal backend: the dense transformer to rounding, head by head, from sparse weights."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import icgd
from icgd.backends.literal import LiteralBackend, literal_flops
from icgd.backends.registry import chosen_backend
from icgd.environment import Memory
from icgd.errors import LongRunWarning, SettingError, SizeError, UnknownNameError
from icgd.layers import SparseWeights
from icgd.weights.lowering import lower_program

ROUNDING = 1e-13
"""The largest distance of literal and dense streams, relative to a layer's largest number."""

OF_UNITS = 1e-11
"""The same for recursion, which adds up terms that are far larger than their sum."""


def network(widths=(2, 3, 1), activation="tanh", *, update=None, biases=False, loss="squared"):
    target = icgd.MLP(widths, activation, biases=biases)
    return icgd.Problem(
        target, loss, update or icgd.GradientStep(0.5, box=2.0), icgd.Domain(2.0, 2.0)
    )


def linear(link="identity", **settings):
    update = icgd.ProximalStep(0.2, box=2.0, **settings)
    domain = icgd.Domain(2.0, 2.0, score=8.0)
    return icgd.Problem(icgd.LinearModel(2, link), "matching", update, domain)


def kernel(*kernels):
    heads = [icgd.KernelHead(name) for name in kernels]
    update = icgd.FunctionalStep(0.1)
    return icgd.Problem(icgd.KernelMachine(2, heads), "squared", update, icgd.Domain(2.0, 2.0))


PROBLEMS = {
    "relu-stack tanh": ("relu-stack", network()),
    "relu-stack relu": ("relu-stack", network((2, 3, 2, 1), "relu", biases=True)),
    "relu-stack momentum": ("relu-stack", network(update=icgd.MomentumStep(0.1, box=2.0))),
    "relu-stack batches": ("relu-stack", network(update=icgd.GradientStep(0.5, 2.0, batch_size=2))),
    "relu-stack adam": ("relu-stack", network(update=icgd.AdamStep(0.01, box=2.0))),
    "relu-stack classes": ("relu-stack", network((2, 3, 3), loss="cross_entropy")),
    "softmax-stack": ("softmax-stack", network(biases=True)),
    "recursion": ("recursion", network()),
    "recursion relu": ("recursion", network((2, 2, 1), "relu")),
    "functional": ("functional", kernel("rbf", "linear")),
    "linear-stack": ("linear-stack", linear(l2=0.1)),
    "linear-stack lasso": ("linear-stack", linear(l1=0.1)),
    "linear-stack logistic": ("linear-stack", linear("logistic")),
    "cot-lasso": ("cot-lasso", linear(l1=0.1, l2=0.1)),
    "cot-glm": ("cot-glm", linear("logistic")),
    "cot-network": ("cot-network", network(update=icgd.GradientStep(0.5, 2.0, batch_size=2))),
}


def compiled_and_data(name, tasks=()):
    construction, problem = PROBLEMS[name]
    settings = {"n_examples": 4} if construction in ("cot-lasso", "cot-glm") else {}
    compiled = icgd.compile(problem, construction, n_steps=2, **settings)
    generator = torch.Generator().manual_seed(3)
    x = 2 * torch.rand(*tasks, 4, 2, generator=generator, dtype=torch.float64) - 1
    width = problem.target.output_width
    y = torch.rand(*tasks, 4, width, generator=generator, dtype=torch.float64)
    if problem.loss == "cross_entropy":
        y = y / y.sum(-1, keepdim=True)
    return compiled, {"X": x, "y": y, "queries": x[..., :1, :] / 2}


@pytest.mark.parametrize("tasks", [(), (2,)], ids=["one task", "two tasks"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_slot_after_every_layer_is_that_of_the_dense_transformer(name, tasks):
    compiled, data = compiled_and_data(name, tasks)
    literal, dense = (compiled.run(**data, backend=b, trace=True) for b in ("literal", "dense"))
    assert literal.trace.keys() == dense.trace.keys()
    largest = max(float(slot.abs().max()) for slot in dense.trace.values())
    allowed = largest * (OF_UNITS if name.startswith("recursion") else ROUNDING)
    for slot in dense.trace:
        assert (literal.trace[slot] - dense.trace[slot]).abs().max() <= allowed, slot
    assert (literal.parameters - dense.parameters).abs().max() <= allowed
    assert (literal.predictions - dense.predictions).abs().max() <= allowed


def test_no_entry_is_0_and_all_others_are_those_of_the_dense_matrices():
    compiled, _ = compiled_and_data("relu-stack relu")
    dense, sparse = (lower_program(compiled.stack, is_sparse=flag) for flag in (False, True))
    matrices = dict(dense.named_parameters())
    entries = {n: m for n, m in sparse.named_modules() if isinstance(m, SparseWeights)}
    assert sum(len(part.values) for part in entries.values()) > 0
    for name, part in entries.items():
        assert (part.values != 0.0).all()
        assert (
            part.values.abs()
            .sort()
            .values.equal(matrices[name][matrices[name] != 0.0].abs().sort().values)
        ), name


# Patterns of heads.


def test_patterns_of_heads_are_found_by_their_labels():
    compiled, data = compiled_and_data("relu-stack tanh")
    run = compiled.run(**data)
    patterns = run.attention("gradient step", "row 2 of weights_1")
    assert list(patterns) == [
        "row 2 of weights_1, where +delta_1 > 0",
        "row 2 of weights_1, where -delta_1 > 0",
    ]
    # A head's scores are relu(+-delta) of the token that is read: the same for all that read.
    delta = compiled.run(**data, trace=["delta_1"]).trace["delta_1"]
    of_layer = delta[[layer.title for layer in compiled.stack.block].index("gradient step")]
    plus, minus = patterns.values()
    ratio = (plus - minus)[0] / of_layer[:, 1]
    assert plus.shape == (5, 5)
    assert plus.equal(plus[:1].expand(5, 5))
    assert torch.allclose(ratio[:4], ratio[:1].expand(4), rtol=1e-12)  # the query has no delta
    ((label, second),) = run.attention("gradient step", 1).items()
    assert label == "row 2 of weights_1, where +delta_1 > 0"
    assert second.equal(plus)


def test_weights_of_a_softmax_sum_to_1_in_every_step_and_in_predictions():
    compiled, data = compiled_and_data("softmax-stack")
    run = compiled.run(**data, backend="literal")
    for step in (1, 2, 3):
        for pattern in run.attention("forward 1", step=step).values():
            assert torch.allclose(pattern.sum(-1), torch.ones(len(pattern), dtype=torch.float64))


@pytest.mark.parametrize("name", ["functional", "linear-stack", "cot-network", "recursion"])
def test_every_kind_of_layer_shows_its_patterns(name):
    compiled, data = compiled_and_data(name)
    run = compiled.run(**data)
    title = next(layer.title for layer in compiled.program.block if layer.kind.value != "mlp")
    for pattern in run.attention(title).values():
        assert pattern.ndim == 2
        assert pattern.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("gradient",), UnknownNameError, "Unknown layer with heads 'gradient'; known are"),
        (("clip and wipe",), UnknownNameError, "Unknown layer with heads 'clip and wipe'"),
        (("forward 1", "row 9"), UnknownNameError, "No head of layer 'forward 1' has a label"),
        (("forward 1", 10**6), SettingError, "head must be at most"),
        (("forward 1", None, 4), SettingError, "step must be at most 3, got 4."),
    ],
)
def test_what_has_no_pattern_is_named(arguments, error, message):
    compiled, data = compiled_and_data("relu-stack tanh")
    run = compiled.run(**data)
    with pytest.raises(error, match=re.escape(message)):
        run.attention(*arguments[:2], **dict(zip(["step"], arguments[2:], strict=False)))


def test_layers_of_one_title_show_all_their_heads():
    compiled = icgd.compile(network((2, 2, 1), "silu"), "softmax-stack", n_steps=1)
    layers = [layer for layer in compiled.stack.block if layer.title == "forward 1"]
    assert len(layers) == 2
    run = compiled.run([[0.5, 1.0], [0.2, 0.1]], [1.0, 0.3])
    patterns = run.attention("forward 1")
    assert len(patterns) == sum(f.size for layer in layers for f in layer.wires(compiled.program))
    assert list(run.attention("forward 1", np.int64(0))) == list(patterns)[:1]
    assert list(run.attention("forward 1", len(patterns) - 1)) == list(patterns)[-1:]


def test_a_run_that_stopped_shows_the_steps_that_it_took():
    compiled, data = compiled_and_data("relu-stack tanh")
    run = compiled.run(**data, stop_below=10.0)
    assert run.stopped_after == 1
    with pytest.raises(SettingError, match="step must be at most 2, got 3"):
        run.attention("forward 1", 0, step=3)
    predicting = run.attention("forward 1", 0, step=2)  # which needs no slopes
    assert list(predicting) == ["unit 1 of units_1, term 1 of tanh"]


def test_a_stopped_run_whose_steps_differ_shows_them():
    update = icgd.ProximalStep(0.2, box=2.0, momentum=(0.0, 0.5, 0.25), nesterov=True)
    problem = icgd.Problem(icgd.LinearModel(2), "matching", update, icgd.Domain(2.0, 2.0))
    compiled = icgd.compile(problem, "linear-stack", n_steps=3)
    assert compiled.stack.steps_per_block == 3
    _, data = compiled_and_data("linear-stack")
    title = next(layer.title for layer in compiled.stack.block if layer.kind.value != "mlp")
    whole, stopped = compiled.run(**data), compiled.run(**data, stop_below=100.0)
    assert stopped.stopped_after == 1
    expected, found = (run.attention(title, step=1) for run in (whole, stopped))
    assert expected.keys() == found.keys()
    assert all(expected[label].equal(found[label]) for label in found)


def test_only_fused_runs_are_compiled():
    compiled, data = compiled_and_data("relu-stack tanh")
    with pytest.raises(SettingError, match="engine='compiled' works with backend='fused'"):
        compiled.run(**data, backend="literal", engine="compiled")


# Zeros that are left out.


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["relu-stack tanh", "softmax-stack"])
def test_skipping_zeros_changes_nothing_but_the_order_of_sums(name, dtype):
    compiled, data = compiled_and_data(name)
    if name == "softmax-stack":
        compiled = icgd.compile(compiled.problem, "softmax-stack", n_steps=2, dtype=dtype)
    full, short = (
        compiled.run(**data, backend="literal", dtype=dtype, skip_zeros=flag)
        for flag in (False, True)
    )
    limit = 1000 * torch.finfo(full.parameters.dtype).eps
    assert (full.parameters - short.parameters).abs().max() <= limit
    assert (full.predictions - short.predictions).abs().max() <= limit


def test_tokens_that_a_softmax_masks_are_skipped(monkeypatch):
    compiled, data = compiled_and_data("softmax-stack")
    seen = []
    layer = icgd.layers.SoftmaxAttention
    monkeypatch.setattr(
        layer, "pattern", lambda _, scores: seen.append(scores.shape[-1]) or scores.softmax(-1)
    )
    for flag in (False, True):
        compiled.run(**data, backend="literal", skip_zeros=flag)
    full, short = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert all(few <= all_of_them for few, all_of_them in zip(short, full, strict=True))
    assert sum(short) < 0.8 * sum(full)


def test_what_is_not_a_number_is_not_skipped():
    scores = torch.tensor([[[0.0, -1000.0], [torch.nan, 0.0]]], dtype=torch.float64)
    layer = icgd.layers.SoftmaxAttention(*(torch.ones(1, 1, 1) for _ in range(4)))
    assert layer.live(scores, scores).tolist() == [True, True]
    scores[:, 1] = scores[:, 0]
    assert layer.live(scores, scores).tolist() == [True, False]


@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_only_literal_runs_skip_zeros(backend):
    compiled, data = compiled_and_data("relu-stack tanh")
    with pytest.raises(SettingError, match="skip_zeros works with backend='literal'"):
        compiled.run(**data, backend=backend, skip_zeros=True)


# Which backend claims are about.


def test_claims_are_about_the_literal_transformer_where_that_is_quick(monkeypatch):
    compiled, data = compiled_and_data("relu-stack tanh")
    report = icgd.verify(compiled, **data)
    assert (report.backend, report.fused_because) == ("literal", None)
    literal = compiled.run(**data, backend="literal").parameters
    real = icgd.verify(compiled, **data, backend="fused")
    assert report.step_errors.shape == real.step_errors.shape
    assert literal.isfinite().all()

    flops = literal_flops(compiled.program, compiled.task(**data))
    monkeypatch.setattr("icgd.backends.registry.MOST_FLOPS", flops)
    assert chosen_backend("auto", compiled.program, compiled.task(**data)).name == "literal"
    monkeypatch.setattr("icgd.backends.registry.MOST_FLOPS", flops - 1)
    report = icgd.verify(compiled, **data)
    assert report.backend == report.certificate.backend == "fused"
    assert report.fused_because.startswith(f"a literal run takes {flops:.1e} operations, about")
    assert f"backend: fused, because {report.fused_because}" in repr(report)
    assert report.step_errors.equal(real.step_errors)


def test_a_poisson_claim_is_no_longer_that_of_exact_descent():
    problem = replace(linear("poisson"), domain=icgd.Domain(2.0, 2.0, score=3.0))
    compiled = icgd.compile(problem, "linear-stack", n_steps=3)
    _, data = compiled_and_data("linear-stack")
    literal, fused = (
        icgd.verify(compiled, **data, backend=backend) for backend in ("auto", "fused")
    )
    assert literal.verdict.holds
    assert fused.step_bounds.max() < 0.1 * literal.step_bounds.max()


def test_guarantees_and_certificates_name_their_backend(monkeypatch):
    compiled, data = compiled_and_data("linear-stack")
    del data["queries"]
    assert icgd.guarantee(compiled, **data).backend == "literal"
    monkeypatch.setattr("icgd.backends.registry.MOST_FLOPS", 1)
    found = icgd.guarantee(compiled, **data)
    assert found.backend == "fused"
    assert found.fused_because.startswith("a literal run takes")


def test_unknown_backends_of_claims_are_refused():
    compiled, data = compiled_and_data("relu-stack tanh")
    message = "Unknown backend 'litral'; known are fused, literal, dense, auto. Did you mean"
    with pytest.raises(UnknownNameError, match=message):
        icgd.verify(compiled, **data, backend="litral")


# Runs that are too large.


def test_a_literal_run_that_takes_minutes_says_how_many(monkeypatch):
    compiled, data = compiled_and_data("relu-stack tanh")
    flops = literal_flops(compiled.program, compiled.task(**data))
    monkeypatch.setattr("icgd.backends.literal.FLOPS_PER_SECOND", flops / 125)
    with pytest.warns(LongRunWarning, match=r"takes .* operations, about 2 min 05 s .*'fused'"):
        compiled.run(**data, backend="literal")


def test_a_literal_run_that_does_not_fit_in_memory_is_refused_and_claims_are_fused(monkeypatch):
    compiled, data = compiled_and_data("relu-stack tanh")
    room = Memory(10**4, "a limit of this test")
    for module in ("environment", "backends.registry"):
        monkeypatch.setattr(f"icgd.{module}.usable_memory", lambda: room)
        monkeypatch.setattr(f"icgd.{module}.SURELY_FREE", 0)
    with pytest.raises(SizeError, match=r"^A literal run of 5 tokens by this relu-stack takes"):
        LiteralBackend().run(compiled.program, compiled.task(**data))
    chosen = chosen_backend("auto", compiled.program, compiled.task(**data))
    assert chosen == ("fused", "a literal run takes 0.0 GiB")


def test_sparse_weights_know_the_shape_they_stand_in_for():
    weights = SparseWeights(
        rows=torch.tensor([0, 1, 3]),
        columns=torch.tensor([4, 0, 2]),
        values=torch.tensor([1.0, 2.0, 3.0]),
        families=[(2, 2)],
        d_model=5,
    )
    assert weights.shape == (2, 5, 2)
    x = torch.arange(5.0)[None, :]
    read = weights[slice(0, 2)].read(x)
    assert read.tolist() == [[[4.0, 0.0]], [[0.0, 6.0]]]
    total = torch.zeros(1, 5)
    weights[slice(1, 2)].add(torch.tensor([[[7.0, 1.0]]]), total)
    assert total.tolist() == [[0.0, 0.0, 3.0, 0.0, 0.0]]


def test_a_function_that_is_0_wherever_it_is_asked_has_no_heads():
    flat = icgd.Function.pieces((0.5, 0.75), ("0", "x - 0.5", "0.25"))
    step, domain = icgd.GradientStep(0.5, box=1.0), icgd.Domain(0.01, 1.0)
    problem = icgd.Problem(icgd.MLP((2, 2, 1), flat), "squared", step, domain)
    compiled = icgd.compile(problem, "recursion", n_steps=2)
    x, initial = torch.full((1, 2), 0.01, dtype=torch.float64), torch.full((6,), 0.5)
    runs = [
        compiled.run(x, [1.0], initial=initial, backend=backend).parameters
        for backend in ("literal", "dense", "fused")
    ]
    for run in runs:
        assert (run - 0.5).abs().max() <= 1e-10
