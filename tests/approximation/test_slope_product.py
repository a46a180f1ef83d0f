"""s r'(t) against random samples of the box, with its proved error."""

from itertools import pairwise

import pytest
import torch

from icgd.approximation.ridge import by_quotient, quotient_of, units_of
from icgd.problems.activations import GELU, SIGMOID, TANH
from icgd.problems.functions import SmoothFunction
from icgd.program.functions import RidgeSum

DOUBLE, SINGLE = 2.0**-53, 2.0**-24


def fitted(
    activation: str, units: int, function: SmoothFunction = TANH, roundoff: float = DOUBLE
) -> RidgeSum:
    return by_quotient(function, (2.0, 2.0), activation, units, roundoff=roundoff)


def sampled_error(
    fit: RidgeSum, function: SmoothFunction, dtype: torch.dtype = torch.float64
) -> float:
    draw = torch.Generator().manual_seed(0)
    z = 2 * torch.rand(20_000, 2, generator=draw, dtype=torch.float64) - 1
    z = (z * torch.tensor(fit.half_widths, dtype=torch.float64)).to(dtype)
    s, t = z.double().T
    seen = torch.cat([units_of(fit, dtype)(rows) for rows in z.split(2000)]).double()
    return float((seen - s * function.tower[1](t)).abs().max())


# With 200 units; the last column is how far the proof may lie above the samples.
REACHED = [
    ("relu", 5e-3, 1.5),
    ("sigmoid", 1e-11, 100.0),  # only rounding is left to prove
    ("tanh", 1e-11, 100.0),
    ("softplus", 1e-9, 3.0),
    ("elu", 5e-4, 3.0),
    ("cos", 2e-9, 3.0),
]


@pytest.mark.parametrize(("activation", "error", "ratio"), REACHED)
def test_200_units_reach_their_accuracy_with_a_proof(activation, error, ratio):
    fit = fitted(activation, 200)
    seen = sampled_error(fit, TANH)
    assert seen <= fit.error <= min(error, ratio * seen)
    assert fit.n_units <= 200
    assert fit.largest_coefficient <= 1e3


@pytest.mark.parametrize("activation", ["cos", "elu"])
@pytest.mark.parametrize("function", [SIGMOID, GELU], ids=lambda f: f.name)
def test_other_functions_are_proved_too(activation, function):
    fit = fitted(activation, 48, function)
    seen = sampled_error(fit, function)
    assert seen <= fit.error <= 3 * seen
    assert fit.error <= 2e-2


def test_800_units_of_an_activation_that_is_not_the_function_reach_1e_9():
    fit = fitted("softplus", 800)
    assert sampled_error(fit, TANH) <= fit.error <= 1e-9


def test_the_function_itself_as_activation_takes_a_unit_for_each_direction():
    fit = fitted("tanh", 12)
    assert fit.n_units == 12
    assert {unit.direction[1] for unit in fit.units} == {1.0}
    assert all(unit.offset == 0.0 for unit in fit.units)
    assert fit.error <= 1e-11


def test_the_error_grows_in_proportion_to_the_first_side_of_the_box():
    small, large = (
        by_quotient(TANH, (size, 2.0), "cos", 48, roundoff=DOUBLE) for size in (1.0, 10.0)
    )
    assert large.error == pytest.approx(10 * small.error, rel=1e-3)
    assert sampled_error(large, TANH) <= large.error


@pytest.mark.parametrize("activation", ["tanh", "cos"])
def test_float32_evaluates_what_was_fitted_for_it_to_1e_5(activation):
    fit = fitted(activation, 200, roundoff=SINGLE)
    assert sampled_error(fit, TANH, torch.float32) <= 1e-5


def test_a_quotient_is_odd_and_more_directions_bring_it_closer():
    quotients = [quotient_of(TANH, 2.0, pairs, 0.3) for pairs in (1, 2, 3, 4)]
    errors = [quotient.error for quotient in quotients]
    assert all(after < before / 50 for before, after in pairwise(errors))
    for quotient in quotients:
        assert sum(quotient.factors) == pytest.approx(0.0, abs=1e-9)
        slope = sum(c * h for c, h in zip(quotient.factors, quotient.shifts, strict=True))
        assert slope == pytest.approx(1.0, abs=1e-2)


def test_neither_units_nor_coefficients_exceed_what_is_allowed():
    """Without the bound, the coefficients of this one would be 3000."""
    fit = fitted("tanh", 24, GELU)
    assert fit.n_units <= 24
    assert fit.largest_coefficient <= 1e3
    assert fitted("sigmoid", 8).n_units == 8
