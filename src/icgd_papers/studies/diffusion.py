r"""A diffusion from data to noise and back, for three laws whose score is known at every time.

    x_t = m x_0 + s z,    m = exp(-t/2), s^2 = 1 - m^2, z ~ N(0, I)

The laws are mixtures of normal laws. If x_0 has the density sum_k share_k N(mean_k, C_k), then

    p_t = sum_k share_k N(m mean_k, m^2 C_k + s^2 I),

and the score grad log p_t(x) is the mean of -(m^2 C_k + s^2 I)^-1 (x - m mean_k) over the
components, weighted by their probabilities given x.

A network learns a velocity f(x, t) instead of the score, which grows like 1 / s:

    score(x, t) = -x - (m / s) f(x, t),    best f = E[m z - s x_0 | x_t = x]

The velocity is of order 1 at all times, and |f - f'|^2 = (s / m)^2 |score - score'|^2. With times
drawn from a density q, the mean squared error on velocities of the exact score is therefore (H.1)
with the weight gamma(t) = q(t) s^2 / m^2. On the labels m z - s x_0, the velocities of
grad log p(x_t | x_0) = -z / s, it is (H.2).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from math import exp, expm1, log, pi, sqrt
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from icgd_papers.training.covariates import normal
from icgd_papers.training.tasks import generator_of

Points = Float[Tensor, "point dimension"]
Times = Float[Tensor, " point"]
Score = Callable[[Points, Times], Points]
Array = NDArray[np.float64]

RING_DEVIATION = 0.18
"""Standard deviation of the ring's six components, on a circle of radius 1.4."""

SPLIT = 2**20
"""Random stream that splits the digits into known and held-out images."""

SIDE = 8
"""Digits are images of SIDE x SIDE pixels."""


def decay(times: Tensor) -> Tensor:
    """Return m, the factor of x_0 in x_t."""
    return torch.exp(-times / 2)


def spread(times: Tensor) -> Tensor:
    """Return s, the standard deviation of the noise in x_t."""
    return torch.sqrt(-torch.expm1(-times))


@dataclass(frozen=True)
class Span:
    """The times of a diffusion, from T_0 = `first` > 0 to T = `last`."""

    first: float
    last: float

    def draw(self, n_times: int, generator: np.random.Generator) -> Times:
        """Draw times with uniform logarithms."""
        share = torch.from_numpy(generator.random(n_times))
        return self.first * torch.exp(share * log(self.last / self.first))

    def backwards(self, n_steps: int) -> Times:
        """Return n_steps + 1 times from last to first, at equal ratios."""
        share = torch.linspace(1, 0, n_steps + 1, dtype=torch.float64)
        return self.first * torch.exp(share * log(self.last / self.first))

    def rescale(self, times: Times) -> Times:
        """Return log(s / m), scaled to run from -1 at the first time to 1 at the last."""
        low, high = (log(expm1(end)) for end in (self.first, self.last))
        return 2 * (torch.log(torch.expm1(times)) - low) / (high - low) - 1


