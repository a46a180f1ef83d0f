"""What the options of a linear model mean: ridge, lasso, generalised linear models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from icgd.cli.csv_data import read_examples
from icgd.errors import SettingError
from icgd.problems.domain import Domain
from icgd.problems.entry import as_task
from icgd.problems.linear_model import LinearModel
from icgd.problems.oracles.linear import MATCHING, LinearOracle
from icgd.problems.problem import Problem
from icgd.problems.proximal_step import ProximalStep
from icgd.problems.sizing import sized_problem


@dataclass(frozen=True)
class LinearOptions:
    """The options that only a linear model has; None, or no intercept, if one was not given."""

    intercept: bool = False
    l2: float | None = None
    l1: float | None = None
    reduction: str | None = None
    score_bound: float | None = None

    def refuse(self) -> None:
        """Raise `SettingError` if one was given although no linear model is trained."""
        for name, value in vars(self).items():
            if value is not None and value is not False:
                raise SettingError.without(f"--{name.replace('_', '-')}", "--link")

    def problem(
        self,
        link: str,
        widths: tuple[int, ...],
        step_size: float | None,
        box: float,
        domain: Domain,
    ) -> Problem:
        """The problem of a linear model; without a step size one must be chosen for it."""
        if len(widths) != 2 or widths[1] != 1:
            raise SettingError.wrong_linear_widths(widths)
        model = LinearModel(widths[0], link, self.intercept, self.reduction or "mean")
        update = ProximalStep(step_size, self.l2 or 0.0, self.l1 or 0.0, box)
        return Problem(model, MATCHING, update, replace(domain, score=self.score_bound))


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
