"""Theorems 3.1 to 3.3 of cot, with real constants, against runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import icgd
from icgd.backends.registry import BACKENDS
from icgd.errors import DataError, SeparableDataError, SettingError
from tests.linear_cases import compiled_of, data, problem_of, task_of

MODELS = {
    "3.1": problem_of("logistic", l1=0.0, step_size=None, box=4.0),
    "3.2": problem_of("identity", l1=0.0, step_size=None, box=4.0),
    "3.3": problem_of("identity", step_size=None, box=4.0),
}


def sized(problem: icgd.Problem) -> icgd.Problem:
    return icgd.sized_problem(problem, data()[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("theorem", MODELS)
@pytest.mark.parametrize("n_steps", [1, 12])
def test_runs_keep_what_the_theorems_promise(theorem, backend, n_steps):
    x, y, _ = data()
    compiled = compiled_of(sized(MODELS[theorem]), n_steps)
    found = icgd.guarantee(compiled, x, y, backend=backend)
    assert found.holds
    assert (found.theorem, found.n_steps) == (theorem, n_steps)
    assert found.step_size * found.largest_curvature <= 1 + 1e-9
    assert 0 < found.distance <= found.contraction_bound <= found.distance_bound + 1e-15
    assert 0 < found.excess <= found.excess_bound
    assert found.distance_slack < 1e-9
    assert found.excess_slack < 1e-20
    assert found.step_error < 1e-11


def test_the_distance_is_that_from_scikit_learn():
    x, y, _ = data()
    problem = sized(problem_of("identity", l1=0.0, step_size=None, box=4.0, intercept=False))
    start = torch.tensor([0.5, -0.5, 0.25], dtype=torch.float64)
    found = icgd.guarantee(compiled_of(problem, 0), x, y, initial=start)
    ridge = Ridge(alpha=0.1 * len(x), fit_intercept=False, tol=1e-14).fit(x, y[:, 0])
    assert found.distance == pytest.approx(np.linalg.norm(ridge.coef_ - start.numpy()), rel=1e-9)
    assert found.start_distance == pytest.approx(found.distance, rel=1e-9)


def test_a_run_that_goes_elsewhere_breaks_the_promise():
    """Its labels are others than those of the minimiser that it is measured against."""
    x, y, _ = data()
    problem = sized(MODELS["3.2"])
    compiled = compiled_of(problem, 200)
    found = icgd.guarantee(compiled, x, y)
    assert found.holds
    assert not replace(found, distance=1e-3 + found.distance_bound).holds
    assert not replace(found, excess=2 * found.excess_bound).holds
    assert not replace(found, distance=1e-3 + found.contraction_bound).holds


def test_a_step_that_is_too_long_for_the_theorems_is_refused():
    x, y, _ = data()
    problem = sized(MODELS["3.2"])
    longer = replace(problem.proximal_step, step_size=1.5 * problem.proximal_step.step_size)
    with pytest.raises(SettingError, match="1 / beta"):
        icgd.guarantee(compiled_of(replace(problem, update=longer)), x, y)


def separable() -> tuple[icgd.Problem, torch.Tensor, torch.Tensor]:
    x = data()[0]
    problem = problem_of("logistic", l2=0.0, l1=0.0, intercept=False)
    return problem, x, (x[:, :1] > 0).double()


def test_separable_data_have_no_minimiser():
    problem, x, y = separable()
    with pytest.raises(SeparableDataError, match="no minimiser exists"):
        icgd.guarantee(compiled_of(problem), x, y)


def test_a_run_does_not_wait_for_a_minimiser_that_does_not_exist():
    problem, x, y = separable()
    compiled = compiled_of(problem)
    with pytest.raises(SeparableDataError, match="no minimiser exists"):
        compiled.run(x, y, stop_below=1e-6)
    assert compiled.run(x, y).parameters.shape == (5, 3)


def test_one_task_at_a_time():
    problem = sized(MODELS["3.2"])
    batch = task_of(problem, tasks=(2,))
    with pytest.raises(DataError, match="one task at a time"):
        icgd.guarantee(compiled_of(problem), batch.x, batch.y)
