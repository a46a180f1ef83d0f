"""Ramps of sigmoids, the bounds on their corners, and what halves them."""

from math import exp

import pytest
import torch

from icgd.approximation.clipping import (
    Halving,
    halving_of,
    periodic_error,
    step_distance,
)

FINE, COARSE = 27.6, 20.1
X = torch.cat([torch.linspace(-50, 50, 2001), torch.linspace(-5, 5, 2001)]).double()


def ramp(x: torch.Tensor, far: float) -> torch.Tensor:
    """P(x), with more steps than matter."""
    distance = step_distance(far)
    places = distance * (torch.arange(400).double() + 0.5)
    return distance * torch.sigmoid(x.unsqueeze(-1) - places).sum(-1)


def values(halving: Halving, x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x)
    for place, before, after in zip(halving.places, halving.before, halving.after, strict=True):
        for scale, coefficient in ((1, before), (2, after)):
            bump = torch.sigmoid(scale * x + place) - torch.sigmoid(scale * x - place)
            total += coefficient * bump
    return total


@pytest.mark.parametrize("far", [6.0, 10.0, COARSE])
def test_a_ramp_is_a_line_with_a_corner_below_that_of_softplus(far):
    excess = ramp(X, far) - torch.relu(X)
    corner = torch.log1p(torch.exp(-X.abs()))
    assert (excess <= corner + periodic_error(far) + 1e-13).all()
    assert (excess >= -periodic_error(far) - 1e-13).all()
    assert float(excess[X > 20].abs().max()) >= 0.9 * periodic_error(far) or far > 15


def test_the_corner_is_nearly_that_of_softplus():
    at_zero = ramp(torch.zeros(1, dtype=torch.float64), FINE)
    assert float(at_zero) == pytest.approx(0.693, abs=6e-3)


# The proof adds rounding, and in coarse arithmetic the periodic error beyond the panels.
@pytest.mark.parametrize(
    ("far", "n_bumps", "error"), [(FINE, 6, 2e-10), (FINE, 5, 1e-9), (COARSE, 4, 3e-7)]
)
def test_few_bumps_halve_a_corner_everywhere(far, n_bumps, error):
    halving = halving_of(far, n_bumps)
    seen = (values(halving, X) - (ramp(2 * X, far) / 2 - ramp(X, far))).abs().max()
    assert float(seen) <= halving.error <= min(error, 3 * float(seen))


def test_coefficients_stay_small():
    halving = halving_of(FINE, 6)
    assert sum(abs(number) for number in (*halving.before, *halving.after)) <= 40


def test_places_are_even_and_the_second_kind_is_the_first_kind_of_the_next_scale():
    assert halving_of(FINE, 4).places == (0.5, 1.0, 1.5, 2.0)


def test_beyond_the_panels_the_periodic_error_counts():
    assert halving_of(12.0, 4).error >= 26 * exp(-12.0)
