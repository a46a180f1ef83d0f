"""Who reads what, and the head of any kernel."""

import torch

from icgd.problems.kernel_machine import kernel_named
from icgd_papers.training.reading import Reading, plain_head

WIDTH, N_TASKS = 2, 3


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_nothing_but_labels_is_read_by_a_value_matrix_of_one_row():
    reading = Reading(numbers(N_TASKS, 1 + WIDTH, 4), None, 3, query_only=True)
    V, B, C = numbers(1, 1), numbers(WIDTH, WIDTH), numbers(WIDTH, WIDTH, seed=1)
    out = plain_head(reading, V, B, C, kernel_named("linear"))
    x, y = reading.stream[:, 1:], reading.stream[:, 0]
    scores = torch.einsum("tij,ki,kl,tl->tj", x[..., :-1], B, C, x[..., -1])
    wanted = V.squeeze() * (scores * y[:, :-1]).sum(-1)
    assert (out[:, 0, 0] - wanted).abs().max() <= 1e-12


def test_columns_behind_the_query_are_neither_examples_nor_query():
    stream, inputs = numbers(N_TASKS, 1, 6), numbers(N_TASKS, WIDTH, 6)
    everyone = Reading(stream, inputs, 3, query_only=False)
    assert torch.equal(everyone.examples, inputs[..., :3])
    assert torch.equal(everyone.values(1), stream[..., :3])
    assert torch.equal(everyone.readers, inputs)
    query = Reading(stream, inputs, 3, query_only=True)
    assert torch.equal(query.readers, inputs[..., 3:4])
    assert torch.equal(query.old(1), stream[..., 3:4])
