"""What layers with heads share: their weights; and what attention shares, heads in groups."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.shapes import Stream

SCORES_AT_ONCE = 2**24
"""Entries of the score tensor computed at once; more heads are taken in groups."""


class Headed(nn.Module):
    """Weights of heads: queries, keys, values and outputs."""

    def __init__(
        self,
        query: Float[Tensor, "head d_model d_head"],
        key: Float[Tensor, "head d_model d_head"],
        value: Float[Tensor, "head d_model d_value"],
        output: Float[Tensor, "head d_value d_model"],
    ) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(query)
        self.W_K = nn.Parameter(key)
        self.W_V = nn.Parameter(value)
        self.W_O = nn.Parameter(output)


class AbstractAttention(Headed, ABC):
    """x[i] + sum_{head, j} pattern[i, j] W_O W_V x[j], with a pattern made from the scores."""

    @abstractmethod
    def pattern(
        self, scores: Float[Tensor, "*batch head token token"]
    ) -> Float[Tensor, "*batch head token token"]:
        """How much every token (row) reads of every other, from <W_Q x[i], W_K x[j]>."""

    def forward(self, x: Stream) -> Stream:
        n_heads, _, d_head = self.W_Q.shape
        per_head = x[..., 0].numel() * max(x.shape[-2], d_head)
        group = max(1, SCORES_AT_ONCE // per_head)
        update = torch.zeros_like(x)
        for start in range(0, n_heads, group):
            update += self._heads(x, slice(start, start + group))
        return x + update

    def _heads(self, x: Stream, heads: slice) -> Stream:
        query = torch.einsum("...tm,hmd->...htd", x, self.W_Q[heads])
        key = torch.einsum("...tm,hmd->...htd", x, self.W_K[heads])
        value = torch.einsum("...tm,hmd->...htd", x, self.W_V[heads])
        pattern = self.pattern(query @ key.mT)
        return torch.einsum("...htd,hdm->...tm", pattern @ value, self.W_O[heads])
