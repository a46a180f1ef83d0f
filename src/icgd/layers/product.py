"""The product layer: each token multiplies features of its own."""

from __future__ import annotations

import torch

from icgd.layers.attention import Headed
from icgd.shapes import Stream


class ProductLayer(Headed):
    """x[i] + sum_head <W_Q x[i], W_K x[i]> W_O W_V x[i]: attention of a token to itself."""

    def forward(self, x: Stream) -> Stream:
        query = torch.einsum("...tm,hmd->...htd", x, self.W_Q)
        key = torch.einsum("...tm,hmd->...htd", x, self.W_K)
        value = torch.einsum("...tm,hmd->...htd", x, self.W_V)
        score = (query * key).sum(-1, keepdim=True)
        return x + torch.einsum("...htd,hdm->...tm", score * value, self.W_O)
