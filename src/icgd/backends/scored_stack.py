"""The dense run of a linear model: a stack whose scores must stay in the range of its heads."""

from __future__ import annotations

from math import inf
from typing import final

from icgd.backends.dense_stack import DenseStack
from icgd.backends.executor import AbstractExecutor
from icgd.backends.prompt import read_parameters
from icgd.backends.scores import linear_scores, require_scores
from icgd.problems.task import Task
from icgd.program.stack import StackProgram
from icgd.shapes import Inputs, Parameters, Predictions, Stream


@final
class ScoredStack(AbstractExecutor[Stream]):
    """A dense stack that raises `OverflowedRunError` before a layer reads a score out of range.

    Kernels of the fused backend look at their scores themselves.
    """

    def __init__(self, program: StackProgram, task: Task, stack: DenseStack) -> None:
        self._layout, self._task, self._stack = program.layout, task, stack
        self._reach = program.score_reach or inf
        self.start = self._reached = stack.start
        self.recorded, self.step_entries, self._n_done = stack.recorded, stack.step_entries, 0

    def step(self, write: Parameters) -> Stream:
        self._require(self._reached, self._task.x, f"step {self._n_done + 1}, example")
        self._reached = self._stack.step(write)
        self._n_done += 1
        return self._reached

    def read(self, reached: Stream, write: Parameters) -> None:
        self._stack.read(reached, write)

    def predictions(self, reached: Stream) -> Predictions:
        self._require(reached, self._task.queries, "query")
        return self._stack.predictions(reached)

    def _require(self, reached: Stream, inputs: Inputs, where: str) -> None:
        scores = linear_scores(read_parameters(self._layout, reached), inputs)
        require_scores(scores, self._reach, where)
