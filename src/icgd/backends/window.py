r"""Run one layer autoregressively: it reads the last n columns of a sequence, and writes the next.

The sequence begins with the examples' columns and grows by n columns per step, Z = [G_1, G_2, ...].

    block    column j of G_l is the query for column j of G_{l+1}, and attends to G_l only
    window   columns are written one by one; the oldest of the last n is the query, and attends to
             these n columns

In the causal window a head sees columns of two blocks. The result is the same: every example is in
the window once, the order of heads in their sum does not matter, and no head reads the coefficients
of another column. The queries of the task attend to the last block, which gives their predictions.
"""

from __future__ import annotations

from typing import final

import torch

from icgd.backends.prompt import (
    encode,
    linear_scores,
    read_parameters,
    read_predictions,
    require_scores,
)
from icgd.backends.run import AbstractExecutor, RunOptions
from icgd.errors import ProgramError, UnknownNameError
from icgd.layers import SequenceAttention
from icgd.problems.data import Task
from icgd.program.linear_instructions import DescendByExample
from icgd.program.stack import StackProgram
from icgd.shapes import Columns, Parameters, Predictions, Stream
from icgd.weights.lowering import lower_program

MASKS = ("block", "window")
"""The columns that the layer attends to: the previous block, or a sliding causal window."""


@final
class WindowedChain(AbstractExecutor[Stream]):
    """Apply the layer to a growing sequence; the state of a step is its block of n columns."""

    def __init__(self, program: StackProgram, task: Task, options: RunOptions, mask: str) -> None:
        if program.first(DescendByExample) is None:
            raise ProgramError(
                f"{program.construction} is not a chain of one layer. Compile with cot-network, "
                "cot-ridge, cot-lasso or cot-glm."
            )
        if mask not in MASKS:
            raise UnknownNameError.of("mask", mask, known=MASKS)
        self._program, self._task, self._mask = program, task, mask
        self._layers = lower_program(program, task.x.dtype, is_sparse=True).to(task.x.device)
        columns = encode(program, task)
        self.start, self._queries = columns.tensor_split((task.n_examples,), dim=-2)
        self._block, self._n_done = self.start, 0
        self._places = {name: program.layout.range_of(name) for name in options.trace}
        self.traced = {name: [self.start[..., place]] for name, place in self._places.items()}

    def step(self) -> Stream:
        self._n_done += 1
        weights = read_parameters(self._program.layout, self._block)
        scores = linear_scores(weights, self._task.x)
        require_scores(scores, self._program.score_reach or 0.0, f"step {self._n_done}, example")
        if self._mask == "block":
            self._block = self._written(self._block, self._block)
        else:
            window = self._block
            for _ in range(window.shape[-2]):  # drop the oldest column, append the new one
                column = self._written(window[..., :1, :], window)
                window = torch.cat([window[..., 1:, :], column], dim=-2)
            self._block = window
        for name, place in self._places.items():
            self.traced[name].append(self._block[..., place])
        return self._block

    def _written(self, queries: Stream, visible: Columns) -> Stream:
        """Return the columns `queries` after the layer, whose heads attend to `visible` columns."""
        for layer in self._layers.block:
            if isinstance(layer, SequenceAttention):
                queries = layer.asked(queries, visible)
            else:
                queries = layer(queries)
        return queries

    def read(self, reached: Stream, write: Parameters) -> None:
        write.copy_(read_parameters(self._program.layout, reached))

    def predictions(self, reached: Stream) -> Predictions:
        weights = read_parameters(self._program.layout, reached)
        scores = linear_scores(weights, self._task.queries)
        require_scores(scores, self._program.score_reach or 0.0, "query")
        after = torch.cat([reached, self._queries], dim=-2)
        for layer in self._layers.final:
            after = layer(after)
        return read_predictions(self._program, after, self._task.n_examples)
