"""Run a program on a task: options, results, executors and the driver.

A backend maps each kind of program to an executor and decides how many tasks run together. An
executor takes one training step at a time. `drive` is the only loop over steps: it owns history,
stopping, progress, Ctrl-C and overflow.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from types import MappingProxyType
from typing import (
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    SupportsIndex,
    TypeVar,
    final,
    runtime_checkable,
)

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd import pictures
from icgd.environment import require_memory
from icgd.errors import (
    DataError,
    InterruptedRunError,
    OverflowedRunError,
    ProgramError,
    SettingError,
    UnknownNameError,
    at,
)
from icgd.problems.data import Task, dtype_name, largest_size
from icgd.problems.from_torch import load_weights
from icgd.problems.optimisers import AVERAGE
from icgd.problems.oracles import overflowed
from icgd.problems.problem import Problem
from icgd.program.instructions import IDENTITY
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram
from icgd.reprs import counted, in_short, number, with_repr
from icgd.shapes import History, Parameters, Predictions

OnProgress = Callable[[int, int], None]
"""A callback that receives the number of training steps done and the total."""


ENGINES = ("auto", "torch", "compiled")
"""Engines of fused runs: torch, loops compiled by numba, or whichever is faster."""


@dataclass(frozen=True)
class RunOptions:
    """The options of a run.

    `trace` names the slots to record after every layer. `history` is the number of steps between
    recorded weights: True records every step, False only the initial and final weights.
    `on_progress` is called after every step. With `stop_below` the run stops after the first step
    that moves no weight by more; with batches, after a whole pass of such steps over the examples.
    `skip_zeros` skips terms of a literal run that are exactly 0, and `engine` is one of `ENGINES`.
    `overflow` returns the error to raise when the run leaves the range of a dtype, given by name.
    """

    trace: tuple[str, ...] = ()
    history: bool | int = True
    on_progress: OnProgress | None = None
    stop_below: float | None = None
    overflow: Callable[[str], OverflowedRunError] = overflowed
    skip_zeros: bool = False
    engine: str = "auto"

    def every(self, n_steps: int) -> int:
        """Return the number of steps between recorded weights."""
        return int(self.history) or max(n_steps, 1)


def n_kept(n_steps: int, every: int) -> int:
    """Return the number of recorded weights: initial, after each multiple of `every`, and final."""
    return 1 - (-n_steps // every)


def kept_steps(n_steps: int, every: int) -> Sequence[int]:
    """Return the steps after which weights are recorded: 0, multiples of `every`, and the last."""
    regular = range(0, n_steps + 1, every)
    return (*regular, n_steps) if n_steps % every else regular


PLAIN = RunOptions()
"""The default options: full history, no trace, all steps."""


@dataclass(frozen=True)
class Origin:
    """The problem, program, task and backend of a run, and the function that computes attention."""

    problem: Problem
    program: AbstractProgram
    task: Task
    backend: str
    attend: Callable[..., dict[str, Tensor]]


@with_repr
@dataclass(frozen=True)
class Run:
    """The result of a transformer's forward pass. A batch of tasks adds a leading axis.

    Attributes:
        parameters: the trained weights before the first step and after every recorded step.
        predictions: the predicted labels of the queries.
        trace: the traced slots, of shape (layer, token, width): entry 0 is the prompt, and entry i
            is the stream after layer i.
        stopped_after: the step after which the run stopped early because its weights had settled.
        steps: the steps after which weights were recorded, beginning with 0; empty if no backend
            made the run.
        origin: the problem, program and task of the run; None if a backend was called directly.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
        >>> run = compiled.run([[0.5, 1.0]], [1.0], queries=[[1.0, 1.0]], initial=[0.0, 0.0])
        >>> run.weights["weights_1"].shape
        torch.Size([1, 2])
        >>> bool(run.loss_curve[-1] < run.loss_curve[0])
        True
    """

    parameters: History
    predictions: Predictions
    trace: Mapping[str, Tensor] = field(default_factory=dict)
    stopped_after: int | None = None
    steps: Sequence[int] = field(default=(), compare=False)
    origin: Origin | None = field(default=None, compare=False)

    def facts(self) -> dict[str, str]:
        """Return a summary of the run, as shown in its repr and in notebooks.

        Returns:
            A text for each name.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> compiled.run([[0.5, 1.0]], [1.0]).facts()["weights"]
            '2, recorded 3 times'
        """
        n_recorded, n_weights = self.parameters.shape[-2:]
        n_queries, width = self.predictions.shape[-2:]
        facts = {"weights": f"{n_weights:,}, recorded {n_recorded:,} times"}
        facts["predictions"] = f"{n_queries:,}, of {counted(width, 'label')} each"
        facts |= {"backend": self.origin.backend} if self.origin else {}
        facts |= {"tasks": f"{len(self.parameters):,}"} if self.parameters.ndim > 2 else {}
        facts |= {"traced": counted(len(self.trace), "slot")} if self.trace else {}
        learnt = [f"{name} {number(value)}" for name, value in self._named_coefficients().items()]
        facts |= {"coefficients": in_short(learnt)} if learnt else {}
        stopped = self.stopped_after
        return facts | ({} if stopped is None else {"stopped after": counted(stopped, "step")})

    def _known_origin(self) -> Origin:
        if self.origin is None:
            raise SettingError(
                "This run has no problem and task attached, because a backend was called directly. "
                "Use compiled.run or compiled.run_task instead."
            )
        return self.origin

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trained weights, as named matrices.

        A network has weights_1, bias_1, weights_2, ..., a linear model has coefficients and maybe
        an intercept, and a function has its values at_examples and at_queries.
        """
        origin = self._known_origin()
        return origin.problem.oracle.by_name(origin.task, self.parameters[..., -1, :])

    @property
    def averaged_weights(self) -> dict[str, Tensor]:
        """The average of the weights after the last step, by the names of the weights."""
        names = {"average of bias": "bias", AVERAGE: "weights"}
        kinds = {name: name.rpartition("_") for name in self.weights}
        averages = {
            f"{names[kind]}_{layer}": self.weights[name]
            for name, (kind, _, layer) in kinds.items()
            if kind in names
        }
        if not averages:
            raise SettingError(
                "This run keeps no average of its weights. Give its update average=0.99, say."
            )
        return averages

    def load_into(self, model: nn.Module, *, averaged: bool = False) -> None:
        """Write the trained weights into a PyTorch model of the network's shape.

        Args:
            model: A model that `icgd.from_torch` can read; its weights are replaced.
            averaged: Whether to write the average of the weights instead.

        Raises:
            UnreadableError: If the model has another shape, or the run is of a batch of tasks.
            SettingError: If the run has no origin, or keeps no average.

        Example:
            >>> import icgd, torch
            >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1, dtype=torch.float64))
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> domain = icgd.Domain(1.0, 1.0)
            >>> problem = icgd.from_torch(model, torch.nn.MSELoss(), optimizer, domain=domain)
            >>> run = icgd.compile(problem, "relu-stack", n_steps=2).run([[0.5, 1.0]], [1.0])
            >>> run.load_into(model)
            >>> bool((model[0].weight == run.weights["weights_1"]).all())
            True
        """
        load_weights(model, self.averaged_weights if averaged else self.weights)

    @property
    def coefficients(self) -> dict[str, float] | None:
        """The coefficients of a linear model by input name, and its "(intercept)" if it has one.

        Names are the columns of X if it was a data frame, else x_1, x_2 and so on. None for a batch
        of tasks and for other models, which have `weights`.
        """
        origin, last = self._known_origin(), self.parameters[..., -1, :]
        if origin.task.batch:
            return None
        width = origin.problem.target.input_width
        names = origin.task.input_names or [f"x_{place}" for place in range(1, width + 1)]
        return origin.problem.oracle.named(last, names)

    def _named_coefficients(self) -> dict[str, float]:
        """Return the coefficients, if their columns have names."""
        has_names = self.origin is not None and self.origin.task.input_names
        return (self.coefficients if has_names else None) or {}

    @property
    def loss_in_words(self) -> str:
        """The name of the loss that `loss_curve` shows."""
        return self._known_origin().problem.oracle.loss_in_words

    @cached_property
    def loss_curve(self) -> Float[Tensor, "*tasks step"]:
        """The training loss before the first step and after every recorded step, in float64.

        It is computed on first access; `loss_in_words` names the loss.
        """
        oracle, task = self._known_origin().problem.oracle, self._known_origin().task
        history = self.parameters.double().unbind(-2)
        return torch.stack([oracle.risk(task, weights) for weights in history], dim=-1)

    @cached_property
    def objective_curve(self) -> Float[Tensor, "*tasks step"] | None:
        """The objective of descent, the loss plus penalties, or None if there are no penalties."""
        oracle, task = self._known_origin().problem.oracle, self._known_origin().task
        history = self.parameters.double().unbind(-2)
        values = [oracle.objective(task, weights) for weights in history]
        curve = [value for value in values if value is not None]
        objectives = torch.stack(curve, dim=-1) if curve else self.loss_curve
        return None if objectives.equal(self.loss_curve) else objectives

    def attention(
        self, layer: str, head: SupportsIndex | str | None = None, *, step: int = 1
    ) -> dict[str, Tensor]:
        """Return the attention patterns of a layer, computed by the literal transformer.

        Rows are queries of the attention, columns are keys: first the registers, if there are any,
        then the examples and the queries. Heads of linear models and chains attend to tokens of
        their own instead, and mirrored heads to all tokens and then to the mirror image of each.
        Every call runs the transformer up to this layer again, whichever backend made the run.

        Args:
            layer: the title of a layer, such as "gradient step".
            head: a prefix of the labels of heads, such as "row 2 of weights_1", or the number of
                one head, counted from 0; by default all heads. If a step has several layers of
                this title, their heads are numbered consecutively.
            step: the training step, counted from 1; the one after the last selects the prediction
                layers. For a chain it is the number of a block.

        Returns:
            The patterns by the labels of their heads, each of shape (token, token).

        Raises:
            UnknownNameError: if no layer has this title, or no head such a label.
            SettingError: if there is no such step or head, or if the run has no origin.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> run = icgd.compile(problem, "relu-stack", n_steps=2).run([[0.5, 1.0]], [1.0])
            >>> list(run.attention("gradient step", "row 2 of weights_1"))
            ['row 2 of weights_1, where +delta_1 > 0', 'row 2 of weights_1, where -delta_1 > 0']
        """
        origin = self._known_origin()
        n_steps = self.stopped_after
        if n_steps is None:
            n_steps = origin.program.n_steps
        return origin.attend(origin.program, origin.task, layer, head, step, n_steps)

    def plot(
        self, path: str | os.PathLike[str] | None = None, *, labels: Any = None
    ) -> pictures.picture.Picture:
        """Plot the loss over the steps, and the predictions if there are queries.

        The coefficients of a linear model are drawn too if X was a data frame.

        Args:
            path: the file that the picture is also written to, as SVG or PNG by its ending.
            labels: labels of the queries; the predictions are drawn against them.

        Returns:
            The picture, which a notebook shows.

        Raises:
            SettingError: if the run has no origin.
            DataError: if `labels` has not one label for each query.
            FileError: if the name has another ending, or if the file cannot be written.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> type(compiled.run([[0.5, 1.0]], [1.0]).plot()).__name__
            'Picture'
        """
        origin = self._known_origin()
        curves = pictures.run_picture.LossCurves(
            self.loss_in_words, self.loss_curve, self.objective_curve, self.steps
        )
        predicted = pictures.run_picture.query_predictions(
            origin.task, self.predictions, labels, origin.problem
        )
        return pictures.run_picture.draw(curves, predicted, self._named_coefficients(), path)

    def plot_stream(
        self, slot: str | None = None, path: str | os.PathLike[str] | None = None
    ) -> pictures.picture.Picture:
        """Plot the residual stream of a traced run as a heat map, of slots or tokens by layers.

        A cell shows the root mean square of a slot over all its coordinates and tokens.

        Args:
            slot: the slot whose tokens are the rows; by default every slot is a row.
            path: the file that the picture is also written to, as SVG or PNG by its ending.

        Returns:
            The picture, which a notebook shows.

        Raises:
            SettingError: if nothing was traced, or if the run has no origin.
            UnknownNameError: if this slot was not traced.
            FileError: if the name has another ending, or if the file cannot be written.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> run = compiled.run([[0.5, 1.0]], [1.0], trace=True)
            >>> type(run.plot_stream("x")).__name__
            'Picture'
        """
        if not self.trace:
            raise SettingError(
                "The run recorded no slot, so there is no residual stream to draw. Run with "
                "trace=True, or name the slots, such as trace=['y']."
            )
        if slot is not None and slot not in self.trace:
            raise UnknownNameError.of("traced slot", slot, known=list(self.trace))
        return pictures.stream_picture.draw(self.trace, self._known_origin().program, slot, path)


