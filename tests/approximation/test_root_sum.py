"""Reciprocal roots as sums of ReLUs: certified errors, relative to values over powers of ten."""

import pytest
import torch

from icgd.approximation.relu_sum import fit_reciprocal_root, shifted
from icgd.problems.functions import RECIPROCAL, reciprocal_deviation, reciprocal_root
from tests.approximation.test_relu_sum import inside, values

CASES = [(1e-1, 4.0, 1e-2), (1e-3, 100.0, 1e-4), (1e-8, 1e6, 1e-3), (10.0, 1e-3, 1e-4)]
over_cases = pytest.mark.parametrize(("eps", "high", "error"), CASES)
over_roots = pytest.mark.parametrize("root", [reciprocal_root, reciprocal_deviation])


@over_roots
@over_cases
def test_every_value_is_within_the_certified_error_of_its_piece(root, eps, high, error):
    function = root(eps)
    fit = fit_reciprocal_root(function, high, error)
    z = inside(fit)[1:]  # no argument is below 0
    certified = torch.tensor(fit.errors[1:], dtype=torch.float64)
    rounding = 1e-15 * fit.n_pieces * function(z).amax(1)
    assert ((values(fit, z) - function(z)).abs().amax(1) <= certified + rounding).all()


@over_roots
@over_cases
def test_the_error_is_as_small_everywhere_relative_to_the_value(root, eps, high, error):
    function = root(eps)
    fit = fit_reciprocal_root(function, high, error)
    ends = torch.tensor([*fit.knots, fit.high], dtype=torch.float64)
    relative = torch.tensor(fit.errors[1:], dtype=torch.float64) / function(ends[1:])
    assert relative.max() <= 1.5 * error
    # Below 0 the root is constant.
    assert fit.errors[0] <= error * 1.5 * function(ends[0])


def test_smaller_eps_costs_pieces_only_by_its_logarithm():
    n_pieces = [fit_reciprocal_root(reciprocal_root(10.0**-k), 1.0, 1e-4).n_pieces for k in (2, 4)]
    finer = fit_reciprocal_root(reciprocal_root(1e-6), 1.0, 1e-4).n_pieces
    assert finer - n_pieces[1] == pytest.approx(n_pieces[1] - n_pieces[0], rel=0.1)


def test_that_of_a_norm_needs_fewer_pieces_as_it_is_not_steep_at_0():
    fits = [
        fit_reciprocal_root(reciprocal_deviation(eps), 1e4, 1e-4).n_pieces
        for eps in (1e-12, 1e-5, 1e-3)
    ]
    assert fits == [799, 450, 350]
    assert fits[1] < fit_reciprocal_root(reciprocal_root(1e-5), 1e4, 1e-4).n_pieces


def test_no_term_cancels_another_between_0_and_the_last_knot():
    fit = fit_reciprocal_root(reciprocal_root(1e-3), 10.0, 1e-3)
    inner = [term for term in fit.terms() if term.scale < 0 and term.shift > 0]
    assert len(inner) == fit.n_pieces - 2
    assert all(term.coefficient > 0 for term in inner)


def test_shifted_chords_of_a_convex_function_err_to_both_sides_alike():
    ends = shifted(RECIPROCAL, torch.tensor([1.0, 2.0], dtype=torch.float64))
    z = torch.linspace(1.0, 2.0, 1001, dtype=torch.float64)
    gap = torch.lerp(ends[0], ends[1], z - 1.0) - RECIPROCAL(z)
    # The sag of the chord is 3/2 - sqrt(2), as its gap to 1/z is largest at sqrt(2).
    assert float(gap.max()) == pytest.approx((1.5 - 2**0.5) / 2, rel=1e-3)
    assert float(gap.min()) == pytest.approx(-(1.5 - 2**0.5) / 2, rel=1e-3)
