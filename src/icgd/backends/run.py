"""What a backend is, and what it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from icgd.errors import OverflowedRunError
from icgd.problems.task import Task
from icgd.program.program import AbstractProgram
from icgd.shapes import History, Parameters, Predictions

OnProgress = Callable[[int, int], None]
"""Called with the number of training steps done and the number in all."""


@dataclass(frozen=True)
class Run:
    """A transformer's forward pass, read out.

    `parameters` holds the trained weights before the first step and after every step (of a run
    without history, after the last one only); `predictions` the labels it gives to the queries;
    `trace` the traced slots, of shape (layer, token, width), where entry 0 of the first axis is
    the prompt and entry i the stream after layer i. A batch of tasks adds an axis in front. A run
    that was told to stop once weights move no more says after which step it did.
    """

    parameters: History
    predictions: Predictions
    trace: Mapping[str, Tensor] = field(default_factory=dict)
    stopped_after: int | None = None


def is_still(before: Parameters, after: Parameters, stop_below: float | None) -> bool:
    """Whether no weight of any task moved by more than `stop_below`, if that is asked."""
    return stop_below is not None and float((after - before).abs().max()) <= stop_below


def made_or_none(predict: Callable[[], Predictions], task: Task) -> Predictions:
    """The predictions of an interrupted run.

    None if a query is beyond what heads are made for, or if the user interrupts once more.
    """
    with suppress(OverflowedRunError, KeyboardInterrupt):
        return predict()
    return task.y[..., :0, :].clone()


def in_groups(task: Task, size: int) -> list[Task]:
    """The task itself, or a batch cut into groups of `size` tasks."""
    if not task.batch:
        return [task]
    parts = [part.split(size) for part in (task.x, task.y, task.queries, task.initial)]
    return [Task(*group) for group in zip(*parts, strict=True)]


def joined(runs: list[Run]) -> Run:
    """The runs of groups as the run of the whole batch."""
    if len(runs) == 1:
        return runs[0]
    return Run(
        parameters=torch.cat([run.parameters for run in runs]),
        predictions=torch.cat([run.predictions for run in runs]),
        trace={name: torch.cat([run.trace[name] for run in runs]) for name in runs[0].trace},
    )


class AbstractBackend(ABC):
    """Runs a program on a task. Subclasses are final."""

    name: ClassVar[str]
    sums_terms: ClassVar[bool]
    """Whether functions are evaluated ReLU by ReLU, which rounds more; bounds ask for it."""

    @abstractmethod
    def run(
        self,
        program: AbstractProgram,
        task: Task,
        *,
        trace: tuple[str, ...] = (),
        history: bool = True,
        on_progress: OnProgress | None = None,
        stop_below: float | None = None,
    ) -> Run:
        """Run the whole program, or up to the step that moves no weight by more than `stop_below`.

        With batches it takes a whole pass of such steps over the examples. `trace` names the slots
        to record after every layer. Without `history` only the initial and the final weights are
        kept. On Ctrl-C a run raises `InterruptedRunError`, whose `partial` is the run up to the
        last whole step, with predictions.
        """
