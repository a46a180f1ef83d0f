"""Which data have no minimiser: by hand, and against linear programmes."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, PoissonRegressor, Ridge

from icgd.errors import SeparableDataError
from icgd.problems.data import Domain, Task
from icgd.problems.linear_model import LINKS, LinearModel
from icgd.problems.minimiser import (
    accuracy,
    find_minimiser,
    gradient_rounding,
    hessian,
    minimise,
    objective_rounding,
    steepness,
    sum_rounding,
    units,
)
from icgd.problems.oracles import LinearOracle
from icgd.problems.separable import require_minimiser, separation
from icgd.problems.steps import ProximalStep
from tests.bare_oracles import on_linear_model as reference
from tests.hostile_cases import CASES, FLAT, hostile
from tests.precise import Precise, at_most, exactly

PLAIN = ProximalStep()


def column(values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


LOGISTIC = LinearModel(1, "logistic", intercept=True)
POINTS = column([-2.0, -1.0, 1.0, 2.0])


@pytest.mark.parametrize(
    ("labels", "complete"),
    [
        ([0.0, 0.0, 1.0, 1.0], True),
        ([0.0, 1.0, 1.0, 1.0], True),
        ([1.0, 1.0, 1.0, 1.0], True),
        ([0.0, 1.0, 0.0, 1.0], None),
        ([0.0, 0.4, 0.0, 1.0], None),
        ([0.0, 0.4, 1.0, 1.0], False),  # around the point with a label inside
    ],
)
def test_logistic_data_on_a_line(labels, complete):
    found = separation(LOGISTIC, PLAIN, POINTS, column(labels))
    assert (found.is_complete if found else None) is complete


def test_points_on_the_border_separate_quasi_completely():
    x, y = column([-1.0, 0.0, 0.0, 1.0]), column([0.0, 0.0, 1.0, 1.0])
    found = separation(LOGISTIC, PLAIN, x, y)
    assert found is not None
    assert not found.is_complete
    assert found.direction[0] > 0
    assert found.direction[1] == pytest.approx(0.0, abs=1e-12)


def test_along_the_direction_the_objective_only_falls():
    y = column([0.0, 0.4, 1.0, 1.0])
    found = separation(LOGISTIC, PLAIN, POINTS, y)
    values = [
        reference.objective(LOGISTIC, PLAIN, t * found.direction, POINTS, y) for t in range(5)
    ]
    assert all(after < before for before, after in pairwise(values))


def test_counts_separate_if_a_direction_lowers_zeros_alone():
    model = LinearModel(2, "poisson")
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    found = separation(model, PLAIN, x, column([3.0, 0.0, 1.0]))
    assert found is not None
    assert not found.is_complete
    assert found.direction[0] == pytest.approx(0.0, abs=1e-12)
    assert found.direction[1] < 0
    assert separation(model, PLAIN, x, column([0.0, 2.0, 1.0])) is None
    assert separation(LinearModel(2), PLAIN, x, column([0.0, 2.0, 1.0])) is None


def by_linear_programme(model, x, y):
    """(separable, completely): the largest sum, and the largest least entry, of A v."""
    design, labels, link = model.design(x).numpy(), y.flatten().numpy(), model.link_function
    ups, downs = design[labels > link.least_label], design[labels < link.largest_label]
    rows = np.concatenate([ups, -downs])
    n, width = rows.shape
    some = linprog(-rows.sum(0), -rows, np.zeros(n), bounds=[(-1, 1)] * width)
    least = np.hstack([-rows, np.ones((n, 1))])
    every = linprog(
        np.eye(width + 1)[-1] * -1, least, np.zeros(n), bounds=[(-1, 1)] * width + [(None, 1)]
    )
    return -some.fun > 1e-7, -every.fun > 1e-7


@pytest.mark.parametrize("link", ["logistic", "poisson"])
def test_random_data_are_judged_as_by_linear_programmes(link):
    """Few points on a grid or in general position, about half of them separable."""
    generator = np.random.default_rng(0)
    seen = set()
    for case in range(40):
        n, width = int(generator.integers(4, 16)), int(generator.integers(1, 6))
        x = generator.integers(-1, 2, (n, width)) if case % 2 else generator.normal(size=(n, width))
        y = generator.integers(0, 2, n) if link == "logistic" else generator.poisson(0.15, n)
        model = LinearModel(width, link, intercept=case % 3 == 0)
        x, y = torch.tensor(x, dtype=torch.float64), column(y)
        found = separation(model, PLAIN, x, y)
        judged = found is not None, found is not None and found.is_complete
        assert judged == by_linear_programme(model, x, y), case
        seen.add(judged)
    assert seen == {(False, False), (True, False), (True, True)}


def test_all_columns_of_the_breast_cancer_data_separate_them_ten_do_not():
    data = load_breast_cancer()
    x = torch.tensor((data.data - data.data.mean(0)) / data.data.std(0))
    y = column(data.target)
    with pytest.raises(SeparableDataError, match="The data are completely separable"):
        require_minimiser(LinearModel(30, "logistic", intercept=True), PLAIN, x, y)
    require_minimiser(LinearModel(30, "logistic", intercept=True), ProximalStep(l2=1.0), x, y)
    require_minimiser(LinearModel(10, "logistic", intercept=True), PLAIN, x[:, :10], y)


def test_a_penalty_holds_all_but_the_intercept():
    y = column([0.0, 0.0, 1.0, 1.0])
    for update in (ProximalStep(l2=0.1), ProximalStep(l1=0.1)):
        require_minimiser(LOGISTIC, update, POINTS, y)
        require_minimiser(LinearModel(1, "logistic"), update, POINTS, torch.ones_like(y))
        with pytest.raises(SeparableDataError, match="Every label is 1, so no minimiser exists"):
            require_minimiser(LOGISTIC, update, POINTS, torch.ones_like(y))


def test_the_task_of_a_batch_is_named_and_nothing_is_run():
    x = torch.stack([POINTS, POINTS])
    y = torch.stack([column([0.0, 1.0, 0.0, 1.0]), column([0.0, 0.0, 1.0, 1.0])])
    with pytest.raises(SeparableDataError, match="The data of task 1 are completely separable"):
        reference.descend(
            LOGISTIC, PLAIN, LOGISTIC.initial_parameters((2,)), x, y, tolerance=1e-3, most_steps=9
        )


# Minimisers beside scikit-learn's and those in 300 bits, and estimates of their accuracy.


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


def test_more_columns_than_rows_leave_as_many_coefficients_as_scikit_learns_lasso():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(40, 80)) * np.logspace(-3, 3, 80)
    y = x[:, :40] @ (np.logspace(3, 0, 40) * draw.normal(size=40)) + draw.normal(size=40)
    oracle, task = oracle_and_task(x, y, l1=5.0)
    check(oracle, task, Lasso(alpha=5.0, **PRECISE).fit(x, y), rel=1e-6)
    found = minimise(oracle, task)
    assert 0 < int((found[:-1] != 0).sum()) <= 40
    assert accuracy(oracle, task, found).distance < 1e-9 * float(found.norm())


DRAW = torch.Generator().manual_seed(5)
A_FEW = [(name, link) for place, (name, link) in enumerate(CASES) if place % 6 == 0]
"""A sample in which every link and most kinds of data occur."""


def check_accuracy(name: str, link: str, seed: int) -> None:
    """Estimates are no proof, but on these data they bound the distance in 300 bits."""
    case = hostile(name, link, seed)
    if separation(case.oracle.target, case.oracle.update, case.task.x, case.task.y) is not None:
        with pytest.raises(SeparableDataError):
            find_minimiser(case.oracle, case.task)
        return
    found = find_minimiser(case.oracle, case.task)
    point = found.parameters
    assert found.excess < 1e-10
    if found.distance == inf:
        assert name in FLAT
        return
    precise = Precise.of(case.oracle, case.task)
    best = precise.minimiser(point)
    assert found.distance < 1e-4 * max(1.0, float(point.norm()))
    assert at_most(precise.distance(point, best), found.distance)
    assert at_most(precise.objective(exactly(point)) - precise.objective(best), found.excess)


@pytest.mark.parametrize(("name", "link"), A_FEW)
def test_points_are_as_near_to_the_minimiser_as_estimated(name, link):
    check_accuracy(name, link, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("name", "link"), CASES)
def test_points_are_as_near_to_the_minimiser_as_estimated_in_any_case(name, link, seed):
    check_accuracy(name, link, seed)


@pytest.mark.parametrize("link", LINKS)
def test_the_accuracy_of_points_beside_the_minimiser_is_of_the_right_size(link):
    case = hostile("ridge", link)
    best = minimise(case.oracle, case.task)
    for size in (1e-4, 1e-8):
        near = best + size * torch.randn(len(best), generator=DRAW, dtype=torch.float64)
        found, true = accuracy(case.oracle, case.task, near), float((near - best).norm())
        assert true <= found.distance <= 100 * true
        above = float(
            case.oracle.objective(case.task, near) - case.oracle.objective(case.task, best)
        )
        assert above <= found.excess + objective_rounding(case.oracle, case.task, best)


def test_a_line_of_minimisers_leaves_the_distance_unknown_but_not_the_minimum():
    case = hostile("collinear, lasso", "identity")
    found = find_minimiser(case.oracle, case.task)
    assert found.distance == inf
    assert found.excess < 1e-12
    other = found.parameters[[3, 1, 2, 0, 4]]  # the copies change places: as good
    assert not torch.equal(other, found.parameters)
    values = [case.oracle.objective(case.task, w) for w in (other, found.parameters)]
    assert float(values[0] - values[1]) == pytest.approx(0.0, abs=1e-12)


def test_without_penalty_and_box_a_flat_objective_leaves_the_distance_unknown():
    case = hostile("collinear, ridge", "identity")
    oracle = replace(case.oracle, update=replace(case.oracle.update, l2=0.0))
    found = find_minimiser(oracle, case.task)
    assert found.distance == inf
    assert found.slope < 1e-12
    least = torch.linalg.lstsq(oracle.target.design(case.task.x), case.task.y, driver="gelsd")
    lowest = oracle.objective(case.task, least.solution[:, 0])
    assert float(oracle.objective(case.task, found.parameters)) == pytest.approx(float(lowest))


def test_coefficients_that_l1_keeps_at_0_need_no_curvature():
    """A column of zeros has none, and more columns than rows never curve in all directions."""
    case = hostile("constant columns, lasso", "logistic")
    found = find_minimiser(case.oracle, case.task)
    assert found.parameters[2] == 0.0
    assert found.distance < 1e-12
    small = replace(case.oracle, update=replace(case.oracle.update, l1=0.0))
    assert accuracy(small, case.task, minimise(small, case.task)).distance == inf


def test_without_a_minimiser_there_is_nothing_to_find():
    case = hostile("ridge", "logistic")
    task = replace(case.task, y=torch.ones_like(case.task.y))
    with pytest.raises(SeparableDataError):
        find_minimiser(case.oracle, task)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("name", ["lasso", "shifted inputs", "mixed scales, ridge"])
def test_objective_and_gradient_are_rounded_by_no_more_than_their_bounds(name, link):
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
    assert sum_rounding(1000) == pytest.approx(1000 * 2.0**-53)
