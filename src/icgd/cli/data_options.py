"""The options that say how a table of examples is read, shared by several subcommands.

They have the same names in problem.toml, under [table]. A compiled file remembers them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli.examples import CHOICES, Examples, Source, read_examples
from icgd.cli.options import in_panel, option_name, options_of, with_options
from icgd.compiled import Compiled
from icgd.environment import warn
from icgd.errors import SettingError, UnknownNameError, quoted
from icgd.pipeline import load
from icgd.problems.settings import described, flag
from icgd.problems.tables import Reading

_table = in_panel("The table")

Data = Annotated[
    Path,
    typer.Argument(help="Inputs and labels: CSV (also .gz), Parquet or Arrow.", metavar="DATA"),
]
Names = list[str] | None


def source_from(
    data: Data,
    target: Annotated[
        Names, _table("The label columns: a,b. Default: the last one.", "--target", "--label")
    ] = None,
    ignore: Annotated[
        Names, _table("Columns that are neither inputs nor labels, such as names: a,b.", "--ignore")
    ] = None,
    encode: Annotated[
        bool | None,
        _table("Make numbers of texts (a column for each category) and of dates (days)."),
    ] = None,
    missing: Annotated[
        str | None,
        _table(f"What to do about missing values: {', '.join(CHOICES)}. Default: refuse."),
    ] = None,
    standardize: Annotated[
        bool | None,
        _table("Bring inputs, and labels that are measured, to mean 0 and deviation 1."),
    ] = None,
    header: Annotated[
        bool | None,
        _table("Whether the first line of a CSV file has names. Default: as it looks."),
    ] = None,
    delimiter: Annotated[
        str | None,
        _table("Between cells of a CSV file: comma, semicolon, tab. Default: as it looks."),
    ] = None,
    decimal: Annotated[
        str | None, _table("Decimal mark of a CSV file: point or comma. Default: as it looks.")
    ] = None,
    codes: Any = None,
    inputs: Any = None,
) -> Source:
    """Return the table that the options describe; `codes` and `inputs` are those of the table that
    was compiled for.
    """
    return Source(
        data,
        tuple(target or ()),
        Reading(delimiter, decimal, None if header is None else flag("header", header)),
        "refuse" if missing is None else missing,
        standardize is not None and flag("standardize", standardize),
        tuple(ignore or ()),
        encode is not None and flag("encode", encode),
        codes,
        tuple(inputs or ()),
    )


REMEMBERED = ("codes", "inputs")
"""What a compiled file knows of its table beside options: categories and the order of inputs."""

TABLE_OPTIONS = options_of(source_from)[1 : -len(REMEMBERED)]
"""The options beside the table itself."""

LISTS = ("target", "ignore")
"""Those of several names."""


def names_in(texts: Sequence[str]) -> list[str]:
    """Return the names in texts such as `a,b`; a name with a comma stands in quotes."""
    return [name.strip() for row in csv.reader(texts) for name in row if name.strip()]


def with_lists(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a file; in place of a list of names it may have one text."""
    lists = dict(options)
    for name in LISTS:
        value = options.get(name, [])
        if isinstance(value, str):
            lists[name] = names_in([value])
        elif not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise SettingError(
                f'{name} must be a list of column names, such as ["a", "b"], got {quoted(value)}.'
            )
    return lists


def described_source(path: Path, options: Mapping[str, Any], where: str) -> Source:
    """Return the table of a file's options; raise `UnknownNameError` for an unknown one."""
    known = [option.name for option in TABLE_OPTIONS]
    for name in options:
        if name not in (*known, *REMEMBERED):
            raise UnknownNameError.of("key", name, known=("data", *known), where=f" in {where}")
    with described(f"table in {where}"):
        return source_from(path, **with_lists(options))


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
        return described_source(self.path, {**before, **self.options}, str(file))

    def opened(self, file: Path) -> tuple[Compiled, Examples]:
        """Return the compiled run in a file, and the examples as it reads them."""
        compiled = load(file)
        return compiled, read_examples(self.source(compiled.table, file), compiled.problem)


def _text(name: str, value: Any) -> str:
    """Return an option as it is written in the shell."""
    if isinstance(value, bool):
        return option_name(name if value else f"no-{name}")
    return f"{option_name(name)} {','.join(value) if isinstance(value, list) else value}"


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table options that the shell gave."""
    given = {
        name: names_in(value or ()) if name in LISTS else value for name, value in options.items()
    }
    return {name: value for name, value in given.items() if value not in (None, [])}


def takes_table(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a table in place of its parameter `table`.

    If that has a default, the table may be left out.
    """
    own = next(option for option in options_of(command) if option.name == "table")
    data = options_of(source_from)[0]
    is_optional = own.default is not Parameter.empty

    def make(data: Path | None, **options: Any) -> GivenTable | None:
        given = given_options(options)
        if data is None and given:
            name = option_name(next(iter(given)))
            raise SettingError(f"{name} has no effect without DATA; give both or neither.")
        return None if data is None else GivenTable(data, given)

    first = data.replace(default=None) if is_optional else data
    return with_options(command, "table", (first, *TABLE_OPTIONS), make)
