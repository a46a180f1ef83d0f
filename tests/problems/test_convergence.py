"""Whether descent is done, beside scikit-learn's minimisers and closed forms."""

from dataclasses import replace
from math import exp, inf

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Lasso

import icgd
from icgd.errors import DataError, SettingError
from icgd.problems.convergence import (
    Convergence,
    allowed_scores,
    convergence,
    sized_problem,
    steps_text,
)
from icgd.problems.data import Domain
from icgd.problems.linear_model import LinearModel
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.problems.spectrum import curvature
from icgd.problems.steps import ProximalStep
from tests.cases import KERNEL_CASES


def found_for(problem, x, y, n_steps, **start):
    task = icgd.as_task(problem, x, y, **start)
    return convergence(problem.oracle, task, problem.oracle.train(task, n_steps))


def lasso(x, y, *, intercept=True, **settings):
    model = icgd.LinearModel(x.shape[1], intercept=intercept)
    update = icgd.ProximalStep(l1=0.1, **settings)
    problem = icgd.Problem(model, "matching", update, icgd.Domain(1e3, 1e3))
    return problem if "step_size" in settings else icgd.sized_problem(problem, x)


def test_lasso_on_raw_diabetes_is_not_done_and_says_what_would_do():
    x, y = load_diabetes(return_X_y=True, scaled=False)
    problem = lasso(x, y)
    task = icgd.as_task(problem, x, y)
    history = problem.oracle.train(task, 1000)
    found = convergence(problem.oracle, task, history)
    real = Lasso(0.1, tol=1e-12, max_iter=10**6).fit(x, y)
    goal = torch.tensor(np.append(real.coef_, real.intercept_))
    first, last, least = (
        float(problem.oracle.objective(task, w)) for w in (history[0], history[-1], goal)
    )
    assert abs(float(history[-1, 1])) < 0.1
    assert real.coef_[1] < -20
    assert found.left == pytest.approx((last - least) / (first - least), rel=1e-6)
    assert found.left > 0.01
    assert not found.is_done
    assert found.more_steps > 1e6
    text = str(found)
    assert text.startswith(
        "Training has not converged after 1,000 steps: the objective fell 97.3% of"
    )
    assert f"The intercept is {float(history[-1, -1]):.4g} and tends to {real.intercept_:.4g}" in (
        text
    )
    assert "With standardised inputs about 2,200 steps in total suffice" in text


def test_the_steps_that_are_said_to_do_do():
    x, y = load_diabetes(return_X_y=True, scaled=False)
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    problem = lasso(x, y, intercept=False)
    early = found_for(problem, x, y, 3)
    assert not early.is_done
    assert found_for(problem, x, y, 3 + int(early.more_steps)).is_done


def test_steps_that_are_too_long_are_told_so():
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    found = found_for(lasso(x, x[:, :1], intercept=False, step_size=4.5), x, np.ones((2, 1)), 3)
    assert found.more_steps == inf
    assert found.remedies[1:] == (
        "With steps of 4.5 training does not converge: they are too long.",
        "With step_size=2 about 1 steps in total suffice.",
    )


def test_separable_data_have_no_end():
    x = np.array([[-1.0], [1.0]])
    model = icgd.LinearModel(1, link="logistic")
    problem = icgd.Problem(model, "matching", icgd.ProximalStep(1.0), icgd.Domain(2.0, 1.0))
    found = found_for(problem, x, np.array([0.0, 1.0]), 5)
    assert (found.left, found.more_steps) == (1.0, inf)
    assert "Add an l2 penalty" in found.remedies[0]


def test_of_several_tasks_the_furthest_counts():
    x = np.random.default_rng(0).normal(size=(2, 20, 3))
    y = np.stack([x[0, :, :1], np.zeros((20, 1))])
    problem = lasso(x[0], y[0], intercept=False)
    single = [found_for(problem, x[i], y[i], 1) for i in range(2)]
    both = found_for(problem, x, y, 1)
    assert single[1].left == 0.0
    assert both == replace(single[0], task=0, name="task 0 (counted from 0)")
    assert str(both).startswith(
        "Training has not converged for task 0 (counted from 0) after 1 steps"
    )
    assert not both.is_done


