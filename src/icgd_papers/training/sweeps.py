"""Sweeps call one function on many configurations: in this process, in a pool, or through Ray."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, TypeVar

from icgd.backends.run import OnProgress
from icgd.errors import MissingExtraError, SettingError, SweepError, UnknownNameError, brief
from icgd.problems.settings import count
from icgd_papers.training.workers import Report, working

try:
    import ray
except ImportError:  # the extra `sweeps` is not installed
    ray = None

Configuration = TypeVar("Configuration")
Result = TypeVar("Result")

RUNNERS = ("auto", "in-process", "pool", "ray")

OnReport = Callable[[int, Any], None]
"""A function that hears the index of a configuration and what its job reports."""


def sweep(
    function: Callable[..., Result],
    configurations: Sequence[Configuration],
    *,
    n_workers: int = 1,
    runner: str = "auto",
    on_progress: OnProgress | None = None,
    on_report: OnReport | None = None,
) -> list[Result]:
    """The results of `function` on every configuration, in their order.

    The pool and Ray run `n_workers` configurations at a time, each in a process with one thread.
    A pool's function and configurations must be importable by name from a module. Ctrl-C ends the
    sweep: the jobs of a pool have `GRACE` seconds to save what they have.

    Args:
        function: what is called on each configuration.
        configurations: the configurations.
        n_workers: how many run at a time.
        runner: "in-process", "pool", "ray" or "auto", which stays in this process for one worker;
            for more it takes Ray if it is installed, or else the pool.
        on_progress: is called with the number of configurations done and the number in all.
        on_report: with it the function is called with a second argument, by which it reports how
            far it is while it works; Ray drops these reports.

    Returns:
        The results.

    Raises:
        SweepError: after the first failure, which ends the sweep; it names the configuration.
        UnknownNameError: if there is no such runner.
        MissingExtraError: if Ray is asked for and not installed.

    Example:
        >>> from icgd_papers.training import sweep
        >>> sweep(lambda configuration: configuration["seed"] + 1, [{"seed": 0}, {"seed": 1}])
        [1, 2]
    """
    count("n_workers", n_workers)
    finished = _RUNNERS[_chosen(runner, n_workers)]
    results: dict[int, Result] = {}
    with closing(finished(_Jobs(function, configurations, n_workers, on_report))) as pairs:
        for index, result in pairs:
            results[index] = result
            if on_progress:
                on_progress(len(results), len(configurations))
    return [results[index] for index in range(len(configurations))]


def _chosen(runner: str, n_workers: int) -> str:
    if runner not in RUNNERS:
        raise UnknownNameError.of("runner", runner, known=RUNNERS)
    if runner == "ray" and ray is None:
        raise MissingExtraError(
            "A sweep through Ray needs ray. Install it with: pip install 'icgd[sweeps]'"
        )
    if runner != "auto":
        return runner
    if n_workers == 1:
        return "in-process"
    return "pool" if ray is None else "ray"


@dataclass(frozen=True)
class _Jobs(Generic[Configuration, Result]):
    """A function and the configurations on which it is called."""

    function: Callable[..., Result]
    configurations: Sequence[Configuration]
    n_workers: int
    on_report: OnReport | None

    def call(self) -> Callable[[Configuration, Report], Result]:
        """The function with a way to report, which it may not want."""
        return self.function if self.on_report else partial(_unreported, self.function)

    def reported(self, index: int, value: Any) -> None:
        if self.on_report:
            self.on_report(index, value)

    def failure(self, index: int, problem: BaseException) -> SweepError:
        return SweepError(
            f"Configuration {index}, {brief(self.configurations[index])}, failed with "
            f"{type(problem).__name__}: {problem}"
        )


def _unreported(
    function: Callable[[Configuration], Result], configuration: Configuration, _: Report
) -> Result:
    return function(configuration)


def _quietly(
    call: Callable[[Configuration, Report], Result], configuration: Configuration
) -> Result:
    """Call a job whose reports nobody hears."""
    return call(configuration, lambda _: None)


Finished = Generator[tuple[int, Result], None, None]
"""The index and the result of every configuration, as they come."""


def _in_process(jobs: _Jobs[Configuration, Result]) -> Finished[Result]:
    for index, configuration in enumerate(jobs.configurations):
        try:
            result = jobs.call()(configuration, partial(jobs.reported, index))
        except KeyboardInterrupt:  # which may be an error of icgd too
            raise
        except Exception as problem:
            raise jobs.failure(index, problem) from problem
        yield index, result


def _in_pool(jobs: _Jobs[Configuration, Result]) -> Finished[Result]:
    try:
        ForkingPickler.dumps(jobs.function)
    except Exception:  # what cannot be sent raises whatever its class likes
        raise SettingError(
            "function must be a function that a module has by name, so that workers can import "
            f"it, got {brief(jobs.function)}."
        ) from None
    with working(jobs.call(), jobs.configurations, jobs.n_workers) as all_news:
        for news in all_news:
            if news.kind == "failure":
                raise jobs.failure(news.index, news.value) from news.value
            if news.kind == "report":
                jobs.reported(news.index, news.value)
            else:
                yield news.index, news.value


def _through_ray(jobs: _Jobs[Configuration, Result]) -> Finished[Result]:
    """Use the cluster that is there, or else start one here, which ends with the sweep.

    Ray gives a task of one processor one thread. What is left when the sweep ends early is
    cancelled.
    """
    starts = not ray.is_initialized()
    if starts:
        ray.init(num_cpus=jobs.n_workers, include_dashboard=False, log_to_driver=False)
    indices: dict[Any, int] = {}
    try:
        remote, call = ray.remote(num_cpus=1, max_retries=0)(_quietly), jobs.call()
        indices |= {remote.remote(call, item): i for i, item in enumerate(jobs.configurations)}
        while indices:
            [job], _ = ray.wait(list(indices))
            index = indices.pop(job)
            try:
                result = ray.get(job)
            except Exception as problem:
                raise jobs.failure(index, _cause(problem)) from problem
            yield index, result
    finally:
        for job in indices:
            ray.cancel(job, force=True)
        if starts:
            ray.shutdown()


def _cause(problem: Exception) -> BaseException:
    """What the function raised, without the traceback text that Ray puts around it."""
    return getattr(problem, "cause", None) or problem


_RUNNERS = {"in-process": _in_process, "pool": _in_pool, "ray": _through_ray}
