"""Fair timing on a noisy machine: jobs take turns, and medians of one session are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter


def interleaved_medians(
    jobs: Mapping[str, Callable[[], object]], *, rounds: int = 15
) -> dict[str, float]:
    """Median seconds of every job; a slow moment is spread over all of them."""
    for job in jobs.values():
        job()  # the first time pays for caches
    seconds = [{name: _seconds(job) for name, job in jobs.items()} for _ in range(rounds)]
    return {name: median(turn[name] for turn in seconds) for name in jobs}


def _seconds(job: Callable[[], object]) -> float:
    start = perf_counter()
    job()
    return perf_counter() - start
