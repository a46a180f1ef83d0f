"""Run a program on a task: what a run is asked for, what it returns, and how it is made.

A backend says which executor runs each kind of program, and how many tasks run together. An
executor takes one training step at a time. `drive` is the one loop over steps: it owns history,
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
"""A function that is called with the number of training steps done and the number in all."""


ENGINES = ("auto", "torch", "compiled")
"""What performs the steps of fused runs: torch, loops that numba compiles, or what is faster."""


@dataclass(frozen=True)
class RunOptions:
    """What a run is asked for.

    `trace` names the slots to record after every layer. `history` says after how many steps weights
    are kept again: True is after every step, and False keeps only the initial and the final ones.
    `on_progress` is called after every step. With `stop_below` the run stops after the first step
    that moves no weight by more; with batches, after a whole pass of such steps over the examples.
    `skip_zeros` leaves out of a literal run what adds exactly 0, and `engine` says what performs
    the steps of a fused one. `overflow` takes the name of a dtype and makes the error of a run that
    leaves its range: it says what to blame.
    """

    trace: tuple[str, ...] = ()
    history: bool | int = True
    on_progress: OnProgress | None = None
    stop_below: float | None = None
    overflow: Callable[[str], OverflowedRunError] = overflowed
    skip_zeros: bool = False
    engine: str = "auto"

    def every(self, n_steps: int) -> int:
        """After how many steps of a run the weights are kept again."""
        return int(self.history) or max(n_steps, 1)


def n_kept(n_steps: int, every: int) -> int:
    """Return how often weights are kept: at first, after `every` so many steps, and at last."""
    return 1 - (-n_steps // every)


def kept_steps(n_steps: int, every: int) -> Sequence[int]:
    """Return the steps after which weights are kept: 0, every so many of them, and the last."""
    regular = range(0, n_steps + 1, every)
    return (*regular, n_steps) if n_steps % every else regular


PLAIN = RunOptions()
"""A run with its history and no trace, all of whose steps are taken."""


@dataclass(frozen=True)
class Origin:
    """What a run came from, the backend that made it, and what computes patterns of heads."""

    problem: Problem
    program: AbstractProgram
    task: Task
    backend: str
    attend: Callable[..., dict[str, Tensor]]


@with_repr
@dataclass(frozen=True)
class Run:
    """A transformer's forward pass, read out. A batch of tasks adds an axis in front.

    Attributes:
        parameters: the trained weights before the first step and after every step that was kept.
        predictions: the labels that it gives to the queries.
        trace: the traced slots, of shape (layer, token, width): entry 0 is the prompt, and entry i
            is the stream after layer i.
        stopped_after: the step after which a run stopped because its weights moved no more.
        steps: the steps after which weights were kept, beginning with 0; a run that a backend did
            not make has none.
        origin: what it came from; a run that a backend made on its own has none.

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
        """Return what it shows of itself in a line or in a notebook.

        Returns:
            A text for each name.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> compiled = icgd.compile(problem, "relu-stack", n_steps=2)
            >>> compiled.run([[0.5, 1.0]], [1.0]).facts()["weights"]
            '2, kept 3 times'
        """
        kept, n_weights = self.parameters.shape[-2:]
        n_queries, width = self.predictions.shape[-2:]
        found = {"weights": f"{n_weights:,}, kept {kept:,} times"}
        found["predictions"] = f"{n_queries:,} of {counted(width, 'label')}"
        found |= {"backend": self.origin.backend} if self.origin else {}
        found |= {"tasks": f"{len(self.parameters):,}"} if self.parameters.ndim > 2 else {}
        found |= {"traced": counted(len(self.trace), "slot")} if self.trace else {}
        learnt = [f"{name} {number(value)}" for name, value in self._named_coefficients().items()]
        found |= {"coefficients": in_short(learnt)} if learnt else {}
        stopped = self.stopped_after
        return found | ({} if stopped is None else {"stopped after": counted(stopped, "step")})

    def _known_origin(self) -> Origin:
        if self.origin is None:
            raise SettingError(
                "This run does not know what it trained, because a backend made it on its own. "
                "Make it with compiled.run or compiled.run_task."
            )
        return self.origin

    @property
    def weights(self) -> dict[str, Tensor]:
        """What was trained, as named matrices.

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
        found = {
            f"{names[kind]}_{layer}": self.weights[name]
            for name, (kind, _, layer) in kinds.items()
            if kind in names
        }
        if not found:
            raise SettingError(
                "This run keeps no average of its weights. Give its update average=0.99, say."
            )
        return found

    def load_into(self, model: nn.Module, *, averaged: bool = False) -> None:
        """Write the trained weights into a PyTorch model of the network's shape.

        Args:
            model: A model that `icgd.from_torch` can read; its weights are replaced.
            averaged: Whether it gets the average of the weights instead.

        Raises:
            UnreadableError: If the model has another shape, or the run is of a batch of tasks.
            SettingError: If the run does not know what it came from, or keeps no average.

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
        """What a linear model has learnt, by the names of its inputs, and its "(intercept)".

        The names are those of the columns if X was a data frame, else x_1, x_2 and so on. It is
        None for many tasks at once and for what is not a linear model: see `weights`.
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
        """Which loss the curve shows."""
        return self._known_origin().problem.oracle.loss_in_words

    @cached_property
    def loss_curve(self) -> Float[Tensor, "*tasks step"]:
        """The training loss before the first step and after every step that was kept, in float64.

        It is computed when it is first asked for; `loss_in_words` says which loss it is.
        """
        oracle, task = self._known_origin().problem.oracle, self._known_origin().task
        kept = self.parameters.double().unbind(-2)
        return torch.stack([oracle.risk(task, weights) for weights in kept], dim=-1)

    @cached_property
    def objective_curve(self) -> Float[Tensor, "*tasks step"] | None:
        """The loss with penalties, which descent makes small, or None if there are none."""
        oracle, task = self._known_origin().problem.oracle, self._known_origin().task
        kept = self.parameters.double().unbind(-2)
        found = [oracle.objective(task, weights) for weights in kept]
        curve = [value for value in found if value is not None]
        objectives = torch.stack(curve, dim=-1) if curve else self.loss_curve
        return None if objectives.equal(self.loss_curve) else objectives

    def attention(
        self, layer: str, head: SupportsIndex | str | None = None, *, step: int = 1
    ) -> dict[str, Tensor]:
        """Return how much each token reads of each other, computed by the literal transformer.

        Rows read, columns are read: first the registers, if there are any, then the examples and
        the queries. Heads of linear models and chains read tokens of their own instead, and
        mirrored heads all tokens and then the mirror image of each. The transformer runs again up
        to this layer, whichever backend made the run.

        Args:
            layer: the title of a layer, such as "gradient step".
            head: the beginning of the labels of some heads, such as "row 2 of weights_1", or the
                number of one head, counted from 0; without it, all heads. Where a step has
                several layers of this title, their heads are counted on.
            step: the training step, counted from 1; the one after the last has the layers that
                predict. Of a chain it is the number of a block.

        Returns:
            The patterns by the labels of their heads, each of shape (token, token).

        Raises:
            UnknownNameError: if no layer has this title, or no head such a label.
            SettingError: if there is no such step or head, or if the run does not know what it
                came from.

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
        """Return the loss over the steps, and the predictions if there are queries.

        The coefficients of a linear model are drawn too if X was a data frame.

        Args:
            path: the file that the picture is also written to, as SVG or PNG by its ending.
            labels: labels of the queries; the predictions are drawn against them.

        Returns:
            The picture, which a notebook shows.

        Raises:
            SettingError: if the run does not know what it came from.
            DataError: if there is not a label for each query.
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
        oracle = origin.problem.oracle
        guesses = pictures.run_picture.guesses_of(origin.task, self.predictions, labels, oracle)
        return pictures.run_picture.draw(curves, guesses, self._named_coefficients(), path)

    def plot_stream(
        self, slot: str | None = None, path: str | os.PathLike[str] | None = None
    ) -> pictures.picture.Picture:
        """Return the residual stream of a traced run as a heat map: slots by layers, or tokens by
        layers.

        A square shows the root mean square of a slot over all its coordinates and tokens.

        Args:
            slot: a slot whose tokens are the rows; without one every slot is a row.
            path: the file that the picture is also written to, as SVG or PNG by its ending.

        Returns:
            The picture, which a notebook shows.

        Raises:
            SettingError: if nothing was traced, or if the run does not know what it came from.
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
    """Return the run, which now knows what it came from; of a batch it may hold the first tasks
    only.
    """
    if origin.task.batch and len(run.parameters) < len(origin.task.x):
        origin = replace(origin, task=origin.task.of_batch(slice(len(run.parameters))))
    return replace(run, origin=origin)


