"""`icgd verify`: compare a compiled training run with the real algorithm."""

from __future__ import annotations

from typing import Annotated

import typer

from icgd.backends.registry import AUTO
from icgd.cli import show
from icgd.cli.data_options import GivenTable, takes_table
from icgd.cli.examples import open_run
from icgd.cli.options import (
    AsJson,
    ClaimBackend,
    CompiledFile,
    DtypeName,
    PictureFile,
    QueryFile,
    Seed,
)
from icgd.cli.progress import progress
from icgd.cli.writing import require_picture, require_writable
from icgd.pipeline import verify as verify_run


@takes_table
def verify(
    file: CompiledFile,
    table: GivenTable,
    queries: QueryFile = None,
    seed: Seed = 0,
    backend: ClaimBackend = AUTO,
    dtype: DtypeName = "float64",
    rigorous: Annotated[
        bool | None,
        typer.Option(
            "--rigorous/--no-rigorous",
            help="Prove the distance of the whole run by ball arithmetic. Default: if quick.",
        ),
    ] = None,
    plot: PictureFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare every step with real gradient descent, and with what was proved.

    Ball arithmetic proves the distance of the whole run from exact descent in real numbers. With
    --queries the predictions are compared as well.

    The exit code is 0 if every bound holds or gives no information, and 1 if one is broken.

    Example: icgd verify run.safetensors train.csv --target price --json
    """
    require_picture(plot)
    require_writable(plot, read=(file, table.path, queries))
    compiled, examples, asked = open_run(file, table, queries)
    with progress("verifying") as on_progress:
        report = verify_run(
            compiled,
            examples.frame,
            examples.labels,
            queries=asked.inputs if asked else None,
            seed=seed,
            backend=backend,
            dtype=dtype,
            rigorous=rigorous,
            on_progress=on_progress,
        )
    if plot:
        report.plot(plot)
    if as_json:
        show.print_json(show.report_data(report))
    else:
        show.print_report(report)
        if plot:
            typer.echo(f"Saved {plot}")
    raise typer.Exit(0 if report.verdict.holds else 1)
