"""What a table of examples says of a problem: its bounds, and the step size of a linear model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from icgd.cli.data_options import (
    Decimal,
    Delimiter,
    Header,
    Ignored,
    Missing,
    Standardize,
    Targets,
    source_from,
)
from icgd.cli.examples import Examples, read_examples
from icgd.cli.options import in_panel
from icgd.errors import SettingError
from icgd.problems.convergence import sized_problem
from icgd.problems.data import Domain, as_task
from icgd.problems.oracles import LinearOracle
from icgd.problems.problem import Problem

_table = in_panel("The table")

BOUNDS_FROM = (
    "Take the bounds of inputs and labels from this table of examples, with room for a quarter "
    "more, and the step size of a linear model too."
)
STEP_FROM = "Take only the step size of a linear model from this table of examples."


def fitted_to(
    problem: Problem,
    stated: Mapping[str, float | None],
    bounds_from: Annotated[Path | None, _table(BOUNDS_FROM, metavar="DATA")] = None,
    step_from: Annotated[Path | None, _table(STEP_FROM, metavar="DATA")] = None,
    target: Targets = None,
    header: Header = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    missing: Missing = "refuse",
    standardize: Standardize = False,
    ignore: Ignored = None,
) -> Problem:
    """The problem with bounds and a step size of the table, if there is one.

    A bound that is `stated`, by an option of its own, is kept.
    """
    data = bounds_from or step_from
    if data is None:
        _refuse_without_table(target, standardize, ignore)
        if problem.update.step_size is None:
            raise SettingError("Give --step-size or --bounds-from; got neither.")
        return problem
    source = source_from(data, target, header, delimiter, decimal, missing, standardize, ignore)
    examples = read_examples(source, problem)
    if bounds_from is not None:
        problem = replace(problem, domain=_bounds(problem.domain, examples, stated))
    return _sized(problem, examples, is_asked=step_from is not None)


def _refuse_without_table(target: Targets, standardize: bool, ignore: Ignored) -> None:
    given = {"--target": target, "--standardize": standardize, "--ignore": ignore}
    for name, value in given.items():
        if value:
            raise SettingError(f"{name} has no effect without --bounds-from; give both or neither.")


def _bounds(domain: Domain, examples: Examples, stated: Mapping[str, float | None]) -> Domain:
    found = Domain.of(examples.inputs, examples.labels)
    x = domain.x if stated["x_bound"] is not None else found.x
    y = domain.y if stated["y_bound"] is not None else found.y
    return replace(domain, x=x, y=y)


def _sized(problem: Problem, examples: Examples, *, is_asked: bool) -> Problem:
    """The problem with a step size from the curvature on the examples, if it has none."""
    is_linear = isinstance(problem.oracle, LinearOracle)
    if is_asked and not is_linear:
        raise SettingError("--step-from has no effect without --link; give both or neither.")
    if is_asked and problem.update.step_size is not None:
        raise SettingError("Give either --step-size or --step-from, not both.")
    if problem.update.step_size is not None:
        return problem
    return sized_problem(problem, as_task(problem, examples.inputs, examples.labels).x)
