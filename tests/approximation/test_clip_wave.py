"""Cosines that clip for a quarter of their period."""

from math import pi, sqrt

import pytest
import torch

from icgd.approximation.clipping import clip_wave
from icgd.approximation.ridge import units_of
from icgd.program.functions import RidgeSum


@pytest.mark.parametrize(
    ("bound", "reach", "units", "far"),
    [
        (1.0, 2.0, 84, 27.6),
        (1.0, 1.1, 40, 27.6),
        (0.5, 3.0, 84, 10.0),
        (1.0, 2.0, 9, 27.6),  # at the reach another corner is as close
        (1.0, 9.0, 6, 27.6),
    ],
)
def test_it_is_close_up_to_the_reach(bound, reach, units, far):
    soft = clip_wave(bound, reach, units, far)
    w = torch.linspace(-reach, reach, 2001, dtype=torch.float64)
    fit = RidgeSum("clip", "cos", (reach,), soft.units, 0.0)
    gap = (units_of(fit)(w.unsqueeze(-1)) - w.clamp(-bound, bound)).abs()
    distances = (w.abs() - bound).abs().tolist()
    near = torch.tensor([soft.near(distance) for distance in distances], dtype=torch.float64)
    assert (gap <= soft.error + near).all()
    assert soft.error + float(near.max()) <= 2.2 * float(gap.max())
    assert len(soft.units) == units


def test_a_wave_that_just_reaches_is_as_wide_as_two_bounds():
    soft = clip_wave(1.0, 1.1, 40, 27.6)
    assert soft.units[0].direction == (pi / 4,)
    assert soft.width == pytest.approx(sqrt(2 * 27.6) / (81 * pi / 4))
    assert clip_wave(1.0, 3.0, 40, 27.6).units[0].direction == (pi / 6,)


def test_few_waves_leave_corners_of_half_the_bound():
    """Terms left out are counted: the width would need 16 times as many."""
    soft = clip_wave(1.0, 9.0, 6, 27.6)
    assert soft.width == 0.5
    assert soft.error >= 0.05
