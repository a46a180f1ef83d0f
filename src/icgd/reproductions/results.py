"""From a figure's name to its files: do the studies that are missing, and write the results.

    <out>/<figure>/<preset>.json, <preset>.csv    the numbers, and how they came about
    <out>/<figure>/<preset>.png                   the picture
    <out>/<figure>/.<preset>.partial/             finished and half-trained models, until the end

An interrupted reproduction continues where it stopped: a trained model is not trained again, and a
half-trained one continues from its checkpoint.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from icgd.backends.run import OnProgress
from icgd.errors import CheckpointError, FileError
from icgd.problems.settings import count
from icgd.reproductions import plotting
from icgd.reproductions.reproduction import (
    AbstractReproduction,
    AbstractStudy,
    Outcome,
    Row,
    Study,
    Summary,
)
from icgd.training.checkpoints import flat, require_equal
from icgd.training.sweeps import sweep
from icgd.weights.atomic import whole_file


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
    on_progress: OnProgress | None = None,
) -> Reproduced:
    """Do every study of a figure, and write its numbers and its picture."""
    start = perf_counter()
    count("n_workers", n_workers)
    plotting.require_matplotlib()
    studies = reproduction.studies(preset, seed)
    folder = out / reproduction.name
    kept = _partial_folder(folder / f".{preset}.partial", seed, studies)
    jobs = [(study, kept / f"{index:03d}") for index, study in enumerate(studies)]
    runner = "pool" if n_workers > 1 else "in-process"
    outcomes = sweep(_finished, jobs, n_workers=n_workers, runner=runner, on_progress=on_progress)
    rows = reproduction.rows(studies, outcomes)
    facts = {
        "figure": reproduction.name,
        "place": reproduction.place,
        "preset": preset,
        "seed": seed,
        **circumstances(),
        "n_workers": n_workers,
        "seconds": round(perf_counter() - start, 1),
        "training_seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "n_models": len(studies),
        "budgets": [asdict(each) for each in dict.fromkeys(study.budget for study in studies)],
    }
    done = write(reproduction, facts, rows, folder)
    shutil.rmtree(kept, ignore_errors=True)
    return done


def write(
    reproduction: AbstractReproduction[Study, Outcome],
    facts: dict[str, Any],
    rows: list[Row],
    folder: Path,
) -> Reproduced:
    """Write the numbers, and the summary and the picture that follow from them."""
    summary = reproduction.summary(rows)
    table = [dict(zip(summary.names, row, strict=True)) for row in summary.rows]
    numbers = {**facts, "summary": table, "rows": rows}
    preset = facts["preset"]
    contents = {
        f"{preset}.json": _json(numbers),
        f"{preset}.csv": _csv(rows),
        f"{preset}.png": plotting.png(reproduction.picture(rows)),
    }
    for name, content in contents.items():
        with whole_file(folder / name) as temporary:
            temporary.write_bytes(content)
    return Reproduced(numbers, summary, folder, tuple(contents))


def stored_rows(path: Path) -> list[Row]:
    """The rows in a file of numbers."""
    numbers = _read(path)
    if not isinstance(numbers, dict) or not numbers.get("rows"):
        raise CheckpointError.damaged(path, "it has no rows")
    rows: list[Row] = numbers["rows"]
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


def _partial_folder(folder: Path, seed: int, studies: Sequence[Study]) -> Path:
    """A folder for the unfinished work of these studies; it may hold no other."""
    given = flat({"seed": seed, "models": [asdict(study) for study in studies]})
    record = folder / "runs.json"
    if record.exists():
        require_equal(folder, _read(record), given)
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileError.unwritable(folder.parent, problem.strerror or str(problem)) from None
    _write(record, given)
    return folder


def _finished(job: tuple[AbstractStudy[Outcome], Path]) -> Outcome:
    """The outcome of a study, which is read if it is there, or else found and kept."""
    study, folder = job
    record = folder / "outcome.json"
    if record.exists():
        return study.outcome_of(_read(record))
    outcome = study.train(folder)
    folder.mkdir(exist_ok=True)  # a study without checkpoints made none
    _write(record, asdict(outcome))
    return outcome


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise CheckpointError.damaged(path, str(problem)) from None


def _write(path: Path, data: Any) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(data), encoding="utf-8")


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
