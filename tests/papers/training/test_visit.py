"""Predictions with the gradient of every task: chunks, memory, and what needs a gradient."""

from threading import Thread

import pytest
import torch
from torch.autograd import gradcheck

from icgd_papers.training import visit as module
from icgd_papers.training.gathering import FAST
from icgd_papers.training.visit import Weights, fast_predictions

WIDTH, N_TASKS, N_TOKENS = 2, 7, 5
KERNELS = [(name,) for name in FAST] + [("relu", "softmax")]


def numbers(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def arguments(kernels, *, with_A, n_tasks=N_TASKS, n_layers=3, dtype=torch.float64):
    """The batch x, y and the weights r, M, A."""
    heads = (n_layers, len(kernels))
    shapes = [(n_tasks, N_TOKENS, WIDTH), (n_tasks, N_TOKENS), heads, (*heads, WIDTH, WIDTH)]
    parts = [0.5 * numbers(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]
    return [*parts, *([0.3 * parts[3].flip(-1)] if with_A else [])]


def predictions(kernels, x, y, r, M, A=None):
    return fast_predictions(x, y, Weights(r, A, M, kernels))


def value_and_gradients(kernels, parts):
    leaves = [part.clone().requires_grad_() for part in parts]
    out = predictions(kernels, *leaves)
    weights = numbers(len(out), seed=9).to(out)
    return [out, *torch.autograd.grad((weights * out).sum(), leaves)]


def assert_close(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).abs().max() <= 1e-12 * other.abs().max().clamp(min=1)


@pytest.mark.parametrize("with_A", [False, True])
@pytest.mark.parametrize("kernels", KERNELS, ids="+".join)
def test_gradients_are_those_of_differences(kernels, with_A):
    parts = arguments(kernels, with_A=with_A, n_tasks=2)
    leaves = [part.requires_grad_() for part in parts]
    assert gradcheck(lambda *given: predictions(kernels, *given), leaves)


@pytest.mark.parametrize("with_A", [False, True])
@pytest.mark.parametrize("kernels", KERNELS, ids="+".join)
def test_chunks_change_nothing(kernels, with_A, monkeypatch):
    parts = arguments(kernels, with_A=with_A)
    whole = value_and_gradients(kernels, parts)
    entries = 2 * 4 * module.COLUMN_BLOCK // torch.get_num_threads()
    monkeypatch.setattr(module, "CHUNK_ENTRIES", entries)  # two tasks at a time, then one
    assert_close(value_and_gradients(kernels, parts), whole)


@pytest.mark.parametrize("with_A", [False, True])
def test_padding_changes_nothing(with_A, monkeypatch):
    parts = arguments(("exp",), with_A=with_A)
    padded = value_and_gradients(("exp",), parts)
    monkeypatch.setattr(module, "COLUMN_BLOCK", 1)
    assert_close(value_and_gradients(("exp",), parts), padded)


def test_memory_that_is_used_again_changes_nothing():
    kernels = ("softmax",)
    parts, small = arguments(kernels, with_A=True), arguments(kernels, with_A=False, n_layers=2)
    single = arguments(kernels, with_A=True, dtype=torch.float32)
    first = value_and_gradients(kernels, parts)
    value_and_gradients(kernels, small)
    value_and_gradients(kernels, single)
    again = value_and_gradients(kernels, parts)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(again, first, strict=True))


def test_threads_do_not_share_memory():
    """Two threads predict at the same time, many times, and both are right."""
    kernels, results = ("exp",), {}
    batches = {seed: [(1 + seed) * p for p in arguments(kernels, with_A=False)] for seed in (0, 1)}
    wanted = {seed: value_and_gradients(kernels, parts) for seed, parts in batches.items()}

    def work(seed):
        results[seed] = [value_and_gradients(kernels, batches[seed]) for _ in range(50)]

    threads = [Thread(target=work, args=(seed,)) for seed in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, runs in results.items():
        for run in runs:
            assert_close(run, wanted[seed])


def test_two_predictions_before_one_backward_pass_keep_their_own_gradients():
    kernels = ("softmax",)
    parts = arguments(kernels, with_A=True)
    leaves = [part.clone().requires_grad_() for part in parts]
    first = predictions(kernels, *leaves)
    second = predictions(kernels, leaves[0].flip(0), leaves[1].flip(0), *leaves[2:])
    both = torch.autograd.grad(first.sum() + second.flip(0).sum(), leaves[2:])
    alone = torch.autograd.grad(predictions(kernels, *leaves).sum(), leaves[2:])
    assert_close(both, [2 * gradient for gradient in alone])


def test_without_gradients_predictions_are_the_same_and_no_tasks_are_no_predictions():
    parts = arguments(("relu",), with_A=True)
    wanted = value_and_gradients(("relu",), parts)[0]
    assert torch.equal(predictions(("relu",), *parts), wanted)
    with torch.no_grad():
        assert torch.equal(predictions(("relu",), *parts), wanted)
    nobody = [parts[0][:0], parts[1][:0], *parts[2:]]
    assert predictions(("relu",), *nobody).shape == (0,)