def test_a_network_whose_loss_still_falls_is_not_done():
    x = np.random.default_rng(0).normal(size=(16, 3))
    target = icgd.MLP((3, 4, 1))

    def network(size):
        step = icgd.GradientStep(size, 10.0)
        return icgd.Problem(target, "squared", step, icgd.Domain(9.0, 9.0))

    problem = network(0.1)
    task = icgd.as_task(problem, x, np.sin(x[:, :1]), seed=0)
    history = problem.oracle.train(task, 20)
    losses = [float(problem.oracle.risk(task, w)) for w in history]
    found = convergence(problem.oracle, task, history)
    assert found.left == pytest.approx((losses[18] - losses[20]) / losses[0], rel=1e-12)
    assert found.more_steps == pytest.approx(20 * (found.left / 1e-3 - 1), abs=1)
    assert "changed by 1.09% of its first value in the last 2 steps" in str(found)
    assert convergence(problem.oracle, task, history[:1]).left == 1.0
    rising = found_for(network(40.0), x, np.sin(x[:, :1]), 1, seed=0)
    assert rising.remedies[0].startswith("The loss rises to ")
    assert rising.remedies[0].endswith(": halve the step size.")
    perfect = replace(task, y=problem.oracle.predict(replace(task, queries=task.x), history[0]))
    assert "%" not in convergence(problem.oracle, perfect, history).status
    still = convergence(problem.oracle, task, history[:1].repeat(5, 1))
    assert still.left == 0.0
    assert str(still).startswith("Training has converged after 4 steps: the loss went from")


def test_a_function_leaves_what_is_not_learnt_of_the_labels():
    case = KERNEL_CASES[0]
    machine = icgd.KernelMachine(3, "rbf")
    problem = icgd.Problem(
        machine, "squared", icgd.FunctionalStep(0.01, 0.1), icgd.Domain(9.0, 9.0)
    )
    found = found_for(problem, case.x, case.y, 2)
    gram = machine.gram(case.x) + 0.1 * torch.eye(len(case.x)).double()
    left = torch.linalg.matrix_power(torch.eye(len(gram)) - 0.01 * gram, 2) @ case.y
    assert found.left == pytest.approx(float(left.norm() / case.y.norm()), rel=1e-12)
    values = torch.linalg.eigvalsh(gram)
    assert (
        f"condition number on these data is {float(values[-1] / values[0]):.3g},"
        in found.remedies[0]
    )
    low, high = float(values[0]), float(values[-1])
    n_steps = int(re_number(found.remedies[0]))
    steps = icgd.chebyshev_steps(low, high, n_steps)
    enough = icgd.Problem(
        machine, "squared", icgd.FunctionalStep(steps, 0.1), icgd.Domain(9.0, 9.0)
    )
    assert found_for(enough, case.x, case.y, n_steps).left < 2e-3


def re_number(text: str) -> str:
    return text.split("for which ")[1].split(" ")[0].replace(",", "")


def test_a_singular_kernel_needs_noise():
    machine = icgd.KernelMachine(1, "linear")
    problem = icgd.Problem(machine, "squared", icgd.FunctionalStep(0.1), icgd.Domain(9.0, 9.0))
    x = np.array([[0.0], [0.0], [1.0]])
    found = found_for(problem, x, np.ones((3, 1)), 2)
    assert found.remedies == ("The kernel is singular on these data: add noise.",)


def test_numbers_of_steps_have_two_digits():
    assert [steps_text(n) for n in (3.0, 123.0, 1.54e8)] == ["3", "120", "150,000,000"]


def test_what_is_not_a_number_is_not_done():
    assert not Convergence(1, float("nan"), 1e-3, "it").is_done


# Step sizes of linear models from their data.


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
    with pytest.raises(SettingError, match="The slope of the poisson link is unbounded"):
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
