"""The cells of a CSV file as texts, and what the file does not say of itself.

The delimiter is the first of ; tab | , and space that stands equally often in all of the first
lines. The decimal mark is a comma if numbers have one and none has a point. The first line is a
header if it has a text above numbers.
"""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import polars as pl

from icgd.errors import DataError
from icgd.problems.settings import named

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

TRIED_LINES = 20
"""How many lines tell the delimiter."""

GZIP = b"\x1f\x8b"
"""The first bytes of a compressed file."""

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
        if self.delimiter is not None:
            object.__setattr__(
                self, "delimiter", named("delimiter", self.delimiter, NAMED_DELIMITERS)
            )
        if self.decimal is not None:
            object.__setattr__(self, "decimal", named("decimal", self.decimal, MARKS))


@dataclass(frozen=True)
class Cells:
    """The rows below the header as texts, null where a value is missing, and their lines."""

    names: tuple[str, ...]
    has_header: bool
    frame: pl.DataFrame
    lines: tuple[int, ...]


def read_cells(path: Path, reading: Reading) -> Cells:
    """All cells of a file, without spaces around them, and numbers with a point."""
    text = _text(path)
    delimiter = reading.delimiter or _delimiter(text)
    blank, first = _blank_lines(text)
    lines = text.splitlines(keepends=True)[first - 1 :]  # polars counts cells in the first line
    frame = _parsed(path, "".join(lines), delimiter).with_row_index("line", offset=first)
    cells = pl.exclude("line")
    frame = frame.with_columns(cells.str.strip_chars())
    is_blank = pl.col("line").is_in(blank)
    frame = frame.filter(~(is_blank & pl.all_horizontal(cells.is_null() | (cells == ""))))
    if frame.is_empty():
        raise DataError.unreadable(path, "it is empty")
    places, frame = tuple(frame["line"]), frame.drop("line")
    if (reading.decimal or _decimal(frame, delimiter)) == ",":
        frame = frame.with_columns(_with_point(pl.all()))
    return _below_header(path, frame, places, reading.header)


def _below_header(
    path: Path, frame: pl.DataFrame, lines: tuple[int, ...], header: bool | None
) -> Cells:
    first = [cell or "" for cell in frame.row(0)]
    body = frame[1:]
    has_header = _has_header(path, first, body) if header is None else header
    if has_header and body.is_empty():
        raise DataError.unreadable(path, "it has a header and no rows")
    numbered = [f"column_{place}" for place in range(1, len(first) + 1)]
    if not has_header:
        return Cells(tuple(numbered), False, _with_nulls(frame), lines)
    names = tuple(name or place for name, place in zip(first, numbered, strict=True))
    _check_names(path, names)
    body = _with_nulls(body)
    if not first[0] and _counts_rows(body.to_series(0)):
        raise DataError.row_numbers(path)
    return Cells(names, True, body, lines[1:])


def _text(path: Path) -> str:
    """The text of a file, which may be compressed."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(GZIP) else content
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        reason = f"byte {problem.start} is not UTF-8 text"
        raise DataError.unreadable(path, reason) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError.unreadable(path, f"it is no whole gz file ({problem})") from None
    except OSError as problem:
        raise DataError.unreadable(path, problem.strerror or str(problem)) from None


def _blank_lines(text: str) -> tuple[list[int], int]:
    """The numbers of all blank lines, and that of the first line which is not."""
    lines = list(enumerate(text.splitlines(), start=1))
    full = (place for place, line in lines if line.strip())
    return [place for place, line in lines if not line.strip()], next(full, 1)


def _parsed(path: Path, text: str, delimiter: str) -> pl.DataFrame:
    try:
        return pl.read_csv(text.encode(), has_header=False, infer_schema=False, separator=delimiter)
    except pl.exceptions.NoDataError:
        raise DataError.unreadable(path, "it is empty") from None
    except pl.exceptions.PolarsError as problem:
        if "more fields" in str(problem):
            raise DataError.long_line(path, delimiter) from None
        raise DataError.unreadable(path, "a cell has text beside its quotes") from None


def _delimiter(text: str) -> str:
    """The mark that stands equally often in all of the first lines; a comma if there is none."""
    lines = [line.strip() for line in text.splitlines()[: 5 * TRIED_LINES] if line.strip()]
    plain = [re.sub(r'"[^"]*"', "", line) for line in lines[:TRIED_LINES]]
    for mark in DELIMITERS:
        counts = {line.count(mark) for line in plain}
        if len(counts) == 1 and counts != {0}:
            return mark
    return ","


def _decimal(frame: pl.DataFrame, delimiter: str) -> str:
    cells = [cell for row in frame.head(1000).rows() for cell in row if cell]
    has_comma = delimiter != "," and any(WITH_COMMA.fullmatch(cell) for cell in cells)
    has_point = any("." in cell and NUMBER.fullmatch(cell) for cell in cells)
    return "," if has_comma and not has_point else "."


def _with_point(cells: pl.Expr) -> pl.Expr:
    """Numbers with a comma, written with a point."""
    is_number = cells.str.contains(f"^{WITH_COMMA.pattern}$")
    return pl.when(is_number).then(cells.str.replace(",", ".", literal=True)).otherwise(cells)


def _with_nulls(frame: pl.DataFrame) -> pl.DataFrame:
    cells = pl.all()
    is_missing = cells.str.to_lowercase().is_in(MISSING)
    return frame.with_columns(pl.when(is_missing).then(None).otherwise(cells).name.keep())


def _is_number(cell: str) -> bool:
    return NUMBER.fullmatch(cell) is not None


def _has_header(path: Path, first: list[str], body: pl.DataFrame) -> bool:
    """Whether the first line has texts above numbers; if it may be either, it is refused."""
    texts = [cell for cell in first if cell and not _is_number(cell)]
    numbers = [cell for cell in first if _is_number(cell)]
    if not numbers:
        return bool(texts)
    below = [_is_of_numbers(column) for column in body.iter_columns()]
    is_above = any(cell in texts and below[place] for place, cell in enumerate(first))
    if is_above or _may_be_names(first, numbers, body):
        raise DataError.unclear_header(path, first)
    return False


def _is_of_numbers(column: pl.Series) -> bool:
    cells = [cell for cell in column if cell and cell.lower() not in MISSING]
    return bool(cells) and all(_is_number(cell) for cell in cells)


def _may_be_names(first: list[str], numbers: list[str], body: pl.DataFrame) -> bool:
    """Whether numbers such as 0, 1, 2 or 2019, 2020 stand above numbers of another kind."""
    if len(numbers) < 2 or not all(cell.isdigit() for cell in numbers):
        return False
    steps = {int(right) - int(left) for left, right in pairwise(numbers)}
    counts = len(steps) == 1 and steps != {0} and (len(numbers) > 2 or steps == {1})
    cells = [cell for row in body.head(1000).rows() for cell in row if cell and _is_number(cell)]
    return counts and any(not cell.lstrip("+-").isdigit() for cell in cells)


def _check_names(path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DataError.repeated_column(path, name)


def _counts_rows(column: pl.Series) -> bool:
    """Whether a column holds 0, 1, 2, ... or 1, 2, 3, ..., as an index that was written along."""
    cells = column.to_list()
    return len(cells) > 1 and any(
        cells == [str(start + row) for row in range(len(cells))] for start in (0, 1)
    )
