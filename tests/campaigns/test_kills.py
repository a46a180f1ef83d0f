"""Processes that are killed while they write: what they leave is whole, old or new.

A process is killed after a random time. Then its file must be one of those that it wrote. Beside it
there may be one that it had not finished, whose name says so.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
import torch

import icgd
from icgd_papers.checksummed_json import read_checksummed, write_checksummed
from icgd_papers.training.checkpoints import read_checkpoint
from tests.campaigns.compiled_files import compiled
from tests.campaigns.outcomes import Campaign, both_sizes
from tests.papers.training.toy import train_toy

FIRST, SECOND = "relu-stack", "softmax-stack"


def saves(folder: Path) -> None:
    while True:
        for name in (FIRST, SECOND):
            compiled(name).save(folder / "run.safetensors")


def is_saved(folder: Path) -> bool:
    path = folder / "run.safetensors"
    return not path.exists() or icgd.load(path) in (compiled(FIRST), compiled(SECOND))


def seals(folder: Path) -> None:
    number = 0.0
    while True:
        write_checksummed(folder / "outcome.json", [number] * 1000)
        number += 1.0


def is_sealed(folder: Path) -> bool:
    path = folder / "outcome.json"
    return not path.exists() or len(set(read_checksummed(path))) == 1


def trains(folder: Path) -> None:
    train_toy(folder)
    time.sleep(60)


@cache
def wanted() -> torch.Tensor:
    return train_toy(None)[0].weight.detach().clone()


def is_trained(folder: Path) -> bool:
    """What is there can be read, and training goes on from it to the same bits."""
    for path in folder.glob("checkpoint-*"):
        read_checkpoint(path)
    return torch.equal(train_toy(folder)[0].weight, wanted())


JOBS: dict[str, tuple[Callable[[Path], None], Callable[[Path], bool]]] = {
    "save": (saves, is_saved),
    "seal": (seals, is_sealed),
    "train": (trains, is_trained),
}


def kills(n: int) -> Iterator[tuple[str, str]]:
    compiled(FIRST), compiled(SECOND), wanted()
    for index in range(n):
        random = Random(f"kill {index}")
        name, number = random.choice(list(JOBS)), random.choice([signal.SIGKILL, signal.SIGTERM])
        seconds = random.uniform(0, 0.05)
        with TemporaryDirectory() as folder:
            kill_after(JOBS[name][0], Path(folder), seconds, number)
            yield f"case {index}: {name}, {seconds:.4f} s", left(JOBS[name][1], Path(folder))


def kill_after(job: Callable[[Path], None], folder: Path, seconds: float, number: int) -> None:
    """Fork a process that works in a folder, and kill it after so many seconds."""
    process = os.fork()
    if process == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            job(folder)
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(process, number)
    os.waitpid(process, 0)


def left(is_whole: Callable[[Path], bool], folder: Path) -> str:
    try:
        if not is_whole(folder):
            return "torn"
    except BaseException as problem:
        return f"torn: {type(problem).__name__}"
    had_more = any(path.name.endswith(".icgd-partial") for path in folder.iterdir())
    return "whole, beside an unfinished one" if had_more else "whole"


KILLS = Campaign(
    name="kills",
    title="Processes that are killed while they write",
    sample=15,
    whole=1_000,
    allowed={
        "whole": "the file is an old or a new one, and nothing else was left",
        "whole, beside an unfinished one": "so was the file; the other one ends in .icgd-partial",
    },
    cases=kills,
)


@both_sizes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process that starts at once is forked")
def test_what_a_killed_process_leaves_is_whole(whole):
    KILLS.carry_out(whole=whole)


def test_the_campaign_notices_what_is_torn(tmp_path):
    (tmp_path / "outcome.json").write_text("{")
    assert left(is_sealed, tmp_path) == "torn: CheckpointError"
    (tmp_path / "run.safetensors").write_bytes(b"half")
    assert left(is_saved, tmp_path) == "torn: FileError"
