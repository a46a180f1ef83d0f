"""The one loop over training steps: history, stopping, progress, Ctrl-C and overflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch

from icgd.backends.executor import AbstractExecutor
from icgd.backends.run import Run, RunOptions, kept_steps, n_kept
from icgd.errors import InterruptedRunError, OverflowedRunError
from icgd.problems.task import Task
from icgd.shapes import History, Parameters

Result = TypeVar("Result")

ROWS_AT_ONCE = 256
"""The number of steps whose views are made at once: one by one takes longer, all take memory."""


def drive(
    make: Callable[[], AbstractExecutor[Any]],
    program: Stepwise,
    task: Task,
    options: RunOptions,
) -> Run:
    """Make the executor and run its steps, then its predictions.

    Raises `InterruptedRunError` on Ctrl-C at any moment, also while the executor is made, and
    `OverflowedRunError` if the run leaves the range of its numbers.
    """
    drive = _Drive(program, task, options)
    try:
        with torch.no_grad():
            run = drive.run(make)  # a return here might miss the end of the block
        return run
    except KeyboardInterrupt:
        raise drive.interruption() from None


@runtime_checkable
class Stepwise(Protocol):
    """What the driver asks of a program."""

    @property
    def n_steps(self) -> int:
        """How many steps it has."""

    @property
    def can_go_on(self) -> bool:
        """Whether a new run can take up where an interrupted one ends."""

    def next_example(self, n_steps: int, n_examples: int) -> int | None:
        """The example with which the step after `n_steps` begins, if a step does not use all."""


class Last(NamedTuple):
    """The last whole step: its number, and what it reached."""

    n_steps: int
    reached: Any


class _Drive:
    """A run, and how far it has come."""

    def __init__(self, program: Stepwise, task: Task, options: RunOptions) -> None:
        self.program, self.task, self.options = program, task, options
        self.n_steps = program.n_steps
        self.kept = Kept(task.initial, self.n_steps, options.every(self.n_steps))
        self.executor: AbstractExecutor[Any] | None = None
        self.last = Last(0, None)

    def run(self, make: Callable[[], AbstractExecutor[Any]]) -> Run:
        executor = make()
        executor.require_room(self.n_steps)
        self.last = Last(0, executor.start)
        self.executor = executor
        is_stopped = self.take_steps(executor)
        last = self.last
        predictions = self.in_range(executor.predictions, last.reached)
        history = self.history(last)
        # A weight that is not finite never becomes so again: the last step tells of all.
        if not all(end.isfinite() for end in history[..., -1, :].aminmax()):
            raise self.overflow()
        stopped_after = last.n_steps if is_stopped else None
        steps = self.kept.steps(last.n_steps)
        return Run(history, predictions, executor.trace(), stopped_after, steps)

    def take_steps(self, executor: AbstractExecutor[Any]) -> bool:
        """Take all steps, or stop after enough that move nothing; return whether it stopped."""
        on_progress, is_still = self.options.on_progress, self.stillness(executor)
        every, rows = self.kept.every, self.kept.rows()
        for step in range(1, self.n_steps + 1):
            reached = self.in_range(executor.step)
            if step % every == 0:
                executor.read(reached, next(rows))
            self.last = Last(step, reached)
            if on_progress:
                on_progress(step, self.n_steps)
            if is_still and is_still(reached):
                return True
        return False

    def stillness(self, executor: AbstractExecutor[Any]) -> Callable[[Any], bool] | None:
        """What tells, after each step, whether enough steps in a row moved nothing."""
        if (limit := self.options.stop_below) is None:
            return None
        before, now = self.task.initial.clone(), torch.empty_like(self.task.initial)
        n_still = 0

        def is_still(reached: object) -> bool:
            nonlocal before, now, n_still
            executor.read(reached, now)
            n_still = n_still + 1 if float((now - before).abs().max()) <= limit else 0
            before, now = now, before
            return n_still == executor.still_steps

        return is_still

    def history(self, last: Last) -> History:
        """The weights up to a whole step."""
        if self.executor and last.n_steps % self.kept.every:
            self.executor.read(last.reached, self.kept.row(last.n_steps))
        return self.kept.until(last.n_steps)

    def in_range(self, compute: Callable[..., Result], *arguments: object) -> Result:
        try:
            return compute(*arguments)
        except IndexError:  # a preactivation that is not a number has no cell to look up
            raise self.overflow() from None

    def overflow(self) -> OverflowedRunError:
        return self.options.overflow(str(self.task.x.dtype).removeprefix("torch."))

    def interruption(self) -> InterruptedRunError:
        """The error that holds the run up to the last whole step."""
        (n_done, reached), history = self.whole()
        known = Run(history, self.task.y[..., :0, :].clone(), steps=self.kept.steps(n_done))
        if (executor := self.executor) is not None:
            predictions = _made_or(known.predictions, partial(executor.predictions, reached))
            trace = _made_or(known.trace, partial(executor.trace, n_done))
            known = replace(known, predictions=predictions, trace=trace)
        following = self.program.next_example(n_done, self.task.n_examples)
        then = "go on with initial=...[-1]"
        if not self.program.can_go_on:
            then = "they cannot be resumed: every run starts with its first step"
        elif following:  # a new run starts with example 0 anyway
            then += f" and with the examples from number {following} (counted from 0) first"
        return InterruptedRunError(
            f"The run was interrupted after {n_done} of {self.n_steps} steps. The weights so far "
            f"are in the error's `partial.parameters`; {then}.",
            known,
        )

    def whole(self) -> tuple[Last, History]:
        """The last whole step and the weights until then.

        If the user interrupts once more while they are found, it is the last step at hand.
        """
        last = self.last
        with suppress(KeyboardInterrupt), torch.no_grad():
            return last, self.history(last)
        if self.executor:
            last = Last(*self.executor.at_hand(*last))
        with torch.no_grad():
            return last, self.history(last)


def _made_or(otherwise: Result, make: Callable[[], Result]) -> Result:
    """A part of an interrupted run, unless it cannot be made or the user interrupts once more."""
    with suppress(OverflowedRunError, IndexError, KeyboardInterrupt), torch.no_grad():
        return make()
    return otherwise


class Kept:
    """The weights that a run keeps, allocated once: at first, after `every` so many steps, at last.

    The row of the last step is also that of the next one to be kept.
    """

    def __init__(self, initial: Parameters, n_steps: int, every: int) -> None:
        self.every = every
        n_rows = n_kept(n_steps, every)
        self._rows = initial.new_empty(*initial.shape[:-1], n_rows, initial.shape[-1])
        self._rows[..., 0, :] = initial

    def rows(self) -> Iterator[Parameters]:
        """The rows to which weights are written, in turn."""
        chunks = self._rows[..., 1:, :].split(ROWS_AT_ONCE, dim=-2)
        return chain.from_iterable(rows.unbind(-2) for rows in chunks)

    def steps(self, step: int) -> Sequence[int]:
        """The steps whose weights are kept, up to this one."""
        return kept_steps(step, self.every)

    def row(self, step: int) -> Parameters:
        """The row of a step after which no further one is kept."""
        return self._rows[..., n_kept(step, self.every) - 1, :]

    def until(self, step: int) -> History:
        """The weights that are kept of all steps up to this one."""
        return self._rows[..., : n_kept(step, self.every), :]
