"""`icgd compare`: one problem through every construction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icgd.backends.registry import AUTO, BACKENDS
from icgd.cli import show
from icgd.cli.comparison import SIZES, Comparison, Row, Settings, draw
from icgd.cli.comparison import compare as measure
from icgd.cli.options import AsJson, output
from icgd.cli.problem_file import COMPARED_STEPS, Description, takes_problem
from icgd.cli.progress import progress
from icgd.cli.writing import make_folder, write_file
from icgd.pictures import plotting


@takes_problem
def compare(
    described: Description,
    examples: Annotated[int, typer.Option(help="The number of examples.")] = 6,
    seed: Annotated[int, typer.Option(help="The seed of the data and initial weights.")] = 0,
    backend: Annotated[
        str, typer.Option(help=f"{', '.join(BACKENDS)} or {AUTO}: literal if that is quick.")
    ] = AUTO,
    out: Annotated[Path | None, output("Folder for a picture and the numbers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run one problem through every construction that accepts it, and compare them.

    Sizes, errors and times in a row come from one backend.

    Example: icgd compare --data train.csv --hidden 4,4
    """
    n_steps, problem = described.n_steps(COMPARED_STEPS), described.problem()
    if out:
        make_folder(out)
    with progress("compiling, running, timing"):
        result = measure(Settings(problem, n_steps, examples, seed, backend=backend))
    data = {**show.plain(result), "problem": result.settings.problem.to_data()}
    if out:
        write_file(out / "comparison.json", f"{show.json_text(data)}\n".encode())
        write_file(out / "comparison.png", plotting.png(draw(result)))
    if as_json:
        show.print_json(data)
    else:
        _print(result)


def _print(result: Comparison) -> None:
    _print_sizes(result)
    names = ("", "backend", "one step", "(b) this run", "(a) any data", "whole run")
    rows = [_error_cells(row) for row in result.rows]
    show.print_columns("Largest error of a trained value, and its bounds", names, rows)
    times = [_time_cells(row) for row in result.rows]
    title = "Processor time of a run; the transformer's weights are built first"
    show.print_columns(title, ("", "backend", "time", "times real training"), times)
    for row in result.rows:
        if row.fused_because:
            show.output.print(f"{row.construction} is run fused: {row.fused_because}")
    for name, reason in result.refusals.items():
        show.output.print(f"{name} does not take part: {reason}")


def _print_sizes(result: Comparison) -> None:
    names = ("", "layers", "heads", "d_model", "added tokens", "weights", "FLOPs")
    rows = [_size_cells(row, result.settings.n_steps) for row in result.rows]
    title = "Size of the transformer; weights that are 0 and their products are not counted"
    show.print_columns(title, names, rows)
    direct = show.count_text(result.direct_flops)
    show.output.print(f"Direct training takes {direct} FLOPs.\n")


def _size_cells(row: Row, n_steps: int) -> tuple[str, ...]:
    counts = (show.count_text(getattr(row, name)) for name in SIZES if name != "parameters")
    return row.construction, f"{row.layers_per_step} x {n_steps}", *counts


def _error_cells(row: Row) -> tuple[str, ...]:
    bounds = (
        "no information" if bound is None else show.error_text(bound)
        for bound in (row.step_bound, row.domain_bound)
    )
    measured, run = show.error_text(row.step_error), show.error_text(row.run_error)
    return row.construction, row.backend, measured, *bounds, run


def _time_cells(row: Row) -> tuple[str, ...]:
    return (
        row.construction,
        row.backend,
        show.seconds_text(row.seconds),
        show.three_digits(row.over_descent),
    )
