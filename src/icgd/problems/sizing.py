"""Step sizes of linear models from their data."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from icgd.problems.arrays import checked_inputs
from icgd.problems.curvature import Scores, everywhere, over_box, sized
from icgd.problems.problem import Problem
from icgd.problems.settings import instance
from icgd.shapes import Inputs


def sized_problem(problem: Problem, X: Any) -> Problem:
    """The problem of a linear model with the step size 1 / beta, if it has none.

    beta is the largest curvature of the risk on these inputs, for all scores that the box and
    `domain.score` allow. Without these bounds poisson, whose mean has no steepest slope, has none.
    """
    instance("problem", problem, Problem)
    x = checked_inputs(X, problem.model.input_width)
    update = sized(problem.model, problem.proximal_step, x, allowed_scores(problem, x))
    return replace(problem, update=update)


def allowed_scores(problem: Problem, x: Inputs) -> Scores:
    """The scores of each example at which the box and `domain.score` let a gradient be taken."""
    box = problem.box and problem.box * problem.proximal_step.overshoot
    low, high = everywhere(x) if box is None else over_box(problem.model, x, box)
    most = problem.domain.score or inf
    return low.clamp(min=-most), high.clamp(max=most)
