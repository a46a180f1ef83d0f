"""The command `icgd`: joins the subcommands, and turns errors of icgd into one line."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from icgd import __version__
from icgd.cli.certify import certify
from icgd.cli.compare import compare
from icgd.cli.compile import compile
from icgd.cli.demo import demo
from icgd.cli.draw import draw
from icgd.cli.guarantee import guarantee
from icgd.cli.options import INTERRUPTED
from icgd.cli.plot import plot
from icgd.cli.reproduce import reproduce
from icgd.cli.resources import resources
from icgd.cli.run import run
from icgd.cli.size import size
from icgd.cli.theorems import theorems
from icgd.cli.train import train
from icgd.cli.verify import verify
from icgd.errors import IcgdError

WRONG_INPUT = 2
"""Exit code for input that cannot be used, the same as for a wrong option."""

app = typer.Typer(
    help="Compile a training run into the weights of a transformer, and prove how close it comes.",
    epilog="Start with: icgd demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS = (
    demo,
    compile,
    run,
    verify,
    certify,
    guarantee,
    draw,
    size,
    compare,
    theorems,
    resources,
    train,
    plot,
    reproduce,
)
for each in COMMANDS:
    app.command()(each)


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


def _show_warning(message: Warning | str, *_: object) -> None:
    """Print a warning in one line, without its place in the code."""
    typer.echo(f"icgd: warning: {' '.join(str(message).split())}", err=True)


def main() -> None:
    """Run the command line."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        app()
    except IcgdError as error:
        typer.echo(f"icgd: error: {' '.join(str(error).split())}", err=True)
        raise SystemExit(WRONG_INPUT) from None
    except KeyboardInterrupt:  # before a command has begun
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
