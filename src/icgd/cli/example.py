"""`icgd example`: write a table to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icgd.cli import show
from icgd.cli.cars_demo import CARS
from icgd.cli.options import AsJson
from icgd.cli.writing import write_new_file


def example(
    file: Annotated[Path, typer.Argument(help="CSV file to write.")] = Path("cars.csv"),
    as_json: AsJson = False,
) -> None:
    """Write a table of cars to try the other commands on.

    It has the 32 cars of the 1974 Motor Trend road tests, with their miles per gallon.

    Example: icgd example cars.csv
    """
    write_new_file(file, CARS.read_bytes())
    show.print_saved(file, as_json=as_json)