@dataclass(frozen=True, eq=False)
class Mixture:
    """The law sum_k shares[k] N(means[k], covariances[k])."""

    shares: Float[Tensor, " component"]
    means: Float[Tensor, "component dimension"]
    covariances: Float[Tensor, "component dimension dimension"]

    def sample(self, n_points: int, generator: np.random.Generator) -> Points:
        """Draw a component for each point, then the point."""
        shares = self.shares.numpy()
        chosen = torch.from_numpy(generator.choice(len(shares), n_points, p=shares / shares.sum()))
        variances, axes = self._spectrum()
        along_axes = variances[chosen].sqrt() * normal(generator, n_points, self.means.shape[1])
        return self.means[chosen] + torch.einsum("nij,nj->ni", axes[chosen], along_axes)

    def score(self, x: Points, times: Times) -> Points:
        """Return grad log p_t(x), each point at its own time."""
        variances, axes = self._spectrum()
        m, s = decay(times)[:, None, None], spread(times)[:, None, None]
        # In the eigenbasis of C_k the covariance m^2 C_k + s^2 I is diagonal.
        variances = m.square() * variances + s.square()
        along_axes = torch.einsum("nki,kij->nkj", x[:, None] - m * self.means, axes)
        log_densities = -(along_axes.square() / variances + variances.log()).sum(-1) / 2
        posterior = (log_densities + self.shares.log()).softmax(-1)
        return -torch.einsum("nk,nkj,kij->ni", posterior, along_axes / variances, axes)

    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues of each covariance and its eigenvectors as columns."""
        variances, axes = torch.linalg.eigh(self.covariances)
        return variances.clamp_min(0.0), axes


@dataclass(frozen=True, eq=False)
class Law:
    """A mixture whose score is learnt and, if it was fitted to data, these data."""

    mixture: Mixture
    training: Points | None = None
    held_out: Float[Tensor, "other dimension"] | None = None

    def draw_training(self, n_points: int, generator: np.random.Generator) -> Points:
        """Draw x_0 to learn from: from the training data with replacement, if any."""
        if self.training is None:
            return self.mixture.sample(n_points, generator)
        return self.training[
            torch.from_numpy(generator.integers(len(self.training), size=n_points))
        ]

    def draw_fresh(self, n_points: int, generator: np.random.Generator) -> Points:
        """Draw x_0 to compare samples with: held-out data without replacement, if any."""
        if self.held_out is None:
            return self.mixture.sample(n_points, generator)
        return self.held_out[torch.from_numpy(generator.permutation(len(self.held_out))[:n_points])]


def ring() -> Law:
    """Return six round components on a circle."""
    angles = torch.arange(6, dtype=torch.float64) * pi / 3
    radius = (2 * (1 - RING_DEVIATION**2)) ** 0.5
    covariances = RING_DEVIATION**2 * torch.eye(2, dtype=torch.float64).repeat(6, 1, 1)
    return Law(_standardised(radius * _unit_vectors(angles), covariances))


def pinwheel() -> Law:
    """Return five long components on a circle, each at the same angle to it."""
    angles = torch.arange(5, dtype=torch.float64) * 2 * pi / 5 + pi / 2
    along = _unit_vectors(angles + 0.9)
    narrow, wide = 0.12**2, 0.45**2
    covariances = narrow * torch.eye(2, dtype=torch.float64)
    covariances = covariances + (wide - narrow) * along[:, :, None] * along[:, None, :]
    return Law(_standardised(1.1 * _unit_vectors(angles), covariances))


def digits(dimension: int, seed: int) -> Law:
    """Return one component per digit, fitted to half of the images; the rest are held out."""
    pixels, labels = read_digits()
    points = torch.from_numpy(Components.of(pixels, dimension).coordinates(pixels))
    order = torch.from_numpy(generator_of(seed, SPLIT).permutation(len(points)))
    training, held_out = order.tensor_split(2)
    groups = [points[training][torch.from_numpy(labels)[training] == digit] for digit in range(10)]
    shares = torch.tensor([len(group) / len(training) for group in groups], dtype=torch.float64)
    means = torch.stack([group.mean(0) for group in groups])
    covariances = torch.stack([group.mT.cov() for group in groups])
    return Law(Mixture(shares, means, covariances), points[training], points[held_out])


def _standardised(means: Tensor, covariances: Tensor) -> Mixture:
    """Return components of equal shares, moved to mean 0 and scaled to mean variance 1."""
    means = means - means.mean(0)
    variance = (covariances.diagonal(dim1=1, dim2=2) + means.square()).mean()
    shares = torch.full((len(means),), 1 / len(means), dtype=torch.float64)
    return Mixture(shares, means / variance.sqrt(), covariances / variance)


def _unit_vectors(angles: Tensor) -> Tensor:
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def read_digits() -> tuple[Array, NDArray[np.int64]]:
    """Return 1797 handwritten digits: 64 pixels between 0 and 16 per row, and their labels.

    They are the test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998,
    UCI Machine Learning Repository, CC BY 4.0), which is scikit-learn's `load_digits`. In
    digits.csv each pixel is a character from 0 to g.
    """
    text = files("icgd_papers.studies").joinpath("digits.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    pixels = np.array([[float(int(ink, 17)) for ink in row["pixels"]] for row in rows])
    return pixels, np.array([int(row["digit"]) for row in rows])


@dataclass(frozen=True)
class Components:
    """Principal components, scaled so that every coordinate of the images has variance 1."""

    mean: Array
    directions: Array
    deviations: Array

    @classmethod
    def of(cls, pixels: Array, dimension: int) -> Components:
        """Return the directions of largest variance, signed so that their largest entry is > 0."""
        mean = pixels.mean(axis=0)
        directions = np.linalg.svd(pixels - mean, full_matrices=False)[2][:dimension]
        largest = np.abs(directions).argmax(axis=1)
        directions = directions * np.sign(directions[np.arange(dimension), largest])[:, None]
        return cls(mean, directions, ((pixels - mean) @ directions.T).std(axis=0))

    def coordinates(self, pixels: Array) -> Array:
        """Return the coordinates of images."""
        scaled: Array = (pixels - self.mean) @ self.directions.T / self.deviations
        return scaled

    def images(self, coordinates: Array) -> Array:
        """Return the images with these coordinates."""
        pixels = self.mean + (coordinates * self.deviations) @ self.directions
        return pixels.reshape(-1, SIDE, SIDE)


def network_inputs(x: Points, times: Times, span: Span) -> Tensor:
    """Return what the network reads: x, m x, x / 4s, the rescaled time, and 1 for biases."""
    m, s = decay(times)[:, None], spread(times)[:, None]
    time = span.rescale(times)[:, None]
    return torch.cat((x, m * x, x / (4 * s), time, torch.ones_like(m)), dim=1)


def velocity_of(score: Points, x: Points, times: Times) -> Points:
    """Return the velocity f that corresponds to a score."""
    return -(score + x) * (spread(times) / decay(times))[:, None]


def score_of(velocity: Points, x: Points, times: Times) -> Points:
    """Return the score that corresponds to a velocity f."""
    return -x - velocity * (decay(times) / spread(times))[:, None]


class Examples(NamedTuple):
    """Examples of a prompt: inputs, labels, and the velocities of the exact score."""

    x: Tensor
    y: Tensor
    exact: Tensor


def draw_examples(
    law: Law, targets: str, span: Span, n_examples: int, generator: np.random.Generator
) -> Examples:
    """Draw clean points, times and noise.

    Clean points come from the mixture for exact labels, and from the data for denoising.
    """
    draw = law.mixture.sample if targets == "exact" else law.draw_training
    clean = draw(n_examples, generator)
    times = span.draw(n_examples, generator)
    m, s = decay(times)[:, None], spread(times)[:, None]
    noise = normal(generator, *clean.shape)
    x = m * clean + s * noise
    exact = velocity_of(law.mixture.score(x, times), x, times)
    labels = exact if targets == "exact" else m * noise - s * clean
    return Examples(network_inputs(x, times, span), labels, exact)


def add_noise(clean: Points, time: float, generator: np.random.Generator) -> Points:
    """Return x_t for clean points x_0."""
    m, s = exp(-time / 2), sqrt(-expm1(-time))
    return m * clean + s * normal(generator, *clean.shape)


def reverse_path(
    score: Score, start: Points, times: Float[Tensor, " time"], generator: np.random.Generator
) -> Iterator[Points]:
    """Yield the points at each of the falling `times`, by dx = (x/2 + score) dt + dW.

    The score is frozen within a step, and the equation is then solved exactly.
    """
    x = start
    yield x
    for now, later in pairwise(times.tolist()):
        step = now - later
        drift = score(x, torch.full((len(x),), now, dtype=torch.float64))
        noise = sqrt(expm1(step)) * normal(generator, *x.shape)
        x = exp(step / 2) * x + 2 * expm1(step / 2) * drift + noise
        yield x


def sliced_wasserstein(
    first: Points, second: Points, n_directions: int, generator: np.random.Generator
) -> float:
    """Return the root mean square over random directions of the 2-Wasserstein distance."""
    directions = normal(generator, first.shape[1], n_directions)
    directions = directions / directions.norm(dim=0)
    first, second = ((points @ directions).sort(dim=0).values for points in (first, second))
    return float((first - second).square().mean().sqrt())
