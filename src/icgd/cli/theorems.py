"""`icgd theorems`: what the papers state, beside what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.text import Text

from icgd.cli import show
from icgd.cli.options import AsJson
from icgd.cli.progress import progress
from icgd.reproductions.cheng_theory import N_STATEMENTS, Sizes, checks
from icgd.training.assumptions import Check


def theorems(
    seed: Annotated[int, typer.Option(help="Data are drawn from it.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure every statement of the paper on functional gradient descent (takes some ten seconds).

    Exits with 1 if one of them does not hold.

    Example: icgd theorems --seed 1
    """
    found: list[Check] = []
    with progress("measuring") as on_progress:
        for check in checks(Sizes(), seed):
            found.append(check)
            on_progress(len(found), N_STATEMENTS)
    if as_json:
        show.print_json([_data(check) for check in found])
    else:
        _print(found)
    raise typer.Exit(0 if all(check.holds for check in found) else 1)


def _data(check: Check) -> dict[str, Any]:
    return {**show.plain(check), "holds": check.holds}


def _print(found: Sequence[Check]) -> None:
    """A table for each statement, with a row for each of its cases."""
    for (statement, unit), group in groupby(found, _statement):
        rows = [
            (
                check.claim.partition(": ")[0],
                show.error_text(check.measured),
                show.error_text(check.tolerance),
                "holds" if check.holds else "FAILS",
            )
            for check in group
        ]
        show.print_columns(f"{statement} ({unit})", ("", "measured", "allowed", ""), rows)
    n_held = sum(check.holds for check in found)
    style = "bold green" if n_held == len(found) else "bold red"
    show.output.print(Text(f"{n_held} of {len(found)} hold.", style=style))


def _statement(check: Check) -> tuple[str, str]:
    """What is claimed of the case that comes before the colon, and in what it is measured."""
    return check.claim.partition(": ")[2], check.unit
