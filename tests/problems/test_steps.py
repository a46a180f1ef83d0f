"""Updates: schedules, transforms and Chebyshev steps."""

from math import acosh, cosh, sqrt

import numpy as np
import pytest
import torch

import icgd
from icgd.errors import SettingError
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.optimisers import GradientStep
from icgd.problems.spectrum import growth
from icgd.problems.steps import (
    FunctionalStep,
    ProximalStep,
    best_constant_step,
    chebyshev_steps,
    fista_momenta,
    nesterov_momentum,
    span_in_words,
)

A = ((1.0, 2.0), (3.0, 4.0))
HEAD = KernelHead("rbf", A)


def test_steps_may_have_kernels_of_their_own():
    update, machine = FunctionalStep(0.1, heads=[HEAD, [HEAD, HEAD]]), KernelMachine(2, "exp", 3)
    assert update.machine_of(0, machine) == KernelMachine(2, HEAD, 3)
    assert update.machine_of(1, machine) == KernelMachine(2, (HEAD, HEAD), 3)
    assert FunctionalStep(0.1).machine_of(1, machine) is machine
    assert update.changes_kernel
    assert not update.is_constant
    assert not FunctionalStep(0.1).changes_kernel


def test_one_step_size_serves_all_steps():
    update = FunctionalStep(0.5, transforms=2.0)
    assert update.is_constant
    assert (update.size_of(0), update.size_of(7)) == (0.5, 0.5)
    assert update.transform_of(7, 2) == ((2.0, 0.0), (0.0, 2.0))
    update.require_steps(7)


def test_a_schedule_has_an_entry_a_step():
    update = FunctionalStep([0.5, 0.25], transforms=(0.0, A))
    assert not update.is_constant
    assert [update.size_of(step) for step in range(2)] == [0.5, 0.25]
    assert update.transform_of(0, 2) == ((0.0, 0.0), (0.0, 0.0))
    assert update.transform_of(1, 2) == A
    update.require_steps(2)
    with pytest.raises(SettingError, match="step_size has 2 entries; expected 3, one for each"):
        update.require_steps(3)
    with pytest.raises(SettingError, match="transforms has 2 entries; expected 3"):
        FunctionalStep(0.1, transforms=(0.0, A)).require_steps(3)


def test_momentum_is_kept_in_all_steps_or_as_each_says():
    plain, update = FunctionalStep(0.1), FunctionalStep(0.1, momentum=0.5)
    assert update.is_constant
    assert [update.momentum_of(step) for step in (0, 7)] == [0.5, 0.5]
    assert (plain.momentum_of(3), plain.lookahead_of(3), update.lookahead_of(3)) == (0.0, 0.0, 0.0)
    varied = FunctionalStep(0.1, momentum=(0.0, 0.5), nesterov=True)
    assert not varied.is_constant
    assert [varied.lookahead_of(step) for step in (0, 1)] == [0.0, 0.5]
    assert varied.in_words() == "functional steps of 0.1, Nesterov momentum 0 to 0.5"
    assert update.in_words() == "functional steps of 0.1, momentum 0.5"
    with pytest.raises(SettingError, match="momentum has 2 entries; expected 3, one for each"):
        varied.require_steps(3)


def test_transforms_of_any_kind_become_plain_data():
    for matrix in (A, torch.tensor(A), [list(row) for row in A], (torch.tensor(A),), [A]):
        assert FunctionalStep(0.1, transforms=matrix).transforms == (A,)
    assert FunctionalStep(0.1, transforms=torch.tensor([A, A])).transforms == (A, A)
    assert FunctionalStep(torch.tensor([0.5, 0.25])).step_size == (0.5, 0.25)
    assert FunctionalStep(0.1).transforms == ()


@pytest.mark.parametrize("condition", [4.0, 100.0, 1e4])
@pytest.mark.parametrize("n_steps", [1, 7, 40])
def test_chebyshev_steps_shrink_all_errors_by_the_optimal_factor(condition, n_steps):
    """The largest |prod (1 - r t)| on [low, high] is 1 / T_n((high + low) / (high - low))."""
    low, high = 0.3, 0.3 * condition
    t = torch.linspace(low, high, 20_001, dtype=torch.float64)
    product = torch.ones_like(t)
    largest = 0.0
    for size in chebyshev_steps(low, high, n_steps):
        product = product * (1 - size * t)
        largest = max(largest, float(product.abs().max()))
    optimum = 1 / cosh(n_steps * acosh((high + low) / (high - low)))
    assert float(product.abs().max()) == pytest.approx(optimum, rel=1e-6)
    assert largest <= condition  # no intermediate product is large, so rounding is not either