def with_origin(run: Run, origin: Origin) -> Run:
    """Return the run with its origin, whose task is cut to the tasks that the run finished."""
    if origin.task.batch and len(run.parameters) < len(origin.task.x):
        origin = replace(origin, task=origin.task.of_batch(slice(len(run.parameters))))
    return replace(run, origin=origin)


Reached = TypeVar("Reached")
"""The state after a step, as an executor represents it: weights, a stream, or a step number."""


class AbstractExecutor(ABC, Generic[Reached]):
    """Take the training steps of a program on a task. Subclasses are final.

    Ctrl-C may interrupt a step at any moment, and the driver then reads the last whole step. So a
    step must not destroy what an earlier one reached (or must be able to recompute it), and
    predictions must be repeatable. No further step is taken after an interruption.
    """

    start: Reached
    """The state before the first step."""

    still_steps: int = 1
    """How many steps in a row must not move before no later one can: with batches, a whole pass."""

    traced: Mapping[str, list[Tensor]] = MappingProxyType({})
    """The records of each traced slot: of the prompt, of every step, then of the predictions."""

    n_of_prompt: int = 1
    n_per_step: int = 1
    """The number of records of the prompt, and of each step."""

    @abstractmethod
    def step(self) -> Reached:
        """Take the next step and return the state that it reached."""

    def steps(
        self, n_steps: int, rows: History, every: int, *, each: bool, moves: bool
    ) -> Iterator[tuple[int, Reached, float]]:
        """Take all steps: yield the number of a step, the state it reached, and its largest move.

        After every multiple of `every` the weights are written to the next of `rows`, whose first
        holds the initial ones. Moves are 0 unless `moves`. An executor that takes many steps at
        once yields only the last of them, unless `each` or `moves`.
        """
        free_rows = _rows_to_fill(rows)
        before, moved = rows[..., 0, :], 0.0
        if moves:
            before, now = before.clone(), torch.empty_like(before)
        for step in range(1, n_steps + 1):
            reached = self.step()
            if step % every == 0:
                self.read(reached, next(free_rows))
            if moves:
                self.read(reached, now)
                moved = float((now - before).abs().max())
                before, now = now, before
            yield step, reached, moved

    @abstractmethod
    def read(self, reached: Reached, write: Parameters) -> None:
        """Write the weights at a state to `write`."""

    @abstractmethod
    def predictions(self, reached: Reached) -> Predictions:
        """Return the predictions at the queries."""

    def end(self) -> None:
        """Release resources to later runs, after the run has been read."""
        return None

    def at_hand(self, n_steps: int, reached: Reached) -> tuple[int, Reached]:
        """Return the last step up to this one that can be read without repeating steps."""
        return n_steps, reached

    @final
    def trace(self, n_steps: int | None = None) -> dict[str, Tensor]:
        """Return the trace of the first `n_steps`; by default of all steps and the predictions."""
        end = None if n_steps is None else self.n_of_prompt + n_steps * self.n_per_step
        return {name: torch.stack(slots[:end], dim=-3) for name, slots in self.traced.items()}


