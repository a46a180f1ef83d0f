r"""Predictions of a kernel transformer with their gradients, as fast as a CPU allows.

A prediction is one number for each task. So its gradient is known before any loss is, up to a
factor, and one visit to a task does both: all layers forward, then all layers back. Tasks are
visited chunk by chunk, and every chunk uses the same memory for its matrices of all pairs. No
matrix is kept for longer or computed again. What is kept is the gradient of every task, O(d^2)
numbers for a head. The backward pass of autograd weighs these gradients by that of the loss and
adds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from threading import local
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from icgd_papers.training.gathering import FAST, AbstractHead, Places, Read, Targets, times
from icgd_papers.training.reading import Reading

CHUNK_ENTRIES = 1_500_000
"""How many pairs of tokens a thread works on at a time; fewer would be many calls of torch."""

COLUMN_BLOCK = 8
"""Columns are padded to a multiple of this: products of 32 columns are faster than of 31."""


@final
@dataclass(frozen=True)
class Weights:
    """The numbers of all layers: r (layer, head), A and M = B^T C (layer, head, out, in)."""

    r: Tensor
    A: Tensor | None
    M: Tensor
    kernels: tuple[str, ...]

    @property
    def n_layers(self) -> int:
        return len(self.r)

    @property
    def n_heads(self) -> int:
        return len(self.kernels)

    @cached_property
    def value_matrices(self) -> list[list[Tensor]]:
        """diag(r, A) of every head, because labels are the first row; r alone in the last layer."""
        places = product(range(self.n_layers), range(self.n_heads))
        matrices = [self._value_matrix(*place) for place in places]
        return [matrices[i : i + self.n_heads] for i in range(0, len(matrices), self.n_heads)]

    def _value_matrix(self, layer: int, head: int) -> Tensor:
        r = self.r[layer, head].reshape(1, 1)
        if self.A is None or layer == self.n_layers - 1:
            return r
        V: Tensor = torch.block_diag(r, self.A[layer, head])
        return V


class Slopes(NamedTuple):
    """The gradient of every task's prediction; those by the data only if they are needed."""

    r: Tensor
    A: Tensor | None
    M: Tensor
    x: Tensor | None
    y: Tensor | None

    @classmethod
    def zeros(cls, weights: Weights, x: Tensor, y: Tensor, *, by_data: bool) -> Slopes:
        def of(part: Tensor) -> Tensor:
            return part.new_zeros(*part.shape[:2], len(x), *part.shape[2:])

        A = None if weights.A is None else of(weights.A)
        data = (torch.zeros_like(x), torch.zeros_like(y)) if by_data else (None, None)
        return cls(of(weights.r), A, of(weights.M), *data)

    def of_tasks(self, part: slice) -> Slopes:
        """The places of some tasks."""
        A = None if self.A is None else self.A[:, :, part]
        x, y = (None if data is None else data[part] for data in (self.x, self.y))
        return Slopes(self.r[:, :, part], A, self.M[:, :, part], x, y)


@final
class Visit:
    """A chunk of tasks on its way through the layers: forward when made, then back, once."""

    def __init__(self, weights: Weights, x: Tensor, y: Tensor, scratch: Tensor) -> None:
        self.weights, self.scratch, self.n_examples = weights, scratch, x.shape[1] - 1
        labels = self._columns(y[:, None, :-1])
        inputs = self._columns(x.mT)
        stream = labels if weights.A is None else torch.cat([labels, inputs], dim=1)
        self.inputs = inputs if weights.A is None else None
        self.readings: list[Reading] = []
        self.heads: list[list[AbstractHead]] = []
        for layer in range(weights.n_layers):
            stream = self._forward(layer, stream)
        self.prediction = -stream[:, 0, 0]

    def _columns(self, tokens: Tensor) -> Tensor:
        """Columns with zeros behind them, up to the width of the scratch."""
        columns = tokens.new_zeros(*tokens.shape[:2], self.scratch.shape[-1])
        columns[..., : tokens.shape[-1]] = tokens
        return columns

    def _forward(self, layer: int, stream: Tensor) -> Tensor:
        """The readers' columns after this layer; in the last layer, the query's label."""
        is_last = layer == self.weights.n_layers - 1
        reading = Reading(stream, self.inputs, self.n_examples, query_only=is_last)
        matrices = self.weights.value_matrices[layer]
        heads = [self._head(layer, head, reading) for head in range(self.weights.n_heads)]
        self.readings.append(reading)
        self.heads.append(heads)
        out = reading.old(len(matrices[0]))
        for V, head in zip(matrices, heads, strict=True):
            out = _plus_product(out, V, head.gathered)
        return out

    def _head(self, layer: int, head: int, reading: Reading) -> AbstractHead:
        n_rows = len(self.weights.value_matrices[layer][head])
        read = Read(reading.values(n_rows), reading.examples, reading.readers)
        kind, M = FAST[self.weights.kernels[head]], self.weights.M[layer, head]
        return kind(read, M, Places() if reading.query_only else self._places(layer, head))

    def _places(self, layer: int, head: int) -> Places:
        number = layer * self.weights.n_heads + head + 1
        return Places(self.scratch[number], self.scratch[0])

    def pull_back(self, slopes: Slopes) -> None:
        """Write the gradients of these tasks."""
        by_inputs = None
        if self.inputs is not None and slopes.x is not None:
            by_inputs = torch.zeros_like(self.inputs)
        gradient = self.prediction.new_full((len(self.prediction), 1, 1), -1.0)
        for layer in reversed(range(self.weights.n_layers)):
            gradient = self._backward(layer, gradient, by_inputs, slopes)
        if slopes.x is not None and slopes.y is not None:
            by_x = gradient[:, 1:] if by_inputs is None else by_inputs
            slopes.x.copy_(by_x[..., : self.n_examples + 1].mT)
            slopes.y[:, :-1] = gradient[:, 0, : self.n_examples]

    def _backward(
        self, layer: int, gradient: Tensor, by_inputs: Tensor | None, slopes: Slopes
    ) -> Tensor:
        """From the gradient of what is after a layer to that of what is before it."""
        reading, heads = self.readings[layer], self.heads[layer]
        pulled = [times(V.mT, gradient) for V in self.weights.value_matrices[layer]]
        self._by_values(layer, gradient, slopes)
        before = _past_the_heads(reading, gradient)
        is_needed = layer > 0 or slopes.x is not None
        target = Reading(before, by_inputs, reading.n_examples, reading.query_only)
        targets = self._targets(target, gradient.shape[1]) if is_needed else Targets()
        for number, head in enumerate(heads):
            slopes.M[layer, number] = head.pull_back(pulled[number], targets)
        return before

    def _by_values(self, layer: int, gradient: Tensor, slopes: Slopes) -> None:
        """The gradients of r and A."""
        for number, head in enumerate(self.heads[layer]):
            by_matrix = torch.bmm(gradient, head.gathered.mT)
            slopes.r[layer, number] = by_matrix[:, 0, 0]
            if slopes.A is not None and by_matrix.shape[1] > 1:
                slopes.A[layer, number] = by_matrix[:, 1:, 1:]

    def _targets(self, target: Reading, n_rows: int) -> Targets:
        """Labels have a gradient; inputs have one if they change or if it is asked for."""
        if self.inputs is not None and target.inputs is None:
            return Targets(target.values(n_rows))
        return Targets(target.values(n_rows), target.examples, target.readers)


