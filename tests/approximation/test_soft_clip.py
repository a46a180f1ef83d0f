"""What corners leave, by hand and by integration."""

from math import log, pi, sqrt

import pytest
import torch

from icgd.approximation.clipping import (
    SoftClip,
    logarithm_of_far,
    logistic_corner,
    moved_by_rounding,
    normal_corner,
)
from icgd.program.functions import RidgeUnit


@pytest.mark.parametrize("x", [0.0, 0.5, 2.0, 6.0])
def test_a_normal_corner_is_an_average_of_relu(x):
    noise = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    density = torch.exp(-(noise**2) / 2) / sqrt(2 * pi)
    average = float(torch.trapezoid(torch.relu(noise - x) * density, noise))
    assert normal_corner(x) == pytest.approx(average, rel=1e-6)


def test_a_normal_corner_is_never_below_zero():
    assert all(normal_corner(0.25 * step) >= 0.0 for step in range(200))


def test_a_logistic_corner_is_what_softplus_leaves():
    assert logistic_corner(0.0) == pytest.approx(log(2), rel=1e-15)
    x = torch.tensor(3.0, dtype=torch.float64)
    assert logistic_corner(3.0) == pytest.approx(float(torch.logaddexp(x, x * 0) - x), rel=1e-12)


def test_what_a_corner_leaves_grows_with_its_width():
    soft = SoftClip((), 0.0, 0.25, logistic_corner, 30.0)
    assert soft.near(0.5) == pytest.approx(0.25 * logistic_corner(2.0), rel=1e-8)
    assert soft.near(0.5) > 0.25 * logistic_corner(2.0)


def test_away_from_corners_less_is_asked_of_coarse_arithmetic():
    assert logarithm_of_far(2.0**-53) == -log(1e-12)
    assert logarithm_of_far(2.0**-24) == pytest.approx(29 * log(2))


def test_rounding_moves_large_arguments_more():
    unit = RidgeUnit((10.0,), 5.0, 2.0)
    assert moved_by_rounding("tanh", 3.0, [unit]) == 4 * 2.0**-53 * 2.0 * (1 + 30 + 5)
