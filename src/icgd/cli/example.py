"""`icgd example`: a table to begin with."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from icgd.cli import show
from icgd.cli.options import AsJson
from icgd.cli.writing import require_writable, write_file
from icgd.errors import FileError


def example(
    file: Annotated[Path, typer.Argument(help="CSV file to write.")] = Path("cars.csv"),
    as_json: AsJson = False,
) -> None:
    """Write the table of cars that the README speaks of.

    It has 32 cars of the 1974 Motor Trend road tests, and their miles per gallon.

    Example: icgd example cars.csv
    """
    require_writable(file)
    content = files("icgd.cli").joinpath("cars.csv").read_bytes()
    if file.exists() and file.read_bytes() != content:
        raise FileError(f"{file} exists already, with another content. Name another file.")
    write_file(file, content)
    show.print_saved(file, as_json=as_json)
