"""Fair timing on a noisy machine: jobs take turns, and their medians are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from statistics import median
from time import perf_counter
from typing import TypeVar

Job = Callable[[], object]
Clock = Callable[[], float]
Name = TypeVar("Name")


def interleaved_medians(jobs: Mapping[Name, Job], *, rounds: int = 15) -> dict[Name, float]:
    """The median seconds of every job; a slow moment is spread over all of them."""
    seconds = interleaved_seconds(jobs, rounds, perf_counter)
    return {name: median(turn[name] for turn in seconds) for name in jobs}


def interleaved_seconds(
    jobs: Mapping[Name, Job], rounds: int, clock: Clock, *, patience: float = inf
) -> list[dict[Name, float]]:
    """The seconds of every job in every round; each round runs the jobs in their order.

    No further round starts once rounds have taken more than `patience` seconds.
    """
    for job in jobs.values():
        job()  # the first time pays for caches
    turns: list[dict[Name, float]] = []
    while len(turns) < rounds and sum(sum(turn.values()) for turn in turns) <= patience:
        turns.append({name: _seconds(job, clock) for name, job in jobs.items()})
    return turns


def _seconds(job: Job, clock: Clock) -> float:
    start = clock()
    job()
    return clock() - start