Reached = TypeVar("Reached")
"""What an executor predicts from: the weights, or the stream in which they stand."""


class AbstractExecutor(ABC, Generic[Reached]):
    """A program at work on a task. Subclasses are final.

    A step may be interrupted at any moment. Therefore no step changes what an earlier step reached,
    and predictions can be made again. An executor takes no further step after an interruption.
    """

    start: Reached
    """What the prompt holds, before the first step."""

    still_steps: int = 1
    """How many steps in a row must move no weight until all further ones will not either."""

    traced: Mapping[str, list[Tensor]] = MappingProxyType({})
    """What was recorded of each name: of the prompt, of every step, then of the predictions."""

    n_of_prompt: int = 1
    n_per_step: int = 1
    """How many records the prompt has, and how many a step adds."""

    @abstractmethod
    def step(self) -> Reached:
        """Take the next step and say what was reached."""

    def steps(
        self, n_steps: int, rows: History, every: int, *, each: bool, moves: bool
    ) -> Iterator[tuple[int, Reached, float]]:
        """Take all steps: yield the number of a step, what it reached, and its largest move.

        After `every` so many steps the weights are written to the next of `rows`, of which the
        first holds the initial ones. Moves are found only if they are asked for. An executor that
        takes many steps at once yields only the last of them, unless `each` or moves are wanted.
        """
        kept = _rows_to_fill(rows)
        before, moved = rows[..., 0, :], 0.0
        if moves:
            before, now = before.clone(), torch.empty_like(before)
        for step in range(1, n_steps + 1):
            reached = self.step()
            if step % every == 0:
                self.read(reached, next(kept))
            if moves:
                self.read(reached, now)
                moved = float((now - before).abs().max())
                before, now = now, before
            yield step, reached, moved

    @abstractmethod
    def read(self, reached: Reached, write: Parameters) -> None:
        """Write to `write` what is learnt by then."""

    @abstractmethod
    def predictions(self, reached: Reached) -> Predictions:
        """Return the predictions at the queries."""

    def end(self) -> None:
        """Let go of what a later run can use; the run has ended, and was read."""
        return None

    def at_hand(self, n_steps: int, reached: Reached) -> tuple[int, Reached]:
        """Return the last step, not after this one, that can be read without taking steps again."""
        return n_steps, reached

    @final
    def trace(self, n_steps: int | None = None) -> dict[str, Tensor]:
        """Return what was recorded of the first `n_steps`; by default of all steps and the
        predictions.
        """
        end = None if n_steps is None else self.n_of_prompt + n_steps * self.n_per_step
        return {name: torch.stack(parts[:end], dim=-3) for name, parts in self.traced.items()}


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
        """Return the example with which the step after `n_steps` begins, if a step does not use
        all.
        """


