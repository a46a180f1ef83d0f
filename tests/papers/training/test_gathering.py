"""One head by hand against its formula with autograd, in value and in every gradient."""

import pytest
import torch

from icgd.problems.kernel_machine import kernel_named
from icgd_papers.training.gathering import FAST, Places, Read, Targets

WIDTH, N_TASKS, N_EXAMPLES = 2, 3, 4


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def columns(n_rows, n_readers, scale=1.0):
    return Read(
        numbers(N_TASKS, n_rows, N_EXAMPLES),
        scale * numbers(N_TASKS, WIDTH, N_EXAMPLES, seed=1),
        scale * numbers(N_TASKS, WIDTH, n_readers, seed=2),
    )


def formula(read, M, kernel):
    pattern = kernel_named(kernel).matrix(read.readers.mT @ M.mT, read.examples.mT)
    return read.values @ pattern.mT


@pytest.mark.parametrize("n_readers", [1, 5])
@pytest.mark.parametrize("n_rows", [1, 2, 3])
@pytest.mark.parametrize("kernel", FAST)
def test_values_and_gradients_are_those_of_the_formula(kernel, n_rows, n_readers):
    read, weights = columns(n_rows, n_readers), numbers(N_TASKS, n_rows, n_readers, seed=4)
    M = numbers(WIDTH, WIDTH, seed=3).expand(N_TASKS, -1, -1).clone()  # one for each task
    leaves = [part.clone().requires_grad_() for part in (*read, M)]
    wanted = formula(Read(*leaves[:3]), leaves[3], kernel)
    *wanted_gradients, wanted_M = torch.autograd.grad((wanted * weights).sum(), leaves)
    head = FAST[kernel](read, M[0], Places())
    assert (head.gathered - wanted).abs().max() <= 1e-12
    targets = Targets(*(torch.ones_like(part) for part in read))
    to_M = head.pull_back(weights, targets)
    assert (to_M - wanted_M).abs().max() <= 1e-10
    for target, gradient in zip(targets, wanted_gradients, strict=True):
        assert (target - 1 - gradient).abs().max() <= 1e-10, "it is added to what is there"


@pytest.mark.parametrize("n_rows", [1, 3])
@pytest.mark.parametrize("kernel", FAST)
def test_given_memory_and_fewer_gradients_change_nothing(kernel, n_rows):
    read, M, weights = columns(n_rows, 5), numbers(WIDTH, WIDTH), numbers(N_TASKS, n_rows, 5)
    free = FAST[kernel](read, M, Places())
    wanted = free.pull_back(weights, Targets(*map(torch.zeros_like, read)))
    places = Places(*(torch.full((N_TASKS, N_EXAMPLES, 5), torch.nan).double() for _ in range(2)))
    head = FAST[kernel](read, M, places)
    assert torch.equal(head.gathered, free.gathered)
    assert torch.equal(head.pull_back(weights, Targets()), wanted)


@pytest.mark.parametrize("n_rows", [1, 3])
def test_large_scores_do_not_overflow_softmax(n_rows):
    read, M = columns(n_rows, 5, scale=200.0), torch.eye(WIDTH).double()
    head = FAST["softmax"](read, M, Places())
    assert (head.gathered - formula(read, M, "softmax")).abs().max() <= 1e-10
    assert head.pull_back(torch.ones_like(head.gathered), Targets()).isfinite().all()
