"""Newton's minimisers beside scikit-learn's, and where no step is needed."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, PoissonRegressor, Ridge

from icgd.problems.domain import Domain
from icgd.problems.linear_model import LinearModel
from icgd.problems.links import LINKS
from icgd.problems.minimiser import hessian, minimise, steepness, units
from icgd.problems.oracles.linear import LinearOracle
from icgd.problems.proximal_step import ProximalStep
from icgd.problems.task import Task
from tests.hostile_cases import CASES, KINDS, hostile

PRECISE = {"tol": 1e-14, "max_iter": 10**6}


def oracle_and_task(x, y, link="identity", intercept=True, reduction="mean", **update):
    model = LinearModel(x.shape[1], link, intercept, reduction)
    x, y = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)[:, None]
    oracle = LinearOracle(model, "matching", ProximalStep(**update), Domain(1e9, 1e9))
    return oracle, Task(x, y, x[:0], model.initial_parameters())


def coefficients(fit):
    return np.append(fit.coef_.ravel(), fit.intercept_)


def check(oracle, task, fit, rel):
    found, other = minimise(oracle, task), torch.tensor(coefficients(fit))
    values = [float(oracle.objective(task, w)) for w in (found, other)]
    assert values[0] <= values[1] + 1e-12 * abs(values[1])
    np.testing.assert_allclose(found, other, rtol=rel, atol=rel * float(other.abs().max()))


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(
    ("l1", "l2", "fit"),
    [
        (0.0, 1.0, Ridge(alpha=442.0)),
        (1.0, 0.0, Lasso(alpha=1.0, **PRECISE)),
        (0.2, 0.3, ElasticNet(alpha=0.5, l1_ratio=0.4, **PRECISE)),
        (50.0, 0.0, Lasso(alpha=50.0, **PRECISE)),
    ],
)
def test_diabetes_raw_and_scaled(scaled, l1, l2, fit):
    x, y = load_diabetes(return_X_y=True, scaled=scaled)
    oracle, task = oracle_and_task(x, y, l1=l1, l2=l2)
    check(oracle, task, fit.fit(x, y), rel=1e-8)


def test_breast_cancer_with_all_columns_as_they_are():
    """Columns have scales from 0.001 to 1000, and scikit-learn needs a Newton method too."""
    x, y = load_breast_cancer(return_X_y=True)
    oracle, task = oracle_and_task(x, y, "logistic", reduction="sum", l2=1.0)
    fit = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-13, max_iter=10**4)
    check(oracle, task, fit.fit(x, y), rel=1e-6)


@pytest.mark.filterwarnings("ignore:.penalty. was deprecated")
def test_logistic_lasso():
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    fit = LogisticRegression(C=0.5, penalty="l1", solver="liblinear", fit_intercept=False)
    fit.set_params(tol=1e-10, max_iter=50_000)
    fit.fit(x[:100, :6], y[:100])
    oracle, task = oracle_and_task(x[:100, :6], y[:100], "logistic", False, "sum", l1=2.0)
    found = minimise(oracle, task)
    np.testing.assert_allclose(found, fit.coef_[0], atol=1e-5)
    assert (found == 0).equal(torch.tensor(fit.coef_[0] == 0))


@pytest.mark.parametrize("largest", [3.0, 1e4])
def test_poisson(largest):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 4))
    y = draw.poisson(largest * np.exp(x @ [0.4, -0.3, 0.0, 0.2]))
    oracle, task = oracle_and_task(x, y, "poisson", l2=0.1)
    fit = PoissonRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-9, max_iter=100)
    check(oracle, task, fit.fit(x, y), rel=1e-8)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("name", ["both", "a box that binds, with penalties"])
def test_an_exact_step_does_not_move_the_minimiser(name, link):
    case = hostile(name, link)
    found = minimise(case.oracle, case.task)
    update = replace(case.oracle.update, step_size=0.05)
    moved = replace(case.oracle, update=update).step(case.task, found)
    assert float((moved - found).abs().max()) < 1e-15


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "link"), CASES)
def test_no_step_and_no_start_leads_lower(name, link, seed):
    case = hostile(name, link, seed)
    found = minimise(case.oracle, case.task)
    lowest = float(case.oracle.objective(case.task, found))
    draw = torch.Generator().manual_seed(seed)
    box = case.oracle.update.box or inf
    for size in (1e-6, 1e-3, 1.0):
        push = torch.randn(len(found), generator=draw, dtype=torch.float64)
        other = (found + size * push).clamp(-box, box)
        assert float(case.oracle.objective(case.task, other)) >= lowest - 1e-12 * (1 + abs(lowest))
    elsewhere = replace(case.task, initial=torch.full_like(found, min(box, 0.01)))
    again = float(case.oracle.objective(case.task, minimise(case.oracle, elsewhere)))
    assert again == pytest.approx(lowest, rel=1e-11, abs=1e-11)


def test_a_minimiser_is_left_as_it_is():
    case = hostile("all coefficients 0", "identity")
    assert minimise(case.oracle, case.task).eq(0).all()
    assert KINDS["all coefficients 0"].update.l1 == 1e3


def test_the_steepness_is_that_of_the_least_subgradient():
    """At 0 l1 takes up to l1 of the gradient, at the box all that points outwards."""
    model = LinearModel(4, intercept=True)
    oracle = LinearOracle(model, "matching", ProximalStep(l1=1.0, box=2.0), Domain(1.0, 1.0))
    weights = torch.tensor([0.0, 0.0, 1.0, 2.0, -2.0], dtype=torch.float64)
    gradient = torch.tensor([0.5, -3.0, 0.25, -7.0, -0.5], dtype=torch.float64)
    assert steepness(oracle, weights, gradient).tolist() == [0.0, 2.0, 1.25, 0.0, 0.5]


def test_units_make_the_diagonal_of_the_hessian_1():
    case = hostile("mixed scales, ridge", "logistic")
    curved = hessian(case.oracle, case.task, case.task.initial)
    unit = units(curved)
    np.testing.assert_allclose((curved / unit / unit[:, None]).diagonal(), 1.0)
    assert units(torch.zeros(2, 2, dtype=torch.float64)).tolist() == [1.0, 1.0]
