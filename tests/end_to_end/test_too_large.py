"""What takes too much memory is refused before work begins, with what it takes and what to do."""

import pytest
import torch

import icgd
from icgd.errors import SettingError, SizeError
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
    with pytest.raises(SizeError, match=r"of 10,000,000,000 steps takes about 670\.6 GiB; .*100 k"):
        compiled.run(X, Y)
    with pytest.raises(SizeError, match=r"of 1,000,000,000 steps takes about 67\.1 GiB"):
        compiled.run(X, Y, history=10)


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
    with pytest.raises(SizeError, match="Training 1,000,001,000,000 weights for 1 task takes abou"):
        icgd.as_task(problem, torch.zeros(1, 10**6), [1.0])


def test_a_table_of_a_billion_examples_is_counted_at_once():
    with pytest.raises(icgd.errors.IcgdError, match="10"):
        icgd.compile(NETWORK, icgd.Universal(n_examples=10**9), n_steps=1)
