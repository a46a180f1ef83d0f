r"""The laws of wu-score: mixtures of normal laws, whose score is known at every time.

If x_0 has the law sum_k share_k N(mean_k, C_k), then x_t = m x_0 + s z has

    p_t = sum_k share_k N(m mean_k, m^2 C_k + s^2 I),    m = exp(-t/2), s^2 = 1 - m^2,

and grad log p_t(x) is the mean of -(m^2 C_k + s^2 I)^-1 (x - m mean_k) over the components, each
weighted by its chance given x. The law of the digits has a component for each digit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import pi

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from icgd.errors import DistributionError
from icgd.problems.settings import count, named
from icgd_papers.studies.digits import SIDE, Components, read_digits
from icgd_papers.training.covariates import normal
from icgd_papers.training.tasks import generator_of

Points = Float[Tensor, "point dimension"]
Times = Float[Tensor, " point"]

RING_DEVIATION = 0.18
"""The deviation of the ring's six components, whose circle has a radius of about 1.4."""

SPLIT = 2**20
"""The number of the random stream that divides the digits."""


def decay(times: Tensor) -> Tensor:
    """m, what is left of x_0 in x_t."""
    return torch.exp(-times / 2)


def spread(times: Tensor) -> Tensor:
    """s, the deviation of the noise in x_t."""
    return torch.sqrt(-torch.expm1(-times))


@dataclass(frozen=True, eq=False)
class Mixture:
    """sum_k shares[k] N(means[k], covariances[k])."""

    shares: Float[Tensor, " component"]
    means: Float[Tensor, "component dimension"]
    covariances: Float[Tensor, "component dimension dimension"]

    @property
    def dimension(self) -> int:
        return self.means.shape[1]

    @cached_property
    def axes(self) -> tuple[Tensor, Tensor]:
        """The eigenvalues of each covariance, none below 0, and its eigenvectors as columns."""
        values, vectors = torch.linalg.eigh(self.covariances)
        return values.clamp_min(0.0), vectors

    def sample(self, n_points: int, generator: np.random.Generator) -> Points:
        """Draw a component for each point, then the point."""
        shares = self.shares.numpy()
        chosen = torch.from_numpy(generator.choice(len(shares), n_points, p=shares / shares.sum()))
        values, vectors = self.axes
        along = values[chosen].sqrt() * normal(generator, n_points, self.dimension)
        return self.means[chosen] + torch.einsum("nij,nj->ni", vectors[chosen], along)

    def score(self, x: Points, times: Times) -> Points:
        """grad log p_t(x), each point at its own time."""
        values, vectors = self.axes
        mean, noise = decay(times)[:, None, None], spread(times)[:, None, None]
        variances = mean.square() * values + noise.square()
        along = torch.einsum("nki,kij->nkj", x[:, None] - mean * self.means, vectors)
        logs = -(along.square() / variances + variances.log()).sum(-1) / 2
        chances = (logs + self.shares.log()).softmax(-1)
        found = -torch.einsum("nk,nkj,kij->ni", chances, along / variances, vectors)
        _require_finite(found, x, times)
        return found

    def first(self, dimension: int) -> Mixture:
        """The law of the first coordinates."""
        means, covariances = self.means[:, :dimension], self.covariances
        return Mixture(self.shares, means, covariances[:, :dimension, :dimension])


def _require_finite(score: Points, x: Points, times: Times) -> None:
    wrong = ~score.isfinite().all(-1)
    if wrong.any():
        where = int(wrong.nonzero()[0, 0])
        point = ", ".join(f"{entry:.4g}" for entry in x[where].tolist())
        raise DistributionError(
            f"The score of the law is not a finite number at t = {float(times[where]):g}, x = "
            f"({point}). Its components are too far apart or too narrow for float64. Scale the "
            "data to variance 1, or begin at a later time."
        )


