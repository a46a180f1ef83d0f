import pytest
import torch

from icgd import layers as attention
from icgd.layers import ActivationAttention


def heads(n_heads: int = 3, d_model: int = 5, d_head: int = 2, seed: int = 0) -> list[torch.Tensor]:
    """Query, key, value and output weights."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(n_heads, d_model, d_head)] * 3 + [(n_heads, d_head, d_model)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def stream(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_loops(x, query, key, value, output):
    """x[i] + (1 / n) sum_{head, j} relu(<W_Q x[i], W_K x[j]>) W_O W_V x[j]."""
    result = x.clone()
    for i in range(len(x)):
        for head in range(len(query)):
            for j in range(len(x)):
                score = torch.dot(x[i] @ query[head], x[j] @ key[head])
                value_j = x[j] @ value[head] @ output[head]
                result[i] += max(score.item(), 0.0) * value_j / len(x)
    return result


def test_it_is_its_formula():
    weights, x = heads(), stream(4, 5)
    torch.testing.assert_close(ActivationAttention(*weights)(x), by_loops(x, *weights))


def test_a_batch_is_each_of_its_tasks():
    weights, x = heads(), stream(2, 3, 4, 5)
    together = ActivationAttention(*weights)(x)
    for index in ((0, 0), (1, 2)):
        torch.testing.assert_close(together[index], by_loops(x[index], *weights))


@pytest.mark.parametrize("at_once", [1, 40, 70])
def test_heads_in_groups_give_what_all_at_once_give(monkeypatch, at_once):
    weights, x = heads(n_heads=7), stream(4, 5)
    layer = ActivationAttention(*weights)
    expected = layer(x)
    sizes = []
    heads_of_group = ActivationAttention._heads
    monkeypatch.setattr(
        ActivationAttention,
        "_heads",
        lambda self, x, part: sizes.append(part) or heads_of_group(self, x, part),
    )
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    torch.testing.assert_close(layer(x), expected, rtol=1e-13, atol=1e-13)
    assert len(sizes) == -(-7 // max(1, at_once // 16))


def test_no_head_at_all_changes_nothing():
    x = stream(4, 5)
    assert torch.equal(ActivationAttention(*heads(n_heads=0))(x), x)


def test_its_weights_have_the_usual_names_and_axes():
    shapes = {name: tuple(w.shape) for name, w in ActivationAttention(*heads()).named_parameters()}
    assert shapes == {"W_Q": (3, 5, 2), "W_K": (3, 5, 2), "W_V": (3, 5, 2), "W_O": (3, 2, 5)}
