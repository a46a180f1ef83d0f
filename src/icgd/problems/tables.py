"""Read tables from files: CSV of any delimiter and decimal mark, also compressed, Parquet, Arrow.

polars reads them. The format of a CSV file is detected. The delimiter is the first of ; tab | , and
space that occurs equally often in all of the first lines. The decimal mark is a comma if some
numbers have one and none has a point. The first line is a header if it has a text above numbers; if
this is ambiguous, the file is refused with a message that names the option to give. Without a
header the columns are called column_1, column_2 and so on.

Codes turn texts and dates into numbers: a column of dates becomes days since 1970, any other column
of texts becomes one column of 0 and 1 for each category.
"""

from __future__ import annotations

import gzip
import re
import shlex
import stat
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from icgd.errors import DataError, UnknownNameError, did_you_mean, quoted

Numbers = NDArray[np.float64]

READERS = {
    ".parquet": pl.read_parquet,
    ".arrow": pl.read_ipc,
    ".feather": pl.read_ipc,
    ".ipc": pl.read_ipc,
}
"""The function that reads a file, by its extension; all other files are CSV."""

DELIMITERS = (";", "\t", "|", ",", " ")
"""The delimiters that are tried, in order. The comma comes late: it may be a decimal mark."""

NAMED_DELIMITERS = {
    "comma": ",",
    "semicolon": ";",
    "tab": "\t",
    "space": " ",
    "bar": "|",
    **{mark: mark for mark in DELIMITERS},
}
MARKS = {"point": ".", "comma": ",", ".": ".", ",": ","}
MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-", "#n/a")
"""Cells that mean a missing value, in lower case."""

DATES = ("%Y-%m-%d", "%d.%m.%Y", "%Y/%m/%d")
TIMES = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%d.%m.%Y %H:%M")
"""The accepted formats of dates and times. 3/4/2026 is ambiguous, so it is not among them."""

DATE = "date"
MICROSECONDS_OF_A_DAY = 86_400 * 10**6

