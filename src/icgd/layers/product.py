"""The product layer: each token multiplies features of its own."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.shapes import Stream


class ProductLayer(nn.Module):
    """x[i] + sum_head <W_Q x[i], W_K x[i]> W_O W_V x[i]: attention of a token to itself."""

    def __init__(
        self,
        query: Float[Tensor, "head d_model d_head"],
        key: Float[Tensor, "head d_model d_head"],
        value: Float[Tensor, "head d_model d_head"],
        output: Float[Tensor, "head d_head d_model"],
    ) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(query)
        self.W_K = nn.Parameter(key)
        self.W_V = nn.Parameter(value)
        self.W_O = nn.Parameter(output)

    def forward(self, x: Stream) -> Stream:
        query = torch.einsum("...tm,hmd->...htd", x, self.W_Q)
        key = torch.einsum("...tm,hmd->...htd", x, self.W_K)
        value = torch.einsum("...tm,hmd->...htd", x, self.W_V)
        score = (query * key).sum(-1, keepdim=True)
        return x + torch.einsum("...htd,hdm->...tm", score * value, self.W_O)
