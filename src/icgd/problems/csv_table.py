"""Tables of numbers from CSV files.

A file is UTF-8 with commas. Its first row is a header unless it holds a number; without a header
the columns are called column_1, column_2 and so on. Blank lines are skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from icgd.errors import DataError, UnknownNameError

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """The numbers of one file, with a row for each line, and the names of its columns."""

    path: Path
    names: tuple[str, ...]
    has_header: bool
    numbers: Numbers

    def columns(self, names: Sequence[str]) -> Numbers:
        """The columns of these names, in this order."""
        for name in names:
            if name not in self.names:
                raise UnknownNameError.of(
                    "column", name, known=self.names, where=f" in {self.path}"
                )
        return self.numbers[:, [self.names.index(name) for name in names]]


def read_table(path: Path) -> Table:
    """Every row of `path` as numbers."""
    rows = list(_rows(path))
    if not rows:
        raise DataError.unreadable(path, "it is empty")
    first = rows[0][1]
    has_header = _is_header(path, *rows[0])
    names = tuple(first) if has_header else tuple(f"column_{i + 1}" for i in range(len(first)))
    if has_header:
        _check_header(path, rows.pop(0)[1])
    if not rows:
        raise DataError.unreadable(path, "it has a header and no rows")
    numbers = np.array([_numbers(path, line, cells, names) for line, cells in rows])
    return Table(path, names, has_header, numbers)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and the cells of every line that is not blank."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            for cells in reader:
                if any(cell.strip() for cell in cells) or len(cells) > 1:
                    yield reader.line_num, [cell.strip() for cell in cells]
    except OSError as problem:
        raise DataError.unreadable(path, problem.strerror or str(problem)) from None
    except UnicodeDecodeError as problem:
        reason = f"byte {problem.start} is not UTF-8 text"
        raise DataError.unreadable(path, reason) from None
    except csv.Error as problem:
        raise DataError.unreadable(path, str(problem)) from None


def _is_header(path: Path, line: int, cells: Sequence[str]) -> bool:
    """Whether the first line has no number; one that has text too is refused."""
    numbers = [cell for cell in cells if _is_number(cell)]
    texts = [cell for cell in cells if cell and cell not in numbers]
    if numbers and texts:
        raise DataError.mixed_header(path, line, numbers[0], texts[0])
    return not numbers


def _check_header(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DataError.repeated_column(path, name)


def _numbers(path: Path, line: int, cells: list[str], names: tuple[str, ...]) -> list[float]:
    if len(cells) != len(names):
        raise DataError.ragged_csv(path, line, len(cells), len(names))
    for name, cell in zip(names, cells, strict=True):
        if not _is_number(cell):
            raise DataError.text_cell(path, line, name, cell)
    return [float(cell) for cell in cells]


def _is_number(cell: str) -> bool:
    """Whether a cell is a number as CSV files write them, which Python's 1_000 is not."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell
