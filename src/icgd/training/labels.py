r"""Laws of the labels y given the inputs x, each with the best prediction of the query's label.

A K Gaussian process (Definition 3.3) draws all labels of a task from N(0, K_+), where K_+ has the
eigenvectors of the kernel matrix K and the absolute values of its eigenvalues. So K_+ = K for a
positive kernel, and a kernel such as relu, which is not positive, has a process too. With

    K_+ = [ K_hat  nu ]        the best prediction (13) is   nu^T K_hat^{-1} (y_1, ..., y_n).
          [ nu^T   mu ]

Kernel matrices of close points are nearly singular. What lies within rounding of 0 counts as 0:
eigenvalues and pivots of at most n_tokens * 2.2e-16 times the largest, the error of float64 in an
eigenvalue. This moves the covariance by no more than rounding did, and labels of equal points stay
equal. The inverse is then the pseudo-inverse, still the conditional mean.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from icgd.errors import DataError, DistributionError
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.settings import count, instance
from icgd.training.covariates import Tokens, as_matrix, normal

TokenLabels = Float[Tensor, "task token"]
"""Labels of all tokens, the query last."""

QueryLabels = Float[Tensor, "task"]
"""Predictions of the last label."""

Covariances = Float[Tensor, "task token token"]
"""Covariance of the labels of each task."""

TASKS_AT_ONCE = 512
"""Kernel matrices of so many tasks fit the cache, and bound the memory of a batch of any size."""


class AbstractLabels(ABC):
    """A law of labels of the points `whitening @ x`; None leaves the points where they are."""

    whitening: Tensor | None

    def __post_init__(self) -> None:
        if self.whitening is not None:
            object.__setattr__(self, "whitening", as_matrix("whitening", self.whitening))

    @abstractmethod
    def sample(self, x: Tokens, generator: np.random.Generator) -> TokenLabels:
        """Labels of all tokens."""

    @abstractmethod
    def bayes(self, x: Tokens, y: TokenLabels) -> QueryLabels | None:
        """Mean of the last label given the others, or None where it is unknown."""

    @abstractmethod
    def covariance(self, x: Tokens) -> Covariances | None:
        """E[y_i y_j] given x, of each pair of tokens; None if it can only be sampled."""

    @property
    def input_width(self) -> int | None:
        """Width of the inputs, or None if any will do."""
        return None if self.whitening is None else len(self.whitening)

    def whitened(self, x: Tokens) -> Tokens:
        """The points that have the labels, in float64: kernel matrices are nearly singular."""
        if self.input_width not in (None, x.shape[-1]):
            raise DataError.wrong_shape("x", x.shape, f"(task, token, {self.input_width})")
        return x.double() if self.whitening is None else x.double() @ self.whitening.mT

    def description(self) -> dict[str, object]:
        """Plain data that identifies the law."""
        whitening = None if self.whitening is None else self.whitening.tolist()
        return {"law": type(self).__name__, "whitening": whitening}


@final
@dataclass(frozen=True, eq=False)
class KernelProcess(AbstractLabels):
    """Labels from N(0, K_+), K the kernel matrix of the whitened points (Example 7).

    Cost a task: of order n_tokens^3, a Cholesky factor if K is positive, about 20 times that if
    not; only n_tokens * input_width for the linear kernel.
    """

    machine: KernelMachine
    whitening: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        instance("machine", self.machine, KernelMachine)
        self.machine.require_symmetric("A kernel process")
        if self.whitening is not None and len(self.whitening) != self.input_width:
            raise DistributionError.other_width(self.input_width, len(self.whitening))

    @property
    def input_width(self) -> int:
        return self.machine.input_width

    def sample(self, x: Tokens, generator: np.random.Generator) -> TokenLabels:
        """Standard normal numbers, times a matrix F with F F^T = K_+."""
        points = self.whitened(x)
        if self._is_linear:
            return _linear_labels(self._features(points), generator)
        noise = normal(generator, *x.shape[:2], 1).split(TASKS_AT_ONCE)
        pairs = zip(self._grams(points), noise, strict=True)
        return torch.cat([_coloured(gram, part)[..., 0] for gram, part in pairs])

    def bayes(self, x: Tokens, y: TokenLabels) -> QueryLabels:
        """nu^T K_hat^{-1} (y_1, ..., y_n), from the flipped matrix."""
        points, y = self.whitened(x), y.double()
        if self._is_linear:
            return _least_squares(self._features(points), y)
        pairs = zip(self._grams(points), y.split(TASKS_AT_ONCE), strict=True)
        return torch.cat([_conditional_mean(_flipped(gram), part) for gram, part in pairs])

    def covariance(self, x: Tokens) -> Covariances:
        """K_+ of the points of each task."""
        return torch.cat([_flipped(gram) for gram in self._grams(self.whitened(x))])

    def description(self) -> dict[str, object]:
        """Plain data that identifies the law: every head too."""
        return {**super().description(), "machine": json.loads(json.dumps(asdict(self.machine)))}

    def _grams(self, points: Tensor) -> Iterator[Tensor]:
        return (self._gram(part) for part in points.split(TASKS_AT_ONCE))

    def _gram(self, points: Tensor) -> Tensor:
        """The kernel matrix; checked in full, at eight times the cost, if a fault is possible."""
        matrix = self.machine.matrix(points, points)
        is_own = any(head.function.is_own for head in self.machine.heads)
        return self.machine.gram(points) if is_own or not matrix.sum().isfinite() else matrix

    @property
    def _is_linear(self) -> bool:
        return all(head.kernel == "linear" for head in self.machine.heads)

    def _features(self, points: Tensor) -> Tensor:
        """F with K = F F^T, for linear heads: the points, as each head moves them, side by side."""
        parts = [head.weight**0.5 * head.moved(points) for head in self.machine.heads]
        return torch.cat(parts, dim=-1)


@final
@dataclass(frozen=True, eq=False)
class LinearFunctions(AbstractLabels):
    """y = <theta, whitening x>, theta ~ N(0, I): one direction a task (Example 6)."""

    whitening: Tensor | None = None

    def sample(self, x: Tokens, generator: np.random.Generator) -> TokenLabels:
        """Draw theta, and apply it."""
        return _linear_labels(self.whitened(x), generator)

    def bayes(self, x: Tokens, y: TokenLabels) -> QueryLabels:
        """The shortest theta that fits the examples, at the query."""
        return _least_squares(self.whitened(x), y.double())

    def covariance(self, x: Tokens) -> Covariances:
        """The linear kernel of the whitened points."""
        points = self.whitened(x)
        return points @ points.mT


@final
@dataclass(frozen=True, eq=False)
class ReluNetworks(AbstractLabels):
    """y = <theta_2, relu(theta_1 whitening x)>, all weights ~ N(0, 1) (Example 8).

    `hidden_width` is m of the paper. E[y^2] = m |whitening x|^2 / 2.
    """

    hidden_width: int
    whitening: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        count("hidden_width", self.hidden_width)

    def sample(self, x: Tokens, generator: np.random.Generator) -> TokenLabels:
        """Draw both layers for each task, and apply them."""
        points = self.whitened(x)
        first = normal(generator, x.shape[0], x.shape[-1], self.hidden_width)
        return _linear_labels(torch.relu(points @ first), generator)

    def bayes(self, x: Tokens, y: TokenLabels) -> None:
        """Unknown: the posterior of the weights has no closed form."""

    def covariance(self, x: Tokens) -> None:
        """Only sampled, so that a check of the law checks the networks themselves."""

    def description(self) -> dict[str, object]:
        """Plain data that identifies the law: the hidden width too."""
        return {**super().description(), "hidden_width": self.hidden_width}


def _linear_labels(features: Tensor, generator: np.random.Generator) -> Tensor:
    """<theta, features> of every token, theta ~ N(0, I) for each task."""
    theta = normal(generator, features.shape[0], features.shape[-1], 1)
    return (features @ theta)[..., 0]


def _least_squares(features: Tensor, y: Tensor) -> Tensor:
    """The mean of <theta, features of the query>, theta ~ N(0, I), given the examples' labels."""
    theta: Tensor = torch.linalg.pinv(features[:, :-1]) @ y[:, :-1, None]
    return (features[:, -1, None] @ theta)[:, 0, 0]


