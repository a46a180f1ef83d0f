"""`icgd train`: train a transformer on tasks of a law, of a table or of a function."""

from __future__ import annotations

from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli import show
from icgd.cli.exit_codes import INTERRUPTED
from icgd.cli.options import AsJson
from icgd.cli.progress import training_progress
from icgd.cli.writing import write_file
from icgd.errors import FileError, InterruptedTrainingError
from icgd_papers.cli.own_code import explained_errors
from icgd_papers.training.config import KEYS, Config, Key, read_config
from icgd_papers.training.run_config import Trained, train_config

PANELS = {"": "The run", "data": "The tasks", "model": "The model", "training": "Its training"}


def train(config: Path | None, init: Path | None, as_json: bool, **options: Any) -> None:
    """Train a transformer to learn in context, or resume a training.

    Every key of the config file is an option too, and options replace what the file says. The
    folder of the run gets checkpoints, log.csv, log.json and config.toml with every default. Ctrl-C
    saves the last whole step; the same command resumes there.

    Example: icgd train --labels exp --kernels exp --n-steps 300 --folder run
    """
    settings = read_config(config, options)
    if init is None:
        _print(_trained(settings), as_json=as_json)
        return
    if init.exists():
        raise FileError(f"Cannot write {init}: it exists already.")
    write_file(init, settings.text(init.parent).encode())
    typer.echo(f"Saved {init}; train with: icgd train {init}")


def _option(key: Key) -> Parameter:
    """Return the option of a key; its default is the file's value, or else the key's own."""
    kind = str if key.is_list else key.kind
    name = key.name.replace("_", "-")
    names = f"--{name}/--no-{name}" if kind is bool else f"--{name}"
    text = key.text
    if key.default not in (None, ()):
        shown = ",".join(map(str, key.default)) if key.is_list else str(key.default)
        if kind is bool:
            shown = "yes" if key.default else "no"
        text += f" Default: {shown}."
    option = typer.Option(names, help=text, rich_help_panel=PANELS[key.section])
    return _parameter(key.name, kind | None, option)


def _parameter(name: str, kind: Any, option: Any, default: Any = None) -> Parameter:
    annotation = Annotated[kind, option]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


INIT = "Write a config with every key to this file, and stop."
train.__signature__ = Signature(  # type: ignore[attr-defined]
    [
        _parameter("config", Path | None, typer.Argument(help="TOML file; see --init.")),
        *map(_option, KEYS.values()),
        _parameter("init", Path | None, typer.Option("--init", help=INIT)),
        Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=AsJson),
    ]
)


def _trained(config: Config) -> Trained:
    """Train with a progress bar. After Ctrl-C, say what was saved, and end the program."""
    try:
        with training_progress("training") as bar, explained_errors(config):
            return train_config(config, on_step=bar.update)
    except InterruptedTrainingError as interruption:
        typer.echo(f"icgd: {interruption}", err=True)
    except KeyboardInterrupt:
        typer.echo(
            "icgd: Training was interrupted while no step was under way. Whatever "
            f"{config.folder} holds is complete; run the same training again to resume.",
            err=True,
        )
    raise typer.Exit(INTERRUPTED)


def _print(trained: Trained, *, as_json: bool) -> None:
    first, last = trained.log.rows[0], trained.log.rows[-1]
    if as_json:
        show.print_json({"folder": str(trained.folder), "first": first, "last": last})
        return
    rows = [(name, f"{first[name]:.6g}", f"{last[name]:.6g}") for name in last]
    show.print_columns("Training", ("", "first row", "last row"), rows)
    typer.echo(f"Saved {trained.folder}; draw its log with: icgd plot {trained.folder}")
