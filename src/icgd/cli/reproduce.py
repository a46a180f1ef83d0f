"""`icgd reproduce`: the figures of the papers, from training to picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icgd.cli import show
from icgd.cli.options import AsJson
from icgd.cli.progress import progress
from icgd.problems.settings import count
from icgd.reproductions.registry import REPRODUCTIONS, reproduction_named
from icgd.reproductions.reproduction import PRESETS
from icgd.reproductions.results import Reproduced
from icgd.reproductions.results import reproduce as run_reproduction


def reproduce(
    figures: Annotated[
        list[str] | None, typer.Argument(help="Names of figures, such as cheng-fig1.")
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    preset: Annotated[
        str, typer.Option(help=f"{', '.join(PRESETS)}: seconds, minutes, or the paper's sizes.")
    ] = "laptop",
    out: Annotated[Path, typer.Option(help="Folder for numbers and pictures.")] = Path("results"),
    seed: Annotated[int, typer.Option(help="First seed of the data and of the weights.")] = 0,
    workers: Annotated[int, typer.Option(help="Models that are trained at the same time.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Train the models of a published figure; write its numbers (JSON, CSV) and its picture.

    An interrupted run goes on where it stopped.

    Example: icgd reproduce cheng-fig3 --preset smoke --out results
    """
    if list_all or not figures:
        _print_list(as_json=as_json)
        return
    count("seed", seed, least=0)
    chosen = [reproduction_named(name) for name in figures]
    for reproduction in chosen:
        with progress(reproduction.name) as on_progress:
            done = run_reproduction(
                reproduction, preset, out=out, seed=seed, n_workers=workers, on_progress=on_progress
            )
        _print(done, as_json=as_json)


def _print_list(*, as_json: bool) -> None:
    names = ("figure", "where", "what is plotted", "laptop preset")
    rows = [
        (item.name, item.place, item.shows, item.laptop_time) for item in REPRODUCTIONS.values()
    ]
    if as_json:
        show.print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        show.print_columns("Figures that can be reproduced", names, rows)


def _print(done: Reproduced, *, as_json: bool) -> None:
    if as_json:
        show.print_json(done.numbers)
        return
    title = f"{done.numbers['figure']}: {done.numbers['place']}"
    show.print_columns(title, done.summary.names, done.summary.rows)
    typer.echo(f"Saved {', '.join(done.files)} in {done.folder}")
