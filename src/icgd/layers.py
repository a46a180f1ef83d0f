"""The layers of the transformer, as torch modules: kinds of attention, products and MLPs.

Every layer adds to the residual stream what it computes. Scores are not scaled by the width of the
heads, and no layer normalises the stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from math import inf

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from icgd.facts import counted, shown
from icgd.shapes import Activation, Stream

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
    """A layer with heads: the weights of their queries, keys, values and outputs."""

    def __init__(self, query: Reading, key: Reading, value: Carrying, output: Writing) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(query)
        self.W_K = nn.Parameter(key)
        self.W_V = nn.Parameter(value)
        self.W_O = nn.Parameter(output)

    def groups(self, x: Stream, per_head: int) -> Iterator[slice]:
        """The heads in groups that fit in memory, if each computes `per_head` scores a token."""
        size = max(1, SCORES_AT_ONCE // (x[..., 0].numel() * per_head))
        for start in range(0, len(self.W_Q), size):
            yield slice(start, start + size)


class AbstractAttention(Headed, ABC):
    """x[i] + sum_{head, j} pattern[i, j] W_O W_V x[j], with a pattern made from the scores."""

    @abstractmethod
    def pattern(self, scores: Scores) -> Scores:
        """How much every token (row) reads of every other, from <W_Q x[i], W_K x[j]>."""

    def forward(self, x: Stream) -> Stream:
        total = torch.zeros_like(x)
        for heads in self.groups(x, per_head=max(x.shape[-2], self.W_Q.shape[-1])):
            pattern = self.pattern(features(x, self.W_Q[heads]) @ features(x, self.W_K[heads]).mT)
            total += written(pattern @ features(x, self.W_V[heads]), self.W_O[heads])
        return x + total


class ActivationAttention(AbstractAttention):
    """x[i] + (1 / n_tokens) sum_{head, j} activation(<W_Q x[i], W_K x[j]>) W_O W_V x[j]."""

    def __init__(self, *heads: Tensor, activation: Activation = torch.relu) -> None:
        super().__init__(*heads)
        self.activation = activation

    def pattern(self, scores: Scores) -> Scores:
        return self.activation(scores) / scores.shape[-1]


class SoftmaxAttention(AbstractAttention):
    """x[i] + sum_{head, j} softmax_j(<W_Q x[i], W_K x[j]>) W_O W_V x[j].

    `mask`, if one is set, says which tokens j token i may read; without it, all.
    """

    mask: Bool[Tensor, "token token"] | None = None

    def pattern(self, scores: Scores) -> Scores:
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask, -inf)
        return torch.softmax(scores, dim=-1)


class GridAttention(Headed):
    """x[i] + sum_{head, g} softmax_g(<W_Q x[i], W_K t[g]>) W_O W_V t[g], t = A x + P.

    Every grid token t[g] is a combination of the columns x, by the sequence map A, plus a position
    code P[g] of constants. Columns read the grid tokens alone, which then are gone.
    """

    def __init__(
        self,
        *heads: Tensor,
        sequence_map: Float[Tensor, "grid column"],
        positions: Float[Tensor, "grid d_model"],
    ) -> None:
        super().__init__(*heads)
        self.A = nn.Parameter(sequence_map)
        self.P = nn.Parameter(positions)

    def forward(self, x: Stream) -> Stream:
        grid = self.A @ x + self.P
        scores = features(x, self.W_Q) @ features(grid, self.W_K).mT
        read = torch.softmax(scores, dim=-1) @ features(grid, self.W_V)
        return x + written(read, self.W_O)


class SequenceAttention(Headed):
    """x[i] + sum_{head, g} softmax_g(<W_Q x[i], k[g]>) W_O v[g], k = A_K x W_K + P, v = A_V x W_V.

    Every head has maps A_K and A_V of its own, which make its tokens from the first columns of the
    sequence, as many as the maps have, and position codes P, which are added to its keys.
    """

    def __init__(
        self,
        *heads: Tensor,
        key_map: Float[Tensor, "head grid column"],
        value_map: Float[Tensor, "head grid column"],
        positions: Float[Tensor, "head grid d_head"],
    ) -> None:
        super().__init__(*heads)
        self.A_K = nn.Parameter(key_map)
        self.A_V = nn.Parameter(value_map)
        self.P = nn.Parameter(positions)

    def forward(self, x: Stream) -> Stream:
        columns, total = x[..., : self.A_K.shape[-1], :], torch.zeros_like(x)
        for heads in self.groups(x, per_head=self.A_K.shape[1]):
            key = self.A_K[heads] @ features(columns, self.W_K[heads]) + self.P[heads]
            value = self.A_V[heads] @ features(columns, self.W_V[heads])
            pattern = torch.softmax(features(x, self.W_Q[heads]) @ key.mT, dim=-1)
            total += written(pattern @ value, self.W_O[heads])
        return x + total


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

    def __init__(self, *heads: Tensor, patterns: Sequence[Pattern], example_feature: int) -> None:
        super().__init__(*heads)
        self.patterns = tuple(patterns)
        self.example_feature = example_feature

    def forward(self, x: Stream) -> Stream:
        is_example = self.is_example(x)
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

    def is_example(self, x: Stream) -> Bool[Tensor, " token"]:
        """Return which tokens are examples: the same in all tasks of a batch."""
        first_task = x.flatten(0, -3)[0] if x.ndim > 2 else x
        return first_task[:, self.example_feature] > 0.5


class ProductLayer(Headed):
    """x[i] + sum_head <W_Q x[i], W_K x[i]> W_O W_V x[i]: attention of a token to itself."""

    def forward(self, x: Stream) -> Stream:
        score = (features(x, self.W_Q) * features(x, self.W_K)).sum(-1, keepdim=True)
        return x + written(score * features(x, self.W_V), self.W_O)


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


@shown
class Transformer(nn.Module):
    """`block` repeated `n_repeats` times, with the same weights each time, then `final`.

    If repetitions differ, `ends` has the last layers of each, in place of those of the block.
    """

    def __init__(
        self,
        block: Sequence[nn.Module],
        n_repeats: int,
        final: Sequence[nn.Module],
        ends: Sequence[Sequence[nn.Module]] = (),
    ) -> None:
        super().__init__()
        self.block = nn.ModuleList(block)
        self.n_repeats = n_repeats
        self.final = nn.ModuleList(final)
        self.ends = nn.ModuleList(nn.Sequential(*end) for end in ends)

    def facts(self) -> dict[str, str]:
        n_weights = sum(weights.numel() for weights in self.parameters())
        n_layers = len(self.block) * self.n_repeats + len(self.final)
        repeated = f"{counted(len(self.block), 'layer')} repeated {self.n_repeats:,} times"
        return {
            "layers": f"{n_layers:,}: {repeated}, then {len(self.final)}",
            "weights": f"{n_weights:,}",
        }

    def unrolled(self) -> Iterator[nn.Module]:
        """All layers in the order in which they run."""
        for number in range(self.n_repeats):
            yield from self.repetition(number)
        yield from self.final

    def repetition(self, number: int) -> list[nn.Module]:
        """The layers of a repetition of the block, counted from 0."""
        if not self.ends:
            return list(self.block)
        end = list(self.ends[number].children())
        return [*list(self.block)[: len(self.block) - len(end)], *end]

    def layers_of(self, step: int, n_layers: int) -> list[nn.Module]:
        """The `n_layers` layers of a step, counted from 0; a block may have several steps."""
        per_block = len(self.block) // n_layers
        first = step % per_block * n_layers
        return self.repetition(step // per_block)[first : first + n_layers]

    def forward(self, x: Stream) -> Stream:
        for layer in self.unrolled():
            x = layer(x)
        return x
