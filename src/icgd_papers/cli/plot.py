"""`icgd plot`: the log of a training as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icgd.cli import show
from icgd.cli.options import AsJson, output
from icgd.cli.writing import require_writable, write_file
from icgd.pictures import plotting
from icgd_papers.training.loading import read_log
from icgd_papers.training.log_picture import log_picture


def plot(
    folder: Annotated[Path, typer.Argument(help="Folder of a training.", metavar="RUN")],
    out: Annotated[
        Path | None, output("PNG file to write. Default: log.png in the folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the losses of a training, and whatever else its log has.

    Example: icgd plot run -o log.png
    """
    log = read_log(folder)
    path = out or folder / "log.png"
    require_writable(path, read=(folder / "log.json", *folder.glob("*.safetensors")))
    write_file(path, plotting.png(log_picture(log, folder.resolve().name)))
    show.print_saved(path, as_json=as_json)