@runtime_checkable
class Stepwise(Protocol):
    """The properties of a program that the driver uses."""

    @property
    def n_steps(self) -> int:
        """The number of steps."""

    @property
    def can_go_on(self) -> bool:
        """Whether a new run can resume an interrupted one."""

    def next_example(self, n_steps: int, n_examples: int) -> int | None:
        """Return the first example of the step after `n_steps`, or None if steps use all."""


Result = TypeVar("Result")

ROWS_AT_ONCE = 256
"""The number of row views made per call: single calls are slow, and all views take memory."""


def _rows_to_fill(rows: History) -> Iterator[Parameters]:
    """Yield a view of each row after the first."""
    n_rows = rows.shape[-2]
    for first in range(1, n_rows, ROWS_AT_ONCE):
        yield from rows.narrow(-2, first, min(ROWS_AT_ONCE, n_rows - first)).unbind(-2)


MakeExecutor = Callable[[Any, Task, RunOptions], AbstractExecutor[Any]]
"""A factory of the executor of a program on a task."""


def drive(
    make: MakeExecutor,
    program: Stepwise,
    task: Task,
    options: RunOptions,
    rows: History | None = None,
) -> Run:
    """Make the executor, take its steps, and predict.

    The history is written to `rows`, by default to new memory. Raises `InterruptedRunError` on
    Ctrl-C at any moment, even while the executor is made, and `OverflowedRunError` if the run
    leaves the range of its dtype.
    """
    driver = _Driver(program, task, options, rows)
    try:
        with torch.no_grad():
            run = driver.run(make)  # no return here: Ctrl-C at the end of the block must be caught
        return run
    except KeyboardInterrupt:
        raise driver.interruption() from None


