"""Grid attention: softmax attention to tokens that a linear map along the sequence makes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.layers.attention import Carrying, Headed, Reading, Writing, features, written
from icgd.shapes import Stream


class GridAttention(Headed):
    """x[i] + sum_{head, g} softmax_g(<W_Q x[i], W_K t[g]>) W_O W_V t[g], t = A x + P.

    Every grid token t[g] is a combination of the columns x, by the sequence map A, plus a position
    code P[g] of constants. Columns read the grid tokens alone, which then are gone.
    """

    def __init__(
        self,
        query: Reading,
        key: Reading,
        value: Carrying,
        output: Writing,
        sequence_map: Float[Tensor, "grid column"],
        positions: Float[Tensor, "grid d_model"],
    ) -> None:
        super().__init__(query, key, value, output)
        self.A = nn.Parameter(sequence_map)
        self.P = nn.Parameter(positions)

    def forward(self, x: Stream) -> Stream:
        grid = self.A @ x + self.P
        scores = features(x, self.W_Q) @ features(grid, self.W_K).mT
        read = torch.softmax(scores, dim=-1) @ features(grid, self.W_V)
        return x + written(read, self.W_O)
