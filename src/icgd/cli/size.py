"""`icgd size`: how large a transformer would be."""

from __future__ import annotations

from typing import Annotated

import typer

from icgd.cli import show
from icgd.cli.options import AsJson
from icgd.cli.problem_options import takes_training_run
from icgd.compiled import TYPICAL_TOKENS, Compiled


@takes_training_run
def size(
    compiled: Compiled,
    tokens: Annotated[
        int | None,
        typer.Option(help=f"Length of the prompt. Default: {TYPICAL_TOKENS}, or --examples and 1."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print how large the transformer would be, without building it.

    Example: icgd size --construction relu-stack --widths 1000,20000,20000,1000 --steps 1000
    """
    summary = compiled.summary(tokens)
    if as_json:
        show.print_json(show.summary_data(summary))
    else:
        show.print_summary(summary)
