"""Examples and queries from CSV files, predictions to CSV files.

A file is UTF-8 with commas. Its first row is a header unless it holds a number; without a header
the columns are called column_1, column_2 and so on. Blank lines are skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from icgd.errors import DataError, UnknownNameError
from icgd.problems.problem import Target

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


@dataclass(frozen=True)
class Examples:
    """Inputs and labels, with a row for each example, and the names of their columns."""

    inputs: Numbers
    labels: Numbers
    input_names: tuple[str, ...]
    label_names: tuple[str, ...]
    has_header: bool


def read_examples(path: Path, target: Target, label_names: Sequence[str] | None = None) -> Examples:
    """The examples in `path`; the labels are the columns of these names, or the last columns."""
    table, n_labels = read_table(path), target.output_width
    if len(table.names) != target.input_width + n_labels:
        expected = target.input_width + n_labels
        raise DataError.too_few_columns(path, len(table.names), expected)
    labels = tuple(label_names or table.names[-n_labels:])
    if not len(labels) == len(set(labels)) == n_labels:
        raise DataError.wrong_labels(labels, n_labels)
    y = table.columns(labels)
    inputs = tuple(name for name in table.names if name not in labels)
    return Examples(table.columns(inputs), y, inputs, labels, table.has_header)


def read_queries(path: Path, examples: Examples) -> Numbers:
    """The inputs in `path`: the examples' columns if both files have headers, else all columns."""
    table = read_table(path)
    if table.has_header and examples.has_header:
        return table.columns(examples.input_names)
    if len(table.names) != len(examples.input_names):
        raise DataError.wrong_query_columns(path, len(table.names), len(examples.input_names))
    return table.numbers


def csv_content(names: Sequence[str], rows: Sequence[Sequence[float]]) -> bytes:
    """The content of a CSV file with a header; numbers read back bit for bit."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue().encode()


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