def _plus_product(old: Tensor, V: Tensor, gathered: Tensor) -> Tensor:
    if len(V) == 1:
        return torch.addcmul(old, V, gathered)
    return torch.baddbmm(old, V.expand(len(old), -1, -1), gathered)


def _past_the_heads(reading: Reading, gradient: Tensor) -> Tensor:
    """The gradient that reaches the stream without the heads."""
    if gradient.shape == reading.stream.shape:
        return gradient
    before = torch.zeros_like(reading.stream)
    place = Reading(before, None, reading.n_examples, reading.query_only)
    place.old(gradient.shape[1]).copy_(gradient)
    return before


def fast_predictions(x: Tensor, y: Tensor, weights: Weights) -> Tensor:
    """Minus the query's label after all layers, for kernels of `FAST`."""
    out: Tensor = _FastPredictions.apply(  # type: ignore[no-untyped-call]
        x, y, weights.r, weights.A, weights.M, weights.kernels, torch.is_grad_enabled()
    )
    return out


class _FastPredictions(torch.autograd.Function):
    """`fast_predictions`, with the gradient of every task."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        r: Tensor,
        A: Tensor | None,
        M: Tensor,
        kernels: tuple[str, ...],
        needs_slopes: bool,
    ) -> Tensor:
        weights = Weights(r, A, M, kernels)
        slopes = Slopes.zeros(weights, x, y, by_data=any(ctx.needs_input_grad[:2]))
        prediction, scratch = x.new_empty(len(x)), _scratch(weights, x)
        for start in range(0, len(x), scratch.shape[1]):
            part = slice(start, start + scratch.shape[1])
            n_tasks = len(prediction[part])
            visit = Visit(weights, x[part], y[part], scratch[:, :n_tasks])
            prediction[part] = visit.prediction
            if needs_slopes and any(ctx.needs_input_grad):
                visit.pull_back(slopes.of_tasks(part))
        ctx.save_for_backward(*slopes)
        return prediction

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        slopes = Slopes(*ctx.saved_tensors)
        return (
            None if slopes.x is None else slopes.x * upstream[:, None, None],
            None if slopes.y is None else slopes.y * upstream[:, None],
            slopes.r @ upstream,
            None if slopes.A is None else _weigh(slopes.A, upstream),
            _weigh(slopes.M, upstream),
            None,
            None,
        )


def _weigh(slopes: Tensor, upstream: Tensor) -> Tensor:
    """The sum over tasks of matrices (layer, head, task, out, in), each times its weight."""
    total: Tensor = (upstream @ slopes.flatten(-2)).unflatten(-1, slopes.shape[-2:])
    return total


class _Held(local):
    """Memory that each thread keeps: fresh memory costs as much as a pass over it."""

    def __init__(self) -> None:
        self.memory = torch.empty(0)

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Some of it; it grows if it is too small, and starts anew for another type or device."""
        is_alike = self.memory.dtype is like.dtype and self.memory.device == like.device
        if not is_alike or len(self.memory) < prod(shape):
            self.memory = like.new_empty(prod(shape))
        return self.memory[: prod(shape)].view(shape)


_held = _Held()


def _scratch(weights: Weights, x: Tensor) -> Tensor:
    """Matrices of all pairs for a chunk of tasks: one for each head that needs it, and one more."""
    n_examples = x.shape[1] - 1
    n_columns = -(-x.shape[1] // COLUMN_BLOCK) * COLUMN_BLOCK
    most = CHUNK_ENTRIES * torch.get_num_threads() // max(1, n_examples * n_columns)
    n_matrices = 1 + (weights.n_layers - 1) * weights.n_heads
    return _held.take((n_matrices, max(1, min(len(x), most)), n_examples, n_columns), x)
