"""The head with gradients by hand against its formula, and in hard cases."""

import pytest
import torch
from torch.autograd import gradcheck

from icgd.problems.kernels import kernel_named
from icgd.training import reading as module
from icgd.training.reading import FAST, Reading, fast_head, plain_head

WIDTH, N_TASKS = 2, 3


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("query_only", [False, True])
@pytest.mark.parametrize("kernel", FAST)
def test_gradients_are_those_of_differences(kernel, query_only):
    def head(stream, inputs, V, M):
        return fast_head(Reading(stream, inputs, query_only), V, M, kernel, residual=True)

    n_rows = 1 if query_only else 2
    arguments = (
        numbers(N_TASKS, 2, 4),
        numbers(N_TASKS, WIDTH, 4, seed=1),
        numbers(n_rows, n_rows, seed=2),
        numbers(WIDTH, WIDTH, seed=3),
    )
    assert gradcheck(head, [argument.requires_grad_() for argument in arguments])


@pytest.mark.parametrize("kernel", FAST)
def test_chunks_change_nothing(kernel, monkeypatch):
    stream, V, M = numbers(7, 1 + WIDTH, 5), numbers(3, 3, seed=1), numbers(WIDTH, WIDTH, seed=2)

    def value_and_gradients():
        inputs = [part.clone().requires_grad_() for part in (stream, V, M)]
        out = fast_head(Reading(inputs[0], None, False), *inputs[1:], kernel, residual=False)
        return [out, *torch.autograd.grad(out.square().sum(), inputs)]

    whole = value_and_gradients()
    monkeypatch.setattr(module, "CHUNK_ENTRIES", 2 * 4 * 5)  # two tasks, then one
    for ours, theirs in zip(value_and_gradients(), whole, strict=True):
        assert (ours - theirs).abs().max() <= 1e-12 * theirs.abs().max()


def test_large_scores_do_not_overflow_softmax():
    stream = 200 * numbers(N_TASKS, 1 + WIDTH, 4)
    reading, V, one = Reading(stream, None, False), torch.eye(3).double(), torch.eye(WIDTH).double()
    M = one.clone().requires_grad_()
    ours = fast_head(reading, V, M, "softmax", residual=False)
    plain = plain_head(reading, V, one, one, kernel_named("softmax"))
    assert (ours - plain).abs().max() <= 1e-10
    assert torch.autograd.grad(ours.sum(), M)[0].isfinite().all()


def test_nothing_but_labels_is_read_by_a_value_matrix_of_one_row():
    reading = Reading(numbers(N_TASKS, 1 + WIDTH, 4), None, query_only=True)
    V, M = numbers(1, 1), numbers(WIDTH, WIDTH)
    out = fast_head(reading, V, M, "linear", residual=True)
    x, y = reading.stream[:, 1:], reading.stream[:, 0]
    scores = torch.einsum("tij,ik,tk->tj", x[..., :-1], M, x[..., -1])
    wanted = y[:, -1] + V.squeeze() * (scores * y[:, :-1]).sum(-1)
    assert (out[:, 0, 0] - wanted).abs().max() <= 1e-12
