"""`icgd draw`: draw a compiled transformer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from icgd.cli import show
from icgd.cli.examples import load_run
from icgd.cli.options import AsJson, CompiledFile, output
from icgd.cli.writing import require_picture, require_writable


def draw(
    file: CompiledFile,
    out: Annotated[
        Path | None,
        output("SVG or PNG file to write. Default: the name of FILE with .svg.", "PICTURE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the layers of a transformer, and what each reads and writes in the residual stream.

    Example: icgd draw run.safetensors -o run.svg
    """
    path = out or file.with_suffix(".svg")
    require_picture(path)
    require_writable(path, read=(file,))
    load_run(file).draw(path)
    show.print_saved(path, as_json=as_json)
