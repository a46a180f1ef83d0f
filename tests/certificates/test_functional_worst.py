"""Bound (a) of functional descent with momentum; without it see test_functional_bound.py."""

from math import inf, nan

import pytest
import torch

import icgd
from icgd.certificates.enclosures import Arithmetic
from icgd.certificates.functional import Worst, known

DOUBLE = Arithmetic.of(torch.float64, 64, "dense")


def worst_of(update: icgd.FunctionalStep, n_steps: int, kernel: str = "rbf") -> Worst:
    machine = icgd.KernelMachine(3, kernel)
    worst = Worst(icgd.Problem(machine, "squared", update, icgd.Domain(2.0, 4.0)), DOUBLE)
    for step in range(n_steps):
        worst.take(step)
    return worst


@pytest.mark.parametrize("nesterov", [False, True])
def test_steps_that_are_short_enough_for_any_data_have_a_small_bound(nesterov):
    limit = (1.5 if nesterov else 3.0) / 64
    short = icgd.FunctionalStep(0.99 * limit, momentum=0.5, nesterov=nesterov)
    long = icgd.FunctionalStep(1.1 * limit, momentum=0.5, nesterov=nesterov)
    assert worst_of(short, 100).error <= 1e-4
    assert worst_of(long, 100).error >= 1.0
    assert worst_of(short, 100, "relu").error >= 1.0


def test_what_is_left_is_bounded_by_the_impulse_response():
    """(2 k + 1) times the norm of the labels, which are 4 at each of 64 examples."""
    update = icgd.FunctionalStep(1 / 64, momentum=0.5)
    assert worst_of(update, 5).left == pytest.approx(11 * 32.0)
    assert worst_of(update, 5).change == pytest.approx(20 * 32.0)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.9, (0.0, 0.9, 0.1, 0.8)])
def test_runs_stay_within_what_is_said_of_all_tasks(nesterov, momentum):
    update = icgd.FunctionalStep(0.02, momentum=momentum, nesterov=nesterov)
    x = torch.rand(20, 3, generator=torch.Generator().manual_seed(0)).double() / 4
    problem = icgd.Problem(icgd.KernelMachine(3), "squared", update, icgd.Domain(2.0, 4.0))
    task = icgd.as_task(problem, x, torch.full((20, 1), 4.0).double(), queries=x[:2])
    real = problem.oracle.train(task, 4)
    for step in range(1, 5):
        worst = worst_of(update, step)
        values = real[step]
        assert (4.0 - values[:20]).norm() <= worst.left
        assert values.abs().max() <= worst.value
        assert (values - real[step - 1]).abs().max() <= worst.token_change
        assert (values - real[step - 1])[:20].norm() <= worst.change


def test_what_infinities_make_is_not_known():
    assert (known(nan), known(2.0), known(inf)) == (inf, 2.0, inf)
