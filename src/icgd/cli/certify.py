"""`icgd certify`: a run that carries the proof of how close it is to exact descent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from icgd.backends.registry import AUTO
from icgd.cli import show
from icgd.cli.data_options import takes_table
from icgd.cli.examples import Source, read_examples, require_within
from icgd.cli.options import AsJson, ClaimBackend, CompiledFile, DtypeName, Seed, output
from icgd.cli.progress import progress
from icgd.cli.writing import require_writable
from icgd.pipeline import load


@takes_table
def certify(
    file: CompiledFile,
    source: Source,
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
    require_writable(out, read=(file, source.path))
    compiled = load(file)
    examples = read_examples(source, compiled.problem)
    require_within(compiled.problem.domain, examples)
    with progress("proving") as on_progress:
        proof = compiled.certify(
            examples.inputs,
            examples.labels,
            path=out,
            seed=seed,
            backend=backend,
            dtype=dtype,
            files=(file, source.path),
            on_progress=on_progress,
        )
    if as_json:
        facts = {"claim": proof.claim, "distances": proof.distances, "bits": proof.bits}
        show.print_json({**facts, "file": str(out)})
    else:
        show.output.print(f"{proof.claim}\nWritten to {out}. Check it with: icgd-check {out}")
