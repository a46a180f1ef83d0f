"""`icgd draw`: a compiled transformer as one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icgd import pictures
from icgd.cli.options import CompiledFile
from icgd.pipeline import load


def draw(
    file: CompiledFile,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="SVG or PNG file to write. Default: the name of FILE with the ending .svg.",
            metavar="PICTURE",
        ),
    ] = None,
) -> None:
    """Draw the layers of a transformer, and what each reads and writes in the residual stream.

    Example: icgd draw run.safetensors --out run.svg
    """
    path = out or file.with_suffix(".svg")
    pictures.picture.writer_for(path)  # a wrong ending is refused before any work
    load(file).draw(path)
    typer.echo(f"Saved {path}")
