"""`icgd verify`: a compiled training run against the real algorithm."""

from __future__ import annotations

import typer

from icgd.cli import show
from icgd.cli.csv_data import read_examples
from icgd.cli.options import AsJson, BackendName, CompiledFile, Data, DtypeName, Labels, Seed
from icgd.cli.progress import progress
from icgd.pipeline import load
from icgd.pipeline import verify as verify_run


def verify(
    file: CompiledFile,
    data: Data,
    label: Labels = None,
    seed: Seed = 0,
    backend: BackendName = "fused",
    dtype: DtypeName = "float64",
    as_json: AsJson = False,
) -> None:
    """Compare every step with real gradient descent, and with what was proved.

    The exit code is 0 if every bound holds, also if one says nothing, and 1 if one is broken.

    Example: icgd verify run.safetensors train.csv --label price --json
    """
    compiled = load(file)
    examples = read_examples(data, compiled.problem.target, label)
    with progress("verifying") as on_progress:
        report = verify_run(
            compiled,
            examples.inputs,
            examples.labels,
            seed=seed,
            backend=backend,
            dtype=dtype,
            on_progress=on_progress,
        )
    if as_json:
        show.print_json(show.report_data(report))
    else:
        show.print_report(report)
    raise typer.Exit(0 if report.verdict.holds else 1)
