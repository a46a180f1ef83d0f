"""From a figure's name to its files: train what is missing, keep what is done, write the rest.

    <out>/<figure>/<preset>.json, <preset>.csv    the numbers, and how they came about
    <out>/<figure>/<preset>.png                   the picture
    <out>/<figure>/.<preset>.partial/             finished and half-trained models, while it runs

An interrupted reproduction goes on where it stopped: a model that was trained is not trained again,
and one that was half trained goes on from its checkpoint.
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
    AbstractRun,
    Outcome,
    Row,
    Run,
    Summary,
)
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
    reproduction: AbstractReproduction[Run, Outcome],
    preset: str,
    *,
    out: Path,
    seed: int = 0,
    n_workers: int = 1,
    on_progress: OnProgress | None = None,
) -> Reproduced:
    """Train every model of a figure, and write its numbers and its picture."""
    start = perf_counter()
    count("n_workers", n_workers)
    plotting.require_matplotlib()
    runs = reproduction.runs(preset, seed)
    folder = out / reproduction.name
    kept = _partial_folder(folder / f".{preset}.partial", seed, runs)
    jobs = [(run, kept / f"{index:03d}") for index, run in enumerate(runs)]
    runner = "pool" if n_workers > 1 else "in-process"
    outcomes = sweep(_finished, jobs, n_workers=n_workers, runner=runner, on_progress=on_progress)
    rows = reproduction.rows(runs, outcomes)
    facts = {
        **_identity(reproduction, preset, seed),
        **circumstances(),
        "n_workers": n_workers,
        "seconds": round(perf_counter() - start, 1),
        "training_seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "n_models": len(runs),
        "budgets": [asdict(budget) for budget in dict.fromkeys(run.budget for run in runs)],
    }
    done = write(reproduction, facts, rows, folder)
    shutil.rmtree(kept, ignore_errors=True)
    return done


def write(
    reproduction: AbstractReproduction[Run, Outcome],
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


def _identity(
    reproduction: AbstractReproduction[Run, Outcome], preset: str, seed: int
) -> dict[str, Any]:
    return {
        "figure": reproduction.name,
        "place": reproduction.place,
        "preset": preset,
        "seed": seed,
    }


def stored_rows(path: Path) -> list[Row]:
    """The rows of numbers that were written before."""
    numbers = _read(path)
    if not isinstance(numbers, dict) or not numbers.get("rows"):
        raise CheckpointError.damaged(path, "it has no rows")
    rows: list[Row] = numbers["rows"]
    return rows


def circumstances() -> dict[str, Any]:
    """When, with which code and on what kind of machine; nothing that names the machine."""
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
    """The commit of this code, marked if it was changed since; None if it is not in git."""
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


def _partial_folder(folder: Path, seed: int, runs: Sequence[Run]) -> Path:
    """A folder for unfinished work, of these very runs."""
    given = _flat({"seed": seed, "models": [asdict(run) for run in runs]})
    record = folder / "runs.json"
    if record.exists():
        stored = _read(record)
        for name in {**given, **stored}:
            if stored.get(name) != given.get(name):
                values = stored.get(name), given.get(name)
                raise CheckpointError.other_configuration(folder, name, *values)
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileError.unwritable(folder.parent, problem.strerror or str(problem)) from None
    _write(record, given)
    return folder


def _flat(data: Any, name: str = "") -> dict[str, Any]:
    """Nested data as a flat table, such as {"models.0.budget.n_steps": 4}."""
    if isinstance(data, list | tuple):
        data = dict(enumerate(data))
    if not isinstance(data, dict):
        return {name: data}
    inner = [_flat(part, f"{name}.{key}" if name else key) for key, part in data.items()]
    return {key: value for table in inner for key, value in table.items()}


def _finished(job: tuple[AbstractRun[Outcome], Path]) -> Outcome:
    """The outcome of a run: read if it is there, else trained, and kept."""
    run, folder = job
    record = folder / "outcome.json"
    if record.exists():
        return run.outcome_of(_read(record))
    outcome = run.train(folder)
    folder.mkdir(exist_ok=True)  # a run without checkpoints made none
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
    """Facts an entry a line, rows a row a line: short, and good to compare."""
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
