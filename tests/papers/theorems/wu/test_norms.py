from math import isnan

import torch
from torch import nn

from icgd.layers import ActivationAttention, MLPLayer, ProductLayer
from icgd.program.functions import ReluSum
from icgd_papers.theorems.wu.norms import coefficients, layer_norm


def heads(query: float, key: float, value: float) -> tuple[torch.Tensor, ...]:
    """Two equal heads that read two coordinates and write one."""
    read = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).expand(2, 2, 2)
    carried = torch.tensor([[1.0], [0.0]]).expand(2, 2, 1)
    written = torch.tensor([[value, -value]]).expand(2, 1, 2)
    return query * read, key * read, carried, written


def test_the_norm_of_attention_is_that_of_keys_and_the_scaled_sum_of_values():
    # |Q|_1 = 6 is moved to the values, |K|_1 = 10, |V|_1 = 14
    assert layer_norm(ActivationAttention(*heads(3.0, 5.0, 7.0))) == 10 + 2 * 6 * 14


def test_the_norm_of_a_product_layer_is_its_largest_matrix():
    assert layer_norm(ProductLayer(*heads(3.0, 5.0, 7.0))) == 14


def test_the_norm_of_an_mlp_adds_the_largest_columns():
    reads, bias = torch.tensor([[1.0, -2.0], [0.5, 0.5]]), torch.tensor([4.0, -5.0])
    writes = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    assert layer_norm(MLPLayer(reads, bias, writes)) == 9 + 3


def test_another_layer_has_no_norm():
    assert isnan(layer_norm(nn.Identity()))


def test_coefficients_are_those_of_vectors_of_norm_one():
    ramp = ReluSum("f", -4.0, 4.0, 1.0, (0.0, 3.0), (0.0, 2.0, 0.0), 0.0, 1.0, (0.0,) * 3)
    assert coefficients(ramp) == 1.0 + 2.0 + 2.0 * (1 + 3.0)
