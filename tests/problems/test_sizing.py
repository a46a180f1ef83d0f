"""Step sizes of linear models from their data."""

from dataclasses import replace
from math import exp, inf

import numpy as np
import pytest
import torch

from icgd.errors import DataError, SettingError
from icgd.problems.convergence import allowed_scores, sized_problem
from icgd.problems.data import Domain
from icgd.problems.linear_model import LinearModel
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.problems.spectrum import curvature
from icgd.problems.steps import ProximalStep

X = torch.tensor([[1.0], [2.0]], dtype=torch.float64)


def poisson(box=None, score=None) -> Problem:
    return Problem(
        LinearModel(1, "poisson"), "matching", ProximalStep(box=box), Domain(4.0, 9.0, score)
    )


def test_the_step_is_one_over_the_largest_curvature_and_nothing_else_changes():
    model = LinearModel(1, "logistic", intercept=True)
    problem = Problem(model, "matching", ProximalStep(l2=0.3, l1=0.1), Domain(4.0, 1.0))
    sized = sized_problem(problem, X.numpy())
    assert sized.update.step_size == 1 / curvature(model, problem.update, X).largest
    assert replace(sized, update=replace(sized.update, step_size=None)) == problem


def test_a_step_size_that_is_given_stays():
    problem = replace(poisson(box=1.0), update=ProximalStep(0.7, box=1.0))
    assert sized_problem(problem, X) == problem


def test_the_box_and_the_domain_bound_the_scores():
    """On x = 1 and 2 with |w| <= 1, exp has slopes of at most e and e^2, or e and e^1.5."""
    for score, slope in ((None, exp(2)), (1.5, exp(1.5)), (9.0, exp(2))):
        size = sized_problem(poisson(box=1.0, score=score), X).update.step_size
        assert size == pytest.approx(2 / (exp(1) + 4 * slope))
    size = sized_problem(poisson(score=1.5), X).update.step_size
    assert size == pytest.approx(2 / (5 * exp(1.5)))


def test_scores_are_bounded_on_both_sides():
    def ends(problem):
        return [end.flatten().tolist() for end in allowed_scores(problem, X)]

    assert ends(poisson()) == [[-inf, -inf], [inf, inf]]
    assert ends(poisson(box=0.5)) == [[-0.5, -1.0], [0.5, 1.0]]
    assert ends(poisson(box=0.5, score=0.75)) == [[-0.5, -0.75], [0.5, 0.75]]


def test_a_slope_without_bound_has_no_safe_step():
    with pytest.raises(SettingError, match="The poisson link has no largest slope"):
        sized_problem(poisson(), X)


def test_bad_inputs_are_refused():
    problem = poisson(box=1.0)
    with pytest.raises(DataError, match=r"X has shape \(2, 2\); expected \(n, 1\)"):
        sized_problem(problem, np.ones((2, 2)))
    with pytest.raises(DataError, match=r"X\[1, 0\] is nan"):
        sized_problem(problem, np.array([[1.0], [np.nan]]))
    with pytest.raises(DataError, match="X is empty"):
        sized_problem(problem, np.ones((0, 1)))


def test_a_network_has_no_step_to_size():
    problem = Problem(MLP((1, 1)), "squared", GradientStep(0.1, 1.0), Domain(1.0, 1.0))
    with pytest.raises(SettingError, match=r"^target must be of type LinearModel, got MLP"):
        sized_problem(problem, X)
