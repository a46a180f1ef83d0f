"""`icgd train`: a transformer learnt on tasks of a law, of a table or of a function."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli import show
from icgd.cli.exit_codes import INTERRUPTED
from icgd.cli.options import AsJson, in_panel, options_of
from icgd.cli.progress import training_progress
from icgd.cli.writing import write_file
from icgd.errors import FileError, InterruptedTrainingError
from icgd_papers.cli.own_code import told_in_a_sentence
from icgd_papers.training.config import Config, read_config
from icgd_papers.training.config_keys import SECTIONS, Key
from icgd_papers.training.configured import Trained, train_config

PANELS = {"": "The run", "data": "The tasks", "model": "The model", "training": "Its training"}


def takes_config(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every key of a config, in place of its first parameter."""
    own = options_of(command)[1:]
    keys = [_option(section, key) for section, part in SECTIONS.items() for key in part.values()]
    file = Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=ConfigFile)

    @wraps(command)
    def with_options(**given: Any) -> None:
        path = given.pop("config")
        command(read_config(path, {key.name: given.pop(key.name) for key in keys}), **given)

    keyword_only = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own]
    with_options.__signature__ = Signature([file, *keys, *keyword_only])  # type: ignore[attr-defined]
    return with_options


ConfigFile = Annotated[Path | None, typer.Argument(help="TOML file; see --init.")]


def _option(section: str, key: Key) -> Parameter:
    """The option of a key; its default is the file's value, or else the key's own."""
    kind = str if key.is_list else key.kind
    name = key.name.replace("_", "-")
    names = f"--{name}/--no-{name}" if kind is bool else f"--{name}"
    text = key.help if key.default in (None, []) else f"{key.help} Default: {_shown(key.default)}."
    option = in_panel(PANELS[section])(text, names)
    how = Parameter.KEYWORD_ONLY
    return Parameter(key.name, how, default=None, annotation=Annotated[kind | None, option])


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return ",".join(map(str, default)) if isinstance(default, list) else str(default)


@takes_config
def train(
    config: Config,
    init: Annotated[
        Path | None,
        typer.Option("--init", help="Write a config with every key to this file, and stop."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a transformer to learn in context, or go on with a training.

    Every key of the config file is an option too, and options replace what the file says. The
    folder of the run gets checkpoints, log.csv, log.json and config.toml with every default. Ctrl-C
    saves the last whole step; the same command goes on from there.

    Example: icgd train --labels exp --kernels exp --n-steps 300 --folder run
    """
    if init is not None:
        if init.exists():
            raise FileError(f"Cannot write {init}: it exists already.")
        write_file(init, config.moved_to(init.parent).text().encode())
        typer.echo(f"Saved {init}; train with: icgd train {init}")
        return
    _print(_trained(config), as_json=as_json)


def _trained(config: Config) -> Trained:
    """Train under a bar. Ctrl-C says what is kept, and ends the program."""
    try:
        with training_progress("training") as bar, told_in_a_sentence(config):
            return train_config(config, on_step=bar.update)
    except InterruptedTrainingError as interruption:
        typer.echo(f"icgd: {interruption}", err=True)
    except KeyboardInterrupt:
        between = InterruptedTrainingError(
            f"Training was interrupted while no step was under way. Whatever {config.run_folder} "
            "holds is complete; run the same training again to continue."
        )
        typer.echo(f"icgd: {between}", err=True)
    raise typer.Exit(INTERRUPTED)


def _print(trained: Trained, *, as_json: bool) -> None:
    first, last = trained.log.rows[0], trained.log.rows[-1]
    if as_json:
        show.print_json({"folder": str(trained.folder), "first": first, "last": last})
        return
    rows = [(name, f"{first[name]:.6g}", f"{last[name]:.6g}") for name in last]
    show.print_columns("Training", ("", "first row", "last row"), rows)
    typer.echo(f"Saved {trained.folder}; draw its log with: icgd plot {trained.folder}")
