"""`icgd size`: print how large a transformer would be."""

from __future__ import annotations

from typing import Annotated

import typer

from icgd.cli import show
from icgd.cli.options import AsJson
from icgd.cli.problem_file import Description, takes_problem
from icgd.compiled import TYPICAL_TOKENS


@takes_problem
def size(
    described: Description,
    tokens: Annotated[
        int | None,
        typer.Option(
            help=f"Tokens in the prompt. Default: {TYPICAL_TOKENS}, or n_examples and one query."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print how large the transformer would be, without building it.

    Example: icgd size --data train.csv --hidden 2000,2000 --steps 1000
    """
    summary = described.compiled().summary(tokens)
    if as_json:
        show.print_json(show.summary_data(summary))
    else:
        show.print_summary(summary)