def new_rows(program: Stepwise, task: Task, options: RunOptions) -> History:
    """Allocate the history of a run."""
    n_rows = n_kept(program.n_steps, options.every(program.n_steps))
    *batch, n_weights = task.initial.shape
    return task.initial.new_empty(*batch, n_rows, n_weights)


class Last(NamedTuple):
    """The last whole step: its number and the state that it reached."""

    n_steps: int
    reached: Any


class _Driver:
    """A run in progress: its history and its last whole step.

    `rows` is the history: the weights at the start, after every multiple of `every`, and at the
    end. If a run ends between two multiples, its last weights take the row of the next multiple.
    """

    def __init__(
        self, program: Stepwise, task: Task, options: RunOptions, rows: History | None
    ) -> None:
        self.program, self.task, self.options = program, task, options
        self.n_steps, self.every = program.n_steps, options.every(program.n_steps)
        self.rows = new_rows(program, task, options) if rows is None else rows
        self.rows.select(-2, 0).copy_(task.initial)
        self.executor: AbstractExecutor[Any] | None = None
        self.last = Last(0, None)

    def run(self, make: MakeExecutor) -> Run:
        executor = make(self.program, self.task, self.options)
        # Every record is as large as those of the prompt; twice, because the trace stacks them.
        n_bytes = sum(slot.nbytes for slots in executor.traced.values() for slot in slots)
        n_records = executor.n_of_prompt + self.n_steps * executor.n_per_step
        needed = 2 * n_bytes * n_records // executor.n_of_prompt
        remedy = "Name fewer slots, or take fewer steps or examples."
        require_memory(f"The trace of {self.n_steps:,} steps", needed, remedy)

        self.last = Last(0, executor.start)
        self.executor = executor
        is_stopped = self.take_steps(executor)
        last = self.last
        try:
            predictions = executor.predictions(last.reached)
        except IndexError:
            raise self.overflow() from None
        history = self.history(last)
        # A weight that is not finite stays so, hence checking the last step suffices.
        if not largest_size(history[..., -1, :]) < inf:
            raise self.overflow()
        stopped_after = last.n_steps if is_stopped else None
        steps = kept_steps(last.n_steps, self.every)
        run = Run(history, predictions, executor.trace(), stopped_after, steps)
        executor.end()
        return run

    def take_steps(self, executor: AbstractExecutor[Any]) -> bool:
        """Take all steps, or stop early once the weights settle; return whether it did."""
        on_progress, limit = self.options.on_progress, self.options.stop_below
        taken = executor.steps(
            self.n_steps,
            self.rows,
            self.every,
            each=on_progress is not None,
            moves=limit is not None,
        )
        n_still = 0
        while True:
            try:
                progress = next(taken, None)
            except IndexError:  # the table look-up of a NaN
                raise self.overflow() from None
            if progress is None:
                return False
            step, reached, moved = progress
            self.last = Last(step, reached)
            if on_progress:
                on_progress(step, self.n_steps)
            if limit is not None:
                n_still = n_still + 1 if moved <= limit else 0
                if n_still == executor.still_steps:
                    return True

    def history(self, last: Last) -> History:
        """Return the history up to a whole step."""
        n_rows = n_kept(last.n_steps, self.every)
        if self.executor and last.n_steps % self.every:
            self.executor.read(last.reached, self.rows[..., n_rows - 1, :])
        return self.rows[..., :n_rows, :]

    def overflow(self) -> OverflowedRunError:
        return self.options.overflow(dtype_name(self.task.x.dtype))

    def interruption(self) -> InterruptedRunError:
        """Return the error to raise on Ctrl-C, which holds the run up to the last whole step."""
        (n_done, reached), history = self.whole()
        steps = kept_steps(n_done, self.every)
        run = Run(history, self.task.y[..., :0, :].clone(), steps=steps)
        if (executor := self.executor) is not None:
            predictions = _made_or(run.predictions, partial(executor.predictions, reached))
            trace = _made_or(run.trace, partial(executor.trace, n_done))
            run = replace(run, predictions=predictions, trace=trace)
        following = self.program.next_example(n_done, self.task.n_examples)
        then = "go on with initial=...[-1]"
        if not self.program.can_go_on:
            then = "they cannot be resumed: every run starts with its first step"
        elif following:  # a new run starts with example 0 anyway
            then += f" and with the examples from number {following} (counted from 0) first"
        return InterruptedRunError(
            f"The run was interrupted after {n_done} of {self.n_steps} steps. The weights so far "
            f"are in the error's `partial.parameters`; {then}.",
            run,
        )

    def whole(self) -> tuple[Last, History]:
        """Return the last whole step and the history up to it.

        If a second Ctrl-C interrupts the reading, fall back to a step that is readable at once.
        """
        last = self.last
        with suppress(KeyboardInterrupt), torch.no_grad():
            return last, self.history(last)
        if self.executor:
            last = Last(*self.executor.at_hand(*last))
        with torch.no_grad():
            return last, self.history(last)


