r"""A number that passes only where a flag is 1.

With M >= 2 |z| and a flag of 0 or 1,

    z flag = relu(z + M (flag - 1)) - relu(-z + M (flag - 1)),

because both relus are off where the flag is 0. Units that do not bend take the product of flag
and z / reach instead; where the flag is 0, its two squares are equal and cancel.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2

from icgd.approximation.bends import by_bends
from icgd.approximation.ridge_line import DOUBLE_ROUNDOFF
from icgd.approximation.ridge_proof import Profile, rounding
from icgd.approximation.ridge_sum import check_box, fit_product
from icgd.problems.activations import IDENTITY_FUNCTION
from icgd.problems.unit_activations import unit_activation_named
from icgd.program.ridge import RidgeSum, RidgeUnit

NAME = "z where flagged"


def fit_gate(
    reach: float, activation: str, units: int, *, roundoff: float = DOUBLE_ROUNDOFF
) -> RidgeSum:
    """z where `flag` is 1, and 0 where it is 0, for |z| <= reach; z comes first.

    The error holds for these two values of the flag.
    """
    half_widths = (reach, 1.0)
    check_box(half_widths, activation, units)
    if unit_activation_named(activation).bends:
        off = 2.0 ** (1 + ceil(log2(reach)))
        relus = [RidgeUnit((sign, off), -off, sign) for sign in (1.0, -1.0)]
        return by_bends(NAME, activation, half_widths, relus)
    product = fit_product((1.0, 1.0), activation, units, roundoff=roundoff)
    scaled = tuple(_scaled(unit, reach) for unit in product.units)
    fit = RidgeSum(NAME, activation, half_widths, scaled, reach * product.error)
    return replace(fit, error=fit.error + rounding(Profile(IDENTITY_FUNCTION, half_widths), fit))


def _scaled(unit: RidgeUnit, reach: float) -> RidgeUnit:
    of_number, of_flag = unit.direction
    return RidgeUnit((of_number / reach, of_flag), unit.offset, reach * unit.coefficient)
