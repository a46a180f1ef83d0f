"""The options that say how a table of examples is read, shared by several subcommands.

They have the same names in problem.toml, under [table]. A compiled file remembers them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli.options import in_panel, in_users_words, option_name, options_of, with_options
from icgd.environment import warn
from icgd.errors import DataError, SettingError, UnknownNameError, quoted
from icgd.problems.settings import flag, is_row, set_fields
from icgd.problems.tables import MISSING, READERS, Codes, Reading, Table, read_table

REFUSE, DROP, FILLS = "refuse", "drop", ("mean", "median")
CHOICES = (REFUSE, DROP, *FILLS)
"""What may be done about missing values."""

_table = in_panel("The table")
Data = Annotated[
    Path,
    typer.Argument(help="Inputs and labels: CSV (also .gz), Parquet or Arrow.", metavar="DATA"),
]
Names = list[str] | None


@dataclass(frozen=True)
class Source:
    """A table of examples, and how it is read.

    The fields are the options of the commands and the keys of [table]. The last two are found in
    the table that was compiled for, and remembered by the compiled file: what texts and dates
    become, and the order of the inputs.
    """

    data: Data
    target: Annotated[
        Names,
        _table(
            "The label columns, joined by commas. Default: the last one.", "--target", "--label"
        ),
    ] = None
    ignore: Annotated[
        Names, _table("Columns that are neither inputs nor labels, joined by commas.", "--ignore")
    ] = None
    encode: Annotated[
        bool | None,
        _table("Turn texts (a column of 0 and 1 for each category) and dates (days) into numbers."),
    ] = None
    missing: Annotated[
        str | None,
        _table(
            f"What to do about missing values: {', '.join(CHOICES)}. Default: refuse. In CSV files "
            f"they are empty cells, {', '.join(MISSING[1:])}, in small or capital letters."
        ),
    ] = None
    standardize: Annotated[
        bool | None,
        _table("Scale inputs, and labels that are measurements, to mean 0 and deviation 1."),
    ] = None
    header: Annotated[
        bool | None,
        _table("Whether the first line of a CSV file has column names. Default: detected."),
    ] = None
    delimiter: Annotated[
        str | None,
        _table(
            "What separates the cells of a CSV file: comma, semicolon, tab, space or bar. Default: "
            "detected."
        ),
    ] = None
    decimal: Annotated[
        str | None, _table("Decimal mark of a CSV file: point or comma. Default: detected.")
    ] = None
    codes: Codes | None = None
    inputs: Names = None

    def __post_init__(self) -> None:
        for name in ("target", "ignore", "inputs"):
            value = getattr(self, name) or ()
            names = names_in([value]) if isinstance(value, str) else value
            if not (is_row(names) and all(isinstance(column, str) for column in names)):
                raise SettingError(
                    f'{name} must be a list of column names, such as ["a", "b"], got '
                    f"{quoted(value)}."
                )
            set_fields(self, **{name: tuple(names)})
        for name in ("encode", "standardize", "header"):
            if (value := getattr(self, name)) is not None:
                flag(name, value)
        if self.missing not in (None, *CHOICES):
            raise SettingError(
                f"missing must be one of {', '.join(CHOICES)}, got {quoted(self.missing)}."
            )
        for name in self.ignore or ():
            if name in (self.target or ()):
                raise DataError(
                    f"Column {quoted(name)} is both a label and ignored. Take it out of target or "
                    "out of ignore."
                )
        self.reading  # noqa: B018 - it checks delimiter and decimal mark

    @property
    def targets(self) -> tuple[str, ...]:
        """The label columns; none if they are the last ones."""
        return tuple(self.target or ())

    @property
    def reading(self) -> Reading:
        """What is known of a CSV file."""
        return Reading(self.delimiter, self.decimal, self.header)

    def opened(self) -> Table:
        """Read the table, without the columns that are ignored."""
        return read_table(self.data, self.reading).without(self.ignore or ())

    def encoded(self, table: Table, targets: Iterable[str]) -> tuple[Table, Codes]:
        """Return the table with inputs as numbers, if texts are encoded, and their codes."""
        if not self.encode:
            return table, {}
        columns = [name for name in table.names if name not in targets]
        codes = table.codes(columns) if self.codes is None else self.codes
        return table.encoded(codes), codes


def is_table(path: Path) -> bool:
    """Return whether the name of a file is that of a table, where another file is expected."""
    return path.suffix.lower() in (".csv", ".gz", *READERS)


TABLE_OPTIONS = options_of(Source)[1:-2]
"""The options beside the table itself, without what only a compiled file knows."""


def names_in(texts: Iterable[str]) -> list[str]:
    """Return the names in texts such as `a,b`; a name with a comma stands in quotes."""
    return [name.strip() for row in csv.reader(texts) for name in row if name.strip()]


def described_source(
    path: Path, options: Mapping[str, Any], file: str | None, given: Iterable[str] = ()
) -> Source:
    """Return the table that the options of a file describe; those of `given` are the shell's."""
    with in_users_words(file, {f"table.{name}": name for name in given}, {"table": options}):
        known = [option.name for option in options_of(Source)[1:]]
        for name in options:
            if name not in known:
                raise UnknownNameError.of(
                    "key", name, known=("data", *known[:-2]), where=" in [table]"
                )
        return Source(path, **options)


@dataclass(frozen=True)
class GivenTable:
    """A table of examples, and the options that a command was given for it."""

    path: Path
    options: Mapping[str, Any]

    def source(self, remembered: Mapping[str, Any] | None, file: Path) -> Source:
        """Return the table as the compiled file says, but for the options that were given."""
        before = dict(remembered or {})
        for name, value in self.options.items():
            if name in before and before[name] != value:
                warn(
                    UserWarning(
                        f"{file} was compiled with {_text(name, before[name])}; "
                        f"{_text(name, value)} replaces it here. Bounds and widths stay as they "
                        "were compiled."
                    )
                )
        if self.options.get("target") not in (None, before.get("target")):
            before.pop("inputs", None)  # another label leaves other inputs
        return described_source(self.path, {**before, **self.options}, str(file), self.options)


def _text(name: str, value: Any) -> str:
    """Return an option as it is written in the shell."""
    if isinstance(value, bool):
        return option_name(name if value else f"no-{name}")
    return f"{option_name(name)} {','.join(value) if isinstance(value, list) else value}"


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table options that the shell gave."""
    given = {
        name: names_in(value) if isinstance(value, list) else value
        for name, value in options.items()
    }
    return {name: value for name, value in given.items() if value not in (None, [])}


def takes_table(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a table in place of its parameter `table`.

    If that has a default, the table may be left out.
    """
    own = next(option for option in options_of(command) if option.name == "table")
    data = options_of(Source)[0]
    is_optional = own.default is not Parameter.empty

    def make(data: Path | None, **options: Any) -> GivenTable | None:
        given = given_options(options)
        if data is None and given:
            name = option_name(next(iter(given)))
            raise SettingError(f"{name} has no effect without DATA; give both or neither.")
        return None if data is None else GivenTable(data, given)

    first = data.replace(default=None) if is_optional else data
    return with_options(command, "table", (first, *TABLE_OPTIONS), make)