def _made_or(otherwise: Result, make: Callable[[], Result]) -> Result:
    """Return the result of `make`, or `otherwise` if that fails or is interrupted."""
    with suppress(OverflowedRunError, IndexError, KeyboardInterrupt), torch.no_grad():
        return make()
    return otherwise


def run_in_groups(
    run_group: Callable[[Task, RunOptions, History], Run],
    task: Task,
    n_at_once: int,
    options: RunOptions,
    rows: History,
) -> Run:
    """Run a batch `n_at_once` tasks at a time; each group writes its weights to its part of `rows`.

    On Ctrl-C the error holds the finished tasks, or the steps of the first group if none is done.
    """
    size = max(n_at_once, 1)
    if not task.batch or len(task.x) <= size:
        return run_group(task, options, rows)
    starts, runs = range(0, len(task.x), size), list[Run]()
    try:
        for number, start in enumerate(starts):
            progress = part_of(options.on_progress, number, len(starts))
            group = slice(start, start + size)
            options_of_group = replace(options, on_progress=progress)
            runs.append(run_group(task.of_batch(group), options_of_group, rows[group]))
        return joined(runs, rows)
    except InterruptedRunError as interruption:
        partial_run, n_finished = interruption.partial, size
    except KeyboardInterrupt:  # between two groups
        if not runs:
            raise
    if runs:
        n_finished = sum(len(run.parameters) for run in runs)
        partial_run = joined(runs, rows[:n_finished])
    raise InterruptedRunError(
        f"The run was interrupted: the {'whole runs' if runs else 'runs so far'} of the first "
        f"{n_finished} of {len(task.x)} tasks are in the error's `partial`. Run the other tasks "
        "again.",
        partial_run,
    )


