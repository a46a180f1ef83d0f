"""Blocks of a chain: their rows, the exact operators, and the chain beside autograd's descent."""

import re

import pytest
import torch

from icgd.errors import SettingError
from icgd_papers.training.chain_blocks import (
    BlockRows,
    Operators,
    weights_after_rounds,
    written_chain,
)

ROWS = BlockRows(3)
STEP = 0.03


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


START, X, Y = drawn(4, 3, 3, 3, seed=1), drawn(4, 5, 3, seed=2), drawn(4, 5, 3, seed=3)


def descent(weights, x, y):
    """One step on |o_N - y|^2 by autograd, which knows no block."""
    weights = [matrix.clone().requires_grad_() for matrix in weights]
    output = x
    for matrix in weights:
        output = torch.relu(matrix @ output)
    slopes = torch.autograd.grad((output - y).square().sum(), weights)
    return [(w - STEP * slope).detach() for w, slope in zip(weights, slopes, strict=True)]


def test_the_exact_chain_is_gradient_descent_by_autograd():
    got = weights_after_rounds(ROWS, Operators.exact(ROWS, STEP), START, X, Y)
    assert got.shape == (4, 6, 3, 3, 3)
    for task in range(4):
        weights = list(START[task])
        assert torch.equal(got[task, 0], START[task])
        for number in range(5):
            weights = descent(weights, X[task, number], Y[task, number])
            assert torch.allclose(got[task, number + 1], torch.stack(weights), atol=1e-13)
    assert (got[:, -1] - got[:, 0]).abs().max() > 0.05


def test_blocks_have_the_rows_of_definition_4_3():
    written = list(written_chain(ROWS, Operators.exact(ROWS, STEP), START, X, Y))
    assert len(written) == 2 * 3 * 5
    first = written[0]
    z = (START[:, 0] @ X[:, 0, :, None])[..., 0]
    columns = START[:, 0].mT.flatten(1)  # vec stacks columns
    one = torch.ones(4, 1, dtype=torch.float64)
    expected = torch.cat([z.relu(), X[:, 0], (z > 0).double(), columns, one], -1)
    assert torch.allclose(first.block, expected, atol=1e-15)
    assert ROWS.n_rows == first.block.shape[1] == 3**2 + 3 * 3 + 1
    last_of_pass, label = written[2].block, written[3]
    delta = 2 * (last_of_pass[:, :3] - Y[:, 0]) * last_of_pass[:, 6:9]
    assert torch.allclose(label.block[:, :3], delta)
    back = (START[:, 2].mT @ delta[..., None])[..., 0]
    assert torch.allclose(label.block[:, 3:6], back)
    assert torch.equal(label.block[:, -4:], torch.zeros(4, 4, dtype=torch.float64))


def test_data_stands_in_the_place_of_the_block_that_is_missing():
    written = list(written_chain(ROWS, Operators.exact(ROWS, STEP), START, X, Y))
    n = ROWS.n_rows
    assert torch.equal(written[0].stacked[:, :n], ROWS.data(X[:, 0]))
    assert torch.equal(ROWS.weights(written[0].stacked[:, n:]), START[:, 0])
    assert torch.equal(written[1].stacked[:, :n], written[0].block)
    assert torch.equal(ROWS.weights(written[1].stacked[:, n:]), START[:, 1])
    assert torch.equal(written[3].stacked, torch.cat([ROWS.data(Y[:, 0]), written[2].block], -1))
    assert torch.equal(written[4].stacked, torch.cat([written[3].block, written[1].block], -1))
    assert torch.equal(written[6].stacked[:, n:], written[5].block)  # B_1 of the round before
    assert written[0].stacked[0, [n - 1, -1]].tolist() == [2.0, 0.0]
    assert written[4].stacked[0, [n - 1, -1]].tolist() == [0.0, 1.0]


def test_operators_are_called_for_their_own_passes():
    def forward(stacked):
        return stacked[:, : ROWS.n_rows] * 0 + 1

    def backward(stacked):
        return ROWS.first_backward(torch.full((4, 3, 3), 7.0, dtype=torch.float64))

    got = weights_after_rounds(ROWS, Operators(forward, backward), START, X, Y)
    assert torch.equal(got[:, 1:], torch.full((4, 5, 3, 3, 3), 7.0, dtype=torch.float64))


def test_a_width_of_zero_is_refused():
    with pytest.raises(SettingError, match=re.escape("width must be a whole number")):
        BlockRows(0)
