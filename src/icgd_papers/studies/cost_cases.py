"""Cases of a cost comparison: what is counted by formula, and the job that is measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import process_time

import torch

from icgd.compiled import Compiled
from icgd.environment import one_thread
from icgd.problems.data import Domain, Task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.timing import Job, interleaved_seconds
from icgd_papers.studies.counting import work_of

BYTES = 8
"""The size of a number: all runs are in float64."""

DENSE_FLOPS = 10**10
"""The largest dense step that is run; a larger one takes seconds and is only counted."""

DENSE_WEIGHTS = 2**28
"""The largest number of dense weights that is built: 2 GiB."""

STEP_SIZE = 0.05
"""Costs do not depend on it."""


@dataclass(frozen=True)
class Counts:
    """The cost of a step by formula: FLOPs, numbers in weights, and numbers that a run keeps."""

    flops: int
    weights: int
    state: int

    @property
    def bytes(self) -> int:
        return BYTES * (self.weights + self.state)

    @property
    def objection(self) -> str | None:
        """Why the dense transformer is only counted, if it is."""
        if self.flops <= DENSE_FLOPS and self.weights <= DENSE_WEIGHTS:
            return None
        size = BYTES * self.weights / 2**30
        return f"counted only: {self.flops:.1e} FLOPs a step, {size:.1f} GiB of weights"


@dataclass(frozen=True)
class Network:
    """The network that is trained, and its data: a square relu network with the squared loss.

    The box is 1 / width by default. Then |V_j p| <= max |p|, so that ranges on the domain do not
    grow with depth and every construction can be built; in a box of 1 they grow like width^depth.
    """

    depth: int
    width: int
    n_examples: int
    seed: int
    box: float | None = None

    def problem(self, batch_size: int | None) -> Problem:
        box = 1 / self.width if self.box is None else self.box
        return Problem(
            target=MLP((self.width,) * (self.depth + 1), "relu"),
            loss="squared",
            update=GradientStep(STEP_SIZE, box=box, batch_size=batch_size),
            domain=Domain(x=1.0, y=1.0),
        )

    def task(self, compiled: Compiled) -> Task:
        """Random data that are not negative, so that no signal fades with depth."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (2, self.n_examples, self.width)
        x, y = torch.rand(shape, generator=generator, dtype=torch.float64)
        target, box = compiled.problem.network, compiled.problem.gradient_step.box
        return compiled.task(x, y, initial=target.initial_parameters(self.seed, box).abs())


@dataclass(frozen=True)
class Measured:
    """The seconds of a step, the FLOPs that torch did in it, and the peak of its tensors in bytes.

    None stands for what was not measured; `why_not` says why if nothing was.
    """

    seconds: float | None = None
    flops: int | None = None
    bytes: int | None = None
    why_not: str | None = None


class AbstractCase(ABC):
    """One way to do a step at one size. Subclasses are final."""

    axis: str
    size: int
    name: str
    """The name of the line on which the case lies, together with its backend."""
    backend: str
    network: Network
    n_steps: tuple[int, int]
    """The steps of the two jobs that are timed: their difference has no set-up in it."""
    n_counted: tuple[int, int]
    """The steps of the two jobs whose work is counted, which takes longer but no repetition."""

    def why_not(self) -> str | None:
        """Why the case cannot be measured, if it cannot."""
        return None

    @abstractmethod
    def counts(self) -> Counts | None:
        """The cost by formula; None if there is no formula, or no such transformer."""

    @abstractmethod
    def job(self, n_steps: int) -> Job:
        """A function that performs so many steps; for 0 steps it does nothing."""

    @property
    def given(self) -> int:
        """How many numbers the job finds ready: its weights, if it has any."""
        counts = self.counts()
        return counts.weights if counts else 0


def measure(
    cases: Sequence[AbstractCase], rounds: Mapping[str, int], *, is_counted: bool
) -> list[Measured]:
    """Time all cases, and count what they do if asked.

    Cases of one backend take turns, for as many `rounds` as it has.
    """
    reasons = [case.why_not() for case in cases]
    measured = [Measured(why_not=reason) for reason in reasons]
    for backend, n_rounds in rounds.items():
        places = [
            place
            for place, case in enumerate(cases)
            if case.backend == backend and reasons[place] is None
        ]
        timed = seconds_of([cases[place] for place in places], n_rounds)
        for place, seconds in zip(places, timed, strict=True):
            counts = counted(cases[place]) if is_counted else ()
            measured[place] = Measured(seconds, *counts)
    return measured


def seconds_of(cases: Sequence[AbstractCase], n_rounds: int) -> list[float | None]:
    """The seconds of a step of each case on one thread; None if the clock was disturbed too much.

    The processor's time is measured, because other work on the machine delays jobs of a second
    more than jobs of a millisecond.
    """
    jobs = {(place, n): case.job(n) for place, case in enumerate(cases) for n in case.n_steps}
    with one_thread():
        turns = interleaved_seconds(jobs, n_rounds, process_time)
    found: list[float | None] = []
    for place, case in enumerate(cases):
        less, more = case.n_steps
        elapsed = median(turn[place, more] - turn[place, less] for turn in turns)
        found.append(elapsed / (more - less) if elapsed > 0 else None)
    return found


def counted(case: AbstractCase) -> tuple[int, int]:
    """The FLOPs of a step, and the bytes of a run with its weights."""
    less, more = (work_of(case.job(n_steps)) for n_steps in case.n_counted)
    flops = (more.flops - less.flops) // (case.n_counted[1] - case.n_counted[0])
    return flops, more.peak_bytes + BYTES * case.given