def joined(runs: list[Run], rows: History) -> Run:
    """Return the run of a whole batch from the runs of its groups and their common history."""
    return Run(
        parameters=rows,
        predictions=torch.cat([run.predictions for run in runs]),
        trace={name: torch.cat([run.trace[name] for run in runs]) for name in runs[0].trace},
        steps=runs[0].steps,
    )


def part_of(on_progress: OnProgress | None, part: int, n_parts: int) -> OnProgress | None:
    """Return the callback of part `part`, counted from 0, of `n_parts` parts of equal length."""
    return on_progress and (lambda done, total: on_progress(part * total + done, n_parts * total))


def require_entry(program: object, task: Task) -> None:
    """Raise `DataError` if the data have the wrong number of examples or lie between levels."""
    if not isinstance(program, StackProgram):
        return
    if program.n_examples is not None and task.n_examples != program.n_examples:
        raise DataError(
            f"X has {task.n_examples} examples, but the transformer was made for prompts of "
            f"{program.n_examples}. Give {program.n_examples}, or compile with "
            f"n_examples={task.n_examples}."
        )
    table = program.step_table
    if table is None:
        return
    for name, data, size in zip(("X", "y"), (task.x, task.y), table.ranges, strict=False):
        require_off_ramps(name, data, program, size)


