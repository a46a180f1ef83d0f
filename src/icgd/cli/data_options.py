"""The options that say how a table of examples is read, shared by several subcommands."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli.examples import CHOICES, Source
from icgd.cli.options import in_panel, options_of
from icgd.errors import SettingError
from icgd.problems.tables import Reading

_table = in_panel("The table")

Data = Annotated[
    Path,
    typer.Argument(help="Inputs and labels: CSV (also .gz), Parquet or Arrow.", metavar="DATA"),
]
Targets = Annotated[
    list[str] | None,
    _table("A label column, once for each output. Default: the last ones.", "--target", "--label"),
]
Header = Annotated[
    bool | None, _table("Whether the first line of a CSV file has names. Default: as it looks.")
]
Delimiter = Annotated[
    str | None, _table("Between cells of a CSV file: comma, semicolon, tab. Default: as it looks.")
]
Decimal = Annotated[
    str | None, _table("Decimal mark of a CSV file: point or comma. Default: as it looks.")
]
Missing = Annotated[str, _table(f"What to do about missing values: {', '.join(CHOICES)}.")]
Standardize = Annotated[
    bool,
    _table(
        "Bring inputs, and labels that are measured, to mean 0 and deviation 1.", "--standardize"
    ),
]


Ignored = Annotated[
    list[str] | None,
    _table(
        "A column that is neither input nor label, such as a date. May be repeated.", "--ignore"
    ),
]


def source_from(
    data: Data,
    target: Targets = None,
    header: Header = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    missing: Missing = "refuse",
    standardize: Standardize = False,
    ignore: Ignored = None,
) -> Source:
    """The table that the options describe."""
    return Source(
        data,
        tuple(target or ()),
        Reading(delimiter, decimal, header),
        missing,
        standardize,
        tuple(ignore or ()),
    )


def takes_table(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a table in place of its parameter `source`.

    If that has a default, the table may be left out.
    """
    own = list(options_of(command))
    place = [option.name for option in own].index("source")
    is_optional = own[place].default is not Parameter.empty
    options = list(options_of(source_from))
    if is_optional:
        options[0] = options[0].replace(default=None)

    @wraps(command)
    def with_options(**given: Any) -> None:
        table = {option.name: given.pop(option.name) for option in options}
        if is_optional and table["data"] is None:
            for option in options[1:]:
                if table[option.name] != option.default:
                    name = option.name.replace("_", "-")
                    raise SettingError(
                        f"--{name} has no effect without DATA; give both or neither."
                    )
            command(**given)
        else:
            command(source=source_from(**table), **given)

    parameters = [*own[:place], *options, *own[place + 1 :]]
    keyword_only = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters]
    with_options.__signature__ = Signature(keyword_only)  # type: ignore[attr-defined]
    return with_options
