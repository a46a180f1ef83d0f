r"""One head of kernel attention, forward and backward as fast as a CPU allows.

Tokens are columns, as in the paper, so that every batched product has long contiguous rows.
Products with rows of the feature width would take two to three times as long. A head computes

    V gathered,    gathered_i = sum_j values_j K(scores_ji),    scores = examples^T M readers,

with M = B^T C, since <B x_j, C x_i> = x_j^T M x_i. Tasks are done chunk by chunk: the matrices of
all pairs stay in a cache, and the backward pass computes them again, which costs less than fresh
memory for all of them. Only what was gathered is kept, so memory does not grow with n^2.

    linear      associated as (values examples^T) (M readers), without the matrix of all pairs
    relu, exp   elementwise, in place
    softmax     exp, with a row of ones below the values that gathers the normaliser

One task of n examples, m readers, c rows of values and d inputs costs O((c + d) n m); with the
linear kernel O(c d (n + m)). All other kernels go through `icgd.problems.kernels` and autograd.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from icgd.problems.kernels import Kernel

CHUNK_ENTRIES = 500_000
"""How many pairs of tokens a thread works on at a time: 2 MB of float32, near its cache."""

SAFE_SCORE = 30.0
"""Up to this score, e^score and its sums stay far from float32's limits, e^-87 and e^88."""


