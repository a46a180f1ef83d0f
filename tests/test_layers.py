"""Every layer is the formula in its docstring, written out in loops."""

from math import exp

import pytest
import torch
from torch import nn

from icgd import layers
from icgd.layers import (
    ActivationAttention,
    GridAttention,
    Itself,
    KernelAttention,
    MirrorAttention,
    MLPLayer,
    ProductLayer,
    SequenceAttention,
    SoftmaxAttention,
    Transformer,
)

HEADS = {"W_Q": (3, 5, 2), "W_K": (3, 5, 2), "W_V": (3, 5, 2), "W_O": (3, 2, 5)}


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heads(n_heads: int = 3) -> list[torch.Tensor]:
    """Query, key, value and output weights of heads of width 2 on 5 features."""
    shapes = [(n_heads, 5, 2)] * 3 + [(n_heads, 2, 5)]
    return [drawn(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def stream(*shape: int) -> torch.Tensor:
    return drawn(*shape, seed=9)


def softmax(scores):
    total = sum(exp(score) for score in scores)
    return [exp(score) / total for score in scores]


def attended(x, layer, tokens, shares):
    """x[i] + sum_{head, t} shares(<W_Q x[i], W_K t>) W_O W_V t, over the tokens of each head."""
    result = x.clone()
    for i, token in enumerate(x):
        for h in range(len(layer.W_Q)):
            query = token @ layer.W_Q[h]
            keys, values = tokens(h)
            scores = [torch.dot(query, key).item() for key in keys]
            for share, value in zip(shares(scores), values, strict=True):
                result[i] += share * (value @ layer.W_O[h])
    return result


def themselves(x, layer):
    return lambda h: ([t @ layer.W_K[h] for t in x], [t @ layer.W_V[h] for t in x])


def by_activation(x, layer):
    return attended(
        x, layer, themselves(x, layer), lambda scores: [max(s, 0.0) / len(x) for s in scores]
    )


def by_softmax(x, layer):
    return attended(x, layer, themselves(x, layer), softmax)


def by_grid(x, layer):
    columns = range(layer.A.shape[1])
    grid = [
        sum((row[c] * x[c] for c in columns), position)
        for row, position in zip(layer.A, layer.P, strict=True)
    ]
    return attended(x, layer, themselves(grid, layer), softmax)


def by_sequence(x, layer):
    """The tokens of head h are made from the first columns alone."""

    def tokens(h):
        columns = range(layer.A_K.shape[-1])
        made = [sum(row[c] * x[c] for c in columns) for row in layer.A_K[h]]
        read = [sum(row[c] * x[c] for c in columns) for row in layer.A_V[h]]
        keys = [t @ layer.W_K[h] + code for t, code in zip(made, layer.P[h], strict=True)]
        return keys, [t @ layer.W_V[h] for t in read]

    return attended(x, layer, tokens, softmax)


def by_mirror_images(x, layer):
    return attended(x, layer, themselves(torch.cat([x, layer.J * x]), layer), softmax)


def by_products(x, layer):
    result = x.clone()
    for i, token in enumerate(x):
        for h in range(len(layer.W_Q)):
            score = torch.dot(token @ layer.W_Q[h], token @ layer.W_K[h])
            result[i] += score * (token @ layer.W_V[h] @ layer.W_O[h])
    return result


def by_hidden_units(x, layer):
    result = x.clone()
    for i, token in enumerate(x):
        for unit in range(len(layer.b_in)):
            hidden = float(torch.dot(token, layer.W_in[:, unit]) + layer.b_in[unit])
            result[i] += max(hidden, 0.0) * layer.W_out[unit]
    return result


GRID = {"sequence_map": drawn(6, 4, seed=4), "positions": drawn(6, 5, seed=5)}
MAPS = {
    "key_map": drawn(3, 4, 2, seed=4),
    "value_map": drawn(3, 4, 2, seed=5),
    "positions": drawn(3, 4, 2, seed=6),
}
MIRROR = torch.tensor([-1.0, -1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
READS_NEGATED = [*heads()[:2], heads()[2] * (MIRROR < 0)[:, None], heads()[3]]
UNITS = [drawn(5, 6, seed=0), drawn(6, seed=1), drawn(6, 5, seed=2)]
LAYERS = {
    "activation": (ActivationAttention(*heads()), by_activation, HEADS),
    "softmax": (SoftmaxAttention(*heads()), by_softmax, HEADS),
    "grid": (GridAttention(*heads(), **GRID), by_grid, HEADS | {"A": (6, 4), "P": (6, 5)}),
    "sequence": (
        SequenceAttention(*heads(), **MAPS),
        by_sequence,
        HEADS | {"A_K": (3, 4, 2), "A_V": (3, 4, 2), "P": (3, 4, 2)},
    ),
    "mirror": (
        MirrorAttention(*READS_NEGATED, mirror=MIRROR),
        by_mirror_images,
        HEADS | {"J": (5,)},
    ),
    "product": (ProductLayer(*heads()), by_products, HEADS),
    "mlp": (MLPLayer(*UNITS), by_hidden_units, {"W_in": (5, 6), "b_in": (6,), "W_out": (6, 5)}),
}
every_layer = pytest.mark.parametrize(
    ("layer", "by_loops", "shapes"), LAYERS.values(), ids=LAYERS.keys()
)


@every_layer
@torch.no_grad()
def test_a_layer_is_its_formula_and_a_batch_is_each_of_its_tasks(layer, by_loops, shapes):
    x = stream(2, 3, 4, 5)
    together = layer(x)
    for index in ((0, 0), (1, 2)):
        expected = by_loops(x[index], layer)
        torch.testing.assert_close(layer(x[index]), expected)
        torch.testing.assert_close(together[index], expected)


@every_layer
def test_weights_have_the_usual_names_and_axes(layer, by_loops, shapes):
    assert {name: tuple(weight.shape) for name, weight in layer.named_parameters()} == shapes


@pytest.mark.parametrize("at_once", [1, 40, 70])
@pytest.mark.parametrize(
    ("layer", "per_head"),
    [
        (ActivationAttention(*heads(n_heads=7)), 4 * 4),
        (SequenceAttention(*heads(), **MAPS), 4 * 4),
    ],
    ids=["attention", "sequence"],
)
def test_heads_in_groups_give_what_all_at_once_give(monkeypatch, layer, per_head, at_once):
    x, n_heads = stream(4, 5), len(layer.W_Q)
    expected, groups, written = layer(x), [], layers.write
    monkeypatch.setattr(layers, "SCORES_AT_ONCE", at_once)
    monkeypatch.setattr(
        layers,
        "write",
        lambda read, output, total: groups.append(len(output)) or written(read, output, total),
    )
    torch.testing.assert_close(layer(x), expected, rtol=1e-13, atol=1e-13)
    assert sum(groups) == n_heads
    assert len(groups) == -(-n_heads // max(1, at_once // per_head))


def test_no_head_at_all_changes_nothing():
    x = stream(4, 5)
    assert torch.equal(ActivationAttention(*heads(n_heads=0))(x), x)


@torch.no_grad()
def test_a_mask_hides_tokens():
    x, layer = stream(4, 5), SoftmaxAttention(*heads())
    layer.mask = torch.ones(4, 4, dtype=torch.bool).tril()
    for i in range(4):
        torch.testing.assert_close(layer(x)[i], by_softmax(x[: i + 1], layer)[i])


@pytest.mark.parametrize("shift", [1e3, -1e3])
def test_large_scores_neither_overflow_nor_count_as_long_as_all_are_equally_large(shift):
    query, key, value, output = heads()
    x = stream(4, 5)
    x[:, 4] = 1.0
    before = SoftmaxAttention(query, key, value, output)(x)
    constant = torch.zeros_like(query[:, :, :1])  # a feature that adds `shift` to every score
    constant[:, 4] = 1.0
    query, key = torch.cat([query, shift * constant], -1), torch.cat([key, constant], -1)
    after = SoftmaxAttention(query, key, value, output)(x)
    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-10)


def test_a_score_that_is_lower_by_4096_counts_for_exactly_nothing():
    query, key, value, output = heads()
    x = stream(4, 5)
    x[:, 4] = torch.tensor([1.0, 1.0, 1.0, 0.0])
    query[:, 4] = key[:, 4] = 0.0
    masked = torch.zeros_like(query[:, :, :1])  # a feature in which token 3 has nothing
    masked[:, 4] = 64.0
    query, key = torch.cat([query, masked], -1), torch.cat([key, masked], -1)
    layer = SoftmaxAttention(query, key, value, output)
    changed = x.clone()
    changed[3, :4] = -x[3, :4]
    assert torch.equal(layer(changed)[:3], layer(x)[:3])
    assert not torch.equal(layer(changed)[3], layer(x)[3])


def test_tokens_of_a_product_layer_do_not_see_each_other():
    layer, x = ProductLayer(*heads()), stream(4, 5)
    alone = torch.cat([layer(token[None]) for token in x])
    torch.testing.assert_close(layer(x), alone)


EXAMPLE = 4
"""The feature that is 1 on examples."""


def kernel_stream() -> torch.Tensor:
    """Two tasks of four examples and two queries."""
    x = stream(2, 6, 5)
    x[..., EXAMPLE] = torch.tensor([1.0, 1, 1, 1, 0, 0])
    return x


def kernel_attention(*patterns) -> KernelAttention:
    return KernelAttention(*heads(len(patterns)), patterns=patterns, example_feature=EXAMPLE)


@torch.no_grad()
def test_every_token_reads_the_examples_through_each_heads_kernel():
    layer, x = kernel_attention(lambda u, w: torch.exp(u @ w.mT), torch.cdist), kernel_stream()
    expected = x.clone()
    for task in range(2):
        for i in range(6):
            for j in range(4):
                queries, keys = x[task, i] @ layer.W_Q, x[task, j] @ layer.W_K
                first, second = (x[task, j] @ layer.W_V[h] @ layer.W_O[h] for h in range(2))
                expected[task, i] += torch.dot(queries[0], keys[0]).exp() * first
                expected[task, i] += (queries[1] - keys[1]).norm() * second
    torch.testing.assert_close(layer(x), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer(x[0]), expected[0], rtol=1e-10, atol=1e-10)


def test_a_head_without_a_kernel_lets_examples_or_all_tokens_read_themselves():
    x = kernel_stream()
    examples, tokens = kernel_attention(Itself.EXAMPLES), kernel_attention(Itself.TOKENS)
    update = x @ tokens.W_V[0] @ tokens.W_O[0]
    assert torch.allclose(tokens(x) - x, update)
    assert torch.allclose((examples(x) - x)[:, :4], update[:, :4])
    assert torch.equal(examples(x)[:, 4:], x[:, 4:])


def test_queries_are_not_read():
    layer, x = kernel_attention(lambda u, w: u @ w.mT), kernel_stream()
    changed = x.clone()
    changed[:, 5, :4] += 1.0
    assert torch.equal(layer(x)[:, :5], layer(changed)[:, :5])


def test_the_weights_of_kernel_attention_can_be_trained():
    layer = kernel_attention(lambda u, w: torch.relu(u @ w.mT))
    layer(kernel_stream()).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in layer.parameters())


class Affine(nn.Module):
    """scale * x + 1."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x + 1.0


@pytest.mark.parametrize(
    ("n_repeats", "value"),
    [
        (0, 11.0),  # 10 * 1 + 1
        (1, 101.0),  # 3 (2 * 1 + 1) + 1 = 10, then 10 * 10 + 1
        (2, 641.0),  # 3 (2 * 10 + 1) + 1 = 64
    ],
)
def test_the_block_runs_as_often_as_said_and_the_final_layers_once(n_repeats, value):
    block, final = [Affine(2.0), Affine(3.0)], [Affine(10.0)]
    transformer = Transformer(block, n_repeats, final)
    assert transformer(torch.ones(1, 1, dtype=torch.float64)).item() == value
    assert list(transformer.unrolled()) == [*block * n_repeats, *final]
    assert [weight.item() for weight in transformer.parameters()] == [2.0, 3.0, 10.0]


def test_a_transformer_shows_itself_in_a_line():
    transformer = Transformer([Affine(2.0), Affine(3.0)], 5, [Affine(10.0)])
    assert repr(transformer) == (
        "Transformer(layers: 11: 2 layers repeated 5 times, then 1; weights: 3)"
    )
    assert transformer._repr_html_().startswith("<strong>Transformer</strong><table>")
