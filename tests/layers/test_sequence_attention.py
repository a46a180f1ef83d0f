from math import exp

import torch

from icgd import layers as attention
from icgd.layers import SequenceAttention
from tests.layers.test_activation_attention import heads, stream


def weights(n_columns: int):
    query, key, value, output = heads()
    draw = {"generator": torch.Generator().manual_seed(3), "dtype": torch.float64}
    maps = [torch.randn(len(query), 4, n_columns, **draw) for _ in range(2)]
    positions = torch.randn(len(query), 4, query.shape[-1], **draw)
    return query, key, value, output, *maps, positions


def by_loops(x, query, key, value, output, key_map, value_map, positions):
    result = x.clone()
    for i in range(len(x)):
        for h in range(len(query)):
            keys, values = [], []
            for g in range(key_map.shape[1]):
                made = sum(key_map[h, g, c] * x[c] for c in range(key_map.shape[2]))
                read = sum(value_map[h, g, c] * x[c] for c in range(key_map.shape[2]))
                keys.append(made @ key[h] + positions[h, g])
                values.append(read @ value[h] @ output[h])
            shares = [exp(torch.dot(x[i] @ query[h], k).item()) for k in keys]
            for share, read in zip(shares, values, strict=True):
                result[i] += share / sum(shares) * read
    return result


def test_it_is_its_formula_and_reads_the_first_columns_only():
    parts, x = weights(n_columns=2), stream(4, 5)
    torch.testing.assert_close(SequenceAttention(*parts)(x), by_loops(x, *parts))


def test_a_batch_is_each_of_its_tasks():
    parts, x = weights(n_columns=3), stream(2, 3, 5)
    together = SequenceAttention(*parts)(x)
    for task, result in zip(x, together, strict=True):
        torch.testing.assert_close(result, by_loops(task, *parts))


def test_heads_may_be_taken_in_groups(monkeypatch):
    parts, x = weights(n_columns=2), stream(4, 5)
    whole = SequenceAttention(*parts)(x)
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", 1)
    layer, sizes = SequenceAttention(*parts), []
    monkeypatch.setattr(
        layer,
        "_heads",
        lambda x, part: sizes.append(part) or SequenceAttention._heads(layer, x, part),
    )
    torch.testing.assert_close(layer(x), whole)
    assert sizes == [slice(head, head + 1) for head in range(len(layer.W_Q))]