Result = TypeVar("Result")

ROWS_AT_ONCE = 256
"""The number of steps whose views are made at once: one by one takes longer, all take memory."""


def _rows_to_fill(rows: History) -> Iterator[Parameters]:
    """Yield the rows after the first, one by one."""
    n_rows = rows.shape[-2]
    for first in range(1, n_rows, ROWS_AT_ONCE):
        yield from rows.narrow(-2, first, min(ROWS_AT_ONCE, n_rows - first)).unbind(-2)


MakeExecutor = Callable[[Any, Task, RunOptions], AbstractExecutor[Any]]
"""A function that makes the executor of a program on a task."""


def drive(
    make: MakeExecutor,
    program: Stepwise,
    task: Task,
    options: RunOptions,
    rows: History | None = None,
) -> Run:
    """Make the executor and run its steps, then its predictions.

    The weights that are kept are written to `rows`, or to memory of their own. Raises
    `InterruptedRunError` on Ctrl-C at any moment, also while the executor is made, and
    `OverflowedRunError` if the run leaves the range of its numbers.
    """
    driver = _Driver(program, task, options, rows)
    try:
        with torch.no_grad():
            run = driver.run(make)  # a return here might miss the end of the block
        return run
    except KeyboardInterrupt:
        raise driver.interruption() from None


def new_rows(program: Stepwise, task: Task, options: RunOptions) -> History:
    """Memory for the weights that a run keeps."""
    n_rows = n_kept(program.n_steps, options.every(program.n_steps))
    *batch, n_weights = task.initial.shape
    return task.initial.new_empty(*batch, n_rows, n_weights)


class Last(NamedTuple):
    """The last whole step: its number, and what it reached."""

    n_steps: int
    reached: Any


