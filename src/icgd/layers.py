"""Layers of the transformer as torch modules: kinds of attention, products and MLPs.

Every layer adds its output to the residual stream. Scores are not divided by the square root of the
head width, and no layer normalises the stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from math import inf
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from icgd.reprs import counted, with_repr
from icgd.shapes import Activation, Columns, Stream

SCORES_AT_ONCE = 2**24
"""The largest number of scores computed at once; beyond it, heads are processed in groups."""

SCORES_IN_CACHE = 2**18
"""The same for sparse weights, where small groups cost little."""

Reading = Float[Tensor, "head d_model d_head"]
Writing = Float[Tensor, "head d_value d_model"]
Scores = Float[Tensor, "*batch head token key"]
Features = Float[Tensor, "*tasks head token feature"]


class Family(NamedTuple):
    """A contiguous group of heads (or hidden units) of equal width in a layer of sparse weights."""

    first: int
    size: int
    width: int
    row: int
    """The first row of the first head."""
    is_plain: bool
    """Whether every row has exactly one entry."""


class SparseWeights(nn.Module):
    """The nonzero weights of heads (or hidden units), a tensor (head, model, feature).

    A row is a feature of a head, a column is a coordinate of the stream. Rows are numbered head by
    head; entries are sorted by row. `families` gives for each family the number of heads and their
    number of features.
    """

    rows: Tensor
    columns: Tensor
    values: Tensor

    def __init__(
        self,
        rows: Tensor,
        columns: Tensor,
        values: Tensor,
        families: Sequence[tuple[int, int]],
        d_model: int,
    ) -> None:
        super().__init__()
        self.register_buffer("rows", rows.int())
        self.register_buffer("columns", columns.int())
        self.register_buffer("values", values)
        self.d_model, self.families = d_model, list[Family]()
        head, row, start, ends = 0, 0, 0, [torch.zeros(1, dtype=torch.long)]
        for size, width in families:  # size is 0 for a sum without units
            last = row + size * width
            next_heads = row + width * torch.arange(1, size + 1, dtype=torch.int)
            ends.append(torch.searchsorted(self.rows, next_heads))
            stop = int(ends[-1][-1]) if size else start
            family_rows = self.rows[start:stop]
            is_plain = family_rows.equal(torch.arange(row, last, dtype=torch.int))
            self.families.append(Family(head, size, width, row, is_plain=is_plain))
            head, row, start = head + size, last, stop
        self.ends: list[int] = torch.cat(ends).tolist()
        """The index of the first entry of each head, then the number of all entries."""

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the dense tensor."""
        return len(self), self.d_model, max(family.width for family in self.families)

    def places(self) -> dict[str, Tensor]:
        """Return the head, the coordinate of the stream and the feature of every entry."""
        heads, features = torch.empty_like(self.rows), torch.empty_like(self.rows)
        for family in self.families:
            entries = slice(self.ends[family.first], self.ends[family.first + family.size])
            rows, out = self.rows[entries] - family.row, heads[entries]
            torch.div(rows, family.width, rounding_mode="floor", out=out).add_(family.first)
            torch.remainder(rows, family.width, out=features[entries])
        return {"head": heads, "model": self.columns, "feature": features}

    def groups(self, n_tokens: int, per_head: int) -> Iterator[slice]:
        """Yield groups of heads of one family whose scores fit into the processor's cache."""
        size = max(1, SCORES_IN_CACHE // (n_tokens * per_head))
        for first, n_heads, *_ in self.families:
            for start in range(first, first + n_heads, size):
                yield slice(start, min(start + size, first + n_heads))

    def __getitem__(self, heads: slice) -> SparsePart:
        """Return the entries of some heads of one family."""
        start, stop, _ = heads.indices(len(self))
        family = next(family for family in reversed(self.families) if family.first <= start)
        entries = slice(self.ends[start], self.ends[stop])
        row = family.row + (start - family.first) * family.width
        return SparsePart(
            self.rows[entries] - row,
            self.columns[entries],
            self.values[entries].unsqueeze(-1),
            stop - start,
            family,
        )


class SparsePart(NamedTuple):
    """The entries of some heads of one family; rows are counted from the first of these heads."""

    rows: Tensor
    columns: Tensor
    values: Tensor
    size: int
    family: Family

    def read(self, x: Stream) -> Features:
        """Return the features of the heads: the sparse product of the weights with the stream."""
        terms = x.mT.index_select(-2, self.columns).mul_(self.values)
        if not self.family.is_plain:  # sum the terms of each row
            shape = (*x.shape[:-2], self.size * self.family.width, x.shape[-2])
            terms = x.new_zeros(shape).index_add_(-2, self.rows, terms)
        by_head: Tensor = terms.unflatten(-2, (self.size, self.family.width))
        return by_head.mT

    def add(self, read: Features, total: Stream) -> None:
        """Add the output of the heads to the stream `total`."""
        rows = read.mT.flatten(-3, -2).index_select(-2, self.rows).mul_(self.values)
        total.mT.index_add_(-2, self.columns, rows)


Weights = Tensor | SparseWeights


def features(x: Stream, weights: Tensor | SparsePart) -> Features:
    """Return the features that every head reads from every token."""
    if isinstance(weights, SparsePart):
        return weights.read(x)
    return torch.einsum("...tm,hmd->...htd", x, weights)


def write(read: Features, output: Tensor | SparsePart, total: Stream) -> None:
    """Add the summed output of all heads to every token of `total`."""
    if isinstance(output, SparsePart):
        output.add(read, total)
    else:
        total += torch.einsum("...htd,hdm->...tm", read, output)


def _stored(weights: Weights) -> Any:
    """Return dense weights as a parameter; sparse weights are a module already."""
    return nn.Parameter(weights) if isinstance(weights, Tensor) else weights


class Headed(nn.Module, ABC):
    """A layer with heads: the weights of their queries, keys, values and outputs."""

    W_Q: Any  # parameters (head, model, feature), W_O (head, feature, model), or SparseWeights
    W_K: Any
    W_V: Any
    W_O: Any

    def __init__(self, query: Weights, key: Weights, value: Weights, output: Weights) -> None:
        super().__init__()
        self.W_Q, self.W_K = _stored(query), _stored(key)
        self.W_V, self.W_O = _stored(value), _stored(output)

    def groups(self, n_tokens: int, per_head: int) -> Iterator[slice]:
        """Yield groups of heads that fit into memory at `per_head` scores per head and token."""
        if isinstance(self.W_Q, SparseWeights):
            yield from self.W_Q.groups(n_tokens, per_head)
            return
        size = max(1, SCORES_AT_ONCE // (n_tokens * per_head))
        for start in range(0, len(self.W_Q), size):
            yield slice(start, start + size)

    @abstractmethod
    def attention(self, x: Stream, heads: slice) -> Scores:
        """Return the attention weight of every token (row) on every other, for some heads."""


class AbstractAttention(Headed):
    """x[i] + (1 / divisor) sum_{head, j} pattern[i, j] W_O W_V x[j], patterns made from scores."""

    skip_zeros: bool = False
    """Whether to skip tokens that add exactly 0: see `live`."""

    @abstractmethod
    def pattern(self, scores: Scores) -> Scores:
        """Return the attention weights, before division, from the scores <W_Q x[i], W_K x[j]>."""

    @abstractmethod
    def live(self, scores: Scores, value: Features) -> Bool[Tensor, " token"]:
        """Return which tokens j may add a nonzero value to some token in one of these heads."""

    def divisor(self, n_tokens: int) -> int:
        """Return the divisor of the sum over heads and tokens."""
        return 1

    def scores(self, x: Stream, heads: slice) -> Scores:
        """Return <W_Q x[i], W_K x[j]> for all pairs of tokens in some heads."""
        return features(x, self.W_Q[heads]) @ features(x, self.W_K[heads]).mT

    def attention(self, x: Stream, heads: slice) -> Scores:
        return self.pattern(self.scores(x, heads)) / self.divisor(x.shape[-2])

    def forward(self, x: Stream) -> Stream:
        total = torch.zeros_like(x)
        for heads in self.groups(x[..., 0].numel(), per_head=max(x.shape[-2], self.W_Q.shape[-1])):
            scores, value = self.scores(x, heads), features(x, self.W_V[heads])
            if self.skip_zeros:
                live = self.live(scores, value)
                scores, value = scores[..., live], value[..., live, :]
            write(self.pattern(scores) @ value, self.W_O[heads], total)
        return x + total.div_(self.divisor(x.shape[-2]))


class ActivationAttention(AbstractAttention):
    """x[i] + (1 / n_tokens) sum_{head, j} activation(<W_Q x[i], W_K x[j]>) W_O W_V x[j]."""

    def __init__(self, *heads: Weights, activation: Activation = torch.relu) -> None:
        super().__init__(*heads)
        self.activation = activation

    def pattern(self, scores: Scores) -> Scores:
        # Nothing reads the scores again, so ReLU works in place and saves a pass over memory.
        return torch.relu_(scores) if self.activation is torch.relu else self.activation(scores)

    def live(self, scores: Scores, value: Features) -> Bool[Tensor, " token"]:
        """Return which tokens have a nonzero value; the others add finite * 0 = 0."""
        return (value != 0.0).any(-1).flatten(0, -2).any(0)

    def divisor(self, n_tokens: int) -> int:
        return n_tokens


class SoftmaxAttention(AbstractAttention):
    """x[i] + sum_{head, j} softmax_j(<W_Q x[i], W_K x[j]>) W_O W_V x[j].

    `mask`, if set, says which tokens j token i may attend to; the default is all.
    """

    mask: Bool[Tensor, "token token"] | None = None

    def pattern(self, scores: Scores) -> Scores:
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask, -inf)
        return torch.softmax(scores, dim=-1)

    def live(self, scores: Scores, value: Features) -> Bool[Tensor, " token"]:
        """Return which tokens have a score whose softmax weight does not underflow to 0.

        exp(score - largest score of the row) is exactly 0 below `UNDERFLOW`. Such a token adds
        nothing to the denominator either, so the other weights do not change.
        """
        underflows = scores <= scores.amax(-1, keepdim=True) + UNDERFLOW[scores.dtype]
        return (~underflows).flatten(0, -2).any(0)  # NaN compares false, so it stays


UNDERFLOW = {torch.float64: -746.0, torch.float32: -104.0}
"""Below this, exp is less than half the smallest subnormal number of the dtype and rounds to 0."""


class GridAttention(Headed):
    """x[i] + sum_{head, g} softmax_g(<W_Q x[i], W_K t[g]>) W_O W_V t[g], t = A x + P.

    Every grid token t[g] is a linear combination of the columns x, by the sequence map A, plus a
    constant position code P[g]. Columns attend to the grid tokens only, which are then discarded.
    """

    def __init__(
        self,
        *heads: Weights,
        sequence_map: Float[Tensor, "grid column"],
        positions: Float[Tensor, "grid d_model"],
    ) -> None:
        super().__init__(*heads)
        self.A = nn.Parameter(sequence_map)
        self.P = nn.Parameter(positions)

    def attention(self, x: Stream, heads: slice) -> Scores:
        return self._pattern(x, self.A @ x + self.P, heads)

    def _pattern(self, x: Stream, grid: Float[Tensor, "*tasks grid width"], heads: slice) -> Scores:
        scores = features(x, self.W_Q[heads]) @ features(grid, self.W_K[heads]).mT
        return torch.softmax(scores, dim=-1)

    def forward(self, x: Stream) -> Stream:
        grid, total = self.A @ x + self.P, torch.zeros_like(x)
        for heads in self.groups(x[..., 0].numel(), per_head=len(self.A) * self.W_Q.shape[-1]):
            read = self._pattern(x, grid, heads) @ features(grid, self.W_V[heads])
            write(read, self.W_O[heads], total)
        return x + total


class SequenceAttention(Headed):
    """x[i] + sum_{head, g} softmax_g(<W_Q x[i], k[g]>) W_O v[g], k = A_K x W_K + P, v = A_V x W_V.

    Every head has its own maps A_K and A_V, which combine the first columns of the sequence (as
    many as the maps have columns) into tokens, and position codes P, added to the keys. The last
    feature of the keys may use a map A_L instead of A_K. Columns before `first` do not attend and
    stay unchanged.
    """

    def __init__(
        self,
        *heads: Weights,
        key_map: Float[Tensor, "head grid column"],
        value_map: Float[Tensor, "head grid column"],
        positions: Float[Tensor, "head grid d_head"],
        first: int = 0,
        label_map: Float[Tensor, "head grid column"] | None = None,
    ) -> None:
        super().__init__(*heads)
        self.A_K = nn.Parameter(key_map)
        self.A_L = None if label_map is None else nn.Parameter(label_map)
        self.A_V = nn.Parameter(value_map)
        self.P = nn.Parameter(positions)
        self.first = first

    def attention(self, x: Stream, heads: slice) -> Scores:
        return self._pattern(x[..., self.first :, :], x[..., : self.A_K.shape[-1], :], heads)

    def forward(self, x: Stream) -> Stream:
        asked = self.asked(x[..., self.first :, :], x)
        return torch.cat([x[..., : self.first, :], asked], dim=-2) if self.first else asked

    def asked(self, asking: Stream, x: Columns) -> Stream:
        """Return the attending columns `asking` after the layer; x is the sequence they read."""
        columns, total = x[..., : self.A_K.shape[-1], :], torch.zeros_like(asking)
        for heads in self.groups(max(1, asking[..., 0].numel()), max(self.A_K.shape[1:])):
            value = self.A_V[heads] @ features(columns, self.W_V[heads])
            write(self._pattern(asking, columns, heads) @ value, self.W_O[heads], total)
        return asking + total

    def _pattern(self, asking: Stream, columns: Columns, heads: slice) -> Scores:
        read = features(columns, self.W_K[heads])
        key = self.A_K[heads] @ read
        if self.A_L is not None:
            key = torch.cat([key[..., :-1], self.A_L[heads] @ read[..., -1:]], dim=-1)
        scores = features(asking, self.W_Q[heads]) @ (key + self.P[heads]).mT
        return torch.softmax(scores, dim=-1)


class MirrorAttention(Headed):
    """x[i] + sum_{head, t} softmax_t(<W_Q x[i], W_K t>) W_O W_V t, over t = x[j] and J x[j].

    J is a diagonal matrix of 1 and -1, which is -1 wherever W_V reads: the value of the mirror
    image J x[j] is the negative of the value of x[j].
    """

    def __init__(self, *heads: Weights, mirror: Float[Tensor, " d_model"]) -> None:
        super().__init__(*heads)
        self.J = nn.Parameter(mirror)

    def attention(self, x: Stream, heads: slice) -> Scores:
        """Return the attention weights on all tokens, followed by those on their mirror images."""
        weights = self.W_K[heads]
        key = torch.cat([features(tokens, weights) for tokens in (x, self.J * x)], dim=-2)
        return torch.softmax(features(x, self.W_Q[heads]) @ key.mT, dim=-1)

    def forward(self, x: Stream) -> Stream:
        total, n_keys = torch.zeros_like(x), 2 * x.shape[-2]
        for heads in self.groups(x[..., 0].numel(), per_head=max(n_keys, self.W_Q.shape[-1])):
            weights, images = self.attention(x, heads).chunk(2, dim=-1)
            # Subtract the weights before summing over tokens: rounding is then proportional to the
            # output of the head, which is much smaller than the values.
            write((weights - images) @ features(x, self.W_V[heads]), self.W_O[heads], total)
        return x + total


class Itself(Enum):
    """Patterns of heads in which a token attends to itself only."""

    EXAMPLES = "every example reads itself, and queries read nothing"
    TOKENS = "every token reads itself"


Pattern = Callable[[Tensor, Tensor], Tensor] | Itself
"""A kernel of queries (rows) and keys (columns), or the tokens that attend to themselves."""


class KernelAttention(Headed):
    """x[i] + sum_{head, example j} K_head(W_Q x[i], W_K x[j]) W_O W_V x[j].

    Feature `example_feature` of the stream is 1 on examples and 0 on queries: tokens attend to
    examples only, as the mask of the papers demands. Only in heads of `Itself.TOKENS` does a query
    attend to itself.
    """

    def __init__(self, *heads: Weights, patterns: Sequence[Pattern], example_feature: int) -> None:
        super().__init__(*heads)
        self.patterns = tuple(patterns)
        self.example_feature = example_feature

    def attention(self, x: Stream, heads: slice) -> Scores:
        is_example, patterns = self.is_example(x).to(x), list[Tensor]()
        for number in range(*heads.indices(len(self.patterns))):
            pattern, head = self.patterns[number], slice(number, number + 1)
            if isinstance(pattern, Itself):
                reads = is_example if pattern is Itself.EXAMPLES else torch.ones_like(is_example)
                patterns.append(torch.diag(reads).expand(*x.shape[:-2], -1, -1))
            else:
                query, key = features(x, self.W_Q[head]), features(x, self.W_K[head])
                patterns.append(pattern(query.squeeze(-3), key.squeeze(-3)) * is_example)
        return torch.stack(patterns, dim=-3)

    def forward(self, x: Stream) -> Stream:
        is_example = self.is_example(x)
        examples = x[..., is_example, :]
        update = torch.zeros_like(x)
        for number, pattern in enumerate(self.patterns):
            head = slice(number, number + 1)
            if pattern is Itself.TOKENS:
                write(features(x, self.W_V[head]), self.W_O[head], update)
                continue
            value = torch.zeros_like(examples)
            write(features(examples, self.W_V[head]), self.W_O[head], value)
            if pattern is Itself.EXAMPLES:
                update[..., is_example, :] += value
            else:
                query, key = features(x, self.W_Q[head]), features(examples, self.W_K[head])
                update += pattern(query.squeeze(-3), key.squeeze(-3)) @ value
        return x + update

    def is_example(self, x: Stream) -> Bool[Tensor, " token"]:
        """Return which tokens are examples; they are the same in all tasks of a batch."""
        first_task = x.flatten(0, -3)[0] if x.ndim > 2 else x
        return first_task[:, self.example_feature] > 0.5


class ProductLayer(Headed):
    """x[i] + sum_head <W_Q x[i], W_K x[i]> W_O W_V x[i]: every token attends to itself."""

    def attention(self, x: Stream, heads: slice) -> Scores:
        return torch.diag_embed(self._scores(x, heads))

    def _scores(self, x: Stream, heads: slice) -> Float[Tensor, "*tasks head token"]:
        return (features(x, self.W_Q[heads]) * features(x, self.W_K[heads])).sum(-1)

    def forward(self, x: Stream) -> Stream:
        total = torch.zeros_like(x)
        for heads in self.groups(x[..., 0].numel(), per_head=self.W_Q.shape[-1]):
            value = self._scores(x, heads).unsqueeze(-1) * features(x, self.W_V[heads])
            write(value, self.W_O[heads], total)
        return x + total


class MLPLayer(nn.Module):
    """x[i] + W_out activation(W_in x[i] + b_in)."""

    def __init__(
        self,
        weights_in: Float[Tensor, "d_model d_mlp"] | SparseWeights,
        bias_in: Float[Tensor, " d_mlp"],
        weights_out: Float[Tensor, "d_mlp d_model"] | SparseWeights,
        activation: Activation = torch.relu,
    ) -> None:
        super().__init__()
        self.W_in = _stored(weights_in)
        self.b_in = nn.Parameter(bias_in)
        self.W_out = _stored(weights_out)
        self.activation = activation

    def forward(self, x: Stream) -> Stream:
        total: Stream = torch.zeros_like(x)
        if isinstance(self.W_in, Tensor):
            total = self.activation(x @ self.W_in + self.b_in) @ self.W_out
            return x + total
        for units in self.W_in.groups(x[..., 0].numel(), per_head=1):  # a unit has one feature
            shift = self.b_in[units, None, None]
            hidden = self.activation(features(x, self.W_in[units]) + shift)
            write(hidden, self.W_out[units], total)
        return x + total


@with_repr
class Transformer(nn.Module):
    """`block` repeated `n_repeats` times with shared weights, then `final`.

    If repetitions differ, `ends` has for each one the layers that replace the last of the block.
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
        """Yield all layers in the order in which they run."""
        for number in range(self.n_repeats):
            yield from self.repetition(number)
        yield from self.final

    def repetition(self, number: int) -> list[nn.Module]:
        """Return the layers of a repetition of the block, counted from 0."""
        if not self.ends:
            return list(self.block)
        end = list(self.ends[number].children())
        return [*list(self.block)[: len(self.block) - len(end)], *end]

    def layers_of(self, step: int, n_layers: int) -> list[nn.Module]:
        """Return `n_layers` layers of a step, counted from 0; a block may have several steps."""
        per_block = len(self.block) // n_layers
        first = step % per_block * n_layers
        return self.repetition(step // per_block)[first : first + n_layers]

    def forward(self, x: Stream) -> Stream:
        for layer in self.unrolled():
            x = layer(x)
        return x
