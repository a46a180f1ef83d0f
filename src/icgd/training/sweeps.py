"""Sweeps: one function on many configurations, in this process, in a pool, or through Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

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
    this process for one worker; for more it takes Ray where it is installed, else the pool.
    The first failure ends the sweep with a `SweepError` that names its configuration.
    """
    count("n_workers", n_workers)
    run = _RUNNERS[_chosen(runner, n_workers)]
    results: dict[int, Result] = {}
    for index, result in run(function, configurations, n_workers):
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


Finished = Iterator[tuple[int, Result]]
"""Index and result of every configuration, as they come."""


def _in_process(
    function: Callable[[Configuration], Result],
    configurations: Sequence[Configuration],
    n_workers: int,
) -> Finished[Result]:
    for index, configuration in enumerate(configurations):
        try:
            result = function(configuration)
        except Exception as problem:
            raise SweepError.failed(index, configuration, problem) from problem
        yield index, result


def _in_pool(
    function: Callable[[Configuration], Result],
    configurations: Sequence[Configuration],
    n_workers: int,
) -> Finished[Result]:
    """Processes are spawned, not forked: a fork of a process with torch's threads may hang."""
    pool = ProcessPoolExecutor(n_workers, get_context("spawn"), torch.set_num_threads, (1,))
    try:
        jobs = {pool.submit(function, item): i for i, item in enumerate(configurations)}
        for job in as_completed(jobs):
            index = jobs[job]
            if problem := job.exception():
                raise SweepError.failed(index, configurations[index], problem) from problem
            yield index, job.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _through_ray(
    function: Callable[[Configuration], Result],
    configurations: Sequence[Configuration],
    n_workers: int,
) -> Finished[Result]:
    """In the cluster that is there, or else in one on this machine, which ends with the sweep.

    Ray gives a task of one processor one thread.
    """
    starts = not ray.is_initialized()
    if starts:
        ray.init(num_cpus=n_workers, include_dashboard=False, log_to_driver=False)
    try:
        remote = ray.remote(num_cpus=1, max_retries=0)(function)
        jobs = {remote.remote(item): index for index, item in enumerate(configurations)}
        while jobs:
            [job], _ = ray.wait(list(jobs))
            index = jobs.pop(job)
            try:
                result = ray.get(job)
            except Exception as problem:
                raise SweepError.failed(index, configurations[index], _cause(problem)) from problem
            yield index, result
    finally:
        if starts:
            ray.shutdown()


def _cause(problem: Exception) -> BaseException:
    """What the function raised, without the traceback text that Ray puts around it."""
    return getattr(problem, "cause", None) or problem


_RUNNERS = {"in-process": _in_process, "pool": _in_pool, "ray": _through_ray}
