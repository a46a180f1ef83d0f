"""`icgd reproduce`: the figures of the papers, from training to picture."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli import show
from icgd.cli.exit_codes import INTERRUPTED
from icgd.cli.options import AsJson, output
from icgd.cli.progress import training_progress
from icgd.errors import InterruptedStudiesError
from icgd_papers.figure import PRESETS
from icgd_papers.registry import FIGURES, figure_named
from icgd_papers.runner import Reproduced, Reproduction, core_seconds, core_time
from icgd_papers.runner import reproduce as run_jobs


def reproduce(
    figures: Annotated[
        list[str] | None, typer.Argument(help="Names of figures, such as cheng-fig1.")
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="List the figures, and what they take.")
    ] = False,
    preset: Annotated[
        str, typer.Option(help=f"{', '.join(PRESETS)}: seconds, minutes, or the paper's sizes.")
    ] = "laptop",
    out: Annotated[Path, output("Folder for numbers and pictures.")] = Path("results"),
    seed: Annotated[int, typer.Option(help="First seed of the data and of the weights.")] = 0,
    workers: Annotated[int, typer.Option(help="Jobs that run at the same time.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")] = "cpu",
    only: Annotated[
        list[str] | None,
        typer.Option(help="A panel, such as panel-b; may be given several times."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster that does the jobs, such as auto."),
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Print the remaining work, and stop.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train the models of a published figure; write its numbers (JSON, CSV) and its picture.

    An interrupted run resumes where it stopped. The paper preset first says what it takes.

    Example: icgd reproduce cheng-fig3 --preset smoke --output results
    """
    if list_all or not figures:
        _print_list(as_json=as_json)
        return
    panels = tuple(sorted(set(only or ())))
    reproductions = [
        Reproduction(figure_named(name), preset, out, seed, workers, device, panels, ray)
        for name in figures
    ]
    for one in reproductions:
        if estimate or preset == "paper":
            typer.echo(f"{one.estimate}.", err=True)
        if not estimate:
            _print(reproduced(one), as_json=as_json)


def reproduced(reproduction: Reproduction[Any]) -> Reproduced:
    """Run the jobs under a progress bar; on Ctrl-C, say where finished work is, and exit."""
    threading.excepthook = _ignore_lost_workers
    try:
        with training_progress(reproduction.figure.name) as bar:
            return run_jobs(
                reproduction,
                lambda now: bar.update(now.done, now.total, now.loss, now.share),
            )
    except InterruptedStudiesError as interruption:
        typer.echo(f"icgd: {interruption}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _ignore_lost_workers(failure: threading.ExceptHookArgs) -> None:
    """Ignore the failure of joblib's thread when Ctrl-C takes its workers away."""
    if failure.thread is None or failure.thread.name != "ExecutorManagerThread":
        threading.__excepthook__(failure)


def _print_list(*, as_json: bool) -> None:
    names = ("figure", "where", "what is plotted", "laptop preset", "paper preset")
    rows = [
        (figure.name, figure.place, figure.shows, *(_takes(figure.name, x) for x in PRESETS[1:]))
        for figure in FIGURES.values()
    ]
    if as_json:
        show.print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        show.print_columns("Figures that can be reproduced", names, rows)


def _takes(name: str, preset: str) -> str:
    """Describe the cost of a preset: its jobs, and their measured or estimated core time."""
    n_jobs = len(FIGURES[name].settings(preset, 0))
    seconds = core_seconds(name).get(preset)
    jobs = f"{n_jobs:,} job{'s' * (n_jobs != 1)}"
    return jobs if seconds is None else f"{jobs}, {core_time(seconds)}"


def _print(done: Reproduced, *, as_json: bool) -> None:
    if as_json:
        show.print_json(done.table)
        return
    title = f"{done.table['figure']}: {done.table['place']}"
    show.print_columns(
        title, done.summary.columns, [tuple(map(str, row)) for row in done.summary.rows()]
    )
    typer.echo(f"Saved {', '.join(done.files)} in {done.folder}")