@dataclass(frozen=True, eq=False)
class Law:
    """A mixture, whose score is learnt; and the data that it stands for, if it was fitted."""

    mixture: Mixture
    known: Points | None = None
    """Data to learn from; None if the mixture itself is the law of the data."""
    held_out: Float[Tensor, "other dimension"] | None = None

    def clean(self, n_points: int, generator: np.random.Generator) -> Points:
        """Points x_0 to learn from; data are drawn with replacement."""
        if self.known is None:
            return self.mixture.sample(n_points, generator)
        return self.known[torch.from_numpy(generator.integers(len(self.known), size=n_points))]

    def fresh(self, n_points: int, generator: np.random.Generator) -> Points:
        """Points to compare samples with; data are those held out, none of them twice."""
        if self.held_out is None:
            return self.mixture.sample(n_points, generator)
        count("n_samples", n_points, most=len(self.held_out))
        return self.held_out[torch.from_numpy(generator.permutation(len(self.held_out))[:n_points])]


def standardised(means: Tensor, covariances: Tensor) -> Mixture:
    """Components of equal shares, moved to mean 0 and scaled to a mean variance of 1."""
    means = means - means.mean(0)
    variance = (covariances.diagonal(dim1=1, dim2=2) + means.square()).mean()
    shares = torch.full((len(means),), 1 / len(means), dtype=torch.float64)
    return Mixture(shares, means / variance.sqrt(), covariances / variance)


def ring(dimension: int, seed: int) -> Law:
    """Six round components on a circle."""
    del seed
    angles = torch.arange(6, dtype=torch.float64) * pi / 3
    radius = (2 * (1 - RING_DEVIATION**2)) ** 0.5
    round_ones = RING_DEVIATION**2 * torch.eye(2, dtype=torch.float64).repeat(6, 1, 1)
    return Law(standardised(radius * _directions(angles), round_ones).first(dimension))


def pinwheel(dimension: int, seed: int) -> Law:
    """Five long components, each at an angle to the circle that it stands on."""
    del seed
    angles = torch.arange(5, dtype=torch.float64) * 2 * pi / 5 + pi / 2
    along = _directions(angles + 0.9)
    narrow, wide = 0.12**2, 0.45**2
    across = narrow * torch.eye(2, dtype=torch.float64)
    long_ones = across + (wide - narrow) * along[:, :, None] * along[:, None, :]
    return Law(standardised(1.1 * _directions(angles), long_ones).first(dimension))


def digits(dimension: int, seed: int) -> Law:
    """One component for each digit, fitted to half of the images; the others are held out."""
    data = read_digits()
    points = torch.from_numpy(Components.of(data.pixels, dimension).coordinates(data.pixels))
    order = torch.from_numpy(generator_of(seed, SPLIT).permutation(len(points)))
    known, held_out = order.tensor_split(2)
    shown = torch.from_numpy(data.digits)[known]
    groups = [points[known][shown == digit] for digit in range(10)]
    shares = torch.tensor([len(group) / len(known) for group in groups], dtype=torch.float64)
    means = torch.stack([group.mean(0) for group in groups])
    covariances = torch.stack([group.mT.cov().reshape(dimension, dimension) for group in groups])
    return Law(Mixture(shares, means, covariances), points[known], points[held_out])


def _directions(angles: Tensor) -> Tensor:
    return torch.stack((angles.cos(), angles.sin()), dim=1)


LAWS: dict[str, Callable[[int, int], Law]] = {"ring": ring, "pinwheel": pinwheel, "digits": digits}
"""Each law by its name, of a dimension and a seed."""

LARGEST = {"ring": 2, "pinwheel": 2, "digits": SIDE * SIDE}
"""The dimension of each law's data."""


def law_named(name: str, dimension: int, seed: int) -> Law:
    """The law of the data's first coordinates; those of digits are principal components."""
    require_law(name, dimension)
    return LAWS[name](dimension, seed)


def require_law(name: str, dimension: int) -> None:
    """Raise an error unless there is such a law, whose data have so many dimensions."""
    named("law", name, LAWS)
    count("dimension", dimension, most=LARGEST[name])
