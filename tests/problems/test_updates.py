"""Updates: schedules, transforms and Chebyshev steps."""

from math import acosh, cosh

import pytest
import torch

import icgd
from icgd.errors import SettingError
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.optimisers import GradientStep
from icgd.problems.steps import FunctionalStep, best_constant_step, chebyshev_steps

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
        (lambda: chebyshev_steps(2.0, 1.0, 3), r"An interval needs finite ends .* \[2.0, 1.0\]"),
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