def _rounding(matrix: Tensor) -> float:
    """The share of the largest eigenvalue below which an eigenvalue is only rounding."""
    return matrix.shape[-1] * torch.finfo(matrix.dtype).eps


def _cholesky(gram: Tensor) -> tuple[Tensor, Bool[Tensor, "task"]]:
    """Lower factors, and which of them are good: positive, with no pivot within rounding of 0.

    Where it is good the factor is exact to rounding, however singular the matrix may be.
    """
    factor, info = torch.linalg.cholesky_ex(gram)
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    largest = gram.diagonal(dim1=-2, dim2=-1).amax(-1)
    return factor, (info == 0) & (pivots.square().amin(-1) > _rounding(gram) * largest)


def _eigen(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Absolute eigenvalues, those within rounding of 0 put to 0, and eigenvectors."""
    values, vectors = torch.linalg.eigh(gram)
    values = values.abs()
    least = _rounding(gram) * values.amax(-1, keepdim=True)
    return torch.where(values > least, values, 0.0), vectors


def _coloured(gram: Tensor, noise: Tensor) -> Tensor:
    """F @ noise, K_+ = F F^T: the Cholesky factor if K is positive, else the symmetric root.

    The root does not depend on the signs of the eigenvectors, which differ between machines.
    """
    factor, good = _cholesky(gram)
    labels = factor @ noise
    if not good.all():
        values, vectors = _eigen(gram[~good])
        labels[~good] = vectors @ (values.sqrt()[..., None] * (vectors.mT @ noise[~good]))
    return labels


def _flipped(gram: Tensor) -> Tensor:
    """K_+; where Cholesky succeeds K is positive, and K_+ is K itself."""
    _, good = _cholesky(gram)
    if good.all():
        return gram
    values, vectors = _eigen(gram[~good])
    flipped = gram.clone()
    flipped[~good] = (vectors * values[..., None, :]) @ vectors.mT
    return flipped


def _conditional_mean(covariance: Tensor, y: Tensor) -> Tensor:
    """nu^T K_hat^{-1} y of the last token.

    With K_+ = L L^T the last row of L is (L_hat^{-1} nu, ...), so one triangular solve does it;
    its error grows with the root of the condition number only.
    """
    factor, good = _cholesky(covariance)
    whitened = torch.linalg.solve_triangular(factor[:, :-1, :-1], y[:, :-1, None], upper=False)
    mean: Tensor = (factor[:, -1, None, :-1] @ whitened)[:, 0, 0]
    if not good.all():
        mean[~good] = _singular_mean(covariance[~good], y[~good])
    return mean


def _singular_mean(covariance: Tensor, y: Tensor) -> Tensor:
    values, vectors = _eigen(covariance[:, :-1, :-1])
    inverse = torch.where(values > 0, 1 / values, 0.0)[..., None]
    weights: Tensor = vectors @ (inverse * (vectors.mT @ y[:, :-1, None]))
    mean: Tensor = (covariance[:, -1, None, :-1] @ weights)[:, 0, 0]
    return mean
