"""Kernel attention: every token reads the examples, each by how alike a kernel says they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import torch
from jaxtyping import Bool
from torch import Tensor

from icgd.layers.attention import Carrying, Headed, Reading, Writing
from icgd.shapes import Stream


class Itself(Enum):
    """The patterns of heads in which tokens read themselves alone."""

    EXAMPLES = "every example reads itself, and queries read nothing"
    TOKENS = "every token reads itself"


Pattern = Callable[[Tensor, Tensor], Tensor] | Itself
"""A kernel of every query (row) and key (column), or who reads itself."""


class KernelAttention(Headed):
    """x[i] + sum_{head, example j} K_head(W_Q x[i], W_K x[j]) W_O W_V x[j].

    Feature `example_feature` of the stream is 1 on examples, which are read, and 0 on queries,
    which are not: the mask of the papers. Only heads of `Itself.TOKENS` let a query read itself.
    """

    def __init__(
        self,
        query: Reading,
        key: Reading,
        value: Carrying,
        output: Writing,
        patterns: Sequence[Pattern],
        example_feature: int,
    ) -> None:
        super().__init__(query, key, value, output)
        self.patterns = tuple(patterns)
        self.example_feature = example_feature

    def forward(self, x: Stream) -> Stream:
        is_example = self._is_example(x)
        examples = x[..., is_example, :]
        update = torch.zeros_like(x)
        for head, pattern in enumerate(self.patterns):
            if pattern is Itself.TOKENS:
                update += x @ self.W_V[head] @ self.W_O[head]
                continue
            value = examples @ self.W_V[head] @ self.W_O[head]
            if pattern is Itself.EXAMPLES:
                update[..., is_example, :] += value
            else:
                update += pattern(x @ self.W_Q[head], examples @ self.W_K[head]) @ value
        return x + update

    def _is_example(self, x: Stream) -> Bool[Tensor, " token"]:
        """Which tokens are examples; the same in all tasks of a batch."""
        first_task = x.flatten(0, -3)[0] if x.ndim > 2 else x
        return first_task[:, self.example_feature] > 0.5
