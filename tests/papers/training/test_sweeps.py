from multiprocessing import get_context

import pytest

from icgd.errors import (
    InterruptedStudiesError,
    MissingExtraError,
    SettingError,
    SweepError,
    UnknownNameError,
)
from icgd_papers.training import sweeps, workers
from icgd_papers.training.sweeps import sweep
from tests.papers.training.decoders import losses_of_decoder
from tests.papers.training.swept import counted, reciprocal, threads_and_square

FAILURE = "^Configuration 1, 0, failed with ZeroDivisionError: division by zero$"


def squares(runner: str, n_workers: int) -> list[int]:
    """In order, with one thread each, and every one of them told."""
    calls: list[tuple[int, int]] = []
    results = sweep(
        threads_and_square,
        [3, 1, 2],
        n_workers=n_workers,
        runner=runner,
        on_progress=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert [threads for threads, _ in results] == [1, 1, 1]
    return [square for _, square in results]


@pytest.mark.parametrize(("runner", "n_workers"), [("auto", 1), ("in-process", 1), ("pool", 1)])
def test_results_come_in_the_order_of_the_configurations(runner, n_workers):
    assert squares(runner, n_workers) == [9, 1, 4]


def test_a_pool_trains_decoders_as_this_process_does(monkeypatch):
    monkeypatch.setattr(workers, "get_context", lambda _: get_context("fork"))  # starts at once
    kinds = ["softmax", "relu"]
    assert sweep(losses_of_decoder, kinds, n_workers=2, runner="pool") == [
        losses_of_decoder(kind) for kind in kinds
    ]


@pytest.mark.slow
def test_ray_gives_the_same_results_and_names_a_failure():
    ray = pytest.importorskip("ray")
    assert squares("ray", 2) == [9, 1, 4]
    with pytest.raises(SweepError, match=FAILURE):
        sweep(reciprocal, [1, 0], runner="ray")
    assert not ray.is_initialized()


@pytest.mark.parametrize("runner", ["in-process", "pool"])
def test_a_configuration_that_fails_names_itself(monkeypatch, runner):
    forking = get_context("fork")  # starts at once
    monkeypatch.setattr(workers, "get_context", lambda _: forking)
    with pytest.raises(SweepError, match=FAILURE) as problem:
        sweep(reciprocal, [1, 0, 2], runner=runner, n_workers=2)
    assert isinstance(problem.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("runner", ["in-process", "pool"])
def test_jobs_report_before_they_end(monkeypatch, runner):
    forking = get_context("fork")  # starts at once
    monkeypatch.setattr(workers, "get_context", lambda _: forking)
    heard: list[tuple[int, int]] = []
    results = sweep(
        counted, [2, 3], runner=runner, on_report=lambda index, value: heard.append((index, value))
    )
    assert results == [2, 3]
    assert heard == [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("runner", ["in-process", "pool"])
def test_an_interruption_is_no_failure(monkeypatch, runner):
    """Neither of a job nor of the one who listens; the workers end before it is passed on."""
    forking = get_context("fork")  # starts at once
    monkeypatch.setattr(workers, "get_context", lambda _: forking)

    def interrupted(done, total):
        raise InterruptedStudiesError("stopped")

    with pytest.raises(KeyboardInterrupt):
        sweep(threads_and_square, [1, 2], runner=runner, on_progress=interrupted)
    assert forking.active_children() == []
    with pytest.raises(KeyboardInterrupt):
        sweep(lambda _: interrupted(1, 2), [1, 2])


def test_no_configurations_give_no_results():
    assert sweep(reciprocal, []) == []


def test_auto_takes_ray_where_it_is_and_several_workers_are_asked_for(monkeypatch):
    monkeypatch.setattr(sweeps, "ray", object())
    assert [sweeps._chosen("auto", 1), sweeps._chosen("auto", 2)] == ["in-process", "ray"]
    monkeypatch.setattr(sweeps, "ray", None)
    assert sweeps._chosen("auto", 2) == "pool"


def test_unknown_runners_missing_extras_and_no_workers_are_named(monkeypatch):
    monkeypatch.setattr(sweeps, "ray", None)
    with pytest.raises(UnknownNameError, match=r"Unknown runner 'rai'; .* Did you mean 'ray'\?"):
        sweep(reciprocal, [1], runner="rai")
    with pytest.raises(MissingExtraError, match=r"needs ray\. .*'icgd\[sweeps\]'"):
        sweep(reciprocal, [1], runner="ray")
    with pytest.raises(SettingError, match="n_workers must be a whole number of at least 1, got 0"):
        sweep(reciprocal, [1], n_workers=0)
