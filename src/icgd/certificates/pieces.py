"""Which pieces of a piecewise-linear function an interval touches.

A piece holds its right end. Knots are multiples of `knot_unit`, a power of two, so that a division
by it is exact. A table tells how many knots lie at or below every multiple of it.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from icgd.certificates.intervals import Interval
from icgd.program.functions import ReluSum
from icgd.shapes import Values

MOST_CELLS = 2**20
"""The most multiples of a knot unit in a table; more knots than that are searched for."""


def touched(fit: ReluSum, argument: Interval) -> tuple[Tensor, Tensor]:
    """The numbers of the first and of the last piece that the argument can lie on."""
    last = knots_below(fit, argument.high)
    first = torch.minimum(knots_up_to(fit, argument.low), last)
    return first, last


def knots_below(fit: ReluSum, values: Values) -> Tensor:
    """How many knots are less than each value."""
    if not _has_table(fit, values):
        return torch.searchsorted(_knots(fit), values.contiguous())
    return _read(fit, (values / fit.knot_unit).ceil_().sub_(1.0))


def knots_up_to(fit: ReluSum, values: Values) -> Tensor:
    """How many knots are at most each value."""
    if not _has_table(fit, values):
        return torch.searchsorted(_knots(fit), values.contiguous(), right=True)
    return _read(fit, (values / fit.knot_unit).floor_())


def _read(fit: ReluSum, multiples: Tensor) -> Tensor:
    """How many knots are at most each multiple of the knot unit."""
    table = _table(fit)
    cells = multiples.sub_(_first_multiple(fit) - 1).clamp_(0, len(table) - 1)
    return torch.take(table, cells.long())


def _has_table(fit: ReluSum, values: Tensor) -> bool:
    """A table serves if it is not too large, and where no value is NaN, which is in no cell."""
    is_short = bool(fit.knots) and fit.knots[-1] - fit.knots[0] <= MOST_CELLS * fit.knot_unit
    return is_short and not bool(values.sum().isnan())


def _first_multiple(fit: ReluSum) -> int:
    return round(fit.knots[0] / fit.knot_unit)


def _knots(fit: ReluSum) -> Tensor:
    return torch.tensor(fit.knots, dtype=torch.float64)


@lru_cache(maxsize=64)
def _table(fit: ReluSum) -> Tensor:
    """The number of knots up to every multiple of the knot unit, from one before the first knot."""
    n_cells = round((fit.knots[-1] - fit.knots[0]) / fit.knot_unit) + 2
    multiples = _first_multiple(fit) - 1 + torch.arange(n_cells, dtype=torch.float64)
    return torch.searchsorted(_knots(fit), multiples * fit.knot_unit, right=True)
