"""Arguments and options that several subcommands take."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.backends.registry import AUTO, BACKENDS
from icgd.problems.data import DTYPES

CompiledFile = Annotated[Path, typer.Argument(help="File that `icgd compile` wrote.")]
QueryFile = Annotated[
    Path | None,
    typer.Option("--queries", help="CSV of inputs to predict labels for.", metavar="Q.csv"),
]
Seed = Annotated[int, typer.Option(help="The seed that initial weights are drawn from.")]
BackendName = Annotated[
    str, typer.Option("--backend", help=f"How to run it: {', '.join(BACKENDS)}.")
]
ClaimBackend = Annotated[
    str,
    typer.Option(
        "--backend",
        help=f"What to check: {', '.join(BACKENDS)} or {AUTO}, which is literal if that is quick.",
    ),
]
DtypeName = Annotated[str, typer.Option("--dtype", help=f"{' or '.join(DTYPES)}.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]

PictureFile = Annotated[
    Path | None,
    typer.Option("--plot", help="SVG or PNG file to draw it to.", metavar="PICTURE"),
]


@cache
def options_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The parameters of a function, always the same objects."""
    return tuple(signature(function, eval_str=True).parameters.values())


def output(text: str, metavar: str | None = None) -> Any:
    """The option for what is written, which has the same names everywhere."""
    return typer.Option("--output", "-o", "--out", help=text, metavar=metavar)


def in_panel(title: str) -> Callable[..., Any]:
    """A function that makes an option of this panel from its help, its name and its metavar."""

    def option(text: str, *names: str, metavar: str | None = None) -> Any:
        return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=title)

    return option
