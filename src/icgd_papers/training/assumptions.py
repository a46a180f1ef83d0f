r"""Checks of what the theorems on learnt models assume of inputs, labels and attention.

    4.1  the tokens S X have the law of the tokens X,             S = Sigma^{1/2} U Sigma^{-1/2}
    4.2  labels of S X and of X have the same covariance          (U: any orthogonal matrix)
    4.3  h(W, V) = h(S^T W, S^{-1} V)                             (S: any invertible matrix)

Each is tried with random matrices. So a check that holds is evidence, and one that fails is proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from icgd.problems.kernel_machine import kernel_named
from icgd.problems.settings import count
from icgd_papers.training.covariates import (
    AbstractCovariates,
    Square,
    Tokens,
    normal,
    random_rotation,
)
from icgd_papers.training.labels import AbstractLabels
from icgd_papers.training.tasks import generator_of

N_DEVIATIONS = 5.0
"""How many sampling errors a mean may be off; by chance it is further off with odds below 1e-6."""

ROUNDING = 1e-10
"""The relative error allowed where nothing is sampled, with room for ill-conditioned Sigma."""

N_TOKENS = 3
"""How many tokens of a task are compared together: a law may be round for each, not jointly."""

N_DIRECTIONS = 16
"""The number of random directions along which the laws of X and S X are compared."""

N_DRAWS = 20_000
"""How many tasks are drawn for a mean, which is then known to about 1 % of its spread."""


@dataclass(frozen=True)
class Check:
    """A claim, the distance of the measurement from it, and the distance that is allowed."""

    claim: str
    measured: float
    tolerance: float
    unit: str

    @property
    def holds(self) -> bool:
        return self.measured <= self.tolerance  # NaN: it does not


def covariates_are_round(
    covariates: AbstractCovariates, *, n_draws: int = N_DRAWS, seed: int = 0
) -> Check:
    """Assumption 4.1: compare the moments of order 1 to 4 of X and S X in random directions."""
    generator = generator_of(seed, 0)
    moved = _symmetry(covariates, generator)
    x = covariates.sample(count("n_draws", n_draws, least=2), N_TOKENS, generator)
    direction = normal(generator, N_TOKENS * covariates.input_width, N_DIRECTIONS)
    before, after = (_moments(tokens, direction) for tokens in (x, x @ moved.mT))
    claim = f"Assumption 4.1 for {type(covariates).__name__}: S X has the law of X"
    return Check(claim, _deviation(after - before), N_DEVIATIONS, "sampling errors")


def covariance_is_invariant(
    labels: AbstractLabels, covariates: AbstractCovariates, *, n_draws: int = N_DRAWS, seed: int = 0
) -> Check:
    """Assumption 4.2 at random points: exact if the covariance is known, or else by sampling."""
    generator = generator_of(seed, 0)
    moved = _symmetry(covariates, generator)
    x = covariates.sample(1, N_TOKENS, generator)
    claim = f"Assumption 4.2 for {labels.name}: labels of S X and X covary alike"
    before, after = labels.covariance(x), labels.covariance(x @ moved.mT)
    if before is not None and after is not None:
        return Check(claim, _distance(before, after), ROUNDING, "of the largest entry")
    copies = x.expand(count("n_draws", n_draws, least=2), -1, -1)
    drawn = [_products(labels.sample(points, generator)) for points in (copies, copies @ moved.mT)]
    return Check(claim, _deviation(drawn[1] - drawn[0]), N_DEVIATIONS, "sampling errors")


def attention_is_invariant(kernel: str, input_width: int = 5, *, seed: int = 0) -> Check:
    """Assumption 4.3 for attention with this kernel, at random points with a random S."""
    generator = generator_of(seed, 0)
    left, right = normal(generator, 2, N_TOKENS, count("input_width", input_width))
    moved = _well_conditioned(input_width, generator)
    function = kernel_named(kernel)
    before = function.matrix(left, right)
    after = function.matrix(left @ moved, right @ torch.linalg.inv(moved).mT)
    claim = f"Assumption 4.3 for {kernel} attention: h(W, V) = h(S^T W, S^-1 V)"
    return Check(claim, _distance(before, after), ROUNDING, "of the largest entry")


def _symmetry(covariates: AbstractCovariates, generator: np.random.Generator) -> Square:
    """The matrix S = Sigma^{1/2} U Sigma^{-1/2} for a random U."""
    rotation = random_rotation(covariates.input_width, generator)
    return covariates.root @ rotation @ covariates.whitening


def _well_conditioned(width: int, generator: np.random.Generator) -> Square:
    """A random matrix with singular values between 1/2 and 2, so that rounding stays small."""
    scales = torch.from_numpy(generator.uniform(0.5, 2.0, width))
    return (random_rotation(width, generator) * scales) @ random_rotation(width, generator)


def _moments(x: Tokens, direction: Tensor) -> Tensor:
    """The powers 1 to 4 of each task's projections."""
    projected = x.flatten(1) @ direction
    return torch.cat([projected**power for power in range(1, 5)], dim=1)


def _products(y: Tensor) -> Tensor:
    """The products y_i y_j of each pair of tokens."""
    return (y[:, :, None] * y[:, None, :]).flatten(1)


def _deviation(differences: Tensor) -> float:
    """The largest mean of a column, in units of its sampling error."""
    error = differences.std(0) / len(differences) ** 0.5
    return float((differences.mean(0).abs() / error).amax())


def _distance(before: Tensor, after: Tensor) -> float:
    return ((after - before).abs().amax() / before.abs().amax()).item()
