"""What takes too much memory is refused before work begins, with what it takes and what to do."""

import sys

import pytest
import torch

import icgd
from icgd.errors import SettingError, SizeError
from icgd.program.layout import Role
from tests import machines

NETWORK = icgd.Problem(
    icgd.MLP((2, 3, 1), "relu"), "squared", icgd.GradientStep(0.1, box=2.0), icgd.Domain(1.0, 1.0)
)
FUNCTION = icgd.Problem(
    icgd.KernelMachine(2, "rbf"), "squared", icgd.FunctionalStep(0.1), icgd.Domain(1.0, 1.0)
)
X = torch.full((50, 2), 0.5, dtype=torch.float64)
Y = X[:, :1]


def test_a_history_of_a_billion_steps_is_refused_and_may_be_thinned():
    compiled = icgd.compile(NETWORK, n_steps=10**10)
    with pytest.raises(
        SizeError, match=r"of 10,000,000,000 steps takes about 670\.6 GiB; .*history=100 records"
    ):
        compiled.run(X, Y)
    with pytest.raises(SizeError, match=r"of 1,000,000,000 steps takes about 67\.1 GiB"):
        compiled.run(X, Y, history=10)


def test_an_uneven_history_is_counted_without_making_it():
    with pytest.raises(SizeError, match=r"of 50,000,000,001 steps takes about"):
        icgd.compile(NETWORK, n_steps=10**11 + 1).run(X, Y, history=2)


@pytest.mark.parametrize("history", [0, -1])
def test_a_history_is_a_truth_value_or_a_positive_whole_number(history):
    with pytest.raises(SettingError, match="history must be a whole number of at least 1"):
        icgd.compile(NETWORK, n_steps=2).run(X, Y, history=history)


def test_a_history_may_be_thinned_by_any_whole_number():
    compiled = icgd.compile(NETWORK, n_steps=7)
    whole, thin = compiled.run(X, Y), compiled.run(X, Y, history=3)
    assert torch.equal(thin.parameters, whole.parameters[[0, 3, 6, 7]])
    assert thin.steps == (0, 3, 6, 7)
    assert torch.equal(thin.loss_curve, whole.loss_curve[[0, 3, 6, 7]])


def test_a_kernel_of_too_many_points_is_refused(monkeypatch):
    compiled = icgd.compile(FUNCTION, n_steps=2)
    machines.of_memory(monkeypatch, 2 * 50 * 50 * 8 - 1)
    for work in (
        lambda: compiled.run(X, Y),
        lambda: icgd.verify(compiled, X, Y),
        lambda: icgd.spectrum(FUNCTION.target, X),
        lambda: FUNCTION.target.gram(X),
    ):
        with pytest.raises(SizeError, match=r"The kernel of 50 by 50 points takes about .*a limit"):
            work()
    machines.of_memory(monkeypatch, 2 * 50 * 50 * 8)
    compiled.run(X, Y)


def test_scores_of_too_many_tokens_are_refused(monkeypatch):
    compiled = icgd.compile(NETWORK, "relu-stack", n_steps=1)
    tokens = 20_000
    machines.of_memory(monkeypatch, 2**30)
    x = torch.full((tokens, 2), 0.5, dtype=torch.float64)
    with pytest.raises(SizeError, match=r"A score for each pair of 20,\d+ tokens takes about 6"):
        compiled.run(x, x[:, :1], backend="dense")
    assert compiled.run(x, x[:, :1]).parameters.isfinite().all()


def test_weights_that_are_too_many_are_refused_before_they_are_drawn():
    wide = icgd.MLP((10**6, 10**6, 1), "relu")
    problem = icgd.Problem(wide, "squared", NETWORK.update, NETWORK.domain)
    with pytest.raises(SizeError, match="Training 1,000,001,000,000 weights takes about"):
        icgd.as_task(problem, torch.zeros(1, 10**6), [1.0])


