"""The log of a training: rows of numbers, and the files that hold them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from math import isfinite, nan
from pathlib import Path

from icgd.errors import DataError, TrainingError, UnknownNameError
from icgd.weights.files import whole_file

Row = dict[str, float]
"""The numbers that were measured at one step, by name."""


@dataclass(frozen=True)
class Log:
    """The rows that were measured while a model trained; all have the same columns, step first."""

    rows: tuple[Row, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.rows[0]) if self.rows else ()

    def column(self, name: str) -> list[float]:
        """Return the values of one column, row by row."""
        if self.rows and name not in self.columns:
            raise UnknownNameError.of("column", name, known=self.columns)
        return [row[name] for row in self.rows]

    def with_row(self, row: Mapping[str, float]) -> Log:
        """Return the log with one more row, which must have the columns of the others."""
        if self.rows and tuple(row) != self.columns:
            raise TrainingError(
                f"The log has columns {', '.join(self.columns)}; a row came with "
                f"{', '.join(row)}. measure must return the same names, in the same order, "
                "each time."
            )
        return Log((*self.rows, {name: float(value) for name, value in row.items()}))

    def before(self, step: int) -> Log:
        """Return the rows of the steps before `step`."""
        return Log(tuple(row for row in self.rows if row["step"] < step))


def read_json(path: Path) -> Log:
    """Read the log in a file that `write_json` wrote; `DataError` if there is none."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(rows, list) or not all(isinstance(r, dict) and "step" in r for r in rows):
            raise ValueError("it is not a list of objects with a step")
        log = Log(
            tuple({n: nan if v is None else float(v) for n, v in row.items()} for row in rows)
        )
        if any(tuple(row) != log.columns for row in log.rows):
            raise ValueError("its rows have different columns")
    except OSError as problem:
        raise DataError(f"Cannot read {path}: {problem.strerror or problem}.") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as problem:
        raise DataError(f"Cannot read {path}: it is not a log ({problem}).") from None
    return log


def write_csv(log: Log, path: Path) -> None:
    """Write the whole log; numbers read back bit for bit."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(log.columns)
    writer.writerows(_with_whole_step(row).values() for row in log.rows)
    _write(path, text.getvalue())


def write_json(log: Log, path: Path) -> None:
    """Write a list of objects with a line each; NaN and infinity, which JSON lacks, are null."""
    rows = [
        {name: value if isfinite(value) else None for name, value in _with_whole_step(row).items()}
        for row in log.rows
    ]
    _write(path, "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def _with_whole_step(row: Row) -> dict[str, float | int]:
    return {**row, "step": int(row["step"])}


def _write(path: Path, text: str) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
