"""Activation attention: scores pass through an activation and are averaged, not normalised."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.layers.attention import AbstractAttention
from icgd.shapes import Activation


class ActivationAttention(AbstractAttention):
    """x[i] + (1 / n_tokens) sum_{head, j} activation(<W_Q x[i], W_K x[j]>) W_O W_V x[j]."""

    def __init__(
        self,
        query: Float[Tensor, "head d_model d_head"],
        key: Float[Tensor, "head d_model d_head"],
        value: Float[Tensor, "head d_model d_value"],
        output: Float[Tensor, "head d_value d_model"],
        activation: Activation = torch.relu,
    ) -> None:
        super().__init__(query, key, value, output)
        self.activation = activation

    def pattern(
        self, scores: Float[Tensor, "*batch head token token"]
    ) -> Float[Tensor, "*batch head token token"]:
        return self.activation(scores) / scores.shape[-1]
