"""The dense run of a stack: the stream through every head of every layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import torch
from torch import Tensor, nn

from icgd.backends.executor import AbstractExecutor
from icgd.backends.prompt import encode, read_learnt, read_predictions
from icgd.layers.transformer import Transformer
from icgd.problems.task import Task
from icgd.program.stack import StackProgram
from icgd.shapes import Parameters, Predictions, Stream


@final
class DenseStack(AbstractExecutor[Stream]):
    """One forward pass, and what was recorded of it."""

    def __init__(
        self, program: StackProgram, task: Task, transformer: Transformer, trace: tuple[str, ...]
    ) -> None:
        self._places = {name: program.layout.range_of(name) for name in trace}
        self._program, self._task, self._transformer = program, task, transformer
        self._n_done, self._stream = 0, encode(program, task)
        self.start = self._stream
        self._recorded = {name: [self.start[..., place]] for name, place in self._places.items()}

    def step(self, write: Parameters) -> Stream:
        per_step = self._program.layers_per_step
        first = self._n_done % self._program.steps_per_block * per_step
        self._stream = self._after(self._transformer.block[first : first + per_step], self._stream)
        self._n_done += 1
        write.copy_(read_learnt(self._program, self._task, self._stream))
        return self._stream

    def predictions(self, reached: Stream) -> Predictions:
        after = self._after(self._transformer.final, reached)
        return read_predictions(self._program, after, self._task.n_examples)

    def _after(self, layers: Iterable[nn.Module], stream: Stream) -> Stream:
        """The stream after some layers, each of which is recorded."""
        for layer in layers:
            stream = layer(stream)
            for name, place in self._places.items():
                self._recorded[name].append(stream[..., place])
        return stream

    def trace(self, n_steps: int | None = None) -> dict[str, Tensor]:
        end = None if n_steps is None else 1 + n_steps * self._program.layers_per_step
        return {name: torch.stack(layers[:end], dim=-3) for name, layers in self._recorded.items()}
