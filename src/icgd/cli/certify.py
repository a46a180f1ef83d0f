"""`icgd certify`: write the proof of how close a run is to exact descent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from icgd.backends.registry import AUTO
from icgd.cli import show
from icgd.cli.data_options import GivenTable, takes_table
from icgd.cli.examples import open_run
from icgd.cli.options import AsJson, ClaimBackend, CompiledFile, DtypeName, Seed, output
from icgd.cli.progress import progress
from icgd.cli.writing import require_writable


@takes_table
def certify(
    file: CompiledFile,
    table: GivenTable,
    out: Annotated[Path, output("The certificate to write, a JSON file.")] = Path("run.cert.json"),
    seed: Seed = 0,
    backend: ClaimBackend = AUTO,
    dtype: DtypeName = "float64",
    as_json: AsJson = False,
) -> None:
    """Run on a table, and write a certificate that icgd-check accepts without icgd.

    It proves how far the weights are from exact gradient descent in real numbers after every step.

    Example: icgd certify run.safetensors train.csv -o run.cert.json
    """
    require_writable(out, read=(file, table.path))
    compiled, examples, _ = open_run(file, table)
    with progress("proving") as on_progress:
        proof = compiled.certify(
            examples.inputs,
            examples.labels,
            path=out,
            seed=seed,
            backend=backend,
            dtype=dtype,
            files=(file, table.path),
            on_progress=on_progress,
        )
    if as_json:
        facts = {"claim": proof.claim, "distances": proof.distances, "bits": proof.bits}
        show.print_json({**facts, "file": str(out)})
    else:
        show.output.print(f"{proof.claim}\nWritten to {out}. Check it with: icgd-check {out}")
