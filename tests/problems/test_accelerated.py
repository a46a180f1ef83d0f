"""Faster steps in function space: what is left after every step, beside what theory allows."""

from math import acosh, cosh, sqrt

import pytest
import torch

import icgd
from icgd.errors import SettingError
from icgd.problems.spectrum import growth

CONDITIONS = pytest.mark.parametrize("condition", [4.0, 100.0, 1e4])
LOW = 0.3


def eigenvalues(condition: float) -> torch.Tensor:
    return torch.linspace(LOW, LOW * condition, 4001, dtype=torch.float64)


@CONDITIONS
@pytest.mark.parametrize("n_steps", [1, 7, 40])
def test_the_chebyshev_recurrence_is_optimal_after_every_step(condition, n_steps):
    values = eigenvalues(condition)
    update = icgd.chebyshev_momentum(LOW, LOW * condition, n_steps)
    for step in range(1, n_steps + 1):
        optimum = 1 / cosh(step * acosh((condition + 1) / (condition - 1)))
        assert float(growth(update, values, step).max()) == pytest.approx(optimum, rel=1e-6)


@CONDITIONS
def test_heavy_ball_has_the_rate_of_chebyshev(condition):
    """All eigenvalues of its matrices have the size sqrt(m), so (2 L + 1) m^(L / 2) is left."""
    update, values = icgd.heavy_ball(LOW, LOW * condition), eigenvalues(condition)
    rate = (sqrt(condition) - 1) / (sqrt(condition) + 1)
    assert update.momentum == pytest.approx(rate**2)
    for n_steps in (1, 10, 100):
        left = float(growth(update, values, n_steps).max())
        assert rate**n_steps <= left <= (2 * n_steps + 1) * rate**n_steps * (1 + 1e-9)


@CONDITIONS
def test_nesterov_has_the_rate_that_is_known_for_quadratic_problems(condition):
    update, values = icgd.nesterov(LOW, LOW * condition), eigenvalues(condition)
    rate = 1 - 2 / sqrt(3 * condition + 1)
    for n_steps in (10, 100, 400):
        left = float(growth(update, values, n_steps).max())
        assert 0.5 * rate**n_steps <= left <= (2 * n_steps + 1) * rate**n_steps * (1 + 1e-9)


def test_where_descent_needs_the_condition_momentum_needs_its_root():
    values = eigenvalues(1e4)
    ends = (LOW, LOW * 1e4)
    step = icgd.problems.steps.best_constant_step(*ends)
    plain = growth(icgd.FunctionalStep(step), values, 1000).max()
    assert plain > 0.8
    assert growth(icgd.heavy_ball(*ends), values, 1000).max() < 1e-5
    assert growth(icgd.nesterov(*ends), values, 1000).max() < 1e-2


def test_newton_schulz_squares_what_is_left():
    """t <- t (3 - t)^2 / 4 takes 1 - t to (1 - t)^2 (1 - t / 4)."""
    x = torch.diag(torch.tensor([1.0, 3.0, 10.0], dtype=torch.float64))
    update = icgd.newton_schulz(100.0, 12)
    machine = icgd.KernelMachine(3, "linear")
    problem = icgd.Problem(machine, "squared", update, icgd.Domain(10.0, 1.0))
    task = icgd.as_task(problem, x, torch.ones(3, 1).double(), queries=x[:, [2, 0, 1]] / 7)
    oracle = problem.function_oracle
    share = torch.tensor([0.01, 0.09, 1.0], dtype=torch.float64)
    left, values = torch.ones(3).double(), oracle.train(task, 12)
    for step in range(12):
        assert (1 - values[step][:3] - left).abs().max() <= 1e-14
        left, share = left * (1 - share), share * (3 - share) ** 2 / 4
    kernels = [kernel for _, kernel in zip(range(12), oracle.kernels(task), strict=False)]
    projection = update.size_of(11) * kernels[11][:3]
    assert (projection - torch.eye(3)).abs().max() <= 1e-12
    assert (values[12][3:] - oracle.limit(task).flatten()).abs().max() <= 1e-14


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: icgd.heavy_ball(0.0, 1.0), "smallest eigenvalue"),
        (lambda: icgd.nesterov(-1.0, 1.0), "smallest eigenvalue"),
        (lambda: icgd.chebyshev_momentum(1.0, 2.0, 0), "n_steps must be a whole number"),
        (lambda: icgd.newton_schulz(0.0, 3), "high must be a positive finite number"),
        (
            lambda: icgd.FunctionalStep(0.1, nesterov=True),
            "nesterov",
        ),
    ],
)
def test_wrong_settings_are_refused(call, message):
    with pytest.raises(SettingError, match=message):
        call()
