"""Sequence attention: heads that read tokens made by linear maps along the sequence."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.layers.attention import Headed
from icgd.shapes import Stream


class SequenceAttention(Headed):
    """x[i] + sum_{head, g} softmax_g(<W_Q x[i], k[g]>) W_O v[g], k = A_K x W_K + P, v = A_V x W_V.

    Every head has maps A_K and A_V of its own, which make its tokens from the first columns of the
    sequence, as many as the maps have, and position codes P, which are added to its keys.
    """

    def __init__(
        self,
        query: Float[Tensor, "head d_model d_head"],
        key: Float[Tensor, "head d_model d_head"],
        value: Float[Tensor, "head d_model d_value"],
        output: Float[Tensor, "head d_value d_model"],
        key_map: Float[Tensor, "head grid column"],
        value_map: Float[Tensor, "head grid column"],
        positions: Float[Tensor, "head grid d_head"],
    ) -> None:
        super().__init__(query, key, value, output)
        self.A_K = nn.Parameter(key_map)
        self.A_V = nn.Parameter(value_map)
        self.P = nn.Parameter(positions)

    def forward(self, x: Stream) -> Stream:
        columns = x[..., : self.A_K.shape[-1], :]
        query = torch.einsum("...tm,hmd->...htd", x, self.W_Q)
        key = torch.einsum("...tm,hmd->...htd", columns, self.W_K)
        value = torch.einsum("...tm,hmd->...htd", columns, self.W_V)
        pattern = torch.softmax(query @ (self.A_K @ key + self.P).mT, dim=-1)
        return x + torch.einsum("...htd,hdm->...tm", pattern @ (self.A_V @ value), self.W_O)
