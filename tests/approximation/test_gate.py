"""A number where the flag is 1, and nothing where it is 0."""

import pytest
import torch

from icgd.approximation.ridge import fit_gate
from icgd.errors import SettingError
from icgd.problems.activations import UNIT_ACTIVATIONS
from icgd.program.functions import RidgeSum, RidgeUnit
from tests.approximation.yardsticks import evaluate

SINGLE = 2.0**-24


def errors(fit: RidgeSum, dtype: torch.dtype = torch.float64) -> tuple[float, float]:
    """With the flag off, and on."""
    z = fit.half_widths[0] * torch.linspace(-1, 1, 401, dtype=dtype)
    off, on = torch.zeros_like(z), torch.ones_like(z)
    closed = evaluate(fit, torch.stack([z, off], dim=-1))
    opened = evaluate(fit, torch.stack([z, on], dim=-1)) - z
    return float(closed.abs().max()), float(opened.abs().max())


@pytest.mark.parametrize("activation", UNIT_ACTIVATIONS)
@pytest.mark.parametrize("reach", [0.1, 5.0, 1e4])
def test_only_what_is_flagged_passes(activation, reach):
    fit = fit_gate(reach, activation, 64)
    off, on = errors(fit)
    assert max(off, on) <= fit.error + 4e-16 * reach
    assert fit.error <= 2e-12 * max(reach, 1.0)
    assert (fit.name, fit.half_widths) == ("z where flagged", (reach, 1.0))


def test_relu_is_exact_with_two_units():
    fit = fit_gate(5.0, "relu", 8)
    assert fit.is_exact
    assert fit.units == (RidgeUnit((1.0, 16.0), -16.0, 1.0), RidgeUnit((-1.0, 16.0), -16.0, -1.0))
    assert errors(fit)[0] == 0.0


@pytest.mark.parametrize("activation", ["tanh", "cos", "silu"])
def test_float32_keeps_six_digits(activation):
    fit = fit_gate(50.0, activation, 64, roundoff=SINGLE)
    off, on = errors(fit, torch.float32)
    assert max(off, on) <= 1e-4


def test_a_reach_must_be_positive():
    with pytest.raises(SettingError, match="half_width must be a positive finite number"):
        fit_gate(0.0, "relu", 8)