class _Driver:
    """A run, and how far it has come.

    `rows` are the weights that are kept: at first, after `every` so many steps, and at last. The
    row of the last step is also that of the next one to be kept.
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
        # What was recorded of the prompt tells how large the records of all steps, and their
        # stacks, will be.
        n_bytes = sum(part.nbytes for parts in executor.traced.values() for part in parts)
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
        # A weight that is not finite never becomes so again: the last step tells of all.
        if not largest_size(history[..., -1, :]) < inf:
            raise self.overflow()
        stopped_after = last.n_steps if is_stopped else None
        steps = kept_steps(last.n_steps, self.every)
        run = Run(history, predictions, executor.trace(), stopped_after, steps)
        executor.end()
        return run

    def take_steps(self, executor: AbstractExecutor[Any]) -> bool:
        """Take all steps, or stop after enough that move nothing; return whether it stopped."""
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
                found = next(taken, None)
            except IndexError:  # a preactivation that is not a number has no cell to look up
                raise self.overflow() from None
            if found is None:
                return False
            step, reached, moved = found
            self.last = Last(step, reached)
            if on_progress:
                on_progress(step, self.n_steps)
            if limit is not None:
                n_still = n_still + 1 if moved <= limit else 0
                if n_still == executor.still_steps:
                    return True

    def history(self, last: Last) -> History:
        """Return the weights up to a whole step."""
        n_rows = n_kept(last.n_steps, self.every)
        if self.executor and last.n_steps % self.every:
            self.executor.read(last.reached, self.rows[..., n_rows - 1, :])
        return self.rows[..., :n_rows, :]

    def overflow(self) -> OverflowedRunError:
        return self.options.overflow(dtype_name(self.task.x.dtype))

    def interruption(self) -> InterruptedRunError:
        """Return the error that holds the run up to the last whole step."""
        (n_done, reached), history = self.whole()
        steps = kept_steps(n_done, self.every)
        known = Run(history, self.task.y[..., :0, :].clone(), steps=steps)
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
        """Return the last whole step and the weights until then.

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
    """Return a part of an interrupted run, unless it cannot be made or the user interrupts once
    more.
    """
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

    On Ctrl-C the tasks that are done are known; if none is, the steps of the first group are.
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
        known, n_known = interruption.partial, size
    except KeyboardInterrupt:  # between two groups
        if not runs:
            raise
    if runs:
        n_known = sum(len(done.parameters) for done in runs)
        known = joined(runs, rows[:n_known])
    raise InterruptedRunError(
        f"The run was interrupted: the {'whole runs' if runs else 'runs so far'} of the first "
        f"{n_known} of {len(task.x)} tasks are in the error's `partial`. Run the other tasks "
        "again.",
        known,
    )


def joined(runs: list[Run], rows: History) -> Run:
    """Return the runs of groups, whose weights stand in `rows`, as the run of the whole batch."""
    return Run(
        parameters=rows,
        predictions=torch.cat([run.predictions for run in runs]),
        trace={name: torch.cat([run.trace[name] for run in runs]) for name in runs[0].trace},
        steps=runs[0].steps,
    )


def part_of(on_progress: OnProgress | None, part: int, n_parts: int) -> OnProgress | None:
    """Return the callback for one of several parts of the same length, counted from 0."""
    return on_progress and (lambda done, total: on_progress(part * total + done, n_parts * total))


def require_entry(program: object, task: Task) -> None:
    """Raise `DataError` if a stack is made for another number of examples, or for other levels."""
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
    """Raise `DataError` if a number lies between two levels of [middle - size, middle + size]."""
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
    """A backend runs a program on a task. Subclasses are final, and join `BACKENDS`."""

    name: ClassVar[str]
    sums_terms: ClassVar[bool]
    """Whether functions are evaluated ReLU by ReLU, which rounds more; bounds ask for it."""
    executors: ClassVar[Mapping[type[AbstractProgram], MakeExecutor]]

    def chosen(self, program: AbstractProgram, task: Task, options: RunOptions) -> RunOptions:
        """Return the options, with choices made that are left to the backend."""
        return options

    @abstractmethod
    def tasks_at_once(self, program: AbstractProgram, task: Task) -> int:
        """Return how many tasks of a batch run together."""

    @final
    def run(self, program: AbstractProgram, task: Task, options: RunOptions = PLAIN) -> Run:
        """Run the whole program, or up to the step after which weights move no more.

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
