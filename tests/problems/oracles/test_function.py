"""The oracle of functional descent against autograd in the function space, and its limit."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_ridge import KernelRidge

import icgd
from icgd.errors import SettingError
from icgd.problems.data import Domain
from icgd.problems.problem import Problem
from icgd.problems.steps import FunctionalStep
from tests.cases import KERNEL_CASES, over


@over(KERNEL_CASES[:9])
def test_it_descends_the_squared_error_in_the_space_of_functions(case):
    """For f = sum a_j K(., x_j) the gradient in function space has coefficients e, not K e."""
    task, update = case.task(), case.problem.functional_step
    gram = case.problem.machine.gram(task.x)
    gram = gram + update.noise * torch.eye(7).double()
    coefficients = torch.zeros_like(task.y, requires_grad=True)
    residual = gram @ coefficients - task.y
    functional = torch.autograd.grad(residual.square().sum() / 2, residual)[0]
    values = (-update.size_of(0) * gram @ functional).flatten()
    first = case.problem.oracle.train(task, 1)[1]
    assert (first[: len(values)] - values).abs().max() <= 1e-14


@over(KERNEL_CASES)
def test_stepping_from_its_own_run_leads_along_it(case):
    task = case.task()
    run = case.problem.oracle.train(task, 3)
    again = case.problem.oracle.stepped(task, run)
    assert (again - run[1:]).abs().max() <= 1e-13
    assert case.problem.oracle.stepped(task, run[:1]).shape == (0, run.shape[1])


def machine_task(noise: float):
    """Points far enough apart that the kernel matrix has a modest condition number."""
    generator = np.random.default_rng(0)
    x, queries = generator.uniform(-4, 4, (12, 2)), generator.uniform(-4, 4, (5, 2))
    y = np.sin(x).sum(1)
    problem = Problem(
        icgd.KernelMachine(2, "rbf"), "squared", FunctionalStep(0.1, noise), Domain(4.0, 2.0)
    )
    return problem, icgd.as_task(problem, x, y, queries=queries), (x, y, queries)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_limit_is_kernel_ridge_and_the_mean_of_a_gaussian_process(noise):
    problem, task, (x, y, queries) = machine_task(noise)
    ours = problem.function_oracle.limit(task).flatten().numpy()
    ridge = KernelRidge(alpha=max(noise, 1e-12), kernel="rbf", gamma=0.5).fit(x, y)
    np.testing.assert_allclose(ours, ridge.predict(queries), rtol=1e-8)
    process = GaussianProcessRegressor(RBF(1.0), alpha=max(noise, 1e-12), optimizer=None)
    np.testing.assert_allclose(ours, process.fit(x, y).predict(queries), rtol=1e-8)


def test_steps_with_kernels_of_their_own_add_what_each_of_them_learns():
    """Every value by loops over tokens, examples and heads, for queries G x and keys H x."""
    case = next(case for case in KERNEL_CASES if case.name == "learnt")
    task, update = case.task(), case.problem.functional_step
    values = torch.zeros(task.n_tokens, 2).double()
    for step, heads in enumerate(update.heads):
        added = torch.zeros_like(values)
        for head in heads:
            query, key = (
                torch.eye(3).double() if rows is None else torch.tensor(rows, dtype=torch.float64)
                for rows in (head.transform, head.key_transform or head.transform)
            )
            for i, point in enumerate(task.points):
                learnt = [_kernel(head.kernel, query @ point, key @ x) for x in task.x]
                share = sum(learnt) if head.kernel == "softmax" else 1.0
                for j, value in enumerate(learnt):
                    added[i] += head.weight * value / share * (task.y[j] - values[j])
        values = values + update.size_of(step) * added
    real = case.problem.oracle.train(task, 3)[-1]
    assert (real - values.flatten()).abs().max() <= 1e-13
    assert values.abs().max() > 0.1


@pytest.mark.parametrize("name", ["heavy-ball", "sum-heavy-ball", "nesterov", "nesterov-moved"])
def test_momentum_keeps_a_share_of_the_last_change(name):
    """The recurrence in two sequences, as textbooks have it, beside the kernels of the steps."""
    case = next(case for case in KERNEL_CASES if case.name == name)
    task, update = case.task(), case.problem.functional_step
    oracle = case.problem.function_oracle
    values, points = [torch.zeros(10, task.y.shape[-1]).double()] * 2, []
    for number, kernel in zip(range(3), oracle.kernels(task), strict=False):
        momentum = update.momentum[number] if isinstance(update.momentum, tuple) else 0.6
        momentum = 0.5 if name == "nesterov-moved" else momentum
        points.append((1 + momentum) * values[-1] - momentum * values[-2])
        read = points[-1] if update.nesterov else values[-1]
        values.append(points[-1] + update.size_of(number) * kernel @ (task.y - read[:7]))
    real = oracle.train(task, 3)
    assert (real - torch.stack(values[1:]).flatten(-2)).abs().max() <= 1e-14
    assert (real[-1] - real[-2]).abs().max() > 1e-2


def test_a_step_by_itself_starts_from_rest():
    case = next(case for case in KERNEL_CASES if case.name == "heavy-ball")
    task, oracle = case.task(), case.problem.oracle
    run = oracle.train(task, 2)
    change = run[2] - oracle.step(task, run[1], 1)
    assert (change - 0.6 * (run[1] - run[0])).abs().max() <= 1e-15


def test_momentum_has_no_rigorous_proof():
    case = next(case for case in KERNEL_CASES if case.name == "heavy-ball")
    compiled = icgd.compile(case.problem, n_steps=1)
    with pytest.raises(SettingError, match="A rigorous proof takes steps without momentum"):
        icgd.verify(compiled, case.x, case.y, rigorous=True)


def _kernel(name, u, w):
    if name == "rbf":
        return torch.exp(-(u - w).square().sum() / 2)
    return (1 + u @ w) ** 2 if name == "polynomial" else torch.exp(u @ w)


@pytest.mark.parametrize("name", ["learnt", "learnt-moved"])
def test_what_needs_one_kernel_refuses_steps_that_have_kernels(name):
    case = next(case for case in KERNEL_CASES if case.name == name)
    oracle, task = case.problem.function_oracle, case.task()
    with pytest.raises(SettingError, match="What the function tends to needs one kernel for all"):
        oracle.limit(task)
    with pytest.raises(SettingError, match="A rigorous proof needs one kernel for all steps"):
        oracle.described(task, 3)


def test_a_kernel_with_other_keys_has_no_rigorous_proof():
    head = icgd.KernelHead("exp", np.eye(2), key_transform=2 * np.eye(2))
    machine, update = icgd.KernelMachine(2, head), FunctionalStep(0.1)
    problem = Problem(machine, "squared", update, Domain(1.0, 1.0))
    with pytest.raises(SettingError, match="A rigorous proof needs one kernel for all steps"):
        icgd.verify(icgd.compile(problem, n_steps=1), np.eye(2), np.ones(2), rigorous=True)
