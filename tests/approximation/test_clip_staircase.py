"""Staircases with sharpened ends, for all w."""

import pytest
import torch

from icgd.approximation.clipping import SoftClip, Step, clip_staircase
from icgd.approximation.ridge import units_of
from icgd.program.functions import RidgeSum

FAR = 27.6


def values(soft: SoftClip, activation: str, w: torch.Tensor) -> torch.Tensor:
    return units_of(RidgeSum("clip", activation, (1.0,), soft.units, 0.0))(w.unsqueeze(-1))


def around_corners(bound: float) -> torch.Tensor:
    near = torch.logspace(-9, 9, 600, dtype=torch.float64)
    return torch.cat([near - bound, bound - near, near, torch.zeros(1).double()])


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
@pytest.mark.parametrize(("bound", "units"), [(1.0, 4), (2.0, 84), (0.3, 200), (1.0, 700)])
def test_it_is_close_for_all_w(activation, bound, units):
    soft = clip_staircase(bound, activation, units, FAR)
    w = around_corners(bound)
    gap = (values(soft, activation, w) - w.clamp(-bound, bound)).abs()
    distances = (w.abs() - bound).abs().tolist()
    near = torch.tensor([soft.near(distance) for distance in distances], dtype=torch.float64)
    assert (gap <= soft.error + near).all()
    assert len(soft.units) <= units


@pytest.mark.parametrize(
    ("units", "n_steps", "n_halvings"),
    [(84, 84, 0), (184, 40, 5), (384, 24, 14), (3000, 64, 31)],
)
def test_units_are_shared_such_that_corners_are_sharpest(units, n_steps, n_halvings):
    soft = clip_staircase(1.0, "tanh", units, FAR)
    assert len(soft.units) == n_steps + (24 * (n_halvings + 1) if n_halvings else 0)
    slope = 2 * torch.pi**2 / FAR * n_steps / 2
    assert soft.width == pytest.approx(1 / (slope * 2**n_halvings), rel=1e-12)


def test_coarse_arithmetic_takes_fewer_bumps_and_wider_corners():
    soft = clip_staircase(1.0, "tanh", 3000, 20.1)
    assert len(soft.units) == 64 + 16 * 21
    assert soft.error <= 1e-7


def test_few_steps_are_a_plain_staircase():
    soft = clip_staircase(2.0, "sigmoid", 5, FAR)
    assert [unit.coefficient for unit in soft.units] == [1.0, 1.0, 1.0, 1.0, -4.0]
    assert [-unit.offset / unit.direction[0] for unit in soft.units[:4]] == [-1.5, -0.5, 0.5, 1.5]


def test_a_step_by_a_tanh_lies_lower_by_half_its_height():
    step = Step(3.0, 0.5, 4.0)
    w = torch.linspace(-2, 2, 41, dtype=torch.float64)
    by_sigmoid, by_tanh = (
        units_of(RidgeSum("step", name, (2.0,), (step.unit(name),), 0.0))(w.unsqueeze(-1))
        for name in ("sigmoid", "tanh")
    )
    torch.testing.assert_close(by_sigmoid, by_tanh + 2.0, rtol=0, atol=1e-14)
    assert float(by_sigmoid[25]) == pytest.approx(2.0, rel=1e-14)  # at its place
