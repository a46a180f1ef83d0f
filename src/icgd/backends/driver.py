"""The one loop over training steps: history, stopping, progress, Ctrl-C and overflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, cycle, islice
from typing import Any, NamedTuple, TypeVar

import torch

from icgd.backends.executor import AbstractExecutor
from icgd.backends.run import Run, RunOptions
from icgd.errors import InterruptedRunError, OverflowedRunError
from icgd.problems.task import Task
from icgd.shapes import History, Parameters

Result = TypeVar("Result")

ROWS_AT_ONCE = 256
"""The number of steps whose views are made at once: one by one takes longer, all take memory."""


def drive(
    make: Callable[[], AbstractExecutor[Any]], n_steps: int, task: Task, options: RunOptions
) -> Run:
    """Make the executor and run its steps, then its predictions.

    Raises `InterruptedRunError` on Ctrl-C at any moment, also while the executor is made, and
    `OverflowedRunError` if the run leaves the range of its numbers.
    """
    drive = _Drive(n_steps, task, options)
    try:
        with torch.no_grad():
            return drive.run(make)
    except KeyboardInterrupt:
        raise drive.interruption() from None


class Last(NamedTuple):
    """The last whole step: its number, what it reached, and where its weights are kept."""

    n_steps: int
    reached: Any
    row: Parameters | None


class _Drive:
    """A run, and how far it has come."""

    def __init__(self, n_steps: int, task: Task, options: RunOptions) -> None:
        self.n_steps, self.task, self.options = n_steps, task, options
        self.kept = Kept(task.initial, n_steps, keeps_all=options.history)
        self.reads_all = options.history or options.stop_below is not None
        self.executor: AbstractExecutor[Any] | None = None
        self.last = Last(0, None, None)

    def run(self, make: Callable[[], AbstractExecutor[Any]]) -> Run:
        executor = make()
        self.last = Last(0, executor.start, None)
        self.executor = executor
        is_stopped = self.take_steps(executor)
        last = self.last
        predictions = self.in_range(executor.predictions, last.reached)
        history = self.history()
        # A weight that is not finite never becomes so again: the last step tells of all.
        if not history[..., -1, :].isfinite().all():
            raise self.overflow()
        stopped_after = last.n_steps if is_stopped else None
        return Run(history, predictions, executor.trace(), stopped_after)

    def take_steps(self, executor: AbstractExecutor[Any]) -> bool:
        """Take all steps, or stop after enough that move nothing; return whether it stopped."""
        n_still, before = 0, self.task.initial
        on_progress, limit = self.options.on_progress, self.options.stop_below
        for step, row in enumerate(self.kept.rows(), start=1):
            reached = self.in_range(executor.step, row)
            if self.reads_all:
                executor.read(reached, row)
            self.last = Last(step, reached, row)
            if on_progress:
                on_progress(step, self.n_steps)
            if limit is not None:
                n_still = n_still + 1 if float((row - before).abs().max()) <= limit else 0
                before = row
                if n_still == executor.still_steps:
                    return True
        return False

    def history(self) -> History:
        """The weights up to the last whole step."""
        if self.executor and self.last.row is not None and not self.reads_all:
            self.executor.read(self.last.reached, self.last.row)
        return self.kept.until(self.last.n_steps)

    def in_range(self, compute: Callable[[Any], Result], argument: object) -> Result:
        try:
            return compute(argument)
        except IndexError:  # a preactivation that is not a number has no cell to look up
            raise self.overflow() from None

    def overflow(self) -> OverflowedRunError:
        return self.options.overflow(str(self.task.x.dtype).removeprefix("torch."))

    def interruption(self) -> InterruptedRunError:
        """The error that holds the run up to the last whole step."""
        n_done, following = self.last.n_steps, None
        known = Run(self.history(), self.task.y[..., :0, :].clone())
        if (executor := self.executor) is not None:
            predict = partial(executor.predictions, self.last.reached)
            predictions = _made_or(known.predictions, predict)
            trace = _made_or(known.trace, partial(executor.trace, n_done))
            known = Run(known.parameters, predictions, trace)
            following = executor.next_example(n_done)
        return InterruptedRunError.after(n_done, self.n_steps, known, following)


def _made_or(otherwise: Result, make: Callable[[], Result]) -> Result:
    """A part of an interrupted run, unless it cannot be made or the user interrupts once more."""
    with suppress(OverflowedRunError, IndexError, KeyboardInterrupt), torch.no_grad():
        return make()
    return otherwise


class Kept:
    """The weights that a run keeps, allocated once: of all steps, or of the ends.

    While the last step is written, the one before it stays whole. Therefore a run without history
    keeps two steps, in turn, beside the initial weights.
    """

    def __init__(self, initial: Parameters, n_steps: int, *, keeps_all: bool) -> None:
        self._n_steps, self._keeps_all = n_steps, keeps_all
        n_rows = 1 + (n_steps if keeps_all else min(n_steps, 2))
        self._rows = initial.new_empty(*initial.shape[:-1], n_rows, initial.shape[-1])
        self._rows[..., 0, :] = initial

    def rows(self) -> Iterator[Parameters]:
        """The rows to which the weights are written, one for every step."""
        steps = self._rows[..., 1:, :]
        if self._keeps_all:
            chunks = steps.split(ROWS_AT_ONCE, dim=-2)
            return chain.from_iterable(rows.unbind(-2) for rows in chunks)
        return islice(cycle(steps.unbind(-2)), self._n_steps)

    def until(self, step: int) -> History:
        """The weights of all steps up to this one, or of the first and of this one."""
        if self._keeps_all:
            return self._rows[..., : step + 1, :]
        return self._rows[..., [0, 2 - step % 2][: step + 1], :]
