"""The unfinished work of a figure: studies that are carried out in a folder, and continued there.

    runs.json            the seed and the studies that the folder is for
    000/, 001/, ...      a folder for each study; outcome.json is there when it is finished

One process at a time has the folder. A study that is finished is not done again, and a half-trained
one continues from its checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from icgd.errors import IcgdError, InterruptedStudiesError, SweepError
from icgd_papers.checksummed_json import read_checksummed, write_checksummed
from icgd_papers.reproduction import AbstractStudy, Conduct
from icgd_papers.training.checkpoints import damaged, flat, require_equal
from icgd_papers.training.lock import LOCK
from icgd_papers.training.sweeps import sweep
from icgd_papers.training.workers import Report

RECORD, FOUND = "runs.json", "outcome.json"

REPORT_EVERY = 0.5
"""The seconds between two reports of a study."""


@dataclass(frozen=True)
class Standing:
    """How far all studies are: their steps, the share of the work, and a loss that was just met."""

    done: int
    total: int
    share: float
    loss: float | None


OnStanding = Callable[[Standing], None]


@dataclass(frozen=True)
class Job:
    """A study, the folder that it has to itself, and the device that it computes on."""

    study: AbstractStudy[Any]
    folder: Path
    device: str

    @property
    def is_finished(self) -> bool:
        return (self.folder / FOUND).exists()

    @property
    def is_begun(self) -> bool:
        """Whether something of it is kept, but not its outcome."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return not self.is_finished and any(not path.name.startswith(".") for path in files)


def claim(folder: Path, seed: int, studies: Sequence[AbstractStudy[Any]]) -> None:
    """Note what the folder is for; it may hold no other work."""
    given = flat({"seed": seed, "models": [asdict(study) for study in studies]})
    record = folder / RECORD
    if record.exists():
        require_equal(folder, _table(record), given)
    elif any(path.is_dir() for path in folder.iterdir()):
        raise damaged(folder, f"it has no {RECORD}")
    else:
        write_checksummed(record, given)


def clear(folder: Path) -> None:
    """Remove the work, but not the lock. The record goes last: without it nothing else is left."""
    rest = [path for path in folder.iterdir() if path.name not in (LOCK, RECORD)]
    for path in [*rest, folder / RECORD]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def carry_out(jobs: Sequence[Job], n_workers: int, on_standing: OnStanding | None) -> list[Any]:
    """The outcomes of all studies, in their order.

    Ctrl-C raises `InterruptedStudiesError`, which says what is kept. An error of icgd in a study is
    raised as it is.
    """
    runner = "pool" if n_workers > 1 else "in-process"
    overview = _Overview(jobs, on_standing)
    try:
        return sweep(
            _outcome, jobs, n_workers=n_workers, runner=runner, on_report=overview.reported
        )
    except SweepError as failure:
        if isinstance(failure.__cause__, IcgdError):
            raise failure.__cause__ from None
        raise


def interruption(jobs: Sequence[Job], folder: Path) -> InterruptedStudiesError:
    """What is kept of the studies now."""
    n_finished, n_begun = sum(job.is_finished for job in jobs), sum(job.is_begun for job in jobs)
    return InterruptedStudiesError(
        f"Stopped with {n_finished} of {len(jobs)} studies finished and {n_begun} begun; they are "
        f"kept in {folder}. Give the same command again to go on."
    )


def _outcome(job: Job, report: Report) -> Any:
    """The outcome of a study, which is read if it is there, or else found and kept."""
    record = job.folder / FOUND
    if job.is_finished:
        return _read_outcome(job.study, record)
    conduct = Conduct(job.device, _Reporter(report))
    outcome = job.study.train_with(conduct, job.folder)
    job.folder.mkdir(exist_ok=True)  # a study without checkpoints made none
    write_checksummed(record, asdict(outcome))
    report((job.study.n_steps, None))
    return outcome


def _read_outcome(study: AbstractStudy[Any], record: Path) -> Any:
    """The outcome of a study in its file; `CheckpointError` if that is damaged."""
    data = read_checksummed(record)
    try:
        return study.outcome_of(data)
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise damaged(record, f"it is no outcome: {problem}") from None


def _table(record: Path) -> dict[str, Any]:
    """The table in a record; `CheckpointError` if that is damaged."""
    table = read_checksummed(record)
    if not isinstance(table, dict):
        raise damaged(record, "it is no table")
    return table


class _Reporter:
    """Tells the steps of a study and its last loss, but not too often."""

    def __init__(self, report: Report) -> None:
        self.report, self.told = report, monotonic()

    def __call__(self, done: int, _: int, loss: float) -> None:
        if monotonic() - self.told >= REPORT_EVERY:
            self.report((done, loss))
            self.told = monotonic()


@dataclass
class _Overview:
    """The standing of all jobs, put together from what each reports."""

    jobs: Sequence[Job]
    on_standing: OnStanding | None
    done: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, job in enumerate(self.jobs):
            self.done[index] = job.study.n_steps if job.is_finished else 0
        self._tell(None)

    def reported(self, index: int, news: tuple[int, float | None]) -> None:
        self.done[index], loss = news
        self._tell(loss)

    def _tell(self, loss: float | None) -> None:
        studies = [job.study for job in self.jobs]
        total, work = sum(x.n_steps for x in studies), sum(x.work for x in studies)
        worked = sum(x.work * self.done[i] / x.n_steps for i, x in enumerate(studies))
        if self.on_standing:
            self.on_standing(Standing(sum(self.done.values()), total, worked / work, loss))