def test_a_table_of_a_billion_examples_is_counted_at_once():
    with pytest.raises(icgd.errors.IcgdError, match="10"):
        icgd.compile(NETWORK, icgd.Universal(n_examples=10**9), n_steps=1)


CHAIN = icgd.Problem(
    NETWORK.target, "squared", icgd.GradientStep(0.1, box=2.0, batch_size=1), NETWORK.domain
)


@pytest.mark.parametrize("backend", ["fused", "dense"])
@pytest.mark.parametrize(
    ("problem", "construction"),
    [(NETWORK, "relu-stack"), (CHAIN, "cot-network"), (FUNCTION, "functional")],
)
def test_a_trace_is_refused_before_the_first_step(problem, construction, backend, monkeypatch):
    compiled, steps = icgd.compile(problem, construction, n_steps=500), list[int]()
    asked = {"trace": True, "backend": backend, "on_progress": lambda step, _: steps.append(step)}
    trace = compiled.run(X[:5], Y[:5], **asked).trace.values()
    most = int(1.9 * sum(part.nbytes for part in trace))  # a little less than records and stacks
    machines.of_memory(monkeypatch, most)
    steps.clear()
    with pytest.raises(SizeError, match=r"The trace of 500 steps takes about .* Name fewer slots"):
        compiled.run(X[:5], Y[:5], **asked)
    assert not steps
    compiled.run(X[:5], Y[:5], backend=backend)


def test_tokens_of_a_wide_network_are_refused_before_they_are_worked_on(monkeypatch):
    problem = icgd.Problem(icgd.MLP((2, 30, 1), "relu"), "squared", NETWORK.update, NETWORK.domain)
    compiled = icgd.compile(problem, "relu-stack", n_steps=1)
    width = sum(slot.width for slot in compiled.program.layout.having(Role.SCRATCH))
    machines.of_memory(monkeypatch, 2 * 8 * 50 * width - 1)
    with pytest.raises(SizeError, match=r"A stream of 50 tokens takes about .* narrower network"):
        compiled.run(X, Y)
    with pytest.raises(SizeError, match="A stream of 50 tokens"):
        compiled.run(X[:9], Y[:9], queries=X)
    compiled.run(X[:49], Y[:49], queries=X[:49])


def test_bounds_of_a_wide_network_are_refused_before_they_are_computed(monkeypatch):
    compiled = icgd.compile(NETWORK, n_steps=1)
    certificate = compiled.certificate()
    machines.of_memory(monkeypatch, 16 * 8 * 9 - 1)
    with pytest.raises(SizeError, match=r"Bounding 9 weights takes about .* run without bounds"):
        compiled.certificate()
    machines.of_memory(monkeypatch, 16 * 8 * 9)
    assert compiled.certificate() == certificate


def work_of(call):
    """How many functions of Python a call calls, which a shared machine does not change."""
    n_calls = 0

    def count(frame, event, argument):
        nonlocal n_calls
        n_calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(before)
    return n_calls


@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_the_work_for_a_deep_network_grows_like_its_depth(construction, tmp_path):
    works = []
    for depth in (10, 10, 20, 40):  # the first one imports and fills caches
        network = icgd.MLP((1,) * (depth + 1), "tanh")
        step = icgd.GradientStep(0.1, box=1.0)
        problem = icgd.Problem(network, "squared", step, icgd.Domain(1.0, 1.0))
        compiled = icgd.compile(problem, construction, n_steps=1)
        calls = (
            lambda problem=problem: icgd.compile(problem, construction, n_steps=1),
            lambda compiled=compiled: compiled.run(Y, Y),
            lambda compiled=compiled: compiled.save(tmp_path / "run.safetensors"),
        )
        works.append([work_of(call) for call in calls])
    for small, middle, large in zip(*works[1:], strict=True):
        assert large - middle < 2.5 * (middle - small)  # 2 if it is linear, 4 if it is quadratic
