import pytest
import torch

from icgd.layers import SoftmaxAttention
from tests.layers.test_activation_attention import heads, stream


def by_loops(x, query, key, value, output, may_read=lambda i, j: True):
    """x[i] + sum_{head, j} softmax_j(<W_Q x[i], W_K x[j]>) W_O W_V x[j]."""
    result = x.clone()
    for i in range(len(x)):
        read = [j for j in range(len(x)) if may_read(i, j)]
        for head in range(len(query)):
            scores = [torch.dot(x[i] @ query[head], x[j] @ key[head]).item() for j in read]
            total = sum(2.718281828459045**score for score in scores)
            for j, score in zip(read, scores, strict=True):
                share = 2.718281828459045**score / total
                result[i] += share * (x[j] @ value[head] @ output[head])
    return result


def test_it_is_its_formula():
    weights, x = heads(), stream(4, 5)
    torch.testing.assert_close(SoftmaxAttention(*weights)(x), by_loops(x, *weights))


def test_a_batch_is_each_of_its_tasks():
    weights, x = heads(), stream(2, 3, 4, 5)
    together = SoftmaxAttention(*weights)(x)
    for index in ((0, 0), (1, 2)):
        torch.testing.assert_close(together[index], by_loops(x[index], *weights))


def test_a_mask_hides_tokens():
    weights, x = heads(), stream(4, 5)
    layer = SoftmaxAttention(*weights)
    layer.mask = torch.ones(4, 4, dtype=torch.bool).tril()
    expected = by_loops(x, *weights, may_read=lambda i, j: j <= i)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("shift", [1e3, -1e3])
def test_large_scores_neither_overflow_nor_count_as_long_as_all_are_equally_large(shift):
    query, key, value, output = heads(d_model=5)
    x = stream(4, 5)
    x[:, 4] = 1.0
    before = SoftmaxAttention(query, key, value, output)(x)
    constant = torch.zeros_like(query[:, :, :1])  # a feature that adds `shift` to every score
    constant[:, 4] = 1.0
    query, key = torch.cat([query, shift * constant], -1), torch.cat([key, constant], -1)
    after = SoftmaxAttention(query, key, value, output)(x)
    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-10)


def test_a_score_that_is_lower_by_4096_counts_for_exactly_nothing():
    query, key, value, output = heads(d_model=5)
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
