"""Softmax attention, as in every standard transformer; scores are not scaled."""

from __future__ import annotations

from math import inf

import torch
from jaxtyping import Bool
from torch import Tensor

from icgd.layers.attention import AbstractAttention, Scores


class SoftmaxAttention(AbstractAttention):
    """x[i] + sum_{head, j} softmax_j(<W_Q x[i], W_K x[j]>) W_O W_V x[j].

    `mask`, if one is set, says which tokens j token i may read; without it, all.
    """

    mask: Bool[Tensor, "token token"] | None = None

    def pattern(self, scores: Scores) -> Scores:
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask, -inf)
        return torch.softmax(scores, dim=-1)
