"""What layers with heads share: their weights, and the way to take many heads in groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.shapes import Stream

SCORES_AT_ONCE = 2**24
"""Entries of the score tensor computed at once; more heads are taken in groups."""


Reading = Float[Tensor, "head d_model d_head"]
Carrying = Float[Tensor, "head d_model d_value"]
Writing = Float[Tensor, "head d_value d_model"]
Scores = Float[Tensor, "*batch head token token"]


def features(x: Stream, weights: Tensor) -> Float[Tensor, "*tasks head token feature"]:
    """What every head reads of every token."""
    return torch.einsum("...tm,hmd->...htd", x, weights)


def written(read: Float[Tensor, "*tasks head token d_value"], output: Writing) -> Stream:
    """What all heads together add to every token."""
    return torch.einsum("...htd,hdm->...tm", read, output)


class Headed(nn.Module):
    """Weights of heads: queries, keys, values and outputs."""

    def __init__(self, query: Reading, key: Reading, value: Carrying, output: Writing) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(query)
        self.W_K = nn.Parameter(key)
        self.W_V = nn.Parameter(value)
        self.W_O = nn.Parameter(output)

    def in_groups(self, x: Stream, per_head: int, update: Callable[[slice], Tensor]) -> Stream:
        """`x` and the update of all heads, of which each computes `per_head` scores a token."""
        group = max(1, SCORES_AT_ONCE // (x[..., 0].numel() * per_head))
        total = torch.zeros_like(x)
        for start in range(0, len(self.W_Q), group):
            total += update(slice(start, start + group))
        return x + total


class AbstractAttention(Headed, ABC):
    """x[i] + sum_{head, j} pattern[i, j] W_O W_V x[j], with a pattern made from the scores."""

    @abstractmethod
    def pattern(self, scores: Scores) -> Scores:
        """How much every token (row) reads of every other, from <W_Q x[i], W_K x[j]>."""

    def forward(self, x: Stream) -> Stream:
        per_head = max(x.shape[-2], self.W_Q.shape[-1])
        return self.in_groups(x, per_head, lambda heads: self._heads(x, heads))

    def _heads(self, x: Stream, heads: slice) -> Stream:
        pattern = self.pattern(features(x, self.W_Q[heads]) @ features(x, self.W_K[heads]).mT)
        return written(pattern @ features(x, self.W_V[heads]), self.W_O[heads])
