"""From a figure's name to its files: do the studies that are missing, and write the results.

    <out>/<figure>/<preset>.json, <preset>.csv    the numbers, and how they came about
    <out>/<figure>/<preset>.png                   the picture
    <out>/<figure>/<preset>-panel-b.json, ...     the same of a part of the figure
    <out>/<figure>/.<preset>.partial/             finished and half-trained models, until the end

An interrupted reproduction continues where it stopped: a trained model is not trained again, and a
half-trained one continues from its checkpoint. Only one process at a time works on a preset.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch

from icgd.errors import FileError, SettingError, brief
from icgd.pictures import plotting
from icgd.problems.settings import count
from icgd.weights.files import whole_file
from icgd_papers.checksummed_json import read_json, with_checksum, without_checksum
from icgd_papers.partial import (
    Job,
    OnStanding,
    Standing,
    carry_out,
    claim,
    clear,
    interruption,
)
from icgd_papers.reproduction import AbstractReproduction, Outcome, Row, Study, Summary
from icgd_papers.stopwatch import Stopwatch
from icgd_papers.training.checkpoints import damaged
from icgd_papers.training.devices import device_named
from icgd_papers.training.lock import locked
from icgd_papers.training.tasks import LARGEST_SEED

MOST_SEEDS = 100
"""No preset takes more seeds, from the first one on."""


@dataclass(frozen=True)
class Order(Generic[Study, Outcome]):
    """What is to be reproduced, and how; it is checked before anything is written."""

    reproduction: AbstractReproduction[Study, Outcome]
    preset: str
    out: Path
    seed: int = 0
    n_workers: int = 1
    device: str = "cpu"
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count("n_workers", self.n_workers)
        count("seed", self.seed, least=0, most=LARGEST_SEED - MOST_SEEDS)
        self._require_device()
        self.part.studies(self.preset, self.seed)  # refuses unknown presets and panels

    def _require_device(self) -> None:
        """Refuse a device that is not there, and one that the figure would not use."""
        is_asked = device_named(self.device).place.type != "cpu" and self.device != "auto"
        if is_asked and not self._uses_device:
            raise SettingError(
                f"device={brief(self.device)} would not be used: the studies of "
                f"{self.reproduction.name} compute on the processor. Leave it out, or use 'auto'."
            )

    @cached_property
    def _uses_device(self) -> bool:
        return all(study.uses_device for study in self.studies)

    @cached_property
    def part(self) -> AbstractReproduction[Study, Outcome]:
        """The figure, or the panels that were asked for."""
        return self.reproduction.only(self.only)

    @cached_property
    def studies(self) -> list[Study]:
        return self.part.studies(self.preset, self.seed)

    @cached_property
    def whole(self) -> list[Study]:
        """The studies of the whole figure, which number the folders."""
        return self.reproduction.studies(self.preset, self.seed)

    @cached_property
    def jobs(self) -> list[Job]:
        places = [self.partial_folder / f"{self.whole.index(study):03d}" for study in self.studies]
        pairs = zip(self.studies, places, strict=True)
        device = self.device if self._uses_device else "cpu"
        return [Job(study, place, device) for study, place in pairs]

    @property
    def folder(self) -> Path:
        return self.out / self.reproduction.name

    @property
    def partial_folder(self) -> Path:
        return self.folder / f".{self.preset}.partial"

    @property
    def name(self) -> str:
        """The name of the files."""
        return "-".join((self.preset, *self.only))

    @property
    def facts(self) -> dict[str, Any]:
        """What is known before the work."""
        return {
            "figure": self.reproduction.name,
            "place": self.reproduction.place,
            "preset": self.preset,
            **({"only": list(self.only)} if self.only else {}),
            "seed": self.seed,
            **circumstances(),
            "n_workers": self.n_workers,
            "device": device_named(self.device).place.type if self._uses_device else "cpu",
        }


@dataclass(frozen=True)
class Reproduced:
    """A figure's numbers, and where they were written."""

    numbers: dict[str, Any]
    summary: Summary
    folder: Path
    files: tuple[str, ...]


