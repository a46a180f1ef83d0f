"""`icgd example`: a table to begin with."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from icgd.cli import show
from icgd.cli.options import AsJson
from icgd.cli.writing import write_new_file


def example(
    file: Annotated[Path, typer.Argument(help="CSV file to write.")] = Path("cars.csv"),
    as_json: AsJson = False,
) -> None:
    """Write the table of cars that the README speaks of.

    It has 32 cars of the 1974 Motor Trend road tests, and their miles per gallon.

    Example: icgd example cars.csv
    """
    write_new_file(file, files("icgd.cli").joinpath("cars.csv").read_bytes())
    show.print_saved(file, as_json=as_json)
