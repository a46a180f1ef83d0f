"""The MLP layer of a transformer: one hidden layer of units at every token."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.shapes import Activation, Stream


class MLPLayer(nn.Module):
    """x[i] + W_out activation(W_in x[i] + b_in)."""

    def __init__(
        self,
        weights_in: Float[Tensor, "d_model d_mlp"],
        bias_in: Float[Tensor, " d_mlp"],
        weights_out: Float[Tensor, "d_mlp d_model"],
        activation: Activation = torch.relu,
    ) -> None:
        super().__init__()
        self.W_in = nn.Parameter(weights_in)
        self.b_in = nn.Parameter(bias_in)
        self.W_out = nn.Parameter(weights_out)
        self.activation = activation

    def forward(self, x: Stream) -> Stream:
        return x + self.activation(x @ self.W_in + self.b_in) @ self.W_out
