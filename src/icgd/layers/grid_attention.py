"""Grid attention: softmax attention to tokens that a linear map along the sequence makes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.layers.attention import Headed
from icgd.shapes import Stream


class GridAttention(Headed):
    """x[i] + sum_{head, g} softmax_g(<W_Q x[i], W_K t[g]>) W_O W_V t[g], t = A x + P.

    Every grid token t[g] is a combination of the columns x, by the sequence map A, plus a position
    code P[g] of constants. Columns read the grid tokens alone, which then are gone.
    """

    def __init__(
        self,
        query: Float[Tensor, "head d_model d_head"],
        key: Float[Tensor, "head d_model d_head"],
        value: Float[Tensor, "head d_model d_value"],
        output: Float[Tensor, "head d_value d_model"],
        sequence_map: Float[Tensor, "grid column"],
        positions: Float[Tensor, "grid d_model"],
    ) -> None:
        super().__init__(query, key, value, output)
        self.A = nn.Parameter(sequence_map)
        self.P = nn.Parameter(positions)

    def forward(self, x: Stream) -> Stream:
        grid = self.A @ x + self.P
        query = torch.einsum("...tm,hmd->...htd", x, self.W_Q)
        key = torch.einsum("...gm,hmd->...hgd", grid, self.W_K)
        value = torch.einsum("...gm,hmd->...hgd", grid, self.W_V)
        pattern = torch.softmax(query @ key.mT, dim=-1)
        return x + torch.einsum("...htd,hdm->...tm", pattern @ value, self.W_O)