Codes = Mapping[str, str | list[str]]
"""The encoding of each column: DATE, or the categories that become one column each."""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
WITH_COMMA = re.compile(r"[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Reading:
    """The format of a CSV file; fields that are None are detected.

    `delimiter` is a character or its name, such as ";" or "semicolon", `decimal` is "point" or
    "comma".
    """

    delimiter: str | None = None
    decimal: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        for name, marks in (("delimiter", NAMED_DELIMITERS), ("decimal", MARKS)):
            if (value := getattr(self, name)) is not None:
                if not isinstance(value, str) or value not in marks:
                    names = [mark for mark in marks if mark.isalpha()]
                    raise UnknownNameError.of(name, value, known=names)
                object.__setattr__(self, name, marks[value])


@dataclass(frozen=True)
class Table:
    """The named columns of one file, of numbers or texts.

    Missing values are null. `lines` has the line number of every row, counted from 1.
    `cells` has numbers with the digits of the file: the columns of a CSV file are texts there.
    """

    path: Path
    frame: pl.DataFrame
    has_header: bool
    lines: tuple[int, ...]
    cells: pl.DataFrame

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.frame.columns)

    def numbers(self, names: Sequence[str]) -> Numbers:
        """Return these columns, in this order; raise if a value is missing or not a number."""
        for name in names:
            self._require_numbers(name)
            self._require_finite(name)
        return self.frame.select(pl.col(list(names)).cast(pl.Float64)).to_numpy()

    def texts(self, name: str) -> list[str] | None:
        """Return the cells of a column of texts, or None for a column of numbers."""
        column = self._column(name)
        return column.to_list() if column.dtype == pl.String else None

    def means(self, names: Sequence[str], how: str) -> dict[str, float]:
        """Return the means, or the medians, of columns of numbers, ignoring missing values."""
        averages = {}
        for name in names:
            self._require_numbers(name)
            self._require_any_value(name)
            values = self._column(name).drop_nulls()
            average = values.mean() if how == "mean" else values.median()
            averages[name] = float(average)  # type: ignore[arg-type]
        return averages

    def filled(self, values: Mapping[str, float]) -> Table:
        """Return the table with missing values replaced by these numbers."""
        for name in values:
            self._require_numbers(name)
        columns = [pl.col(name).cast(pl.Float64).fill_null(value) for name, value in values.items()]
        return replace(self, frame=self.frame.with_columns(columns))

    def without(self, names: Sequence[str]) -> Table:
        """Return the table without these columns."""
        for name in names:
            self._column(name)
        if set(names) == set(self.names):
            raise DataError(
                f"{self.path} has no columns besides the ignored ones: "
                f"{', '.join(self.names)}. Ignore fewer of them."
            )
        return replace(self, frame=self.frame.drop(names))

    def without_gaps(self, names: Sequence[str]) -> Table:
        """Return the table without the rows that lack a value in one of these columns."""
        for name in names:
            self._require_any_value(name)
        columns = pl.col(list(names))
        is_complete = self.frame.select(pl.all_horizontal(columns.is_not_null())).to_series()
        if not is_complete.any():
            raise DataError(
                f"Every row of {self.path} lacks a value, so --missing drop leaves none. Use "
                "--missing mean or median, or omit the columns with missing values (--ignore)."
            )
        lines = tuple(line for line, stays in zip(self.lines, is_complete, strict=True) if stays)
        return replace(self, frame=self.frame.filter(is_complete), lines=lines)

    def codes(self, names: Sequence[str]) -> dict[str, str | list[str]]:
        """Return the encoding of those of these columns that are texts or dates."""
        codes = dict[str, str | list[str]]()
        for name in names:
            column = self._column(name)
            if _days(column) is not None:
                codes[name] = DATE
                continue
            if column.dtype != pl.String:  # numbers, or a type that `numbers` refuses
                continue
            if self.is_of_names(name):
                raise DataError(
                    f"{self.path}, column {name!r} has a different text in every row, so its "
                    f"encoding carries no information. Omit it: --ignore {shlex.quote(name)}."
                )
            codes[name] = column.drop_nulls().unique().sort().to_list()
        return codes

    def is_of_names(self, name: str) -> bool:
        """Return whether a column has a different text in every row, and no dates."""
        column = self._column(name)
        if column.dtype != pl.String:
            return False
        texts = column.drop_nulls()
        return 2 < texts.n_unique() == len(texts) and _days(column) is None

    def encoded(self, codes: Codes) -> Table:
        """Return the table with the columns that have codes replaced by numbers."""
        columns = list[pl.Series]()
        for column in self.frame.iter_columns():
            code = codes.get(column.name)
            if code is None:
                columns.append(column)
            elif code == DATE:
                columns.append(self._days(column))
            else:
                columns += self._one_hot(column, list(code))
        for name in codes:
            self._column(name)
        names = [column.name for column in columns]
        if duplicates := [name for name in names if names.count(name) > 1]:
            raise DataError(
                f"{self.path} has two columns called {duplicates[0]!r} after its texts are "
                "encoded: each category gets a column COLUMN=CATEGORY. Rename the column, or "
                "--ignore it."
            )
        return replace(self, frame=pl.DataFrame(columns))

    def _days(self, column: pl.Series) -> pl.Series:
        days = _days(column)
        if days is None:
            raise DataError(
                f"{self.path}, column {column.name!r} has dates in the examples, but here "
                f"{quoted(column.drop_nulls().first())}. Use one format, such as 2026-11-19."
            )
        return days

    def _one_hot(self, column: pl.Series, categories: Sequence[str]) -> list[pl.Series]:
        texts = as_texts(column, categories)
        unknown = ~texts.is_in(categories) & texts.is_not_null()
        if unknown.any():
            row = unknown.arg_true()[0]
            raise DataError(
                f"{self.path}, line {self.lines[row]}, column {column.name!r} has the category "
                f"{quoted(texts[row])}, which the examples do not have; known are "
                f"{', '.join(categories)}.{did_you_mean(texts[row], categories)}"
            )
        return [
            (texts == category).cast(pl.Float64).alias(f"{column.name}={category}")
            for category in categories
        ]

    def renamed(self, names: Sequence[str]) -> Table:
        """Return the table with these column names, in order."""
        return replace(self, frame=self.frame.rename(dict(zip(self.names, names, strict=True))))

    def gaps(self, name: str) -> list[int]:
        """Return the line numbers of missing values in this column."""
        return [self.lines[row] for row in self._column(name).is_null().arg_true()]

    def require_whole(self, names: Sequence[str], remedy: str = "") -> None:
        """Raise `DataError` with the first missing value in these columns, and their number.

        `remedy` is added to the advice, such as ", or give --missing drop".
        """
        gaps = {name: lines for name in names if (lines := self.gaps(name))}
        if gaps:
            (name, lines), *_ = gaps.items()
            total = sum(map(len, gaps.values()))
            others = f" ({total:,} are missing, in {', '.join(gaps)})" if total > 1 else ""
            raise DataError(
                f"{self.path}, line {lines[0]} has no value in column {name!r}{others}. Fill it, "
                f"or remove the line{remedy}."
            )

    def _column(self, name: str) -> pl.Series:
        if name not in self.names:
            raise UnknownNameError.of("column", name, known=self.names, where=f" in {self.path}")
        return self.frame[name]

    def _require_any_value(self, name: str) -> None:
        if self._column(name).is_null().all():
            raise DataError(
                f"{self.path}, column {name!r} has no values, so its missing values cannot be "
                f"filled. Omit it: --ignore {shlex.quote(name)}."
            )

    def _require_numbers(self, name: str) -> None:
        column = self._column(name)
        if column.dtype == pl.String and not column.is_null().all():
            is_text = column.cast(pl.Float64, strict=False).is_null() & column.is_not_null()
            reason = "is not a number"
            if not is_text.any():  # a Parquet file may store numbers as strings
                is_text, reason = column.is_not_null(), "is a text, not a number"
            row = is_text.arg_true()[0]
            raise DataError(
                f"{self.path}, line {self.lines[row]}, column {name!r}: {column[row]!r} {reason}. "
                "Give --encode, which makes numbers of texts and dates, or leave the "
                f"column out: --ignore {shlex.quote(name)}."
            )
        allowed = (pl.Boolean, pl.Null, pl.String)
        if not (column.dtype.is_numeric() or column.dtype in allowed):
            is_day = column.dtype in (pl.Date, pl.Datetime)
            remedy = "Give --encode, which makes numbers of texts and dates, or leave" * is_day
            raise DataError(
                f"{self.path}, column {name!r} has type {column.dtype}; expected numbers. "
                f"{remedy or 'Leave'} the column out: --ignore {shlex.quote(name)}."
            )

    def _require_finite(self, name: str) -> None:
        column = self._column(name).cast(pl.Float64)
        if not (infinite := column.is_infinite().arg_true()).is_empty():
            row = infinite[0]
            raise DataError(
                f"{self.path}, line {self.lines[row]}, column {name!r} is {column[row]}; every "
                "number must be finite. Correct the cell, or remove the line."
            )
        self.require_whole([name])


