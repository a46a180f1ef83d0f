"""`icgd compare`: compare all constructions of one problem."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icgd.backends.registry import AUTO, BACKENDS
from icgd.cli import show
from icgd.cli.comparison import SIZES, Comparison, Settings, draw
from icgd.cli.comparison import compare as measure
from icgd.cli.options import AsJson, output
from icgd.cli.problem_file import COMPARED_STEPS, Description, takes_problem
from icgd.cli.progress import progress
from icgd.cli.writing import make_folder, write_file
from icgd.pictures import plotting


@takes_problem
def compare(
    described: Description,
    examples: Annotated[int, typer.Option(help="Number of examples.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of the data and of the initial weights.")] = 0,
    backend: Annotated[
        str, typer.Option(help=f"{', '.join(BACKENDS)} or {AUTO} (literal if quick, else fused).")
    ] = AUTO,
    out: Annotated[Path | None, output("Folder for a picture and the numbers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run one problem through every construction that accepts it, and compare them.

    Errors, bounds and times of a construction come from the same backend, on data drawn from the
    seed.

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
    rows, n_steps = result.rows, result.settings.n_steps
    sizes = [name for name in SIZES if name != "parameters"]
    show.print_columns(
        "Size of the transformer; weights that are 0 and their products are not counted",
        ("", "layers", "heads", "d_model", "added tokens", "weights", "FLOPs"),
        [
            (
                row.construction,
                f"{row.layers_per_step} x {n_steps}",
                *(show.count_text(getattr(row, name)) for name in sizes),
            )
            for row in rows
        ],
    )
    show.output.print(f"Direct training takes {show.count_text(result.direct_flops)} FLOPs.\n")
    show.print_columns(
        "Largest error of a trained value, and its bounds",
        ("", "backend", "one step", "(b) this run", "(a) any data", "whole run"),
        [
            (
                row.construction,
                row.backend,
                show.error_text(row.step_error),
                *(
                    "no information" if bound is None else show.error_text(bound)
                    for bound in (row.step_bound, row.domain_bound)
                ),
                show.error_text(row.run_error),
            )
            for row in rows
        ],
    )
    show.print_columns(
        "Processor time of a run; the transformer's weights are built first",
        ("", "backend", "time", "times real training"),
        [
            (
                row.construction,
                row.backend,
                show.seconds_text(row.seconds),
                show.three_digits(row.over_descent),
            )
            for row in rows
        ],
    )
    for row in rows:
        if row.fused_because:
            show.output.print(f"{row.construction} is run fused: {row.fused_because}")
    for name, reason in result.refusals.items():
        show.output.print(f"{name} does not take part: {reason}")
