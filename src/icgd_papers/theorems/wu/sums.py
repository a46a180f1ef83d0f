r"""Sums of ReLUs as Definition 4 has them: f(z) = sum_h c_h relu(<a_h, [z; 1]>), |a_h|_1 <= 1.

The interpolation of a function at equal distances is such a sum, which goes on straight beyond its
interval. It is made here anew, so that the checks share nothing with what icgd compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Curve = Callable[[Tensor], Tensor]

SAMPLES = 5_001
"""The points at which the distance to the function is measured."""


@dataclass(frozen=True)
class SumOfRelus:
    """The interpolation of `function` on [-reach, reach] with `pieces` equal pieces."""

    function: Curve
    reach: float
    pieces: int

    @cached_property
    def nodes(self) -> Tensor:
        """The ends of the pieces."""
        return torch.linspace(-self.reach, self.reach, self.pieces + 1, dtype=torch.float64)

    @cached_property
    def slopes(self) -> Tensor:
        """The slope of every piece."""
        return self.function(self.nodes).diff() / self.nodes.diff()

    def __call__(self, z: Tensor) -> Tensor:
        scales, shifts, coefficients = self.terms
        return torch.relu(z[..., None] * scales + shifts) @ coefficients

    @cached_property
    def terms(self) -> tuple[Tensor, Tensor, Tensor]:
        """The first and the last entry of every a_h, and c_h: constant, line, and the bends."""
        start = self.function(self.nodes[:1]) - self.slopes[:1] * self.nodes[:1]
        bends, size = self.nodes[1:-1], 1 + self.nodes[1:-1].abs()
        scales = torch.cat([bends.new_tensor([0.0, 1.0, -1.0]), 1 / size])
        shifts = torch.cat([bends.new_tensor([1.0, 0.0, 0.0]), -bends / size])
        line = torch.stack([self.slopes[0], -self.slopes[0]])
        return scales, shifts, torch.cat([start, line, self.slopes.diff() * size])

    @property
    def n_terms(self) -> int:
        """H of Definition 4."""
        return len(self.terms[2])

    @property
    def total(self) -> float:
        """C of Definition 4: the sum of all |c_h|."""
        return float(self.terms[2].abs().sum())

    @cached_property
    def error(self) -> float:
        """The largest distance to the function on the interval, at many sample points."""
        z = torch.linspace(-self.reach, self.reach, SAMPLES, dtype=torch.float64)
        return float((self(z) - self.function(z)).abs().max())


def largest(function: Curve, reach: float) -> float:
    """max |function| on [-reach, reach], at many sample points and both ends."""
    z = torch.linspace(-reach, reach, SAMPLES, dtype=torch.float64)
    return float(function(z).abs().max())
