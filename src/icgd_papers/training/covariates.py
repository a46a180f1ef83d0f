r"""Laws of the inputs x of a task, each with the matrix Sigma that makes the law round.

For every orthogonal U the tokens Sigma^{1/2} U Sigma^{-1/2} x have the same law as the tokens x
(Assumption 4.1 of cheng). Sigma is fixed up to a factor; it is not always the covariance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from icgd.environment import require_memory
from icgd.errors import DistributionError, SettingError, quoted
from icgd.problems.kernel_machine import ASYMMETRY, as_rows
from icgd.problems.settings import count, entries, finite, is_row, set_fields

Square = Float[Tensor, "input_width input_width"]
"""A matrix on the input space."""

Tokens = Float[Tensor, "task token input_width"]
"""The inputs of all tokens, the query last."""

PAPER_SPECTRUM = (1.0, 1.0, 0.25, 2.25, 1.0)
"""The eigenvalues of Sigma in all experiments of cheng (App. H.1)."""

SHARES_ROUNDING = 1e-9
"""Shares such as (0.7, 0.3) add up to 1 but for rounding."""


def normal(generator: np.random.Generator, *shape: int) -> Tensor:
    """Independent standard normal numbers in float64."""
    require_numbers(*shape)
    return torch.from_numpy(generator.standard_normal(shape))


def require_numbers(*shape: int) -> None:
    """Raise `SizeError` if so many random numbers do not fit in memory."""
    n_numbers, remedy = prod(shape), "Give narrower or fewer examples, or fewer tasks."
    require_memory(f"Drawing {n_numbers:,} numbers", 8 * n_numbers, remedy)


def random_rotation(width: int, generator: np.random.Generator) -> Square:
    """Return a uniformly random orthogonal matrix.

    QR of a Gaussian matrix is unique, hence uniform, once the diagonal of R is made positive.
    """
    rotation, triangle = torch.linalg.qr(normal(generator, width, width))
    uniform: Tensor = rotation * triangle.diagonal().sign()
    return uniform


def power_of(matrix: Square, exponent: float) -> Square:
    """Return the power of a symmetric positive definite matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    power: Tensor = (vectors * values**exponent) @ vectors.mT
    return power


def as_matrix(name: str, matrix: object) -> Tensor:
    """Return the matrix in float64; it must be square and have finite entries."""
    square = torch.tensor(as_rows(name, matrix), dtype=torch.float64)
    if square.ndim != 2 or square.shape[0] != square.shape[1]:
        raise DistributionError(
            f"{name} must be a square matrix, a row and a column for each input; got shape "
            f"{tuple(square.shape)}."
        )
    return square


def _unit_matrix(input_width: int) -> Square:
    width = count("input_width", input_width)
    require_numbers(width, width)
    return torch.eye(width, dtype=torch.float64)


def _numbers(name: str, values: object) -> tuple[float, ...]:
    """Return a row of finite numbers."""
    if not is_row(values):
        raise SettingError(f"{name} must be a row of numbers, got {quoted(values)}.")
    return tuple(finite(name, value) for value in entries(values))


def require_width(got: int, expected: int) -> None:
    """Raise `DistributionError` if a matrix on the inputs has another width than they have."""
    if got != expected:
        raise DistributionError(
            f"The labels are a function of {expected} inputs, but the covariates have {got}. Give "
            "both the same width."
        )


def _require_positive_definite(matrix: Tensor) -> None:
    gap = (matrix - matrix.mT).abs()
    if gap.max() > ASYMMETRY * matrix.abs().max():
        row, column = divmod(int(gap.argmax()), len(matrix))
        raise DistributionError(
            f"covariance must be symmetric; it is {matrix[row, column]:.6g} at [{row}, {column}] "
            f"and {matrix[column, row]:.6g} mirrored. Give (S + S^T) / 2."
        )
    values = torch.linalg.eigvalsh(matrix)
    if values[0] <= len(matrix) * torch.finfo(matrix.dtype).eps * values[-1]:  # 0 up to rounding
        raise DistributionError(
            "covariance must be positive definite; its smallest eigenvalue is "
            f"{values[0].item():.3g}. Leave out the inputs without variance."
        )


@dataclass(frozen=True, eq=False)
class AbstractCovariates(ABC):
    """A law of the tokens' inputs; `covariance` is Sigma of Assumption 4.1."""

    covariance: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "covariance", as_matrix("covariance", self.covariance))
        _require_positive_definite(self.covariance)

    @abstractmethod
    def sample(self, n_tasks: int, n_tokens: int, generator: np.random.Generator) -> Tokens:
        """Return the inputs of `n_tasks` independent tasks of `n_tokens` tokens each."""

    @cached_property
    def root(self) -> Square:
        """The symmetric root Sigma^{1/2}."""
        return power_of(self.covariance, 0.5)

    def _noise(self, generator: np.random.Generator, n_tasks: int, n_tokens: int) -> Tokens:
        """Independent standard normal vectors, one for each token of each task."""
        sizes = count("n_tasks", n_tasks), count("n_tokens", n_tokens)
        return normal(generator, *sizes, self.input_width)

    @cached_property
    def whitening(self) -> Square:
        """Sigma^{-1/2}, which makes the law rotation invariant."""
        return power_of(self.covariance, -0.5)

    @property
    def input_width(self) -> int:
        return len(self.covariance)

    def description(self) -> dict[str, object]:
        """Plain data that identifies the law."""
        return {"law": type(self).__name__, "covariance": self.covariance.tolist()}


