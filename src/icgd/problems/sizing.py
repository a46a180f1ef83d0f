"""Step sizes of linear models from their data."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from icgd.problems.curvature import Scores, everywhere, over_box, sized
from icgd.problems.data import checked_inputs
from icgd.problems.problem import Problem
from icgd.shapes import Inputs


def sized_problem(problem: Problem, X: Any) -> Problem:
    """The problem of a linear model with the step size 1 / beta, if it has none.

    beta is the largest curvature of the risk on these inputs, for all scores that the box and
    `domain.score` allow.

    Args:
        problem: a problem of a linear model.
        X: the inputs that it will be trained on.

    Returns:
        The problem with a step size.

    Raises:
        SettingError: if the problem trains no linear model, or if scores need a bound: without one
            poisson, whose mean has no steepest slope, has no curvature.
        DataError: if the inputs do not fit the model.

    Example:
        >>> import icgd
        >>> model, step = icgd.LinearModel(2), icgd.ProximalStep(box=4.0)
        >>> problem = icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.sized_problem(problem, [[1.0, 0.0], [0.0, 1.0]]).update.step_size
        2.0
    """
    x = checked_inputs(X, problem.model.input_width)
    update = sized(problem.model, problem.proximal_step, x, allowed_scores(problem, x))
    return replace(problem, update=update)


def allowed_scores(problem: Problem, x: Inputs) -> Scores:
    """The scores of each example at which the box and `domain.score` let a gradient be taken."""
    box = problem.box and problem.box * problem.proximal_step.overshoot
    low, high = everywhere(x) if box is None else over_box(problem.model, x, box)
    most = problem.domain.score or inf
    return low.clamp(min=-most), high.clamp(max=most)
