from math import exp

import pytest
import torch

from icgd.layers import GridAttention
from tests.layers.test_activation_attention import heads, stream


def by_loops(x, query, key, value, output, sequence_map, positions):
    """x[i] + sum_{head, g} softmax_g(<W_Q x[i], W_K t[g]>) W_O W_V t[g]."""
    result = x.clone()
    tokens = []
    for row, position in zip(sequence_map, positions, strict=True):
        token = position.clone()
        for share, column in zip(row, x, strict=True):
            token += share * column
        tokens.append(token)
    for i in range(len(x)):
        for head in range(len(query)):
            scores = [torch.dot(x[i] @ query[head], t @ key[head]).item() for t in tokens]
            total = sum(exp(score) for score in scores)
            for token, score in zip(tokens, scores, strict=True):
                result[i] += exp(score) / total * (token @ value[head] @ output[head])
    return result


def weights(n_columns: int):
    generator = torch.Generator().manual_seed(3)
    float64 = {"generator": generator, "dtype": torch.float64}
    return (*heads(), torch.randn(6, n_columns, **float64), torch.randn(6, 5, **float64))


@pytest.mark.parametrize("n_columns", [1, 3])
def test_it_is_its_formula(n_columns):
    parts, x = weights(n_columns), stream(n_columns, 5)
    torch.testing.assert_close(GridAttention(*parts)(x), by_loops(x, *parts))


def test_a_batch_is_each_of_its_tasks():
    parts, x = weights(3), stream(2, 3, 5)
    together = GridAttention(*parts)(x)
    for task, result in zip(x, together, strict=True):
        torch.testing.assert_close(result, by_loops(task, *parts))
