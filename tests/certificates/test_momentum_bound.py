"""Errors of descent with momentum: their norms, and steps whose products stay small."""

import numpy as np
import pytest
import torch

import icgd
from icgd.certificates.linear import Motion, Pair, Responses, is_stable, multiplied

EIGENVALUES = torch.tensor([0.1, 1.0, 4.0], dtype=torch.float64)


def propagated(size, momentum, ahead, left, change):
    """One exact step on errors along the three eigenvectors."""
    read = left + ahead * change
    change = momentum * change - size * EIGENVALUES * read
    return left + change, change


@pytest.mark.parametrize("ahead", [0.0, 0.5])
def test_norms_bound_every_error_and_are_met_by_some(ahead):
    """Errors of norm 1 are added at every step, along one eigenvector or another."""
    size, momentum, n_steps = 0.4, 0.5, 30
    responses, norms = Responses(EIGENVALUES), Pair(*(torch.zeros(1, 1).double(),) * 2)
    for _ in range(n_steps):
        one = torch.ones(1, 1).double()
        norms = responses.after(size, momentum, ahead, one, norms)
    draw, found = np.random.default_rng(0), []
    for _ in range(200):
        left = change = torch.zeros(3).double()
        for _ in range(n_steps):
            left, change = propagated(size, momentum, ahead, left, change)
            added = torch.from_numpy(draw.normal(size=(2, 3)))
            added = added / added.norm(dim=-1, keepdim=True)
            left, change = left + added[0], change + added[1]
        assert left.norm() <= norms.left
        assert change.norm() <= norms.change
        found.append(float(left.norm()))
    assert max(found) >= float(norms.left) / 10


def test_one_error_is_followed_to_rounding():
    """It is added in the first step along the smallest eigenvalue, which shrinks most slowly."""
    nothing, one = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
    responses, norms = Responses(EIGENVALUES[:1]), Pair(nothing, nothing)
    norms = responses.after(0.4, 0.5, 0.0, one, norms)
    assert float(norms.left) == pytest.approx(2.0 - 1.0)  # what it adds itself is not moved on
    left, change = torch.ones(1).double(), torch.ones(1).double()
    for _ in range(20):
        read = left
        change = 0.5 * change - 0.4 * 0.1 * read
        left = left + change
        norms = responses.after(0.4, 0.5, 0.0, nothing, norms)
        assert float(norms.left) >= float(left.abs()) - 1e-12
    assert float(norms.left) <= 3 * float(left.abs())


def test_batches_have_norms_of_their_own():
    values = torch.stack([EIGENVALUES, EIGENVALUES / 2])
    together, norms = Responses(values), Pair(*(torch.zeros(2, 1, 1).double(),) * 2)
    alone = [Responses(part) for part in values]
    parts = [Pair(*(torch.zeros(1, 1).double(),) * 2)] * 2
    for step in range(5):
        added = torch.tensor([[[1.0 + step]], [[2.0]]]).double()
        norms = together.after(0.4, 0.5, 0.5, added, norms)
        parts = [
            each.after(0.4, 0.5, 0.5, added[task], parts[task]) for task, each in enumerate(alone)
        ]
    for task, part in enumerate(parts):
        torch.testing.assert_close(norms.left[task], part.left)
        torch.testing.assert_close(norms.change[task], part.change)


def test_where_kernels_differ_norms_are_multiplied():
    now = Pair(torch.tensor(2.0), torch.tensor(3.0))
    numbers = (torch.tensor(number) for number in (0.5, 0.25, 0.75, 1.0))
    after = multiplied(*numbers, now)
    assert float(after.left) == pytest.approx(0.5 * 2 + 0.75 * 3 + 1)
    assert float(after.change) == pytest.approx(0.25 * 2 + 0.75 * 3 + 1)


@pytest.mark.parametrize(("nesterov", "limit"), [(False, 3.0), (True, 1.5)])
def test_steps_are_stable_up_to_the_eigenvalue_at_which_they_diverge(nesterov, limit):
    update = icgd.FunctionalStep(1.0, momentum=0.5, nesterov=nesterov)
    assert is_stable(update, 0.999 * limit)
    assert not is_stable(update, 1.001 * limit)
    values = torch.linspace(0.0, limit, 101, dtype=torch.float64)
    kept = 0.5 * (1 - values) if nesterov else 0.5 * torch.ones_like(values)
    matrices = torch.stack([1 - values, kept, -values, kept], dim=-1).unflatten(-1, (2, 2))
    assert torch.linalg.eigvals(matrices).abs().max() <= 1 + 1e-12


def test_steps_that_differ_or_move_inputs_are_not_called_stable():
    assert not is_stable(icgd.FunctionalStep(0.1, momentum=(0.0, 0.5)), 1.0)
    assert not is_stable(icgd.FunctionalStep(0.1, transforms=0.1, momentum=0.5), 1.0)


def test_no_motion_is_zero():
    motion = Motion.none(torch.ones(2, 1))
    assert not any(part.any() for part in motion)
