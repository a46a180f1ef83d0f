"""Points in and around the unit ball, labelled by the ball's indicator.

Directions are uniform and radii are uniform on [0, 2]. So in every dimension half of the points lie
in the ball, the step across the sphere is seen equally often, and the best constant has the error
1/4.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from icgd.problems.mlp import MLP
from icgd_papers.training.covariates import normal
from icgd_papers.training.tasks import generator_of

LARGEST_RADIUS = 2.0
"""Twice the radius of the ball, so that a point is inside or outside with equal chance."""

Floats = NDArray[np.float64]

Points = tuple[Tensor, Tensor]
"""Rows of points with a constant 1 as their last input, and 1 for those in the ball, else 0."""


def ball_sample(dimension: int, n_points: int, *, seed: int, index: int) -> Points:
    """Draw labelled points; normalising a normal vector makes its direction uniform."""
    generator = generator_of(seed, index, 0)
    points = normal(generator, n_points, dimension)
    radii = LARGEST_RADIUS * torch.from_numpy(generator.random((n_points, 1)))
    points = radii * points / points.norm(dim=1, keepdim=True)
    x = torch.cat((points, torch.ones_like(radii)), dim=1)
    return x, (radii[:, 0] <= 1).double()


class UniformRadii:
    """The law of these points, by the square of their radius."""

    def probability(self, low: float, high: float) -> float:
        """Return how often |x|^2 lies between two numbers."""
        return (min(sqrt(high), LARGEST_RADIUS) - sqrt(low)) / LARGEST_RADIUS

    def radii(self, low: float, high: float, shares: Floats) -> Floats:
        """Return the radii of these shares of the law between two values of |x|^2."""
        return sqrt(low) + shares * (min(sqrt(high), LARGEST_RADIUS) - sqrt(low))


def ball_network(dimension: int, depth: int, width: int) -> MLP:
    """Return V_n tanh(V_{n-1} tanh(... tanh(V_1 [x; 1]))), which has no biases.

    All constructions for networks accept tanh: recursion needs a slope that does not jump.
    """
    return MLP((dimension + 1, *[width] * (depth - 1), 1), "tanh")
