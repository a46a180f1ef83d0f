"""Exponentials and reciprocals of shares as sums of ReLUs, with certified relative errors."""

from math import exp

import pytest
import torch

from icgd.approximation.relu_sum import fit_exponential, fit_reciprocal
from icgd.problems.functions import RECIPROCAL, capped_exponential
from tests.approximation.test_relu_sum import inside, values

ERRORS = (2.0**-4, 2.0**-8, 2.0**-14)  # of which roots are powers of two


@pytest.mark.parametrize("error", [0.4, *ERRORS])
@pytest.mark.parametrize(("cap", "reach"), [(3.0, 20.0), (11.0, 22.0), (5.0, 1e6)])
def test_an_exponential_is_within_the_certified_error_of_every_piece(cap, reach, error):
    function = capped_exponential(cap)
    fit = fit_exponential(function, reach, error)
    z = inside(fit)
    certified = torch.tensor(fit.errors, dtype=torch.float64)
    rounding = 1e-15 * fit.n_pieces * reach * exp(cap)
    assert ((values(fit, z) - function(z)).abs().amax(1) <= certified + rounding).all()


@pytest.mark.parametrize("error", ERRORS)
def test_an_exponential_errs_by_the_same_share_of_its_value(error):
    fit = fit_exponential(capped_exponential(8.0), 16.0, error)
    largest = torch.tensor(fit.knots[1:], dtype=torch.float64).exp()
    relative = torch.tensor(fit.errors[1:-1], dtype=torch.float64) / largest
    assert relative.max() <= 1.5 * error
    assert fit.errors[0] <= exp(-8.0) * (1 + error)  # below -8 it is taken as constant


def test_an_exponential_is_constant_beyond_its_cap():
    fit = fit_exponential(capped_exponential(3.0), 50.0, 1e-4)
    assert (fit.slopes[0], fit.slopes[-1]) == (0.0, 0.0)
    assert fit(50.0) == pytest.approx(exp(3.0), rel=1e-4)
    assert fit(-50.0) == pytest.approx(exp(-3.0), rel=1e-4)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("high", [1.0, 60.0, 1e7])
def test_a_reciprocal_is_within_the_certified_error_of_every_piece(high, error):
    fit = fit_reciprocal(high, error)
    z = inside(fit)[1:]  # the first piece ends where the function begins
    certified = torch.tensor(fit.errors[1:], dtype=torch.float64)
    rounding = 1e-14 * fit.n_pieces
    assert ((values(fit, z) - RECIPROCAL(z)).abs().amax(1) <= certified + rounding).all()
    least = RECIPROCAL(torch.tensor([*fit.knots[1:], high], dtype=torch.float64))
    assert (certified / least).max() <= 2 * error


def test_a_wider_reciprocal_costs_pieces_only_by_the_logarithm():
    pieces = [fit_reciprocal(10.0**k / 2, 1e-3).n_pieces for k in (2, 4)]
    assert pieces[1] == pytest.approx(2 * pieces[0], abs=2)
