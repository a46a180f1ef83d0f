"""The dense run of a stack: the stream through every head of every layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import final

from torch import nn

from icgd.backends.executor import AbstractExecutor
from icgd.backends.prompt import encode, read_learnt, read_parameters, read_predictions
from icgd.backends.reciprocal_roots import may_leave_roots, require_roots
from icgd.backends.scores import linear_scores, read_point, require_scores
from icgd.layers.transformer import Transformer
from icgd.problems.task import Task
from icgd.program.grid_instructions import PredictMean
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.shapes import Parameters, Predictions, Stream


@final
class DenseStack(AbstractExecutor[Stream]):
    """One forward pass, and what was recorded of it.

    In a linear model no layer reads a score that its heads are not made for: before one would, the
    run ends with an `OverflowedRunError`. Operations of the fused backend do the same.
    """

    def __init__(
        self, program: StackProgram, task: Task, transformer: Transformer, trace: tuple[str, ...]
    ) -> None:
        self._places = {name: program.layout.range_of(name) for name in trace}
        self._program, self._task, self._transformer = program, task, transformer
        self._n_done, self._reach = 0, program.score_reach
        self.still_steps = program.steps_of_pass(task.n_examples)
        self.start = self._stream = encode(program, task)
        may_leave = program.n_steps > 0 and may_leave_roots(program, self.start)
        self._first = program.block_of(0) if may_leave else ()
        self.recorded = {name: [self.start[..., place]] for name, place in self._places.items()}
        self.n_per_step = program.layers_per_step

    def step(self) -> Stream:
        self._require_scores_of_step()
        layers = self._transformer.layers_of(self._n_done, self.n_per_step)
        checked = () if self._n_done else self._first
        self._stream = self._after(layers, self._stream, checked)
        self._n_done += 1
        return self._stream

    def read(self, reached: Stream, write: Parameters) -> None:
        write.copy_(read_learnt(self._program, self._task, reached))

    def predictions(self, reached: Stream) -> Predictions:
        if self._reach is not None:
            weights = read_parameters(self._program.layout, reached)
            require_scores(linear_scores(weights, self._task.queries), self._reach, "query")
        after = self._after(self._transformer.final, reached)
        return read_predictions(self._program, after, self._task.n_examples)

    def _after(
        self, layers: Iterable[nn.Module], stream: Stream, checked: Sequence[Layer] = ()
    ) -> Stream:
        """The stream after some layers, each of which is recorded; roots of some are checked."""
        for layer, of_program in zip_longest(layers, checked):
            if of_program is not None:
                require_roots(self._program, of_program, stream, self._n_done)
            stream = layer(stream)
            for name, place in self._places.items():
                self.recorded[name].append(stream[..., place])
        return stream

    def _require_scores_of_step(self) -> None:
        """With momentum, scores are those of the point at which the gradient is taken."""
        if self._reach is None:
            return
        layers = self._program.steps_of_block()[self._n_done % self._program.steps_per_block]
        parts = (part for layer in layers for part in layer.instructions)
        for part in parts:
            if isinstance(part, PredictMean):
                point = read_point(part, self._program.layout, self._stream)
                where = f"step {self._n_done + 1}, example"
                require_scores(linear_scores(point, self._task.x), self._reach, where)
