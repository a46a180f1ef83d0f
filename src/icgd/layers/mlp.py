"""The MLP layer of a transformer: one hidden layer of ReLUs at every token."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.shapes import Stream


class MLPLayer(nn.Module):
    """x[i] + W_out relu(W_in x[i] + b_in)."""

    def __init__(
        self,
        weights_in: Float[Tensor, "d_model d_mlp"],
        bias_in: Float[Tensor, " d_mlp"],
        weights_out: Float[Tensor, "d_mlp d_model"],
    ) -> None:
        super().__init__()
        self.W_in = nn.Parameter(weights_in)
        self.b_in = nn.Parameter(bias_in)
        self.W_out = nn.Parameter(weights_out)

    def forward(self, x: Stream) -> Stream:
        return x + torch.relu(x @ self.W_in + self.b_in) @ self.W_out
