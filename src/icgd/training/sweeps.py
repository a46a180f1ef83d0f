"""Sweeps call one function on many configurations: in this process, in a pool, or through Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Generic, TypeVar

import torch

from icgd.backends.run import OnProgress
from icgd.errors import MissingExtraError, SweepError, UnknownNameError
from icgd.problems.settings import count

try:
    import ray
except ImportError:  # the extra `sweeps` is not installed
    ray = None

Configuration = TypeVar("Configuration")
Result = TypeVar("Result")

RUNNERS = ("auto", "in-process", "pool", "ray")


def sweep(
    function: Callable[[Configuration], Result],
    configurations: Sequence[Configuration],
    *,
    n_workers: int = 1,
    runner: str = "auto",
    on_progress: OnProgress | None = None,
) -> list[Result]:
    """The results of `function` on every configuration, in their order.

    The pool and Ray run `n_workers` configurations at a time, each in a process with one thread.
    A pool's function and configurations must be importable by name from a module. "auto" stays in
    this process for one worker; for more it takes Ray if it is installed, or else the pool.
    The first failure ends the sweep with a `SweepError` that names its configuration.
    """
    count("n_workers", n_workers)
    finished = _RUNNERS[_chosen(runner, n_workers)]
    results: dict[int, Result] = {}
    for index, result in finished(_Jobs(function, configurations, n_workers)):
        results[index] = result
        if on_progress:
            on_progress(len(results), len(configurations))
    return [results[index] for index in range(len(configurations))]


def _chosen(runner: str, n_workers: int) -> str:
    if runner not in RUNNERS:
        raise UnknownNameError.of("runner", runner, known=RUNNERS)
    if runner == "ray" and ray is None:
        raise MissingExtraError.of("ray", "sweeps", "A sweep through Ray")
    if runner != "auto":
        return runner
    if n_workers == 1:
        return "in-process"
    return "pool" if ray is None else "ray"


@dataclass(frozen=True)
class _Jobs(Generic[Configuration, Result]):
    """A function and the configurations on which it is called."""

    function: Callable[[Configuration], Result]
    configurations: Sequence[Configuration]
    n_workers: int

    def failure(self, index: int, problem: BaseException) -> SweepError:
        return SweepError.failed(index, self.configurations[index], problem)


Finished = Iterator[tuple[int, Result]]
"""The index and the result of every configuration, as they come."""


def _in_process(jobs: _Jobs[Configuration, Result]) -> Finished[Result]:
    for index, configuration in enumerate(jobs.configurations):
        try:
            result = jobs.function(configuration)
        except Exception as problem:
            raise jobs.failure(index, problem) from problem
        yield index, result


def _in_pool(jobs: _Jobs[Configuration, Result]) -> Finished[Result]:
    """Processes are spawned, not forked: a fork of a process with torch's threads may hang."""
    pool = ProcessPoolExecutor(jobs.n_workers, get_context("spawn"), torch.set_num_threads, (1,))
    try:
        indices = {pool.submit(jobs.function, x): i for i, x in enumerate(jobs.configurations)}
        for job in as_completed(indices):
            if problem := job.exception():
                raise jobs.failure(indices[job], problem) from problem
            yield indices[job], job.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _through_ray(jobs: _Jobs[Configuration, Result]) -> Finished[Result]:
    """Use the cluster that is there, or else start one here, which ends with the sweep.

    Ray gives a task of one processor one thread.
    """
    starts = not ray.is_initialized()
    if starts:
        ray.init(num_cpus=jobs.n_workers, include_dashboard=False, log_to_driver=False)
    try:
        remote = ray.remote(num_cpus=1, max_retries=0)(jobs.function)
        indices = {remote.remote(item): index for index, item in enumerate(jobs.configurations)}
        while indices:
            [job], _ = ray.wait(list(indices))
            index = indices.pop(job)
            try:
                result = ray.get(job)
            except Exception as problem:
                raise jobs.failure(index, _cause(problem)) from problem
            yield index, result
    finally:
        if starts:
            ray.shutdown()


def _cause(problem: Exception) -> BaseException:
    """What the function raised, without the traceback text that Ray puts around it."""
    return getattr(problem, "cause", None) or problem


_RUNNERS = {"in-process": _in_process, "pool": _in_pool, "ray": _through_ray}