@final
class Ellipsoid(AbstractCovariates):
    """x = Sigma^{1/2} xi, xi uniform on the unit sphere (Example 4). Cov(x) = Sigma / width."""

    @classmethod
    def of_seed(cls, seed: int) -> Ellipsoid:
        """Return the paper's ellipsoid: Sigma = U^T diag(1, 1, 0.25, 2.25, 1) U, with U from the
        seed.
        """
        generator = np.random.default_rng(count("seed", seed, least=0))
        rotation = random_rotation(len(PAPER_SPECTRUM), generator)
        scaled = torch.tensor(PAPER_SPECTRUM, dtype=torch.float64)[:, None] * rotation
        sigma = rotation.mT @ scaled
        return cls((sigma + sigma.mT) / 2)

    @classmethod
    def sphere(cls, input_width: int) -> Ellipsoid:
        """Sigma = I: the unit sphere itself."""
        return cls(_unit_matrix(input_width))

    def sample(self, n_tasks: int, n_tokens: int, generator: np.random.Generator) -> Tokens:
        """Gaussian vectors, scaled to length 1, times Sigma^{1/2}."""
        xi = self._noise(generator, n_tasks, n_tokens)
        return functional.normalize(xi, dim=-1) @ self.root


@final
class Gaussian(AbstractCovariates):
    """x ~ N(0, Sigma), independent (Example 4)."""

    def sample(self, n_tasks: int, n_tokens: int, generator: np.random.Generator) -> Tokens:
        """Standard normal vectors times Sigma^{1/2}."""
        return self._noise(generator, n_tasks, n_tokens) @ self.root


@final
@dataclass(frozen=True, eq=False)
class GaussianMixture(AbstractCovariates):
    """x = Sigma^{1/2} (mu_c + xi), mu_c and xi ~ N(0, I), c uniform among the clusters (Example 5).

    The means are drawn anew in each task, so its tokens are not independent. Cov(x) = 2 Sigma.
    """

    n_clusters: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, n_clusters=count("n_clusters", self.n_clusters))

    def sample(self, n_tasks: int, n_tokens: int, generator: np.random.Generator) -> Tokens:
        """Return the sum of a mean of the task and noise of the token, times Sigma^{1/2}."""
        sizes = count("n_tasks", n_tasks), count("n_tokens", n_tokens)
        require_numbers(*sizes, self.input_width)
        means = normal(generator, n_tasks, self.n_clusters, self.input_width)
        cluster = torch.from_numpy(generator.integers(self.n_clusters, size=sizes))
        mean = means.gather(1, cluster[..., None].expand(-1, -1, self.input_width))
        return (mean + self._noise(generator, n_tasks, n_tokens)) @ self.root

    def description(self) -> dict[str, object]:
        """Plain data that identifies the law."""
        return {**super().description(), "n_clusters": self.n_clusters}


@final
@dataclass(frozen=True, eq=False)
class ShiftedMixture(AbstractCovariates):
    """x = mu_c + Sigma^{1/2} xi, xi ~ N(0, I), with a component c for each token (App. G of wu).

    Every entry of mu_c is `centres[c]`, and c has probability `weights[c]`. The default is the law
    of wu's pretraining, N(-2, I). Because its centres are fixed, no Sigma makes this law round.
    """

    weights: tuple[float, ...] = (1.0, 0.0)
    centres: tuple[float, ...] = (-2.0, 2.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = _numbers("weights", self.weights)
        centres = _numbers("centres", self.centres)
        set_fields(self, weights=weights, centres=centres)
        if min(weights, default=-1) < 0 or abs(sum(weights) - 1) > SHARES_ROUNDING:
            raise DistributionError(
                f"weights must be shares of at least 0 that add up to 1; got {weights}."
            )
        if len(centres) != len(weights):
            raise SettingError(
                f"centres has {len(centres)} entries; expected {len(weights)}, one for each weight."
            )

    @classmethod
    def of_width(cls, input_width: int, weights: tuple[float, ...] = (1.0, 0.0)) -> ShiftedMixture:
        """Return the mixture of N(-2, I) and N(2, I) with these weights."""
        return cls(_unit_matrix(input_width), weights)

    def sample(self, n_tasks: int, n_tokens: int, generator: np.random.Generator) -> Tokens:
        """Return each token's centre plus noise, which does not depend on the weights."""
        noise = self._noise(generator, n_tasks, n_tokens) @ self.root
        shares = np.array(self.weights) / sum(self.weights)
        component = generator.choice(len(shares), size=(n_tasks, n_tokens), p=shares)
        return noise + torch.tensor(self.centres, dtype=torch.float64)[component][..., None]

    def description(self) -> dict[str, object]:
        """Plain data that identifies the law."""
        mixture = {"weights": list(self.weights), "centres": list(self.centres)}
        return {**super().description(), **mixture}
