"""Tables in files: CSV of any delimiter and decimal mark, also compressed, Parquet and Arrow.

polars reads them. What a CSV file does not say of itself is found in it: its delimiter, its decimal
mark, and whether its first line is a header. Where that cannot be told, the file is refused, and
the message says what to give. Without a header the columns are called column_1, column_2 and so on.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from icgd.errors import DataError, UnknownNameError
from icgd.problems.csv_text import Cells, Reading, read_cells

Numbers = NDArray[np.float64]

READERS = {
    ".parquet": pl.read_parquet,
    ".arrow": pl.read_ipc,
    ".feather": pl.read_ipc,
    ".ipc": pl.read_ipc,
}
"""What reads a file, by the ending of its name; all others are CSV."""


@dataclass(frozen=True)
class Table:
    """The columns of one file, which are numbers or texts, by name.

    A missing value is null. `lines` has the place of every row in the file, counted from 1.
    """

    path: Path
    frame: pl.DataFrame
    has_header: bool
    lines: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.frame.columns)

    def numbers(self, names: Sequence[str]) -> Numbers:
        """The columns of these names, in this order; nothing may be missing in them."""
        for name in names:
            self._require_numbers(name)
            self._require_finite(name)
        return self.frame.select(pl.col(list(names)).cast(pl.Float64)).to_numpy()

    def texts(self, name: str) -> list[str] | None:
        """The cells of a column of texts; None if it is a column of numbers."""
        column = self._column(name)
        return column.to_list() if column.dtype == pl.String else None

    def means(self, names: Sequence[str], how: str) -> dict[str, float]:
        """The mean or the median of what is there in columns of numbers."""
        found = {}
        for name in names:
            self._require_numbers(name)
            self._require_something(name)
            values = self._column(name).drop_nulls()
            found[name] = float(values.mean() if how == "mean" else values.median())  # type: ignore[arg-type]
        return found

    def filled(self, values: Mapping[str, float]) -> Table:
        """The table with these numbers where columns lack one."""
        columns = [pl.col(name).cast(pl.Float64).fill_null(value) for name, value in values.items()]
        return replace(self, frame=self.frame.with_columns(columns))

    def without(self, names: Sequence[str]) -> Table:
        """The table without these columns."""
        for name in names:
            self._column(name)
        if set(names) == set(self.names):
            raise DataError.nothing_left(self.path, self.names)
        return replace(self, frame=self.frame.drop(names))

    def without_gaps(self, names: Sequence[str]) -> Table:
        """The table without the rows that lack a value in one of these columns."""
        for name in names:
            self._require_something(name)
        kept = self.frame.select(pl.all_horizontal(pl.col(list(names)).is_not_null())).to_series()
        if not kept.any():
            raise DataError.no_whole_row(self.path)
        lines = tuple(line for line, stays in zip(self.lines, kept, strict=True) if stays)
        return replace(self, frame=self.frame.filter(kept), lines=lines)

    def gaps(self, name: str) -> list[int]:
        """The lines that lack a value in this column."""
        return [self.lines[row] for row in self._column(name).is_null().arg_true()]

    def require_whole(self, names: Sequence[str], remedy: str = "") -> None:
        """Raise `DataError` for the first missing value in these columns, which says how many.

        `remedy` is what else would help, such as ", or give --missing drop".
        """
        gaps = {name: lines for name in names if (lines := self.gaps(name))}
        if gaps:
            columns, total = list(gaps), sum(map(len, gaps.values()))
            raise DataError.missing_value(self.path, gaps[columns[0]][0], columns, total, remedy)

    def _column(self, name: str) -> pl.Series:
        if name not in self.names:
            raise UnknownNameError.of("column", name, known=self.names, where=f" in {self.path}")
        return self.frame[name]

    def _require_something(self, name: str) -> None:
        if self._column(name).is_null().all():
            raise DataError.nothing_there(self.path, name)

    def _require_numbers(self, name: str) -> None:
        column = self._column(name)
        if column.dtype == pl.String:
            first = column.str.strip_chars().cast(pl.Float64, strict=False).is_null()
            row = (first & column.is_not_null()).arg_true()[0]
            raise DataError.text_cell(self.path, self.lines[row], name, column[row])
        if not (column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null)):
            raise DataError.other_type(self.path, name, str(column.dtype))

    def _require_finite(self, name: str) -> None:
        column = self._column(name).cast(pl.Float64)
        if not (infinite := column.is_infinite().arg_true()).is_empty():
            row = infinite[0]
            raise DataError.not_finite_cell(self.path, self.lines[row], name, column[row])
        self.require_whole([name])


def read_table(path: Path, reading: Reading | None = None) -> Table:
    """The table in a file; `reading` says what is known of it."""
    _require_file(path)
    endings = [ending.lower() for ending in path.suffixes[-1:]]
    reader = READERS.get("".join(endings))
    if reader is None:
        return _of_cells(path, read_cells(path, reading or Reading()))
    try:
        frame = reader(path)
    except OSError as problem:
        raise DataError.unreadable(path, problem.strerror or str(problem)) from None
    except pl.exceptions.PolarsError as problem:
        raise DataError.unreadable(path, str(problem).splitlines()[0]) from None
    if frame.is_empty():
        raise DataError.unreadable(path, "it has no rows")
    floats = [pl.col(name).fill_nan(None) for name in frame.columns if frame[name].dtype.is_float()]
    return Table(path, frame.with_columns(floats), True, tuple(range(1, len(frame) + 1)))


def _require_file(path: Path) -> None:
    """Raise `DataError` for what is no file: a device or a pipe may never come to an end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as problem:
        raise DataError.unreadable(path, getattr(problem, "strerror", str(problem))) from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError.unreadable(path, "it is a device or a pipe; a file is expected")


def _of_cells(path: Path, cells: Cells) -> Table:
    """Columns of texts as numbers, where every text that is there is a number."""
    columns = [_typed(column) for column in cells.frame.iter_columns()]
    frame = pl.DataFrame(columns).rename(dict(zip(cells.frame.columns, cells.names, strict=True)))
    return Table(path, frame, cells.has_header, cells.lines)


def _typed(column: pl.Series) -> pl.Series:
    numbers = column.cast(pl.Float64, strict=False)
    is_text = (numbers.is_null() & column.is_not_null()).any()
    return column if is_text else numbers.fill_nan(None)
