"""Arguments and options that several subcommands take."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from inspect import Parameter, Signature, signature
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
    """Return the parameters of a function, always the same objects."""
    return tuple(signature(function, eval_str=True).parameters.values())


def output(text: str, metavar: str | None = None) -> Any:
    """Return the option for what is written, which has the same names everywhere."""
    return typer.Option("--output", "-o", "--out", help=text, metavar=metavar)


def in_panel(title: str) -> Callable[..., Any]:
    """Return a function that makes an option of this panel from help, name and metavar."""

    def option(text: str, *names: str, metavar: str | None = None) -> Any:
        return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=title)

    return option


def option_name(name: str) -> str:
    """A parameter as the shell has it, such as --x-bound."""
    return f"--{name.replace('_', '-')}"


def with_options(
    command: Callable[..., None],
    name: str,
    options: tuple[Parameter, ...],
    make: Callable[..., Any],
) -> Callable[..., None]:
    """Return the command with these options in place of its parameter `name`, which is made of
    them.

    typer reads them from the signature, which joins both.
    """
    own = list(options_of(command))
    place = [option.name for option in own].index(name)
    offered = {option.name for option in own}
    options = tuple(option for option in options if option.name not in offered)

    @wraps(command)
    def merged(**given: Any) -> None:
        chosen = {option.name: given.pop(option.name) for option in options}
        command(**{name: make(**chosen)}, **given)

    parameters = [*own[:place], *options, *own[place + 1 :]]
    keyword_only = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters]
    merged.__signature__ = Signature(keyword_only)  # type: ignore[attr-defined]
    return merged