@dataclass(frozen=True)
class Reading:
    """Who reads what: the columns of a stream, whose first rows are the values.

    `inputs` holds x as columns; None means that x is the stream below its first row. The last
    column is the query. If `query_only`, the query alone reads.
    """

    stream: Tensor
    inputs: Tensor | None
    query_only: bool

    @property
    def x(self) -> Tensor:
        return self.stream[:, 1:] if self.inputs is None else self.inputs

    @property
    def examples(self) -> Tensor:
        return self.x[..., :-1]

    @property
    def readers(self) -> Tensor:
        return self.x[..., -1:] if self.query_only else self.x

    def values(self, n_rows: int) -> Tensor:
        return self.stream[:, :n_rows, :-1]

    def old(self, n_rows: int) -> Tensor:
        """What the readers' columns hold before they read."""
        return self.stream[:, :n_rows, -1:] if self.query_only else self.stream[:, :n_rows]

    @property
    def chunk_size(self) -> int:
        """The number of tasks that are done at a time."""
        pairs = max(1, self.examples.shape[-1] * self.readers.shape[-1])
        return min(len(self.stream), max(1, CHUNK_ENTRIES * torch.get_num_threads() // pairs))

    def scratch(self) -> tuple[Tensor, Tensor]:
        """Two matrices of all pairs; every chunk uses them again, so that they stay cached."""
        shape = (self.chunk_size, self.examples.shape[-1], self.readers.shape[-1])
        return self.stream.new_empty(shape), self.stream.new_empty(shape)

    def chunks(self) -> Iterator[tuple[slice, Reading]]:
        """These tasks in parts, each with its place."""
        for start in range(0, len(self.stream), max(1, self.chunk_size)):
            part = slice(start, start + self.chunk_size)
            inputs = None if self.inputs is None else self.inputs[part]
            yield part, Reading(self.stream[part], inputs, self.query_only)


def plain_head(reading: Reading, V: Tensor, B: Tensor, C: Tensor, kernel: Kernel) -> Tensor:
    """V gathered, for any kernel, with autograd."""
    pattern = kernel.matrix((C @ reading.readers).mT, (B @ reading.examples).mT)
    return V @ (reading.values(len(V)) @ pattern.mT)


class _Pairs(NamedTuple):
    """What a gathering reads: values and inputs of the examples, and M times the readers."""

    values: Tensor
    examples: Tensor
    scored: Tensor
    scratch: tuple[Tensor, Tensor]


class _PullBack(NamedTuple):
    """Gradients of a gathering: the first two as pairs of factors, used only if needed."""

    values: tuple[Tensor, Tensor]
    examples: tuple[Tensor, Tensor]
    scored: Tensor


class AbstractGathering(ABC):
    """values @ K(examples^T scored), and its gradients."""

    normalises = False

    @abstractmethod
    def gather(self, pairs: _Pairs) -> Tensor: ...

    @abstractmethod
    def pull_back(self, gradient: Tensor, pairs: _Pairs) -> _PullBack: ...


@final
class _Associated(AbstractGathering):
    """The linear kernel."""

    def gather(self, pairs: _Pairs) -> Tensor:
        return torch.bmm(torch.bmm(pairs.values, pairs.examples.mT), pairs.scored)

    def pull_back(self, gradient: Tensor, pairs: _Pairs) -> _PullBack:
        values, examples, scored, _ = pairs
        to_moments = torch.bmm(gradient, scored.mT)
        to_scored = torch.bmm(torch.bmm(examples, values.mT), gradient)
        return _PullBack((to_moments, examples), (to_moments.mT, values), to_scored)


class _AbstractPairwise(AbstractGathering):
    """A kernel that needs the matrix of all pairs."""

    @abstractmethod
    def kernel(self, scores: Tensor, pairs: _Pairs) -> Tensor:
        """The kernel of the scores, computed in their place."""

    def pattern(self, pairs: _Pairs) -> Tensor:
        place = pairs.scratch[0][: len(pairs.scored)]
        return self.kernel(torch.bmm(pairs.examples.mT, pairs.scored, out=place), pairs)

    def to_scores(self, gradient: Tensor, pattern: Tensor) -> Tensor:
        """The gradient of the scores, computed in the place of the pattern's gradient."""
        return gradient.mul_(pattern)  # d exp = exp

    def gather(self, pairs: _Pairs) -> Tensor:
        return torch.bmm(pairs.values, self.pattern(pairs))

    def pull_back(self, gradient: Tensor, pairs: _Pairs) -> _PullBack:
        values, examples, scored, scratch = pairs
        pattern = self.pattern(pairs)
        multiply = torch.mul if values.shape[1] == 1 else torch.bmm  # one row: an outer product
        to_pattern = multiply(values.mT, gradient, out=scratch[1][: len(values)])
        to_scores = self.to_scores(to_pattern, pattern)
        to_scored = torch.bmm(examples, to_scores)
        return _PullBack((gradient, pattern.mT), (scored, to_scores.mT), to_scored)


@final
class _ReLU(_AbstractPairwise):
    def kernel(self, scores: Tensor, pairs: _Pairs) -> Tensor:
        return scores.relu_()

    def to_scores(self, gradient: Tensor, pattern: Tensor) -> Tensor:
        return torch.ops.aten.threshold_backward.grad_input(  # type: ignore[no-any-return]
            gradient, pattern, 0, grad_input=gradient
        )


@final
class _Exp(_AbstractPairwise):
    def kernel(self, scores: Tensor, pairs: _Pairs) -> Tensor:
        return scores.exp_()


@final
class _Softmax(_AbstractPairwise):
    """exp up to a factor of each reader, which the normaliser removes."""

    normalises = True

    def kernel(self, scores: Tensor, pairs: _Pairs) -> Tensor:
        squares = [side.square().sum(dim=1).amax() for side in (pairs.examples, pairs.scored)]
        if not squares[0] * squares[1] <= SAFE_SCORE**2:  # |<u, w>| <= |u| |w|
            scores -= scores.amax(dim=1, keepdim=True)
        return scores.exp_()


FAST: dict[str, AbstractGathering] = {
    "linear": _Associated(),
    "relu": _ReLU(),
    "exp": _Exp(),
    "softmax": _Softmax(),
}
"""The kernels whose gradients are written by hand."""


def fast_head(reading: Reading, V: Tensor, M: Tensor, kernel: str, *, residual: bool) -> Tensor:
    """V gathered, for a kernel of `FAST`; if `residual`, added to what the readers hold."""
    out: Tensor = _FastHead.apply(  # type: ignore[no-untyped-call]
        reading.stream, reading.inputs, V, M, kernel, reading.query_only, residual
    )
    return out


class _FastHead(torch.autograd.Function):
    """`fast_head`, with its gradient by hand."""

    @staticmethod
    def forward(
        ctx: Any,
        stream: Tensor,
        inputs: Tensor | None,
        V: Tensor,
        M: Tensor,
        kernel: str,
        query_only: bool,
        residual: bool,
    ) -> Tensor:
        reading, gathering = Reading(stream, inputs, query_only), FAST[kernel]
        n_readers = reading.readers.shape[-1]
        total = stream.new_empty(len(stream), len(V) + gathering.normalises, n_readers)
        out = stream.new_empty(len(stream), len(V), n_readers)
        scratch = reading.scratch()
        for part, chunk in reading.chunks():
            total[part] = gathering.gather(_pairs(chunk, V, M, gathering, scratch))
            gathered = total[part, : len(V)]
            if gathering.normalises:
                gathered /= total[part, -1:]
            copies = V.expand(len(chunk.stream), -1, -1)
            old = chunk.old(len(V))
            torch.baddbmm(old, copies, gathered, beta=int(residual), out=out[part])
        ctx.save_for_backward(stream, inputs, V, M, total)
        ctx.settings = gathering, query_only, residual
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        stream, inputs, V, M, total = ctx.saved_tensors
        gathering, query_only, residual = ctx.settings
        needs_stream, needs_inputs = ctx.needs_input_grad[:2]
        reading = Reading(stream, inputs, query_only)
        target = Reading(
            _past_the_head(reading, upstream, residual) if needs_stream else stream,
            torch.zeros_like(inputs) if needs_inputs else inputs,
            query_only,
        )
        to_V, to_M = torch.zeros_like(V), torch.zeros_like(M)
        scratch = reading.scratch()
        for (part, chunk), (_, place) in zip(reading.chunks(), target.chunks(), strict=True):
            to_V += torch.bmm(upstream[part], total[part, : len(V)].mT).sum(dim=0)
            gradient = _times(V.mT, upstream[part])
            if gathering.normalises:
                gradient = _through_quotient(gradient, total[part])
            pairs = _pairs(chunk, V, M, gathering, scratch)
            pulled = gathering.pull_back(gradient, pairs)
            to_M += torch.bmm(pulled.scored, chunk.readers.mT).sum(dim=0)
            if needs_stream:
                upper = pulled.values[0][:, : len(V)]  # without the row of ones
                place.values(len(V)).add_(torch.bmm(upper, pulled.values[1]))
            if needs_inputs or (needs_stream and inputs is None):
                place.examples.add_(torch.bmm(*pulled.examples))
                place.readers.add_(_times(M.mT, pulled.scored))
        to_stream = target.stream if needs_stream else None
        return to_stream, target.inputs if needs_inputs else None, to_V, to_M, None, None, None


def _past_the_head(reading: Reading, upstream: Tensor, residual: bool) -> Tensor:
    """The gradient that reaches the stream without the head."""
    if residual and upstream.shape == reading.stream.shape:
        return upstream.clone()
    gradient = torch.zeros_like(reading.stream)
    if residual:
        Reading(gradient, None, reading.query_only).old(upstream.shape[1]).copy_(upstream)
    return gradient


def _times(matrix: Tensor, columns: Tensor) -> Tensor:
    return torch.bmm(matrix.expand(len(columns), -1, -1), columns)


def _pairs(
    chunk: Reading,
    V: Tensor,
    M: Tensor,
    gathering: AbstractGathering,
    scratch: tuple[Tensor, Tensor],
) -> _Pairs:
    """What the gathering reads; it gets a row of ones below the values if it normalises."""
    values = chunk.values(len(V))
    if gathering.normalises:
        values = torch.cat([values, torch.ones_like(values[:, :1])], dim=1)
    return _Pairs(values, chunk.examples, _times(M, chunk.readers), scratch)


def _through_quotient(gradient: Tensor, total: Tensor) -> Tensor:
    """Turn the gradient of q = a / s into that of (a, s); `total` holds (q, s)."""
    scaled = gradient / total[:, -1:]
    of_normaliser = -(scaled * total[:, :-1]).sum(dim=1, keepdim=True)
    return torch.cat([scaled, of_normaliser], dim=1)