def require_off_ramps(
    name: str, data: Tensor, program: StackProgram, size: float, middle: float = 0.0
) -> None:
    """Raise `DataError` if an entry is on a ramp between two levels of middle +- size."""
    knots = program.relu_sum(IDENTITY).knots
    slack = 8 * torch.finfo(data.dtype).eps * (1 + abs(middle) / size)
    for low, high in zip(knots[::2], knots[1::2], strict=True):
        scaled = data * (1 / size) - middle / size
        inside = (scaled > low + slack) & (scaled < high - slack)
        if inside.any():
            index = inside.nonzero()[0].tolist()
            value = data[tuple(index)].item()
            raise DataError(
                f"{name}{at(index)} is {value:.12g}, on the ramp between two levels: the table "
                f"has no entry for examples strictly between {middle + size * low:.12g} and "
                f"{middle + size * high:.12g}. Move it out, or compile with a smaller kink_width."
            )


class AbstractBackend(ABC):
    """Runs programs on tasks. Subclasses are final and must be added to `BACKENDS`."""

    name: ClassVar[str]
    sums_terms: ClassVar[bool]
    """Whether functions are summed ReLU by ReLU, which rounds more; the bounds depend on it."""
    executors: ClassVar[Mapping[type[AbstractProgram], MakeExecutor]]

    def chosen(self, program: AbstractProgram, task: Task, options: RunOptions) -> RunOptions:
        """Return `options` with the choices that they leave to the backend."""
        return options

    @abstractmethod
    def tasks_at_once(self, program: AbstractProgram, task: Task) -> int:
        """Return how many tasks of a batch run together."""

    @final
    def run(self, program: AbstractProgram, task: Task, options: RunOptions = PLAIN) -> Run:
        """Run the program to its end, or until the weights settle if `stop_below` is set.

        On Ctrl-C it raises `InterruptedRunError`, whose `partial` is the run up to the last whole
        step, with predictions if they can be made.
        """
        require_entry(program, task)
        make = self.executors.get(type(program))
        if make is None:
            raise ProgramError(
                f"{type(program).__name__} has no executor in the {self.name} backend"
            )
        options = self.chosen(program, task, options)
        # With `stop_below` all tasks stop together, so that they are one group.
        n_at_once = len(task.x) if options.stop_below else self.tasks_at_once(program, task)
        rows = new_rows(program, task, options)
        return run_in_groups(partial(drive, make, program), task, n_at_once, options, rows)
