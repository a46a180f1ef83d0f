"""The lottery of Lemma 5: its law, its constants, and greedy sums of the same units."""

from math import pi, sqrt

import pytest
import torch

from icgd_papers.studies.lottery import DECAY, Lottery

LINE = Lottery(1)


def test_the_constants_are_the_integrals_that_they_stand_for():
    w = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    density = torch.exp(-(w**2) / 2) / sqrt(2 * pi)
    step = float(w[1] - w[0])
    norm, total = (
        float((factor * density).sum()) * step for factor in (1 + w.abs(), 2 + 2 * w.abs())
    )
    assert norm == pytest.approx(LINE.barron_norm, rel=1e-6)
    assert total == pytest.approx(LINE.total, rel=1e-6)
    assert float(((1 + w.abs()) ** 2 * torch.exp(-(w**2) / 2)).max()) == pytest.approx(DECAY)
    assert [Lottery(d).volume for d in (1, 2, 3)] == pytest.approx([2.0, pi, 4 * pi / 3])


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_units_are_drawn_from_the_density_of_the_proof(dimension):
    lottery = Lottery(dimension)
    w, b = lottery.draw_units(200_000, torch.Generator().manual_seed(0))
    size, mean = w.norm(dim=1), lottery.mean_frequency
    # E|w| = int |w| (1 + |w|) F / norm, and |b| <= |w| with probability |w| / (|w| + 1)
    assert float(size.mean()) == pytest.approx((mean + dimension) / lottery.barron_norm, rel=0.01)
    inside = float((b.abs() <= size).double().mean())
    assert inside == pytest.approx(mean / lottery.barron_norm, rel=0.01)
    beyond = (b.abs() - size)[b.abs() > size]
    assert float((beyond > 1).double().mean()) == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(("dimension", "most"), [(1, 0.05), (3, 0.4)])
def test_the_mean_of_units_is_the_function(dimension, most):
    lottery = Lottery(dimension)
    found = lottery.drawn_sum(30_000 // dimension**2, torch.Generator().manual_seed(1))
    wanted = torch.exp(-(lottery.points.norm(dim=1) ** 2) / 2)
    assert float((found - wanted).square().mean().sqrt()) < most / 2
    assert float((found - wanted).abs().max()) < most


def test_points_fill_the_ball_evenly():
    radii = Lottery(3).points.norm(dim=1)
    assert float(radii.max()) <= 1
    assert float((radii < 0.5).double().mean()) == pytest.approx(0.125, abs=0.02)


@pytest.mark.parametrize("dimension", [1, 4])
def test_the_lottery_stays_within_its_bound_and_falls_like_the_root_of_n(dimension):
    lottery = Lottery(dimension)
    few, many = (lottery.drawn_distance(n, 30, seed=0) for n in (4, 400))
    assert few <= lottery.constant / 2
    assert many <= lottery.constant / 20
    assert few / many == pytest.approx(10, rel=0.5)


def test_greedy_sums_are_least_squares_fits_of_units_that_help_most():
    lottery = Lottery(2)
    found = lottery.greedy_distances((1, 3, 20), n_drawn=20, seed=3)
    w, b = lottery.draw_units(20, torch.Generator().manual_seed(3))
    units = torch.exp(-((lottery.points @ w.mT + b) ** 2) / 2)
    alone = []
    for unit in units.mT:
        best = torch.linalg.lstsq(unit[:, None], lottery.wanted[:, None]).solution
        alone.append((unit * best[0, 0] - lottery.wanted).square().mean())
    scale = sqrt(pi)
    assert found[0] == pytest.approx(scale * float(min(alone)) ** 0.5)
    every = torch.linalg.lstsq(units, lottery.wanted[:, None]).solution
    rest = (units @ every)[:, 0] - lottery.wanted
    assert found[2] == pytest.approx(scale * float(rest.square().mean()) ** 0.5, rel=1e-3)
    assert found[0] > found[1] > found[2]
