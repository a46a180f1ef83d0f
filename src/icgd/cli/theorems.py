"""`icgd theorems`: what the papers state, beside what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

import typer

from icgd.cli import show
from icgd.cli.options import AsJson
from icgd.cli.progress import progress
from icgd.reproductions.cheng_theory import N_STATEMENTS, Sizes, checks
from icgd.training.assumptions import Check


def theorems(
    seed: Annotated[int, typer.Option(help="The seed of the data.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure every statement of the paper on functional gradient descent, in about ten seconds.

    The exit code is 0 if all of them hold, else 1.

    Example: icgd theorems --seed 1
    """
    found: list[Check] = []
    with progress("measuring") as on_progress:
        for check in checks(Sizes(), seed):
            found.append(check)
            on_progress(len(found), N_STATEMENTS)
    if as_json:
        show.print_json([{**show.plain(check), "holds": check.holds} for check in found])
    else:
        _print(found)
    raise typer.Exit(0 if all(check.holds for check in found) else 1)


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
    show.print_verdict(f"{n_held} of {len(found)} hold.", n_held == len(found))


def _statement(check: Check) -> tuple[str, str]:
    """The claim without its case, which stands before the colon, and the unit of its numbers."""
    return check.claim.partition(": ")[2], check.unit
