"""Threads and processes that write and read the same file, or train in the same folder, at once."""

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import icgd
from icgd.errors import RunFolderError
from icgd_papers.checksummed_json import read_checksummed, write_checksummed
from icgd_papers.training.checkpoints import locked
from tests.campaigns.compiled_files import compiled
from tests.campaigns.outcomes import Campaign, both_sizes, outcome_of_error

NAMES = ("relu-stack", "softmax-stack", "functional", "linear-stack")
"""What the writers write into the same file: each a run of its own."""

ROUND = 40
"""The operations that are under way together."""


def save(path: Path, number: int) -> str:
    try:
        compiled(NAMES[number % len(NAMES)]).save(path)
        return "saved"
    except BaseException as problem:
        return f"save {outcome_of_error(problem)}"


def load(path: Path, number: int) -> str:
    try:
        known = icgd.load(path) in map(compiled, NAMES)
        return "loaded" if known else "loaded something else"
    except BaseException as problem:
        return f"load {outcome_of_error(problem)}"


def seal(path: Path, number: int) -> str:
    try:
        write_checksummed(path.with_suffix(".json"), [number] * 100)
        found = read_checksummed(path.with_suffix(".json"))
        return "saved" if len(set(found)) == 1 else "torn"
    except BaseException as problem:
        return f"seal {outcome_of_error(problem)}"


def take_folder(path: Path, number: int) -> str:
    """Lock a folder, and leave a file while it is locked, which nobody else may meet there."""
    try:
        with locked(path.with_suffix("")):
            sign = path.with_suffix("") / "taken"
            sign.touch(exist_ok=False)
            time.sleep(0.001)
            sign.unlink()
        return "had the folder"
    except RunFolderError:
        return "folder is in use"
    except BaseException as problem:
        return f"folder {outcome_of_error(problem)}"


OPERATIONS = (save, load, seal, take_folder)


def together(n: int, workers: Executor, kind: str) -> Iterator[tuple[str, str]]:
    """Many operations at a time on the same path."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        save(path, 0)
        for start in range(0, n, ROUND):
            numbers = range(start, min(start + ROUND, n))
            tasks = [
                (number, workers.submit(OPERATIONS[number % len(OPERATIONS)], path, number // 4))
                for number in numbers
            ]
            for number, task in tasks:
                yield f"{kind} {number}", task.result()
        for left in Path(folder).glob(".*partial"):
            yield f"{kind}: {left.name}", "stale file stays"


def threads(n: int) -> Iterator[tuple[str, str]]:
    for name in NAMES:
        compiled(name)
    with ThreadPoolExecutor(4) as workers:
        yield from together(n, workers, "thread")


def processes(method: str, n: int) -> Iterator[tuple[str, str]]:
    for name in NAMES:
        compiled(name)
    with ProcessPoolExecutor(4, get_context(method)) as workers:
        yield from together(n, workers, method)


ALLOWED = {
    "saved": "the file was written",
    "loaded": "the file was one of those that were written",
    "had the folder": "nobody else had it at the time",
    "folder is in use": "an error of icgd says so",
}

THREADS = Campaign("threads", "Threads that use the same files", 200, 10_000, ALLOWED, threads)
FORKED = Campaign(
    "forked_processes",
    "Forked processes that use the same files",
    200,
    5_000,
    ALLOWED,
    partial(processes, "fork"),
)
SPAWNED = Campaign(
    "spawned_processes",
    "Spawned processes that use the same files",
    0,
    2_000,
    ALLOWED,
    partial(processes, "spawn"),
)


@both_sizes
def test_threads_do_not_meet(whole):
    THREADS.carry_out(whole=whole)


@both_sizes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_forked_processes_do_not_meet(whole):
    FORKED.carry_out(whole=whole)


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform == "win32", reason="the names of stale files differ")
def test_spawned_processes_do_not_meet():
    SPAWNED.carry_out(whole=True)


def test_the_campaign_notices_what_is_not_there(tmp_path):
    assert load(tmp_path / "absent", 0) == "load refused"
