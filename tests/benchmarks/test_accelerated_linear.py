"""The benchmark of momentum on linear models: how it counts steps."""

import pytest

from benchmarks import accelerated_linear, linear
from benchmarks.accelerated_linear import METHODS, Goal


@pytest.fixture(scope="module")
def ridge() -> Goal:
    return Goal(linear._ridge())


def test_steps_are_the_least_that_stay_within_the_tolerance(ridge):
    for name in METHODS:
        n_steps = ridge.steps_to(name)
        errors = ridge.errors(name, 2 * n_steps)
        assert errors[n_steps:].max() <= 1e-6 < errors[n_steps - 1]


def test_the_best_method_is_run_dense(ridge):
    row = accelerated_linear._row(ridge)
    assert (row["descent"], row["Nesterov"], row["layers of the best"]) == (160, 43, 129)
    assert row["condition"] == pytest.approx(18.1, abs=0.05)
    assert row["its dense error"] <= 1e-6
