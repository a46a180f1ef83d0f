"""Cases of a cost comparison: what is counted by formula, and the job that is measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import process_time

import torch

from icgd.compiled import Compiled
from icgd.problems.domain import Domain
from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.problems.updates import GradientStep
from icgd.reproductions.counting import work_of
from icgd.reproductions.timing import Job, interleaved_seconds, one_thread

BYTES = 8
"""Of a number: all runs are in float64."""

DENSE_FLOPS = 10**10
"""Dense steps that are run; a larger one takes seconds, and is counted alone."""

DENSE_WEIGHTS = 2**28
"""Dense weights that are built, 2 GiB."""

STEP_SIZE = 0.05
"""Costs do not depend on it."""


@dataclass(frozen=True)
class Counts:
    """By formula, for a step: FLOPs; the numbers in weights, and those that a run keeps beside."""

    flops: int
    weights: int
    state: int

    @property
    def bytes(self) -> int:
        return BYTES * (self.weights + self.state)

    @property
    def objection(self) -> str | None:
        """Why the dense transformer is counted only, if it is."""
        if self.flops <= DENSE_FLOPS and self.weights <= DENSE_WEIGHTS:
            return None
        size = BYTES * self.weights / 2**30
        return f"counted only: {self.flops:.1e} FLOPs a step, {size:.1f} GiB of weights"


@dataclass(frozen=True)
class Network:
    """What is trained, and on how much: a square relu network, by the squared loss.

    The box is 1 / width unless one is given. Then |V_j p| <= max |p|, so that ranges on the domain
    do not grow with depth and every construction can be built; in a box of 1 they grow like
    width^depth.
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
        """Nothing is negative: all units are steep, and no signal fades with depth."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (2, self.n_examples, self.width)
        x, y = torch.rand(shape, generator=generator, dtype=torch.float64)
        target, box = compiled.problem.network, compiled.problem.gradient_step.box
        return compiled.task(x, y, initial=target.initial_parameters(self.seed, box).abs())


@dataclass(frozen=True)
class Measured:
    """Seconds of a step, FLOPs that torch counted in it, and the peak of its tensors in bytes.

    None is what was not measured; `why_not` says why, if none of it was.
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
    """Of the line on which it lies, together with its backend."""
    backend: str
    network: Network
    n_steps: tuple[int, int]
    """Two jobs are timed, of so many steps: their difference has no set-up in it."""
    n_counted: tuple[int, int]
    """The same for what is counted, which takes longer and needs no repetition."""

    @abstractmethod
    def why_not(self) -> str | None:
        """Why it cannot be measured, if it cannot."""

    @abstractmethod
    def counts(self) -> Counts | None:
        """What it costs by formula; None if there is no formula, or no such transformer."""

    @abstractmethod
    def job(self, n_steps: int) -> Job:
        """What performs so many steps, ready to be called; of none, does nothing."""

    @property
    def given(self) -> int:
        """Numbers that the job finds ready: its weights, if it has any."""
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
        chosen = [cases[place] for place in places]
        for place, seconds in zip(places, seconds_of(chosen, n_rounds), strict=True):
            counts = counted(cases[place]) if is_counted else ()
            measured[place] = Measured(seconds, *counts)
    return measured


def seconds_of(cases: Sequence[AbstractCase], n_rounds: int) -> list[float | None]:
    """Seconds of a step of each case on one thread; None if the clock was disturbed too much.

    It is the processor's time, which is that on the wall if nobody else uses the processor: jobs of
    a second are not held up by others more than those of a millisecond.
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
    """FLOPs of a step, and the bytes of a run with its weights."""
    less, more = (work_of(case.job(n_steps)) for n_steps in case.n_counted)
    flops = (more.flops - less.flops) // (case.n_counted[1] - case.n_counted[0])
    return flops, more.peak_bytes + BYTES * case.given
