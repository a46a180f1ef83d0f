r"""Bound (c) of a table of steps: wu's Lemma 16, with the Lipschitz constant of the step.

A token holds d numbers, each in an interval of length B or less, and `levels` levels cover it.
Then a step that is looked up for n examples is off by at most

    Lip (8 sqrt(d n) + sqrt(n)) B / (2 levels).

Lip is taken over all d n numbers of the prompt, in the Euclidean norm, where a change of the
weight counts n times, once for every token that holds it. With the step g and its summands
f = r'(w x) u(r(w x), y) x,

    Lip^2 = max [ n (step_size / 2n)^2 (f_x^2 + f_y^2) + (1 - step_size f_w / 2)^2 / n ],

which intervals bound on a division of the domain into cells.
"""

from __future__ import annotations

from math import sqrt

import torch

from icgd.certificates.intervals import Interval
from icgd.errors import ProgramError
from icgd.problems.functions import ScalarFunction
from icgd.problems.problem import Problem
from icgd.program.instructions import IDENTITY
from icgd.program.stack import StackProgram

CELLS = 32
"""The cells of every axis: an even number, so that no cell holds a number and its negative."""

ROUNDING_ROOM = 1 + 2.0**-40
"""The room for the rounding of this computation itself."""


def table_step(program: StackProgram, problem: Problem) -> float:
    """The paper's bound on the error of one step, in exact arithmetic."""
    if program.step_table is None:
        raise ProgramError("The program has no table of steps.")
    n, levels = program.step_table.n_examples, len(program.relu_sum(IDENTITY).knots) // 2 + 1
    longest = 2 * max(problem.domain.x, problem.domain.y, problem.gradient_step.box)
    numbers = 3  # x, y and w
    lipschitz = step_lipschitz(problem, n)
    return lipschitz * (8 * sqrt(numbers * n) + sqrt(n)) * longest / (2 * levels)


def step_lipschitz(problem: Problem, n_examples: int) -> float:
    """The Lipschitz constant of a step of one weight, as a function of the whole prompt."""
    x = _cells(problem.domain.x, -1, 1, 1)
    y = _cells(problem.domain.y, -1, 1)
    w = _cells(problem.gradient_step.box, -1)
    activation = problem.network.layer_activation(1)
    argument = w * x
    prediction = _on(activation.value, argument)
    first = _on(activation.derivative, argument)
    second = _on(activation.derivative.derivative(), argument)
    u, u_p, u_y = _loss_slope(problem, prediction, y)
    curvature = second * u + first * first * u_p  # of the loss, as a function of w x
    f_x = curvature * argument + first * u
    f_y = first * u_y * x
    f_w = curvature * (x * x)
    share = problem.gradient_step.size_of(0) / (2 * n_examples)
    data = n_examples * share**2 * (f_x.size**2 + f_y.size**2)
    weight = (f_w.times(-n_examples * share) + _constant(1.0)).size ** 2 / n_examples
    return ROUNDING_ROOM * sqrt(float(data.max()) + float(weight.max()))


def _cells(bound: float, *shape: int) -> Interval:
    """The intervals between neighbouring sample points of [-bound, bound]."""
    edges = torch.linspace(-bound, bound, CELLS + 1, dtype=torch.float64)
    return Interval(edges[:-1].view(shape), edges[1:].view(shape))


def _constant(value: float) -> Interval:
    return Interval.point(torch.tensor(value, dtype=torch.float64))


def _on(function: ScalarFunction, argument: Interval) -> Interval:
    return Interval(*function.bounds(argument.low, argument.high))


def _loss_slope(
    problem: Problem, prediction: Interval, label: Interval
) -> tuple[Interval, Interval, Interval]:
    """The slope of the loss, and its derivatives with respect to prediction and label."""
    slope = by_prediction = by_label = _constant(0.0)
    for part in problem.loss_function.slope_parts or ():
        argument = prediction.times(part.prediction) + label.times(part.label)
        steepness = _on(part.function.derivative(), argument)
        slope = slope + _on(part.function, argument)
        by_prediction = by_prediction + steepness.times(part.prediction)
        by_label = by_label + steepness.times(part.label)
    return slope, by_prediction, by_label
