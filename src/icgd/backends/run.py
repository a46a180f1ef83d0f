"""What a run is asked for, and what it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd import pictures
from icgd.errors import OverflowedRunError, SettingError, UnknownNameError
from icgd.facts import counted, in_short, number, shown
from icgd.problems.from_torch import load_weights
from icgd.problems.optimisers.gradient_step import AVERAGE
from icgd.problems.oracles.oracle import overflowed
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.program.program import AbstractProgram
from icgd.shapes import History, Parameters, Predictions

OnProgress = Callable[[int, int], None]
"""A function that is called with the number of training steps done and the number in all."""


@dataclass(frozen=True)
class RunOptions:
    """What a run is asked for.

    `trace` names the slots to record after every layer. `history` says after how many steps weights
    are kept again: True is after every step, and False keeps only the initial and the final ones.
    `on_progress` is called after every step. With `stop_below` the run stops after the first step
    that moves no weight by more; with batches, after a whole pass of such steps over the examples.
    `overflow` takes the name of a dtype and makes the error of a run that leaves its range: it says
    what to blame.
    """

    trace: tuple[str, ...] = ()
    history: bool | int = True
    on_progress: OnProgress | None = None
    stop_below: float | None = None
    overflow: Callable[[str], OverflowedRunError] = overflowed

    def every(self, n_steps: int) -> int:
        """After how many steps of a run the weights are kept again."""
        return int(self.history) or max(n_steps, 1)


def n_kept(n_steps: int, every: int) -> int:
    """How often weights are kept: at first, after `every` so many steps, and at last."""
    return 1 - (-n_steps // every)


def kept_steps(n_steps: int, every: int) -> Sequence[int]:
    """The steps after which weights are kept: 0, every so many of them, and the last."""
    regular = range(0, n_steps + 1, every)
    return (*regular, n_steps) if n_steps % every else regular


PLAIN = RunOptions()
"""A run with its history and no trace, all of whose steps are taken."""


@dataclass(frozen=True)
class Origin:
    """What a run came from."""

    problem: Problem
    program: AbstractProgram
    task: Task


@shown
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
        """What it shows of itself in a line or in a notebook.

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
            model: An `nn.Sequential` that `icgd.from_torch` can read; its weights are replaced.
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
        """The coefficients, if their columns have names."""
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
        return torch.stack([oracle.risk(task, weights) for weights in self._kept()], dim=-1)

    @cached_property
    def objective_curve(self) -> Float[Tensor, "*tasks step"] | None:
        """The loss with penalties, which descent makes small, or None if there are none."""
        oracle, task = self._known_origin().problem.oracle, self._known_origin().task
        found = [oracle.objective(task, weights) for weights in self._kept()]
        curve = [value for value in found if value is not None]
        objectives = torch.stack(curve, dim=-1) if curve else self.loss_curve
        return None if objectives.equal(self.loss_curve) else objectives

    def _kept(self) -> tuple[Parameters, ...]:
        return self.parameters.double().unbind(-2)

    def plot(
        self, path: str | os.PathLike[str] | None = None, *, labels: Any = None
    ) -> pictures.picture.Picture:
        """The loss over the steps, and the predictions if there are queries.

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
        """The residual stream of a traced run as a heat map: slots by layers, or tokens by layers.

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
    """The run, which now knows what it came from; of a batch it may hold the first tasks only."""
    task = origin.task
    if task.batch:
        task = task.of_batch(slice(len(run.parameters)))
    return replace(run, origin=replace(origin, task=task))
