"""Kernel attention against the papers' formula, written out."""

import torch

from icgd.layers import Itself, KernelAttention


def weights(n_heads: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(n_heads, 4, 3)] * 2 + [(n_heads, 4, 2), (n_heads, 2, 4)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def stream() -> torch.Tensor:
    x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[..., 3] = torch.tensor([1.0, 1, 1, 1, 0, 0])
    return x


def test_every_token_reads_the_examples_through_each_heads_kernel():
    query, key, value, output = weights(2)
    layer = KernelAttention(
        query, key, value, output, [lambda u, w: torch.exp(u @ w.mT), torch.cdist], 3
    )
    x = stream()
    expected = x.clone()
    for task in range(2):
        for i in range(6):
            for j in range(4):
                score = (x[task, i] @ query[0]) @ (x[task, j] @ key[0])
                distance = (x[task, i] @ query[1] - x[task, j] @ key[1]).norm()
                expected[task, i] += score.exp() * (x[task, j] @ value[0] @ output[0])
                expected[task, i] += distance * (x[task, j] @ value[1] @ output[1])
    assert (layer(x) - expected).abs().max() <= 1e-10 * expected.abs().max()
    assert (layer(x[0]) - expected[0]).abs().max() <= 1e-10 * expected.abs().max()


def test_a_head_without_a_kernel_lets_examples_read_themselves():
    query, key, value, output = weights(1)
    layer = KernelAttention(query, key, value, output, [Itself.EXAMPLES], 3)
    x = stream()
    update = layer(x) - x
    assert torch.allclose(update[:, :4], x[:, :4] @ value[0] @ output[0])
    assert not update[:, 4:].any()


def test_a_head_may_let_every_token_read_itself():
    query, key, value, output = weights(1)
    layer = KernelAttention(query, key, value, output, [Itself.TOKENS], 3)
    x = stream()
    assert torch.allclose(layer(x) - x, x @ value[0] @ output[0])


def test_queries_are_not_read():
    layer = KernelAttention(*weights(1), [lambda u, w: u @ w.mT], 3)
    x = stream()
    changed = x.clone()
    changed[:, 5, :3] += 1.0
    assert torch.equal(layer(x)[:, :5], layer(changed)[:, :5])


def test_its_weights_can_be_trained():
    layer = KernelAttention(*weights(1), [lambda u, w: torch.relu(u @ w.mT)], 3)
    layer(stream()).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in layer.parameters())