def reproduce(
    reproduction: AbstractReproduction[Study, Outcome],
    preset: str,
    *,
    out: Path,
    seed: int = 0,
    n_workers: int = 1,
    device: str = "cpu",
    only: Sequence[str] = (),
    on_standing: OnStanding | None = None,
) -> Reproduced:
    """Do every study of a figure, and write its numbers and its picture.

    With `only`, such as ["panel-b"], a part is done, and has files of its own. Its models are kept
    until the whole figure is done, which does not train them again.
    """
    order = Order(reproduction, preset, out, seed, n_workers, device, tuple(only))
    return fulfil(order, on_standing)


def fulfil(order: Order[Study, Outcome], on_standing: OnStanding | None = None) -> Reproduced:
    """Do the studies of an order in its partial folder, which is removed with the whole figure."""
    kept = order.partial_folder
    for job in order.jobs:
        if not job.is_finished:
            job.study.require(job.device)
    try:
        _make(order.folder)
        with locked(kept):
            claim(kept, order.seed, order.whole)
            done = _written(order, on_standing)
            if not order.only:
                clear(kept)
    except KeyboardInterrupt:
        raise interruption(order.jobs, kept) from None
    with suppress(OSError):  # it still has the models of a part
        kept.rmdir()
    return done


def _written(order: Order[Study, Outcome], on_standing: OnStanding | None) -> Reproduced:
    """Do the studies, and write what they found."""
    stopwatch = Stopwatch(order.partial_folder)

    def tell(standing: Standing) -> None:
        stopwatch.keep()
        if on_standing:
            on_standing(standing)

    outcomes = carry_out(order.jobs, order.n_workers, tell)
    rows = order.part.rows(order.studies, outcomes)
    facts = {
        **order.facts,
        "seconds": round(stopwatch.seconds, 1),
        "training_seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "n_models": len(order.studies),
        "budgets": [asdict(x) for x in dict.fromkeys(study.budget for study in order.studies)],
    }
    return write(order.part, facts, rows, order.folder, order.name)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileError(f"Cannot write {folder}: {problem.strerror or problem}.") from None


def write(
    reproduction: AbstractReproduction[Study, Outcome],
    facts: dict[str, Any],
    rows: list[Row],
    folder: Path,
    name: str,
) -> Reproduced:
    """Write the numbers, and the summary and the picture that follow from them."""
    summary = reproduction.summary(rows)
    table = [dict(zip(summary.names, row, strict=True)) for row in summary.rows]
    numbers = with_checksum({**facts, "summary": table, "rows": rows})
    contents = {
        f"{name}.json": _json(numbers),
        f"{name}.csv": _csv(rows),
        f"{name}.png": plotting.png(reproduction.picture(rows)),
    }
    for file, content in contents.items():
        with whole_file(folder / file) as temporary:
            temporary.write_bytes(content)
    return Reproduced(numbers, summary, folder, tuple(contents))


def stored_numbers(path: Path) -> dict[str, Any]:
    """The numbers in a file that `write` wrote, whose checksum is checked."""
    return without_checksum(path, read_json(path))


def stored_rows(path: Path) -> list[Row]:
    """The rows in a file of numbers."""
    rows = stored_numbers(path).get("rows")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise damaged(path, "it has no rows")
    return rows


def circumstances() -> dict[str, Any]:
    """The date, the code and the kind of machine; nothing that names the machine."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": {"cores": os.cpu_count(), "architecture": platform.machine()},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }


def commit() -> str | None:
    """The commit of this code, marked if the code has changed since; None if it is not in git."""
    package = Path(__file__).parents[1]
    top = _git("rev-parse", "--show-toplevel", at=package)
    if top is None or Path(top) / "src" / "icgd" != package:
        return None
    return _git("describe", "--always", "--abbrev=40", "--dirty", at=package)


def _git(*arguments: str, at: Path) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=at, capture_output=True, text=True)
    except OSError:  # git is not installed
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _json(facts: dict[str, Any]) -> bytes:
    """JSON with a line for each fact and for each row: it is short, and good to compare."""
    tables = ("summary", "rows")
    parts = [f"  {json.dumps(key)}: {_entry(value, key in tables)}" for key, value in facts.items()]
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def _entry(value: Any, is_table: bool) -> str:
    if not is_table:
        return json.dumps(value, allow_nan=False)
    lines = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in value)
    return f"[\n{lines}\n  ]"


def _csv(rows: Sequence[Row]) -> bytes:
    text = StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