def read_table(path: Path, reading: Reading | None = None) -> Table:
    """Read the table in a file; `reading` gives the format of a CSV file, if known."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {path}: {getattr(error, 'strerror', error)}.") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading a pipe may never end
        raise DataError(f"Cannot read {path}: it is a device or a pipe; expected a file.")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        return _read_csv(path, reading or Reading())
    try:
        frame = reader(path)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from None
    except pl.exceptions.PolarsError as error:
        raise DataError(f"Cannot read {path}: {str(error).splitlines()[0]}.") from None
    if frame.is_empty():
        raise DataError(f"Cannot read {path}: it has no rows.")
    floats = [pl.col(name).fill_nan(None) for name in frame.columns if frame[name].dtype.is_float()]
    texts = pl.col(pl.Categorical, pl.Enum).cast(pl.String)
    frame = frame.with_columns(*floats, texts)
    return Table(path, frame, True, tuple(range(1, len(frame) + 1)), frame)


def _read_csv(path: Path, reading: Reading) -> Table:
    """Read all cells as texts, then convert the columns in which every text is a number."""
    nonempty = [
        (number, line)
        for number, line in enumerate(re.split("\r\n|\r|\n", _text(path)), start=1)
        if line.strip()
    ]
    if not nonempty:
        raise DataError(f"Cannot read {path}: it is empty.")
    delimiter = reading.delimiter or _delimiter([line for _, line in nonempty[:20]])
    text = "\n".join(line for _, line in nonempty)
    try:
        cells = pl.read_csv(
            text.encode(), has_header=False, infer_schema=False, separator=delimiter
        )
    except pl.exceptions.PolarsError as error:
        problem = "a cell has text outside its quotes."
        if "more fields" in str(error):
            problem = (
                f"a line has more cells than the first one, with {delimiter!r} between cells. "
                "Correct the line, or give --delimiter."
            )
        raise DataError(f"Cannot read {path}: {problem}") from None
    cells = cells.with_columns(pl.all().str.strip_chars())
    if (reading.decimal or _decimal(cells, delimiter)) == ",":
        has_comma = pl.all().str.contains(f"^{WITH_COMMA.pattern}$")
        with_point = pl.all().str.replace(",", ".", literal=True)
        cells = cells.with_columns(pl.when(has_comma).then(with_point).otherwise(pl.all()))
    lines = [number for number, _ in nonempty]
    if len(cells) != len(lines):  # quoted cells may span several lines
        lines = list(range(1, len(cells) + 1))
    first = [cell or "" for cell in cells.row(0)]
    is_missing = pl.all().str.to_lowercase().is_in(MISSING)
    cells = cells.with_columns(pl.when(is_missing).then(None).otherwise(pl.all()).name.keep())
    has_header = reading.header
    if has_header is None:
        has_header = _has_header(path, first, cells[1:])
    names = [f"column_{number}" for number in range(1, len(first) + 1)]
    if has_header:
        names = [name or default for name, default in zip(first, names, strict=True)]
        cells, lines = cells[1:], lines[1:]
        if cells.is_empty():
            raise DataError(f"Cannot read {path}: it has a header and no rows.")
        if duplicates := [name for name in names if names.count(name) > 1]:
            raise DataError(
                f"{path} has two columns called {duplicates[0]!r}; column names must be unique."
            )
        counts = [[str(start + row) for row in range(len(cells))] for start in (0, 1)]
        if not first[0] and len(cells) > 1 and cells.to_series(0).to_list() in counts:
            raise DataError(
                f"The first column of {path} has no name and only counts the rows. Remove it, or "
                "give it a name if it is an input."
            )
    numbers = cells.with_columns(pl.all().cast(pl.Float64, strict=False).fill_nan(None))
    columns = [
        text if (number.is_null() & text.is_not_null()).any() else number
        for text, number in zip(cells.iter_columns(), numbers.iter_columns(), strict=True)
    ]
    frame = pl.DataFrame(dict(zip(names, columns, strict=True)))
    cells = cells.rename(dict(zip(cells.columns, names, strict=True)))
    return Table(path, frame, has_header, tuple(lines), cells)


def _days(column: pl.Series) -> pl.Series | None:
    """Return days since 1970 if all cells of a column are dates or times, otherwise None."""
    times = column if column.dtype.is_temporal() else None
    if column.dtype == pl.String and not column.is_null().all():
        for form in (*DATES, *TIMES):
            kind = pl.Date if form in DATES else pl.Datetime("us")
            parsed = column.str.strptime(kind, form, strict=False)
            if parsed.null_count() == column.null_count():
                times = parsed
                break
    if times is None or times.dtype in (pl.Time, pl.Duration):
        return None
    return times.cast(pl.Datetime("us")).dt.epoch("us") / MICROSECONDS_OF_A_DAY


def as_texts(column: pl.Series, categories: Sequence[str]) -> pl.Series:
    """Return the cells of a column as texts, with numbers in the spelling of these categories.

    A column may have only numbers here, although it had texts too when the run was compiled: 1 is
    then the category "1", not "1.0".
    """
    if not column.dtype.is_numeric():
        return column.cast(pl.String)
    texts = [text for text in categories if NUMBER.fullmatch(text)]
    by_number = {float(text): text for text in texts}
    if len(by_number) < len(texts):  # two spellings of one number, such as 1 and 01
        by_number = {}
    return pl.Series(
        column.name,
        [None if x is None else by_number.get(x, f"{x:.12g}") for x in column.cast(pl.Float64)],
        dtype=pl.String,
    )


def _text(path: Path) -> str:
    """Read the text of a file, which may be compressed."""
    try:
        content = path.read_bytes()
        is_compressed = content.startswith(b"\x1f\x8b")
        return (gzip.decompress(content) if is_compressed else content).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"Cannot read {path}: byte {error.start} is not UTF-8 text.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"Cannot read {path}: it is not a complete gz file ({error}).") from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from None


def _delimiter(lines: Sequence[str]) -> str:
    """Return the delimiter that occurs equally often in all lines, or a comma if none does."""
    plain = [re.sub(r'"[^"]*"', "", line.strip()) for line in lines]
    for mark in DELIMITERS:
        counts = {line.count(mark) for line in plain}
        if len(counts) == 1 and counts != {0}:
            return mark
    return ","


def _decimal(cells: pl.DataFrame, delimiter: str) -> str:
    texts = [text for row in cells.head(1000).rows() for text in row if text]
    has_comma = delimiter != "," and any(WITH_COMMA.fullmatch(text) for text in texts)
    has_point = any("." in text and NUMBER.fullmatch(text) for text in texts)
    return "," if has_comma and not has_point else "."


def _has_header(path: Path, first: Sequence[str], body: pl.DataFrame) -> bool:
    """Return whether the first line is a header; raise `DataError` if that is ambiguous.

    It is ambiguous if the line has numbers and also a text above a column of numbers, or if its
    numbers are consecutive, such as 0, 1, 2 or 2019, 2020, above numbers with fractions.
    """
    numbers = [cell for cell in first if NUMBER.fullmatch(cell)]
    if not numbers:
        return any(first)
    below = [[cell for cell in column if cell is not None] for column in body.iter_columns()]
    has_name_above_numbers = any(
        name and not NUMBER.fullmatch(name) and cells and all(map(NUMBER.fullmatch, cells))
        for name, cells in zip(first, below, strict=True)
    )
    steps = (
        {int(b) - int(a) for a, b in pairwise(numbers)} if all(map(str.isdigit, numbers)) else {}
    )
    is_sequence = len(steps) == 1 and 0 not in steps and (len(numbers) > 2 or 1 in steps)
    has_fractions = any(
        NUMBER.fullmatch(cell) and not cell.lstrip("+-").isdigit()
        for cells in below
        for cell in cells
    )
    if has_name_above_numbers or (is_sequence and has_fractions):
        shown = ", ".join(first[:4]) + ", ..." * (len(first) > 4)
        raise DataError(
            f"The first line of {path} ({shown}) may be a header or an example. Give --header or "
            "--no-header (header=True or False in Python)."
        )
    return False


@dataclass(frozen=True)
class Scaling:
    """The centre that is subtracted from every column, and the scale that divides it."""

    centre: Numbers
    scale: Numbers

    @classmethod
    def of(cls, numbers: Numbers) -> Scaling:
        """Return the scaling that standardises these rows; constant columns are only centred."""
        largest, exponent = np.frexp(np.abs(numbers).max(0))
        scaled = np.ldexp(numbers, -exponent)  # exact, and squares cannot overflow
        is_constant = scaled.std(0) <= 1e-12 * largest
        scale = np.where(is_constant, 1.0, np.ldexp(scaled.std(0), exponent))
        return cls(np.ldexp(scaled.mean(0), exponent), scale)

    @classmethod
    def none(cls, width: int) -> Scaling:
        """Return the scaling that changes nothing."""
        return cls(np.zeros(width), np.ones(width))

    def applied(self, numbers: Numbers) -> Numbers:
        """Return the numbers in standard units."""
        return (numbers - self.centre) / self.scale

    def undone(self, numbers: Numbers) -> Numbers:
        """Return numbers in standard units in their original units."""
        return numbers * self.scale + self.centre
