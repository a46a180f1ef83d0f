"""The options that describe a linear model: ridge, lasso, generalised linear models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from icgd.cli.csv_data import read_examples
from icgd.errors import SettingError
from icgd.problems.domain import Domain
from icgd.problems.entry import as_task
from icgd.problems.linear_model import REDUCTIONS, LinearModel
from icgd.problems.links import LINKS
from icgd.problems.oracles.linear import MATCHING, LinearOracle
from icgd.problems.problem import Problem
from icgd.problems.proximal_step import ProximalStep
from icgd.problems.sizing import sized_problem

PANEL = "A linear model"

LinkName = Annotated[
    str | None,
    typer.Option(
        "--link",
        help="Train a linear model of this link instead of a network (widths: inputs, 1): "
        f"{', '.join(LINKS)}.",
        rich_help_panel=PANEL,
    ),
]
Intercept = Annotated[
    bool,
    typer.Option(
        "--intercept", help="Add a constant, which no penalty applies to.", rich_help_panel=PANEL
    ),
]
L2 = Annotated[
    float | None,
    typer.Option("--l2", help="Penalty (l2 / 2) |w|^2; 0 unless said.", rich_help_panel=PANEL),
]
L1 = Annotated[
    float | None,
    typer.Option("--l1", help="Penalty l1 sum |w_j|; 0 unless said.", rich_help_panel=PANEL),
]
Reduction = Annotated[
    str | None,
    typer.Option(
        help=f"What is made of the examples' losses: {' or '.join(REDUCTIONS)}; mean unless said.",
        rich_help_panel=PANEL,
    ),
]
ScoreBound = Annotated[
    float | None,
    typer.Option(
        help="Largest size of a score <w, x> (domain.score); what box and inputs allow unless "
        "said.",
        rich_help_panel=PANEL,
    ),
]
StepFrom = Annotated[
    Path | None,
    typer.Option(
        help="CSV of examples: choose the step size from their curvature.",
        metavar="DATA.csv",
        rich_help_panel=PANEL,
    ),
]
StepLabel = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        help="With --step-from: name of its label column. Default: the last one.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True)
class LinearOptions:
    """What was said about a linear model; None, or no intercept, is what was not said."""

    intercept: bool = False
    l2: float | None = None
    l1: float | None = None
    reduction: str | None = None
    score_bound: float | None = None

    def refuse(self) -> None:
        """Raise `SettingError` if anything was said, where no linear model is trained."""
        for name, value in vars(self).items():
            if value is not None and value is not False:
                raise SettingError.without(f"--{name.replace('_', '-')}", "--link")


def linear_problem(
    link: str,
    widths: tuple[int, ...],
    options: LinearOptions,
    *,
    step_size: float | None,
    box: float,
    x_bound: float,
    y_bound: float,
) -> Problem:
    """The problem of a linear model; without a step size one must be chosen for it."""
    if len(widths) != 2 or widths[1] != 1:
        raise SettingError.wrong_linear_widths(widths)
    return Problem(
        LinearModel(widths[0], link, options.intercept, options.reduction or "mean"),
        MATCHING,
        ProximalStep(step_size, options.l2 or 0.0, options.l1 or 0.0, box),
        Domain(x_bound, y_bound, options.score_bound),
    )


def refuse_beside(chosen: str, others: Mapping[str, object]) -> None:
    """Raise `SettingError` if an option was given that makes no sense beside `chosen`."""
    for name, value in others.items():
        if value is not None:
            raise SettingError.both(name, chosen)


def sized_by(problem: Problem, data: Path | None, labels: list[str] | None) -> Problem:
    """The problem with a step size, from the examples in `data` if there are any."""
    if data is None:
        if labels:
            raise SettingError.without("--label", "--step-from")
        if problem.update.step_size is None:
            raise SettingError.neither("--step-size", "--step-from")
        return problem
    if not isinstance(problem.oracle, LinearOracle):
        raise SettingError.without("--step-from", "--link")
    if problem.proximal_step.step_size is not None:
        raise SettingError.both("--step-size", "--step-from")
    examples = read_examples(data, problem.target, labels)
    task = as_task(problem, examples.inputs, examples.labels)
    return sized_problem(problem, task.x)
