"""Activation attention: scores pass through an activation and are averaged, not normalised."""

from __future__ import annotations

import torch

from icgd.layers.attention import AbstractAttention, Carrying, Reading, Scores, Writing
from icgd.shapes import Activation


class ActivationAttention(AbstractAttention):
    """x[i] + (1 / n_tokens) sum_{head, j} activation(<W_Q x[i], W_K x[j]>) W_O W_V x[j]."""

    def __init__(
        self,
        query: Reading,
        key: Reading,
        value: Carrying,
        output: Writing,
        activation: Activation = torch.relu,
    ) -> None:
        super().__init__(query, key, value, output)
        self.activation = activation

    def pattern(self, scores: Scores) -> Scores:
        return self.activation(scores) / scores.shape[-1]
