"""Read tables from files: CSV of any delimiter and decimal mark, also compressed, Parquet, Arrow.

polars reads them. What a CSV file does not say of itself is found in it. The delimiter is the first
of ; tab | , and space that stands equally often in all of the first lines. The decimal mark is a
comma if numbers have one and none has a point. The first line is a header if it has a text above
numbers; where that cannot be told, the file is refused, and the message says what to give. Without
a header the columns are called column_1, column_2 and so on.

Texts and dates become numbers by codes: a column of dates counts days since 1970, and every other
column of texts becomes a column of 0 and 1 for each of its categories.
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
"""What reads a file, by the ending of its name; all others are CSV."""

DELIMITERS = (";", "\t", "|", ",", " ")
"""Those that are looked for. A comma comes late, because it may be a decimal mark."""

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
"""Cells that stand for a missing value, in small letters."""

DATES = ("%Y-%m-%d", "%d.%m.%Y", "%Y/%m/%d")
TIMES = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%d.%m.%Y %H:%M")
"""How texts may say a day or a time. 3/4/2026 is two days, depending on the country."""

DATE = "date"
MICROSECONDS_OF_A_DAY = 86_400 * 10**6

Codes = Mapping[str, str | list[str]]
"""How columns become numbers: DATE, or the categories that get a column each."""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
WITH_COMMA = re.compile(r"[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Reading:
    """What is known of a CSV file; what is None is found in it.

    `delimiter` is a mark or its name, such as ";" or "semicolon", `decimal` is "point" or "comma".
    """

    delimiter: str | None = None
    decimal: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        for name, known in (("delimiter", NAMED_DELIMITERS), ("decimal", MARKS)):
            if (value := getattr(self, name)) is not None:
                if not isinstance(value, str) or value not in known:
                    names = [mark for mark in known if mark.isalpha()]
                    raise UnknownNameError.of(name, value, known=names)
                object.__setattr__(self, name, known[value])


@dataclass(frozen=True)
class Table:
    """The columns of one file, which are numbers or texts, by name.

    A missing value is null. `lines` has the place of every row in the file, counted from 1.
    `cells` has the columns as the file writes them: those of a CSV file are all texts.
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
        """Return the columns of these names, in this order; nothing may be missing in them."""
        for name in names:
            self._require_numbers(name)
            self._require_finite(name)
        return self.frame.select(pl.col(list(names)).cast(pl.Float64)).to_numpy()

    def texts(self, name: str) -> list[str] | None:
        """Return the cells of a column of texts; None if it is a column of numbers."""
        column = self._column(name)
        return column.to_list() if column.dtype == pl.String else None

    def means(self, names: Sequence[str], how: str) -> dict[str, float]:
        """Return the mean or the median of columns of numbers, gaps left out."""
        found = {}
        for name in names:
            self._require_numbers(name)
            self._require_something(name)
            values = self._column(name).drop_nulls()
            found[name] = float(values.mean() if how == "mean" else values.median())  # type: ignore[arg-type]
        return found

    def filled(self, values: Mapping[str, float]) -> Table:
        """Fill gaps with these numbers."""
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
                f"{self.path} has no column beside those that are ignored: "
                f"{', '.join(self.names)}. Ignore fewer of them."
            )
        return replace(self, frame=self.frame.drop(names))

    def without_gaps(self, names: Sequence[str]) -> Table:
        """Return the table without the rows that lack a value in one of these columns."""
        for name in names:
            self._require_something(name)
        kept = self.frame.select(pl.all_horizontal(pl.col(list(names)).is_not_null())).to_series()
        if not kept.any():
            raise DataError(
                f"Every row of {self.path} lacks a value, so --missing drop leaves none. Use "
                "--missing mean or median, or leave the columns with gaps out (--ignore)."
            )
        lines = tuple(line for line, stays in zip(self.lines, kept, strict=True) if stays)
        return replace(self, frame=self.frame.filter(kept), lines=lines)

    def codes(self, names: Sequence[str]) -> dict[str, str | list[str]]:
        """Return how those of these columns become numbers that are texts or dates."""
        found = dict[str, str | list[str]]()
        for name in names:
            column = self._column(name)
            if _days(column) is not None:
                found[name] = DATE
                continue
            if column.dtype != pl.String:  # numbers, or what is refused where numbers are needed
                continue
            if self.is_of_names(name):
                raise DataError(
                    f"{self.path}, column {name!r} has another text in every row, so encoding it "
                    f"says nothing. Leave it out: --ignore {shlex.quote(name)}."
                )
            found[name] = column.drop_nulls().unique().sort().to_list()
        return found

    def is_of_names(self, name: str) -> bool:
        """Return whether a column has another text in every row, and no dates."""
        column = self._column(name)
        if column.dtype != pl.String:
            return False
        texts = column.drop_nulls()
        return 2 < texts.n_unique() == len(texts) and _days(column) is None

    def encoded(self, codes: Codes) -> Table:
        """Return the table with numbers in place of the columns that have codes."""
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
        if twice := [name for name in names if names.count(name) > 1]:
            raise DataError(
                f"{self.path} has two columns called {twice[0]!r} once its texts are encoded: each "
                "category gets a column COLUMN=CATEGORY. Rename the column, or --ignore it."
            )
        return replace(self, frame=pl.DataFrame(columns))

    def _days(self, column: pl.Series) -> pl.Series:
        days = _days(column)
        if days is None:
            raise DataError(
                f"{self.path}, column {column.name!r} holds dates in the examples, but not here: "
                f"{quoted(column.drop_nulls().first())}. Use one form, such as 2026-11-19."
            )
        return days

    def _one_hot(self, column: pl.Series, categories: Sequence[str]) -> list[pl.Series]:
        texts = as_texts(column, categories)
        unknown = ~texts.is_in(categories) & texts.is_not_null()
        if unknown.any():
            row = unknown.arg_true()[0]
            raise DataError(
                f"{self.path}, line {self.lines[row]}, column {column.name!r} has the category "
                f"{quoted(texts[row])}, which the examples lack; known are "
                f"{', '.join(categories)}.{did_you_mean(texts[row], categories)}"
            )
        return [
            (texts == category).cast(pl.Float64).alias(f"{column.name}={category}")
            for category in categories
        ]

    def renamed(self, names: Sequence[str]) -> Table:
        """Return the table with these names for its columns, by place."""
        return replace(self, frame=self.frame.rename(dict(zip(self.names, names, strict=True))))

    def gaps(self, name: str) -> list[int]:
        """Return the lines that lack a value in this column."""
        return [self.lines[row] for row in self._column(name).is_null().arg_true()]

    def require_whole(self, names: Sequence[str], remedy: str = "") -> None:
        """Raise `DataError` for the first missing value in these columns, which says how many.

        `remedy` is what else would help, such as ", or give --missing drop".
        """
        gaps = {name: lines for name in names if (lines := self.gaps(name))}
        if gaps:
            (name, lines), *_ = gaps.items()
            total = sum(map(len, gaps.values()))
            rest = f" ({total:,} are missing, in {', '.join(gaps)})" if total > 1 else ""
            raise DataError(
                f"{self.path}, line {lines[0]} has no value in column {name!r}{rest}. Fill it, or "
                f"remove the line{remedy}."
            )

    def _column(self, name: str) -> pl.Series:
        if name not in self.names:
            raise UnknownNameError.of("column", name, known=self.names, where=f" in {self.path}")
        return self.frame[name]

    def _require_something(self, name: str) -> None:
        if self._column(name).is_null().all():
            raise DataError(
                f"{self.path}, column {name!r} has no value at all, so nothing can fill it. Leave "
                f"it out: --ignore {shlex.quote(name)}."
            )

    def _require_numbers(self, name: str) -> None:
        column = self._column(name)
        if column.dtype == pl.String and not column.is_null().all():
            is_text = column.cast(pl.Float64, strict=False).is_null() & column.is_not_null()
            reason = "is not a number"
            if not is_text.any():  # a Parquet file may say that its numbers are texts
                is_text, reason = column.is_not_null(), "is a text, not a number"
            row = is_text.arg_true()[0]
            raise DataError(
                f"{self.path}, line {self.lines[row]}, column {name!r}: {column[row]!r} {reason}. "
                "Give --encode, which makes numbers of texts and dates, or leave the "
                f"column out: --ignore {shlex.quote(name)}."
            )
        known = (pl.Boolean, pl.Null, pl.String)
        if not (column.dtype.is_numeric() or column.dtype in known):
            is_day = column.dtype in (pl.Date, pl.Datetime)
            remedy = "Give --encode, which makes numbers of texts and dates, or leave" * is_day
            raise DataError(
                f"{self.path}, column {name!r} holds {column.dtype}; numbers are expected. "
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
    """Read the table in a file; `reading` says what is known of it."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {path}: {getattr(error, 'strerror', error)}.") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # it might never come to an end
        raise DataError(f"Cannot read {path}: it is a device or a pipe; a file is expected.")
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
    return Table(path, frame, True, tuple(range(1, len(frame) + 1)), cells=frame)


def _read_csv(path: Path, reading: Reading) -> Table:
    """Read all cells as texts, then make numbers of the columns in which every text is one."""
    full = [
        (number, line)
        for number, line in enumerate(_text(path).splitlines(), start=1)
        if line.strip()
    ]
    if not full:
        raise DataError(f"Cannot read {path}: it is empty.")
    delimiter = reading.delimiter or _delimiter([line for _, line in full[:20]])
    text = "\n".join(line for _, line in full)
    try:
        cells = pl.read_csv(
            text.encode(), has_header=False, infer_schema=False, separator=delimiter
        )
    except pl.exceptions.PolarsError as error:
        problem = "a cell has text beside its quotes."
        if "more fields" in str(error):
            problem = (
                f"a line has more cells than the first one, with {delimiter!r} between cells. Mend "
                "the line, or give --delimiter."
            )
        raise DataError(f"Cannot read {path}: {problem}") from None
    cells = cells.with_columns(pl.all().str.strip_chars())
    written = cells
    if (reading.decimal or _decimal(cells, delimiter)) == ",":
        has_comma = pl.all().str.contains(f"^{WITH_COMMA.pattern}$")
        with_point = pl.all().str.replace(",", ".", literal=True)
        cells = cells.with_columns(pl.when(has_comma).then(with_point).otherwise(pl.all()))
    lines = [number for number, _ in full]
    if len(cells) != len(lines):  # cells may have several lines
        lines = list(range(1, len(cells) + 1))
    first = [cell or "" for cell in cells.row(0)]
    is_missing = pl.all().str.to_lowercase().is_in(MISSING)
    cells = cells.with_columns(pl.when(is_missing).then(None).otherwise(pl.all()).name.keep())
    has_header = reading.header
    if has_header is None:
        has_header = _has_header(path, first, cells[1:])
    names = [f"column_{place}" for place in range(1, len(first) + 1)]
    if has_header:
        names = [name or place for name, place in zip(first, names, strict=True)]
        cells, written, lines = cells[1:], written[1:], lines[1:]
        if cells.is_empty():
            raise DataError(f"Cannot read {path}: it has a header and no rows.")
        if twice := [name for name in names if names.count(name) > 1]:
            raise DataError(
                f"{path} has two columns called {twice[0]!r}; column names must be unique."
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
    written = written.rename(dict(zip(written.columns, names, strict=True)))
    return Table(path, frame, has_header, tuple(lines), cells=written)


def _days(column: pl.Series) -> pl.Series | None:
    """Return days since 1970 if all of a column are dates or times, and else None."""
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
    """Return the cells of a column as texts, where numbers are those of these categories.

    A column may hold numbers alone here, though it has texts too in the table that was compiled
    for: 1 is then the category "1", not "1.0".
    """
    if not column.dtype.is_numeric():
        return column.cast(pl.String)
    texts = [text for text in categories if NUMBER.fullmatch(text)]
    by_number = {float(text): text for text in texts}
    if len(by_number) < len(texts):  # such as 1 and 01
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
        raise DataError(f"Cannot read {path}: it is no whole gz file ({error}).") from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from None


def _delimiter(lines: Sequence[str]) -> str:
    """Find the mark that stands equally often in all lines; a comma if there is none."""
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
    """Tell whether the first line has names, or raise `DataError` if it may be either.

    It may be either if it has numbers, and also a text above a column of numbers, or if its numbers
    count on, such as 0, 1, 2 or 2019, 2020, above numbers that are not whole.
    """
    numbers = [cell for cell in first if NUMBER.fullmatch(cell)]
    if not numbers:
        return any(first)
    below = [[cell for cell in column if cell is not None] for column in body.iter_columns()]
    is_above = any(
        name and not NUMBER.fullmatch(name) and cells and all(map(NUMBER.fullmatch, cells))
        for name, cells in zip(first, below, strict=True)
    )
    steps = (
        {int(b) - int(a) for a, b in pairwise(numbers)} if all(map(str.isdigit, numbers)) else {}
    )
    counts_on = len(steps) == 1 and 0 not in steps and (len(numbers) > 2 or 1 in steps)
    has_fractions = any(
        NUMBER.fullmatch(cell) and not cell.lstrip("+-").isdigit()
        for cells in below
        for cell in cells
    )
    if is_above or (counts_on and has_fractions):
        shown = ", ".join(first[:4]) + ", ..." * (len(first) > 4)
        raise DataError(
            f"The first line of {path} ({shown}) may be a header or an example. Give --header or "
            "--no-header (header=True or False in Python)."
        )
    return False


@dataclass(frozen=True)
class Scaling:
    """What is subtracted from every column, and what it is then divided by."""

    centre: Numbers
    scale: Numbers

    @classmethod
    def of(cls, numbers: Numbers) -> Scaling:
        """Return the scaling of these rows. A constant column is only centred."""
        largest, exponent = np.frexp(np.abs(numbers).max(0))
        shares = np.ldexp(numbers, -exponent)  # exact, and no square of these overflows
        is_constant = shares.std(0) <= 1e-12 * largest
        scale = np.where(is_constant, 1.0, np.ldexp(shares.std(0), exponent))
        return cls(np.ldexp(shares.mean(0), exponent), scale)

    @classmethod
    def none(cls, width: int) -> Scaling:
        """Return the scaling that leaves every number as it is."""
        return cls(np.zeros(width), np.ones(width))

    def applied(self, numbers: Numbers) -> Numbers:
        """Return the numbers in standard units."""
        return (numbers - self.centre) / self.scale

    def undone(self, numbers: Numbers) -> Numbers:
        """Return numbers in standard units as they were."""
        return numbers * self.scale + self.centre
