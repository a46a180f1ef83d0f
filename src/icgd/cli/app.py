"""The command `icgd`: joins the subcommands, and prints errors of icgd in one line.

A subcommand is imported when it is called, so that `icgd --help` needs no torch.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from icgd import __version__
from icgd.cli.exit_codes import INTERRUPTED, WRONG_INPUT
from icgd.errors import FileError, IcgdError, UnknownNameError, cut

COMMANDS = {
    "demo": "Train a network on real cars in a transformer's forward pass, and check it.",
    "example": "Write a table of cars to try the other commands on.",
    "init": "Write a problem.toml for a table, with the label, bounds and scaling found in it.",
    "compile": "Compile a training run into a transformer, and save it.",
    "run": "Train on a table in one forward pass, and predict.",
    "verify": "Compare every step with real gradient descent, and with what was proved.",
    "certify": "Run on a table, and write a certificate that icgd-check accepts without icgd.",
    "guarantee": "Check the result of a linear model's descent against Theorems 3.1 to 3.3 of cot.",
    "draw": "Draw the layers of a transformer, and what each reads and writes in the residual "
    "stream.",
    "size": "Print how large the transformer would be, without building it.",
    "compare": "Run one problem through every construction that accepts it, and compare them.",
    "theorems": "Test the statements of the papers, and print what was measured beside what is "
    "allowed.",
    "resources": "Count the parameter matrices of a transformer that learns a function through a "
    "network.",
    "train": "Train a transformer to learn in context, or resume a training.",
    "plot": "Draw the losses of a training, and whatever else its log has.",
    "reproduce": "Train the models of a published figure; write its numbers (JSON, CSV) and its "
    "picture.",
}
"""The subcommands in the order of the help, with the first sentence of each."""

PAPERS = ("theorems", "resources", "train", "plot", "reproduce")
"""The subcommands of `icgd_papers`, which imports icgd and is not imported by it."""

FIRST_STEPS = """\
icgd compiles a training run into the weights of a transformer, and proves how close it comes.

  icgd demo                      a training run on real data, its proof and its picture, in seconds

  icgd example cars.csv          write a table to begin with
  icgd init cars.csv             write problem.toml, with label, bounds and scaling of the table
  icgd compile problem.toml -o run.safetensors
                                 write the transformer whose forward pass is this training run
  icgd run run.safetensors cars.csv --queries cars.csv
                                 train on the table in a forward pass, and predict
  icgd verify run.safetensors cars.csv
                                 compare with exact gradient descent, and prove the distance

icgd --help lists all commands, and icgd COMMAND --help has an example of each.
"""


class LateCommand(TyperCommand):
    """A subcommand that is imported when it is called or asked for help."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Return the context of the real subcommand, which runs in place of this one."""
        package = "icgd_papers.cli" if self.name in PAPERS else "icgd.cli"
        function = getattr(import_module(f"{package}.{self.name}"), str(self.name))
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(self.name)(function)
        return get_command(alone).make_context(*arguments, **options)


class LateCommands(TyperGroup):
    """All subcommands, none of them imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> LateCommand:
        if cmd_name not in COMMANDS:
            raise UnknownNameError.of("command", cmd_name, known=list(COMMANDS))
        return LateCommand(cmd_name, help=COMMANDS[cmd_name], rich_markup_mode="rich")


app = typer.Typer(
    cls=LateCommands,
    help="Compile a training run into the weights of a transformer, and prove how close it comes.",
    epilog="Start with: icgd demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"icgd {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options of `icgd` itself."""


SPELLINGS = {
    r"\bDomain\((\w+)=\.\.\.\)": r"\1 = ... under [domain] in problem.toml",
    r"\bbackend='(\w+)'": r"--backend \1",
    r"\blink='(\w+)'": r"link = '\1' under [target] in problem.toml",
    r"\bicgd\.compile\(problem, .*?, (\w+)=\.\.\.\)": r"\1 = ... under [settings] in problem.toml",
    r"^n_(tokens|examples) must": r"--\1 must",
    r"^stop_below\b": "--stop-below",
}
"""How the advice of the library, which speaks Python, is spelled on the command line."""


def _print_line(kind: str, message: object) -> None:
    """Print an error or a warning on standard error, in one line."""
    line = " ".join(str(message).split())
    for python, shell in SPELLINGS.items():
        line = re.sub(python, shell, line)
    with suppress(OSError):  # standard error may be full
        typer.echo(f"icgd: {kind}: {line.encode('utf-8', 'backslashreplace').decode()}", err=True)


def _show_warning(message: Warning | str, *_: object) -> None:
    """Print a warning without its place in the code."""
    _print_line("warning", message)


def _open_streams() -> None:
    """Replace a stream that the shell closed (`icgd ... >&-`) by one that drops its text."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def main() -> None:
    """Run the command line."""
    _open_streams()
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    if len(sys.argv) == 1:
        typer.echo(FIRST_STEPS, nl=False)
        raise SystemExit(0)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, while an error can still be reported
    except IcgdError as error:
        raise _refusal(error) from None
    except OSError as problem:  # such as a full disk or an impossible file name
        place = problem.filename or "standard output"
        refused = FileError(f"Cannot use {cut(str(place))}: {problem.strerror or problem}.")
        raise _refusal(refused) from None
    except KeyboardInterrupt:  # before a command has begun
        raise SystemExit(INTERRUPTED) from None


def _refusal(error: IcgdError) -> SystemExit:
    """Print an error, and return the exception that ends the program."""
    _print_line("error", error)
    with suppress(OSError):
        sys.stdout.flush()
        return SystemExit(WRONG_INPUT)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the buffer cannot be written
    return SystemExit(WRONG_INPUT)


if __name__ == "__main__":
    main()
