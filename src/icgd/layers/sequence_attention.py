"""Sequence attention: heads that read tokens made by linear maps along the sequence."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.layers.attention import Carrying, Headed, Reading, Writing, features, written
from icgd.shapes import Stream


class SequenceAttention(Headed):
    """x[i] + sum_{head, g} softmax_g(<W_Q x[i], k[g]>) W_O v[g], k = A_K x W_K + P, v = A_V x W_V.

    Every head has maps A_K and A_V of its own, which make its tokens from the first columns of the
    sequence, as many as the maps have, and position codes P, which are added to its keys.
    """

    def __init__(
        self,
        query: Reading,
        key: Reading,
        value: Carrying,
        output: Writing,
        key_map: Float[Tensor, "head grid column"],
        value_map: Float[Tensor, "head grid column"],
        positions: Float[Tensor, "head grid d_head"],
    ) -> None:
        super().__init__(query, key, value, output)
        self.A_K = nn.Parameter(key_map)
        self.A_V = nn.Parameter(value_map)
        self.P = nn.Parameter(positions)

    def forward(self, x: Stream) -> Stream:
        return self.in_groups(x, self.A_K.shape[1], lambda heads: self._heads(x, heads))

    def _heads(self, x: Stream, heads: slice) -> Stream:
        columns = x[..., : self.A_K.shape[-1], :]
        key = self.A_K[heads] @ features(columns, self.W_K[heads]) + self.P[heads]
        value = self.A_V[heads] @ features(columns, self.W_V[heads])
        pattern = torch.softmax(features(x, self.W_Q[heads]) @ key.mT, dim=-1)
        return written(pattern @ value, self.W_O[heads])
