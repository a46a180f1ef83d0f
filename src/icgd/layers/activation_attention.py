"""ReLU attention: scores pass through a ReLU and are averaged, not normalised."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.layers.attention import AbstractAttention


class ReLUAttention(AbstractAttention):
    """x[i] + (1 / n_tokens) sum_{head, j} relu(<W_Q x[i], W_K x[j]>) W_O W_V x[j]."""

    def pattern(
        self, scores: Float[Tensor, "*batch head token token"]
    ) -> Float[Tensor, "*batch head token token"]:
        return torch.relu(scores) / scores.shape[-1]
