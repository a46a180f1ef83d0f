r"""One layer as a chain: it reads the last n columns of a sequence, and writes the next.

The sequence begins with the examples' columns and grows by n columns a step, Z = [G_1, G_2, ...].

    block    column j of G_{l+1} asks with column j of G_l, and sees the columns of G_l alone
    window   one column is written at a time; it asks with the oldest of the last n, and sees these

Under the causal window a head reads tokens of both blocks. The result is the same: every example is
in the window once, the order of heads in their sum does not matter, and no head reads the
coefficients of another column. Queries attend to the last block, which gives their predictions.
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
"""What the layer reads of the sequence: a whole block, or a sliding causal window."""


@final
class WindowedChain(AbstractExecutor[Stream]):
    """Apply the layer of a step to a growing sequence; the state of a step is its block."""

    def __init__(self, program: StackProgram, task: Task, options: RunOptions, mask: str) -> None:
        if program.first(DescendByExample) is None:
            raise ProgramError(
                f"{program.construction} is not one layer that reads a window of columns. Compile "
                "with cot-network, cot-ridge, cot-lasso or cot-glm."
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
        weights, self._n_done = read_parameters(self._program.layout, self._block), self._n_done + 1
        scores = linear_scores(weights, self._task.x)
        require_scores(scores, self._program.score_reach or 0.0, f"step {self._n_done}, example")
        if self._mask == "block":
            self._block = self._written(self._block, self._block)
        else:
            window, n_columns = self._block, self._block.shape[-2]
            for _ in range(n_columns):
                column = self._written(window[..., :1, :], window)
                window = torch.cat([window[..., 1:, :], column], dim=-2)
            self._block = window
        for name, place in self._places.items():
            self.traced[name].append(self._block[..., place])
        return self._block

    def _written(self, asking: Stream, shown: Columns) -> Stream:
        """Return the asking columns after the layer, whose heads read the columns `shown`."""
        for layer in self._layers.block:
            if isinstance(layer, SequenceAttention):
                asking = layer.asked(asking, shown)
            else:
                asking = layer(asking)
        return asking

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
