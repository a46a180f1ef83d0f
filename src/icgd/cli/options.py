"""Arguments and options that several subcommands take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.backends.registry import AUTO, BACKENDS
from icgd.errors import SettingError, UnknownNameError
from icgd.problems.data import DTYPES

CompiledFile = Annotated[Path, typer.Argument(help="File that `icgd compile` wrote.")]
QueryFile = Annotated[
    Path | None,
    typer.Option("--queries", help="Table of inputs to predict labels for.", metavar="Q.csv"),
]
Seed = Annotated[int, typer.Option(help="Seed of the initial weights.")]
BackendName = Annotated[
    str,
    typer.Option(
        "--backend", help=f"How to run it: {', '.join(BACKENDS)}. Only fused computes no heads."
    ),
]
ClaimBackend = Annotated[
    str,
    typer.Option(
        "--backend",
        help=f"What to check: {', '.join(BACKENDS)} or {AUTO} (literal if quick, else fused).",
    ),
]
DtypeName = Annotated[
    str, typer.Option("--dtype", help=f"Precision of the run: {' or '.join(DTYPES)}.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]

PictureFile = Annotated[
    Path | None,
    typer.Option(
        "--plot", help="SVG or PNG file to write a picture of the result to.", metavar="PICTURE"
    ),
]


@cache
def options_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Return the parameters of a function."""
    return tuple(signature(function, eval_str=True).parameters.values())


def output(text: str, metavar: str | None = None) -> Any:
    """Return the option that names the file to write, spelled the same in every command."""
    return typer.Option("--output", "-o", "--out", help=text, metavar=metavar)


def in_panel(title: str) -> Callable[..., Any]:
    """Return a function that makes an option of this panel from its help, names and metavar."""

    def option(text: str, *names: str, metavar: str | None = None) -> Any:
        return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=title)

    return option


def option_name(name: str) -> str:
    """Return a parameter as the shell has it, such as --x-bound."""
    return f"--{name.replace('_', '-')}"


@contextmanager
def in_users_words(
    file: str | None, options: Mapping[str, str], content: Mapping[str, Any]
) -> Iterator[None]:
    """Let an error about a setting name what the user wrote: an option, or a key of `file`.

    `options` are those that were given, by their keys in problem.toml: {"update.box": "box"}. The
    key that an error begins with is looked up in the `content` of the file.
    """
    try:
        yield
    except (SettingError, UnknownNameError) as error:
        text = re.sub(r"^n_(?=steps\b)", "", str(error))  # the key and the option are `steps`
        key = re.match(r"(?:Unknown (?:key ')?)?([\w.]*)", text)[1]  # type: ignore[index]
        keys = [key] + [
            f"{section}.{key}"
            for section, part in content.items()
            if isinstance(part, Mapping) and key in part
        ]
        found = next((key for key in keys if key in options), keys[-1])
        if found in options:
            name = option_name(options[found])
            text = name + text.removeprefix(key) if text.startswith(key) else f"{name}: {text}"
        elif file is not None:
            section, dot, _ = found.partition(".")
            in_section = f", [{section}]" if dot and not text.startswith("Unknown key") else ""
            text = text.removeprefix(f"{section}.").replace("True or False", "true or false")
            text = f"{file}{in_section}: {text}"
        raise type(error)(text) from None


def with_options(
    command: Callable[..., None],
    name: str,
    options: tuple[Parameter, ...],
    make: Callable[..., Any],
) -> Callable[..., None]:
    """Return the command with these options in place of its parameter `name`.

    `make` turns their values into that parameter. typer reads the joined signature.
    """
    of_command = list(options_of(command))
    names = [option.name for option in of_command]
    options = tuple(option for option in options if option.name not in names)
    place = names.index(name)

    @wraps(command)
    def merged(**given: Any) -> None:
        chosen = {option.name: given.pop(option.name) for option in options}
        command(**{name: make(**chosen)}, **given)

    parameters = [*of_command[:place], *options, *of_command[place + 1 :]]
    keyword_only = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in parameters]
    merged.__signature__ = Signature(keyword_only)  # type: ignore[attr-defined]
    return merged