def test_the_best_constant_step_is_best():
    t = torch.linspace(1.0, 100.0, 1001, dtype=torch.float64)
    sizes = [best_constant_step(1.0, 100.0) * factor for factor in (0.99, 1.0, 1.01)]
    factors = [float((1 - size * t).abs().max()) for size in sizes]
    assert factors[1] == pytest.approx(99 / 101)
    assert factors[1] < min(factors[0], factors[2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradientStep(0.0, 1.0), "step_size must be a positive finite number, got 0.0"),
        (lambda: GradientStep(0.1, 1.0, 0), "batch_size must be a whole number of at least 1, got"),
        (lambda: FunctionalStep(-1.0), "step_size must be a positive finite number, got -1.0"),
        (lambda: FunctionalStep(()), "step_size is empty; give one number for each step"),
        (lambda: FunctionalStep((0.1, float("inf"))), "step_size must be .* got inf"),
        (lambda: FunctionalStep(0.1, noise=-0.1), "noise must be a positive finite number"),
        (lambda: FunctionalStep(0.1, transforms=float("nan")), "transforms must be a fin"),
        (
            lambda: FunctionalStep(0.1, transforms=(A[:1],)).require_machine(KernelMachine(2)),
            "transforms must be 2 x 2 matrices, got one of 1 x 2",
        ),
        (lambda: FunctionalStep(0.1, heads=["rbf"]), "head must be of type KernelHead, got 'rbf'"),
        (
            lambda: FunctionalStep(0.1, heads=[HEAD] * 2).require_steps(3),
            "heads has 2 entries; expected 3, one for each step",
        ),
        (
            lambda: FunctionalStep(0.1, heads=[HEAD]).require_machine(KernelMachine(3)),
            "A row of transform has 2 entries; expected 3, one for each input",
        ),
        (lambda: chebyshev_steps(2.0, 1.0, 3), r"low must be below high, got low=2.0 and high=1.0"),
        (
            lambda: chebyshev_steps(0.0, 4.0, 3),
            "low, the smallest eigenvalue .* is 0, .*noise=0.04",
        ),
        (lambda: chebyshev_steps(1e-17, 1.0, 3), "low, the smallest eigenvalue .* is 1e-17, but "),
        (lambda: chebyshev_steps(-3.0, 1.0, 3), r"low, .* is -3, .*noise=3\.01"),
        (lambda: chebyshev_steps(float("nan"), 1.0, 3), "low must be a finite number, got"),
        (lambda: best_constant_step(0.0, 4.0), "low, the smallest eigenvalue .* is 0, but it must"),
    ],
)
def test_wrong_updates_are_refused(make, message):
    with pytest.raises(SettingError, match=message):
        make()


def test_the_advice_for_a_singular_kernel_works():
    """Two equal examples make every kernel singular."""
    machine, x = icgd.KernelMachine(2, "rbf"), [[0.5, 0.2], [0.5, 0.2], [0.1, 0.9]]
    found = icgd.spectrum(machine, x)
    with pytest.raises(SettingError, match=r"smallest eigenvalue .*noise=0\.02"):
        chebyshev_steps(found.low, found.high, 10)
    noisy = icgd.spectrum(machine, x, noise=0.02)
    assert noisy.low == pytest.approx(0.02)
    assert len(chebyshev_steps(noisy.low, noisy.high, 10)) == 10


def test_a_batch_takes_the_next_examples_and_starts_over_at_the_end():
    update = GradientStep(0.1, 1.0, batch_size=2)
    assert [update.examples_of(step, 5) for step in range(3)] == [(0, 1), (2, 3), (4, 0)]
    assert GradientStep(0.1, 1.0).examples_of(7, 3) == (0, 1, 2)


def test_an_array_without_axes_is_no_schedule():
    with pytest.raises(SettingError, match="step_size must be a positive finite number, got"):
        icgd.FunctionalStep(torch.tensor(0.5))  # type: ignore[arg-type]


# Momentum: what is taken for it, and the momenta of FISTA.


