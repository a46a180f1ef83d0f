"""What every kind of bounds provides: for all tasks, for each step of a run, for a whole run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from icgd.backends.run import OnProgress
from icgd.certificates.enclosures import Arithmetic
from icgd.problems.data import Task
from icgd.problems.problem import Problem
from icgd.program.program import AbstractProgram
from icgd.shapes import History, Predictions

INTERVALS = 16
"""Numbers held at a time for each weight: ends, middles, radii and errors."""


@dataclass(frozen=True)
class DomainBound:
    """The largest error of any weight: of one step, and of the whole run after its last step.

    The transformer's weights are no larger than `reach`, and their copies no farther than `drift`
    from each other, if that is known.
    """

    step: float
    trajectory: float
    reach: float = inf
    drift: float = inf


@dataclass(frozen=True)
class RunBounds:
    """Bounds on the error of anything learnt, with an entry for each step of a run.

    `steps` bounds what the step adds by itself, `trajectory` the error of all steps so far.
    `paper` is the paper's line for the whole run, if it has one: the sum of what the steps add, as
    if none expanded distances.
    """

    steps: Tensor
    trajectory: Tensor
    paper: Tensor | None = None


@dataclass(frozen=True)
class AbstractBounds(ABC):
    """Bounds of a program that trains a problem, computed as `how` says."""

    problem: Problem
    program: AbstractProgram
    how: Arithmetic

    @abstractmethod
    def domain(self) -> DomainBound:
        """Bound (a): for every task in the domain, before any run."""

    @abstractmethod
    def steps(self, task: Task, history: History) -> Tensor:
        """Bound (b) for each step of a run: the error that it adds to any weight."""

    @abstractmethod
    def run(
        self, task: Task, history: History, real: History, on_progress: OnProgress | None = None
    ) -> RunBounds:
        """Bounds (b) for each step of a run, and for its distance from the `real` one."""

    @abstractmethod
    def predictions(
        self, task: Task, history: History, real: History, error: Tensor
    ) -> Predictions:
        """A bound on how far predictions at the queries are from those of the `real` run.

        `error` bounds how far what the run has learnt is from the end of the real one: with an
        entry for each weight, or with one for all.
        """

    def domain_predictions(self, proved: DomainBound) -> float:
        """Bound (a) on how far predictions are from those of real training, or infinity.

        It holds after the whole run, for every task and every query in the domain; `proved` is what
        `domain` returns.
        """
        return inf

    @property
    def widest(self) -> float:
        """How far clipped weights can lie apart, which needs no proof, or infinity."""
        return inf

    @property
    def condition(self) -> str | None:
        """The condition under which bound (a) holds, or None if it holds for every task."""
        return None

    @property
    def stated(self) -> tuple[str, ...]:
        """The user's kernels whose stated constants every bound rests on."""
        return ()

    @property
    def estimated(self) -> tuple[str, ...]:
        """The user's kernels whose constants are only estimated, so that nothing is proved."""
        return ()

    def paper_step(self) -> float | None:
        """Bound (c): the paper's closed form for one step, repaired, if there is one."""
        return None


def one_by_one(
    bounds: Iterable[Tensor], history: History, on_progress: OnProgress | None = None
) -> Tensor:
    """Stack the bounds of all steps of a history, reporting progress after each."""
    found, n_steps = list[Tensor](), history.shape[-2] - 1
    for bound in bounds:
        found.append(bound)
        if on_progress:
            on_progress(len(found), n_steps)
    return torch.stack(found, dim=-1) if found else history[..., 0, :0].double()
