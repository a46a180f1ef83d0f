"""`icgd reproduce`: the figures of the papers, from training to picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli import show
from icgd.cli.exit_codes import INTERRUPTED
from icgd.cli.options import AsJson, output
from icgd.cli.progress import training_progress
from icgd.errors import InterruptedStudiesError
from icgd_papers.estimates import estimate
from icgd_papers.registry import PAPER_HOURS, REPRODUCTIONS, reproduction_named
from icgd_papers.reproduction import PRESETS, AbstractReproduction
from icgd_papers.results import Order, Reproduced, fulfil


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
    workers: Annotated[int, typer.Option(help="Models that are trained at the same time.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")] = "cpu",
    only: Annotated[
        list[str] | None,
        typer.Option(help="A panel, such as panel-b; may be given several times."),
    ] = None,
    estimated: Annotated[
        bool, typer.Option("--estimate", help="Say what it would take, and do nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train the models of a published figure; write its numbers (JSON, CSV) and its picture.

    An interrupted run goes on where it stopped. The paper preset first says what it takes.

    Example: icgd reproduce cheng-fig3 --preset smoke --output results
    """
    if list_all or not figures:
        _print_list(as_json=as_json)
        return
    chosen = [reproduction_named(name) for name in figures]
    panels = tuple(only or ())
    orders = [Order(each, preset, out, seed, workers, device, panels) for each in chosen]
    for order in orders:
        if estimated or preset == "paper":
            _print_estimate(order)
        if not estimated:
            _print(reproduced(order), as_json=as_json)


def reproduced(order: Order[Any, Any]) -> Reproduced:
    """Carry out an order under a bar. Ctrl-C says what is kept, and ends the program."""
    try:
        with training_progress(order.reproduction.name) as bar:
            return fulfil(order, lambda now: bar.update(now.done, now.total, now.loss, now.share))
    except InterruptedStudiesError as interruption:
        typer.echo(f"icgd: {interruption}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _print_estimate(order: Order[Any, Any]) -> None:
    """Say what is still to be done, on stderr, because standard output is for results."""
    left = [job.study for job in order.jobs if not job.is_finished]
    text = f"{order.reproduction.name}, {order.name}: {estimate(left, order.device).text}"
    typer.echo(f"{text}.", err=True)


def _print_list(*, as_json: bool) -> None:
    names = ("figure", "where", "what is plotted", "laptop preset", "paper preset")
    rows = [
        (item.name, item.place, item.shows, item.laptop_time, _paper(item))
        for item in REPRODUCTIONS.values()
    ]
    if as_json:
        show.print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        show.print_columns("Figures that can be reproduced", names, rows)


def _paper(item: AbstractReproduction[Any, Any]) -> str:
    """What the paper preset takes."""
    studies = f"{len(item.studies('paper', 0)):,} studies"
    known = PAPER_HOURS.get(item.name)
    return studies if known is None else f"{studies}, {known:,} core-hours"


def _print(done: Reproduced, *, as_json: bool) -> None:
    if as_json:
        show.print_json(done.numbers)
        return
    title = f"{done.numbers['figure']}: {done.numbers['place']}"
    show.print_columns(title, done.summary.names, done.summary.rows)
    typer.echo(f"Saved {', '.join(done.files)} in {done.folder}")
