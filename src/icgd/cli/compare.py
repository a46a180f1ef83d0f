"""`icgd compare`: one problem through every construction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.cli import show
from icgd.cli.options import AsJson
from icgd.cli.problem_options import Steps, takes_problem
from icgd.cli.progress import progress
from icgd.cli.writing import make_folder, write_file
from icgd.problems.problem import Problem
from icgd.reproductions import plotting
from icgd.reproductions.comparison import Comparison, Settings, draw
from icgd.reproductions.comparison import compare as measure


@takes_problem
def compare(
    problem: Problem,
    steps: Steps = 5,
    examples: Annotated[int, typer.Option(help="Examples that are drawn.")] = 6,
    seed: Annotated[int, typer.Option(help="Data and initial weights are drawn from it.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for comparison.png and comparison.json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run one problem through every construction that accepts it, and compare them.

    Example: icgd compare --widths 3,4,4,2 --box 1 --x-bound 2
    """
    if out:
        plotting.require_matplotlib()
    with progress("compiling, running, timing"):
        result = measure(Settings(problem, steps, examples, seed))
    data = _data(result)
    if out:
        make_folder(out)
        write_file(out / "comparison.json", f"{show.json_text(data)}\n".encode())
        write_file(out / "comparison.png", plotting.png(draw(result)))
    if as_json:
        show.print_json(data)
    else:
        _print(result)


def _data(result: Comparison) -> dict[str, Any]:
    return {**show.plain(result), "problem": result.settings.problem.to_data()}


def _print(result: Comparison) -> None:
    settings = result.settings
    sizes = [
        (
            row.construction,
            f"{row.layers_per_step} x {settings.n_steps}",
            show.count_text(row.max_heads),
            show.count_text(row.d_model),
            show.count_text(row.n_registers),
            show.count_text(row.parameters),
            show.count_text(row.flops),
        )
        for row in result.rows
    ]
    tokens = "registers"
    names = ("", "layers", "heads", "d_model", tokens, "weights", "FLOPs")
    show.print_columns("Size", names, sizes)
    direct = show.count_text(result.direct_flops)
    show.output.print(f"Direct training takes {direct} FLOPs.\n")
    found = [
        (
            row.construction,
            show.error_text(row.step_error),
            show.error_text(row.step_bound),
            show.error_text(row.domain_bound),
            show.error_text(row.run_error),
            show.seconds_text(row.seconds),
            f"{row.over_descent:.2f}",
        )
        for row in result.rows
    ]
    names = ("", "one step", "(b) this run", "(a) any data", "whole run", "time", "times real")
    show.print_columns("Largest error of anything learnt, its bounds, and the time", names, found)
    for name, reason in result.refusals.items():
        show.output.print(f"{name} does not take part: {reason}")
