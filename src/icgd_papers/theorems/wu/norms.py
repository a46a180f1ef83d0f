r"""The norms (C.1) and (3.18) of compiled layers; |A|_1 is the largest sum of a column of |A|.

relu(a z) = a relu(z) for a > 0, so a head may be scaled: here every query has norm 1, as in
Definition 4, and its value takes over what was divided out.
"""

from __future__ import annotations

from math import nan

import torch
from torch import Tensor, nn

from icgd.layers import Headed, MLPLayer, ProductLayer
from icgd.program.functions import ReluSum


def column_sum(matrices: Tensor) -> Tensor:
    """The norm |.|_1 of every matrix."""
    return matrices.detach().abs().sum(-2).amax(-1)


def product_norm(layer: Headed) -> float:
    """(3.18): the largest |Q|_1, |K|_1 or |V|_1 of any head."""
    reads = [column_sum(weights.mT) for weights in (layer.W_Q, layer.W_K)]
    return float(torch.stack([*reads, _values(layer)]).max())


def attention_norm(layer: Headed) -> float:
    """(C.1): the largest |Q|_1 or |K|_1 of any head, and the sum of |V|_1 over heads."""
    query, key = (column_sum(weights.mT) for weights in (layer.W_Q, layer.W_K))
    return max(1.0, float(key.max())) + float((_values(layer) * query).sum())


def mlp_norm(layer: MLPLayer) -> float:
    """(C.1): |W_1|_1 + |W_2|_1; a bias is the column of the constant 1."""
    reads = torch.cat([layer.W_in.mT, layer.b_in[:, None]], dim=1)
    return float(column_sum(reads) + column_sum(layer.W_out.mT))


def layer_norm(layer: nn.Module) -> float:
    """The norm of a compiled layer, by its kind; not a number for a kind that has none."""
    if isinstance(layer, MLPLayer):
        return mlp_norm(layer)
    if isinstance(layer, ProductLayer):
        return product_norm(layer)
    return attention_norm(layer) if isinstance(layer, Headed) else nan


def _values(layer: Headed) -> Tensor:
    return column_sum((layer.W_V @ layer.W_O).mT)


def coefficients(function: ReluSum) -> float:
    """C of Definition 4: the sum of |c_h|, if every |a_h|_1 is made 1."""
    terms = function.terms()
    return sum(abs(term.coefficient) * (abs(term.scale) + abs(term.shift)) for term in terms)
