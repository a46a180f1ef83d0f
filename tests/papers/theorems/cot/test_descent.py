"""The functions that the lemmas are tried on are what they say."""

import pytest
import torch

from icgd_papers.theorems.cot import descent
from icgd_papers.theorems.cot.descent import functions


@pytest.mark.parametrize("number", range(3))
def test_gradients_curvatures_and_minimisers_belong_together(number):
    f = functions(0)[number]
    w = descent.drawn(9, descent.DIMENSION).requires_grad_()
    (gradient,) = torch.autograd.grad(f.value(w), w, create_graph=True)
    torch.testing.assert_close(gradient, f.gradient(w), rtol=0, atol=1e-12)
    assert f.gradient(f.minimiser).abs().max() < 1e-12
    rows = [torch.autograd.grad(g, w, retain_graph=True)[0] for g in gradient]
    eigenvalues = torch.linalg.eigvalsh(torch.stack(rows))
    assert f.alpha - 1e-12 <= eigenvalues.min()
    assert eigenvalues.max() <= f.beta + 1e-12


def test_the_check_of_rates_notices_a_shorter_step(monkeypatch):
    assert all(comparison.holds for comparison in descent.RATES.check(0).right)
    monkeypatch.setattr(descent, "_step", lambda f, size: lambda w: w - size / 20 * f.gradient(w))
    assert not all(comparison.holds for comparison in descent.RATES.check(0).right)


def test_errors_pile_up_beyond_their_sum_if_a_step_is_longer_than_two_over_beta():
    def step_of(f):
        return lambda w: w - 2.5 / f.beta * f.gradient(w)

    found = descent._piling_up(0, step_of, functions(0))
    assert not all(comparison.holds for comparison in found)
