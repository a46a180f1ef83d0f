"""Which data have no minimiser: by hand, and against linear programmes."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from sklearn.datasets import load_breast_cancer

from icgd.errors import SeparableDataError
from icgd.problems.linear_model import LinearModel
from icgd.problems.separable import require_minimiser, separation
from icgd.problems.steps import ProximalStep
from tests.bare_oracles import on_linear_model as reference

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
