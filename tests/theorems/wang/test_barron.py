from math import pi, sqrt

import pytest
import torch

from icgd.theorems.wang.barron import BARRON, DECAY, POINTS, TOTAL, draw_units, mean_of_units


def test_the_constants_are_the_integrals_that_they_stand_for():
    w = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    density = torch.exp(-(w**2) / 2) / sqrt(2 * pi)
    step = float(w[1] - w[0])
    assert float(((1 + w.abs()) * density).sum()) * step == pytest.approx(BARRON, rel=1e-6)
    assert float(((2 * w.abs() + 2) * density).sum()) * step == pytest.approx(TOTAL, rel=1e-6)
    assert float(((1 + w.abs()) ** 2 * torch.exp(-(w**2) / 2)).max()) == pytest.approx(DECAY)


def test_units_are_drawn_from_the_density_of_the_proof():
    w, b = draw_units(200_000, torch.Generator().manual_seed(0))
    # E|w| = int |w| (1 + |w|) F / BARRON, and |b| <= |w| with probability |w| / (|w| + 1)
    assert float(w.mean()) == pytest.approx((sqrt(2 / pi) + 1) / BARRON, rel=0.01)
    assert float((b.abs() <= w).double().mean()) == pytest.approx(sqrt(2 / pi) / BARRON, rel=0.01)
    beyond = (b.abs() - w)[b.abs() > w]
    assert float((beyond > 1).double().mean()) == pytest.approx(0.5, rel=0.02)


def test_the_mean_of_units_is_the_function():
    found = mean_of_units(30_000, torch.Generator().manual_seed(1))
    assert float((found - torch.exp(-(POINTS**2) / 2)).abs().max()) < 0.05
