"""Points in and around the unit ball, and whether they lie in it.

Directions are uniform and radii are uniform on [0, 2]. So in every dimension half of the points lie
in the ball, the step across the sphere is seen equally often, and the best constant has the error
1/4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.problems.settings import count
from icgd_papers.training.covariates import normal
from icgd_papers.training.tasks import generator_of

LARGEST_RADIUS = 2.0
"""Twice the radius of the ball, so that a point is inside or outside with equal chance."""


@dataclass(frozen=True)
class BallSample:
    """Points with a constant 1 as their last input, and 1 for those in the ball, else 0."""

    x: Float[Tensor, "point input_width"]
    y: Float[Tensor, " point"]


def ball_sample(dimension: int, n_points: int, *, seed: int, index: int) -> BallSample:
    """Draw `n_points` points; a normal point has a uniform direction."""
    count("dimension", dimension)
    generator = generator_of(seed, index, 0)
    points = normal(generator, n_points, dimension)
    radii = LARGEST_RADIUS * torch.from_numpy(generator.random((n_points, 1)))
    points = radii * points / points.norm(dim=1, keepdim=True)
    x = torch.cat((points, torch.ones_like(radii)), dim=1)
    return BallSample(x, (radii[:, 0] <= 1).double())
