"""Raw columns brought to the scale that transformers work on, and back."""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CONSTANT = 10 * float(np.finfo(np.float64).eps)
"""A column that varies by no more than this share of its size varies by rounding alone."""


@dataclass(frozen=True)
class Scaling:
    """Columns v as (v - center) / scale."""

    center: Array
    scale: Array

    @classmethod
    def of(cls, columns: Array, weights: Array | None = None, *, centered: bool = True) -> Scaling:
        """The scaling to mean 0 and variance 1; without centering, to a mean square of 1.

        A constant column keeps its scale. `weights` of rows count as so many equal rows.
        """
        size = np.abs(columns).max(0)
        size[size == 0] = 1.0
        shares = columns / size  # no square of these overflows
        mean = np.average(shares, axis=0, weights=weights)
        center = mean if centered else np.zeros_like(mean)
        spread = np.sqrt(np.average((shares - center) ** 2, axis=0, weights=weights))
        spread[spread <= CONSTANT] = 1 / size[spread <= CONSTANT]
        return cls(center * size, spread * size)

    def alike(self) -> Scaling:
        """The scaling that divides all columns by the same number, the root of the mean square."""
        common = float(np.sqrt(np.mean(self.scale**2)))
        return Scaling(self.center, np.full_like(self.scale, common))

    def applied(self, values: Array) -> Array:
        """The columns, scaled."""
        scaled: Array = (values - self.center) / self.scale
        return scaled

    def undone(self, values: Array) -> Array:
        """The columns that were scaled to these."""
        raw: Array = values * self.scale + self.center
        return raw


def bound_above(*arrays: Any, room: float = 1.0) -> float:
    """The least power of two that is at least `room` times as large as every entry, and 1."""
    largest = room * max(float(np.abs(np.asarray(part)).max(initial=0.0)) for part in arrays)
    if largest <= 1:
        return 1.0
    mantissa, exponent = frexp(largest)
    return 2.0 ** (exponent - (mantissa == 0.5))
