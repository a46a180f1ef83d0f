from dataclasses import replace

import torch

import icgd
from icgd.certificates.report import coefficient_errors, stepwise_errors, trajectory_errors
from icgd.problems.optimisers import GradientStep
from tests.cases import SMALL, exact_step

CASE = SMALL[0]
ROUNDING = 1e-15
"""Several steps at once may be rounded otherwise than one by one."""


def test_the_reference_itself_has_no_error_and_a_nudge_shows_as_itself():
    task = CASE.task()
    real = CASE.problem.oracle.train(task, 3)
    assert stepwise_errors(CASE.problem, task, real).max() < ROUNDING
    nudged = real.clone()
    nudged[-1, 0] += 0.25
    errors = stepwise_errors(CASE.problem, task, nudged)
    assert errors[:2].max() < ROUNDING
    assert abs(float(errors[2]) - 0.25) < ROUNDING
    assert trajectory_errors(nudged, real).tolist() == [0.0, 0.0, 0.25]


def test_a_nudge_in_the_middle_counts_as_a_step_error_once():
    task = CASE.task()
    real = CASE.problem.oracle.train(task, 2)
    first = real[1] + 0.01
    second = exact_step(CASE.problem, first, task.x, task.y)
    errors = stepwise_errors(CASE.problem, task, torch.stack([real[0], first, second]))
    torch.testing.assert_close(errors, torch.tensor([0.01, 0.0]).double())


def test_a_step_is_measured_on_its_own_batch():
    problem = replace(CASE.problem, update=GradientStep(0.5, 3.0, batch_size=2))
    task = CASE.task()
    real = problem.oracle.train(task, 3)
    assert stepwise_errors(problem, task, real).tolist() == [0.0, 0.0, 0.0]
    assert stepwise_errors(CASE.problem, task, real).min() > 1e-3


def test_coefficients_of_named_columns_have_errors_of_their_own():
    problem = icgd.Problem(
        icgd.LinearModel(2, intercept=True),
        "matching",
        icgd.ProximalStep(0.1, box=3.0),
        icgd.Domain(4.0, 2.0),
    )
    task = icgd.as_task(problem, [[1.0, 2.0], [3.0, -1.0]], [1.0, 0.5])
    named = replace(task, input_names=("age", "size"))
    real = problem.oracle.train(task, 2)
    nudged = real + torch.tensor([0.0, -0.25, 0.5])
    assert coefficient_errors(problem, task, nudged, real) is None
    errors = coefficient_errors(problem, named, nudged, real)
    assert errors == {"age": 0.0, "size": 0.25, "(intercept)": 0.5}
    network = replace(CASE.task(), input_names=("x",) * CASE.task().x.shape[-1])
    real = CASE.problem.oracle.train(network, 1)
    assert coefficient_errors(CASE.problem, network, real, real) is None
