"""The fits that Section 3 is tried on: their steps rest at their minimisers."""

import pytest
import torch

from icgd_papers.theorems.cot import linear_models
from icgd_papers.theorems.cot.linear_models import LINKS, Fit


def fits() -> dict[str, Fit]:
    found = {link.name: linear_models._glm(link, 1.0, 0) for link in LINKS}
    found["ridge"] = linear_models._linear("ridge", 1.0, 0, l2=0.1)
    found["lasso"] = linear_models._linear("lasso", 1.0, 0, l1=0.1)
    return found


@pytest.mark.parametrize("name", ["logistic", "poisson", "ridge", "lasso"])
def test_a_step_rests_at_the_minimiser_and_is_that_of_the_library(name):
    fit = fits()[name]
    assert (fit.step(fit.minimiser) - fit.minimiser).abs().max() < 1e-13
    task_x, task_y = fit.x, fit.y[:, None]
    oracle, w = fit.problem.oracle, torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    task = linear_models.compile(fit.problem, fit.construction, n_steps=1).task(task_x, task_y)
    torch.testing.assert_close(oracle.step(task, w), fit.step(w), rtol=0, atol=1e-12)
    assert 0 < fit.alpha <= fit.beta


def test_the_lasso_leaves_a_coefficient_out():
    assert (fits()["lasso"].minimiser == 0).sum() == 1


def test_the_transformer_itself_breaks_the_printed_rate_at_two_over_beta():
    fit = linear_models._linear("ridge", 2.0, 0, l2=0.1)
    distance = (fit.run()[1:] - fit.minimiser).norm(dim=-1)
    count = torch.arange(1, len(distance) + 1, dtype=torch.float64)
    rate = torch.exp(-count * fit.alpha / fit.beta / 2)
    assert (distance > rate * fit.radius / 2).any()