def test_momentum_is_one_number_or_one_for_each_step():
    assert ProximalStep(0.1).momentum is None
    assert ProximalStep(0.1, momentum=0).momentum == 0.0
    assert ProximalStep(0.1, momentum=np.array([0.5, 1.0])).momentum == (0.5, 1.0)
    assert ProximalStep(0.1, momentum=torch.tensor([0.5, 0.25])).momentum == (0.5, 0.25)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, r"momentum must lie between 0 and 1, got 1\.5"),
        ((0.5, -0.1), r"momentum must lie between 0 and 1, got -0\.1"),
        ((), "momentum is empty; give one number for each step"),
        ("much", "momentum must be a finite number, got 'much'"),
    ],
)
def test_other_momentum_is_refused(value, message):
    with pytest.raises(SettingError, match=message):
        ProximalStep(0.1, momentum=value)


def test_a_schedule_reads_as_its_ends():
    assert span_in_words(0.5) == span_in_words((0.5, 0.5)) == "0.5"
    assert span_in_words((0.5, 0.25, 1.0)) == "0.25 to 1"


def test_momentum_is_named_by_its_kind():
    assert FunctionalStep(0.1).in_words() == "functional steps of 0.1"
    heavy = FunctionalStep(0.1, momentum=0.5)
    assert heavy.in_words() == "functional steps of 0.1, momentum 0.5"
    ahead = FunctionalStep(0.1, momentum=(0.0, 0.5), nesterov=True)
    assert ahead.in_words() == "functional steps of 0.1, Nesterov momentum 0 to 0.5"


def test_nesterovs_momentum_grows_with_the_condition():
    assert nesterov_momentum(1.0, 1.0) == 0.0
    assert nesterov_momentum(1.0, 9.0) == pytest.approx(0.5)
    assert nesterov_momentum(0.0, 9.0) == 1.0
    with pytest.raises(SettingError, match=r"low must lie between 0 and 9, got 10\.0"):
        nesterov_momentum(10.0, 9.0)


def test_the_momenta_of_fista_follow_its_sequence():
    """With t_1 = 1, t_2 = 1.618: (t_1 - 1) / t_2 = 0, then 0.618 / 2.194."""
    momenta = fista_momenta(200)
    assert momenta[:3] == pytest.approx((0.0, 0.28175352512532087, 0.43404278240221505))
    t = [1.0]
    for momentum in momenta:
        t.append((1 + (1 + 4 * t[-1] ** 2) ** 0.5) / 2)
        assert momentum == pytest.approx((t[-2] - 1) / t[-1])
        assert t[-1] ** 2 - t[-1] == pytest.approx(t[-2] ** 2)
    assert momenta[-1] == pytest.approx(1 - 3 / 200, abs=1e-3)


# Faster steps in function space: what is left after every step, beside what theory allows.


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


# Settings of the proximal step.


def test_the_step_size_may_be_left_to_the_data():
    assert ProximalStep() == ProximalStep(None, l2=0.0, l1=0.0)
    assert ProximalStep(0.1).step_size == 0.1


def test_proximal_momentum_is_one_number_or_one_for_each_step():
    plain, heavy = ProximalStep(0.1), ProximalStep(0.1, momentum=0.5)
    fista = ProximalStep(0.1, momentum=[0.0, 0.5], nesterov=True)
    assert [update.is_constant for update in (plain, heavy, fista)] == [True, True, False]
    assert [fista.momentum_of(step) for step in (0, 1)] == [0.0, 0.5]
    assert (heavy.momentum_of(7), heavy.lookahead_of(7), fista.lookahead_of(1)) == (0.5, 0.0, 0.5)
    assert [update.overshoot for update in (plain, heavy, fista)] == [1.0, 1.0, 2.0]
    assert fista.in_words() == "proximal steps of 0.1, Nesterov momentum 0 to 0.5"
    fista.require_steps(2)
    with pytest.raises(SettingError, match="momentum has 2 entries; expected 3, one for each step"):
        fista.require_steps(3)


def test_either_penalty_penalises():
    assert not ProximalStep(0.1).penalises
    assert ProximalStep(l2=0.1).penalises
    assert ProximalStep(l1=0.1).penalises


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"l2": -0.5}, "l2 must not be negative, got -0.5"),
        ({"l1": -1.0}, "l1 must not be negative, got -1.0"),
        ({"l1": float("nan")}, "l1 must be a finite number, got nan"),
        ({"step_size": 0.0}, "step_size must be a positive finite number, got 0.0"),
        ({"momentum": 1.5}, "momentum must lie between 0 and 1, got 1.5"),
        ({"nesterov": True}, "nesterov"),
    ],
)
def test_impossible_settings_are_refused(settings, text):
    with pytest.raises(SettingError, match=text):
        ProximalStep(**settings)
