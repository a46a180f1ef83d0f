"""Sums of relus by what bends like relu, and slopes that jump."""

import pytest
import torch

from icgd.approximation.ridge import by_bends, fit_bends, kinked_slope
from icgd.problems.activations import CLIP, LEAKY_RELU, UNIT_ACTIVATIONS, bending_activations
from icgd.problems.functions import KinkedFunction
from icgd.program.functions import Band, RidgeSum, RidgeUnit
from tests.approximation.yardsticks import evaluate

RELUS = (RidgeUnit((2.0, 1.0), -0.5, 3.0), RidgeUnit((-1.0, 0.0), 0.25, -1.0))
WIDTH = 2.0**-5

ZIGZAG = KinkedFunction(
    "zigzag",
    lambda z: 0.5 * z - 1.5 * torch.relu(z + 1) + 0.75 * torch.relu(z - 0.7),
    (-1.0, 0.7),
    (0.5, -1.0, -0.25),
)


def box(fit: RidgeSum) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    sides = torch.tensor(fit.half_widths, dtype=torch.float64)
    return sides * (2 * torch.rand(20_000, len(sides), generator=draw, dtype=torch.float64) - 1)


@pytest.mark.parametrize("activation", bending_activations())
def test_a_sum_of_relus_is_met_within_its_error(activation):
    fit = by_bends("f", activation, (2.0, 1.0), RELUS)
    real = by_bends("f", "relu", (2.0, 1.0), RELUS)
    z = torch.cat([box(fit), torch.tensor([[0.25, 0.0], [0.0, 0.5]], dtype=torch.float64)])
    gap = (evaluate(fit, z) - evaluate(real, z)).abs().max()
    expected = 4.0 * UNIT_ACTIVATIONS[activation].off_relu / 2.0**40
    assert fit.error == pytest.approx(expected, rel=1e-12)
    assert gap <= fit.error + 4e-15
    assert real.is_exact
    assert real.units == RELUS


def test_small_boxes_get_sharper_units():
    fit = by_bends("f", "elu", (0.3, 5.0), RELUS)
    assert fit.units[0] == RidgeUnit((2.0**43, 2.0**42), -(2.0**41), 3.0 / 2.0**42)
    assert fit.error == 4.0 / 2.0**42


def test_a_piecewise_linear_function_is_a_sum_of_relus():
    fit = fit_bends(CLIP, 3.0, "silu")
    z = box(fit)
    assert (evaluate(fit, z) - CLIP(z.squeeze(-1))).abs().max() <= fit.error + 1e-15 <= 1e-12
    assert fit.n_units == 3


@pytest.mark.parametrize("activation", bending_activations())
@pytest.mark.parametrize("function", [LEAKY_RELU, CLIP, ZIGZAG], ids=lambda f: f.name)
def test_slopes_that_jump_are_met_off_the_bands(function, activation):
    fit = kinked_slope(function, (3.0, 2.0), activation, WIDTH)
    s, t = box(fit).T
    gap = (evaluate(fit, box(fit)) - s * function.derivative()(t)).abs()
    allowed = torch.full_like(t, fit.error)
    for band in fit.bands:
        inside = (band.low < t) & (t < band.high)
        assert gap[inside].max() >= 0.8 * band.error
        allowed = torch.where(inside, allowed.clamp(min=band.error), allowed)
    assert (gap <= allowed + 2.0**-53 * fit.size).all()
    assert fit.error <= 1e-11
    assert fit.name == f"s {function.name}'(t)"


def test_every_knot_has_its_band_as_high_as_its_jump():
    bands = kinked_slope(ZIGZAG, (3.0, 2.0), "relu", WIDTH).bands
    assert bands == (
        Band(-1.0 - WIDTH, -1.0 + WIDTH, 4.5),
        Band(0.7 - WIDTH, 0.7 + WIDTH, 2.25),
    )


def test_jumps_of_neighbouring_knots_add_up_and_those_of_nothing_are_left_out():
    close = KinkedFunction("close", lambda z: z, (0.0, 0.05, 1.0), (0.0, 1.0, -1.0, -1.0))
    fit = kinked_slope(close, (2.0, 2.0), "relu", WIDTH)
    assert [band.error for band in fit.bands] == [6.0, 6.0]
    assert fit.n_units == 4


def test_jumps_go_inside_so_that_only_sums_are_rounded():
    first, second = kinked_slope(LEAKY_RELU, (3.0, 2.0), "relu", WIDTH).units[2:]
    assert first == RidgeUnit((0.99, 128.0), -0.0, 1.0)
    assert second == RidgeUnit((0.0, 128.0), -0.0, -1.0)
