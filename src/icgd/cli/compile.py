"""`icgd compile`: compile the description of a training run into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from icgd.certificates.report import Certificate
from icgd.cli import show
from icgd.cli.options import AsJson, output
from icgd.cli.problem_file import Description, takes_problem
from icgd.cli.progress import progress
from icgd.cli.writing import require_writable
from icgd.compiled import Compiled


@takes_problem
def compile(
    described: Description,
    out: Annotated[Path, output("File to write.", "FILE.safetensors")],
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weights to store for other tools: dense, sparse or none. Default: the first of "
            "these that takes up to 256 MiB.",
        ),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--listing", help="Print the program, layer by layer.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile a training run into a transformer, and save it.

    The file remembers how its table was read, so that `icgd run` needs nothing else.

    Example: icgd compile --data train.csv --hidden 16,16 --steps 20 -o run.safetensors
    """
    require_writable(out, read=described.read)
    compiled = described.compiled()
    with progress("proving and saving"):
        certificate = compiled.certificate()
        compiled.save(out, weights=weights)
    if as_json:
        return show.print_json(_data(compiled, certificate, out, listing))
    show.print_summary(compiled.summary())
    show.print_functions(compiled.program.functions)
    show.print_certificate(certificate)
    if listing:
        typer.echo(compiled.listing())
    typer.echo(f"Saved {out}")


def _data(compiled: Compiled, certificate: Certificate, out: Path, listing: bool) -> dict[str, Any]:
    functions = [
        {"name": function.name, "fineness": function.fineness, "error": function.error}
        for function in compiled.program.functions
    ]
    data = {
        "file": str(out),
        "problem": compiled.problem.to_data(),
        "functions": functions,
        "summary": show.summary_data(compiled.summary()),
        "certificate": show.certificate_data(certificate),
    }
    return {**data, "listing": compiled.listing()} if listing else data
