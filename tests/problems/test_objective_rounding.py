"""The rounding of objective and gradient, against 300 bits."""

import pytest
import torch

from icgd.problems.links import LINKS
from icgd.problems.objective_rounding import (
    gradient_rounding,
    objective_rounding,
    score_rounding,
    sum_rounding,
)
from tests.hostile_cases import hostile
from tests.precise import Precise, at_most, exactly

DRAW = torch.Generator().manual_seed(9)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("name", ["lasso", "shifted inputs", "mixed scales, ridge"])
def test_nothing_is_off_by_more(name, link):
    case = hostile(name, link)
    oracle, task, precise = case.oracle, case.task, Precise.of(case.oracle, case.task)
    draw = torch.randn(oracle.target.n_parameters, generator=DRAW, dtype=torch.float64)
    weights = draw / oracle.target.design(task.x).abs().amax(0)
    exact, (value,) = exactly(weights), exactly(oracle.objective(task, weights))
    rounding = objective_rounding(oracle, task, weights)
    assert at_most(abs(precise.objective(exact) - value), rounding)
    assert rounding < 1e-12 * (1 + abs(float(value.mid())))
    computed = exactly(oracle.gradient(task, weights))
    bounds = gradient_rounding(oracle, task, weights).tolist()
    for there, here, bound in zip(precise.gradient(exact), computed, bounds, strict=True):
        assert at_most(abs(there - here), bound)
    scores = exactly(oracle.scores(weights, task.x))
    bounds = score_rounding(oracle, task, weights).flatten().tolist()
    for there, here, bound in zip(precise.scores(exact), scores, bounds, strict=True):
        assert at_most(abs(there - here), bound)


def test_a_sum_of_m_terms_has_m_roundings():
    assert sum_rounding(1) == pytest.approx(2.0**-53)
    assert sum_rounding(1000) == pytest.approx(1000 * 2.0**-53)
