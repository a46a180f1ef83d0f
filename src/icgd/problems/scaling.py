"""Columns brought to mean 0 and standard deviation 1, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Scaling:
    """What is subtracted from every column, and what it is then divided by."""

    centre: Numbers
    scale: Numbers

    @classmethod
    def of(cls, numbers: Numbers) -> Scaling:
        """The scaling of these rows. A constant column is only centred."""
        centre, scale = numbers.mean(0), numbers.std(0)
        is_constant = scale <= 1e-12 * np.abs(numbers).max(0)
        return cls(centre, np.where(is_constant, 1.0, scale))

    @classmethod
    def none(cls, width: int) -> Scaling:
        """The scaling that leaves every number as it is."""
        return cls(np.zeros(width), np.ones(width))

    def applied(self, numbers: Numbers) -> Numbers:
        """The numbers in standard units."""
        return (numbers - self.centre) / self.scale

    def undone(self, numbers: Numbers) -> Numbers:
        """Numbers in standard units as they were."""
        return numbers * self.scale + self.centre
