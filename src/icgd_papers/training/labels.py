r"""Laws of the labels y given the inputs x, each with the best prediction of the query's label.

A K Gaussian process (Definition 3.3) draws all labels of a task from N(0, K_+), where K_+ has the
eigenvectors of the kernel matrix K and the absolute values of its eigenvalues. So K_+ = K for a
positive kernel, and a kernel such as relu, which is not positive, has a process too. With

    K_+ = [ K_hat  nu ]        the best prediction (13) is   nu^T K_hat^{-1} (y_1, ..., y_n).
          [ nu^T   mu ]

Kernel matrices of close points are nearly singular. Eigenvalues and pivots of at most
n_tokens * 2.2e-16 times the largest, the error of float64 in an eigenvalue, count as 0. This moves
the covariance by no more than rounding did, and labels of equal points stay equal. The inverse is
then the pseudo-inverse, which still gives the conditional mean.

Teachers (App. G of wu) are networks of N layers that are drawn anew for each task.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from icgd.errors import DataError, DistributionError
from icgd.problems.functions import activation_named
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.settings import count, finite, set_fields
from icgd_papers.training.covariates import Tokens, as_matrix, normal, require_width

TokenLabels = Float[Tensor, "task token"]
"""The labels of all tokens, the query last."""

QueryLabels = Float[Tensor, "task"]
"""The predictions of the last label."""

Covariances = Float[Tensor, "task token token"]
"""The covariance of the labels of each task."""

TASKS_AT_ONCE = 512
"""The kernel matrices of so many tasks fit the cache and bound the memory of any batch."""


class AbstractLabels(ABC):
    """A law of labels of the points `whitening @ x`; None leaves the points where they are."""

    whitening: Tensor | None

    def __post_init__(self) -> None:
        if self.whitening is not None:
            object.__setattr__(self, "whitening", as_matrix("whitening", self.whitening))

    @abstractmethod
    def sample(self, x: Tokens, generator: np.random.Generator) -> TokenLabels:
        """Draw the labels of all tokens."""

    @abstractmethod
    def bayes(self, x: Tokens, y: TokenLabels) -> QueryLabels | None:
        """Return the mean of the last label given the others; None if it is unknown."""

    @abstractmethod
    def covariance(self, x: Tokens) -> Covariances | None:
        """Return the mean E[y_i y_j] given x for each pair of tokens; None if it can only be
        sampled.
        """

    @property
    def name(self) -> str:
        """The law in words."""
        return type(self).__name__

    @property
    def input_width(self) -> int | None:
        """The width of the inputs; None if every width will do."""
        return None if self.whitening is None else len(self.whitening)

    def whitened(self, x: Tokens) -> Tokens:
        """Return points that have the labels, in float64: kernel matrices are nearly singular."""
        if self.input_width not in (None, x.shape[-1]):
            raise DataError(
                f"x has shape {tuple(x.shape)}; expected (task, token, {self.input_width})."
            )
        return x.double() if self.whitening is None else x.double() @ self.whitening.mT

    def description(self) -> dict[str, object]:
        """Plain data that identifies the law."""
        whitening = None if self.whitening is None else self.whitening.tolist()
        return {"law": type(self).__name__, "whitening": whitening}


@final
@dataclass(frozen=True, eq=False)
class KernelProcess(AbstractLabels):
    """Labels from N(0, K_+), where K is the kernel matrix of the whitened points (Example 7).

    A task costs a Cholesky factor, of order n_tokens^3, if K is positive, and about 20 times that
    if not. The linear kernel costs n_tokens * input_width only.
    """

    machine: KernelMachine
    whitening: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.machine.require_symmetric("A kernel process")
        if self.whitening is not None:
            require_width(len(self.whitening), self.input_width)

    @property
    def name(self) -> str:
        """The law and the kernels of its heads."""
        return f"{super().name}, {' + '.join(head.kernel for head in self.machine.heads)}"

    @property
    def input_width(self) -> int:
        return self.machine.input_width

    def sample(self, x: Tokens, generator: np.random.Generator) -> TokenLabels:
        """Draw standard normal numbers, and multiply them by a matrix F with F F^T = K_+."""
        points = self.whitened(x)
        if self._is_linear:
            return _linear_labels(self._features(points), generator)
        noise = normal(generator, *x.shape[:2], 1).split(TASKS_AT_ONCE)
        pairs = zip(self._grams(points), noise, strict=True)
        return torch.cat([_coloured(gram, part)[..., 0] for gram, part in pairs])

    def bayes(self, x: Tokens, y: TokenLabels) -> QueryLabels:
        """Return the mean nu^T K_hat^{-1} (y_1, ..., y_n), computed from K_+."""
        points, y = self.whitened(x), y.double()
        if self._is_linear:
            return _least_squares(self._features(points), y)
        pairs = zip(self._grams(points), y.split(TASKS_AT_ONCE), strict=True)
        return torch.cat([_conditional_mean(_flipped(gram), part) for gram, part in pairs])

    def covariance(self, x: Tokens) -> Covariances:
        """Return the matrix K_+ of the points of each task."""
        return torch.cat([_flipped(gram) for gram in self._grams(self.whitened(x))])

    def description(self) -> dict[str, object]:
        """Plain data that identifies the law and every head."""
        return {**super().description(), "machine": json.loads(json.dumps(asdict(self.machine)))}

    def _grams(self, points: Tensor) -> Iterator[Tensor]:
        return (self._gram(part) for part in points.split(TASKS_AT_ONCE))

    def _gram(self, points: Tensor) -> Tensor:
        """Return the kernel matrix, checked in full, at eight times the cost, if a fault is
        possible.
        """
        matrix = self.machine.matrix(points, points)
        is_own = any(head.function.is_own for head in self.machine.heads)
        return self.machine.gram(points) if is_own or not matrix.sum().isfinite() else matrix

    @property
    def _is_linear(self) -> bool:
        return all(head.kernel == "linear" for head in self.machine.heads)

    def _features(self, points: Tensor) -> Tensor:
        """F with K = F F^T for linear heads: the points as each head moves them, side by side."""
        parts = [head.weight**0.5 * head.moved(points) for head in self.machine.heads]
        return torch.cat(parts, dim=-1)


@final
@dataclass(frozen=True, eq=False)
class LinearFunctions(AbstractLabels):
    """y = <theta, whitening x> with one theta ~ N(0, I) for each task (Example 6)."""

    whitening: Tensor | None = None

    def sample(self, x: Tokens, generator: np.random.Generator) -> TokenLabels:
        """Draw theta, and apply it to the points."""
        return _linear_labels(self.whitened(x), generator)

    def bayes(self, x: Tokens, y: TokenLabels) -> QueryLabels:
        """Return the value at the query of the shortest theta that fits the examples."""
        return _least_squares(self.whitened(x), y.double())

    def covariance(self, x: Tokens) -> Covariances:
        """Return the linear kernel of the whitened points."""
        points = self.whitened(x)
        return points @ points.mT


@final
@dataclass(frozen=True, eq=False)
class ReluNetworks(AbstractLabels):
    """y = <theta_2, relu(theta_1 whitening x)> with all weights ~ N(0, 1) (Example 8).

    `hidden_width` is the paper's m. E[y^2] = m |whitening x|^2 / 2.
    """

    hidden_width: int
    whitening: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        count("hidden_width", self.hidden_width)

    def sample(self, x: Tokens, generator: np.random.Generator) -> TokenLabels:
        """Draw both layers for each task, and apply them to the points."""
        points = self.whitened(x)
        first = normal(generator, x.shape[0], x.shape[-1], self.hidden_width)
        return _linear_labels(torch.relu(points @ first), generator)

    def bayes(self, x: Tokens, y: TokenLabels) -> None:
        """The mean is unknown: the posterior of the weights has no closed form."""

    def covariance(self, x: Tokens) -> None:
        """The covariance is sampled, so that a check of the law checks the networks themselves."""

    def description(self) -> dict[str, object]:
        """Plain data that identifies the law and the hidden width."""
        return {**super().description(), "hidden_width": self.hidden_width}


def _linear_labels(features: Tensor, generator: np.random.Generator) -> Tensor:
    """Return labels <theta, features> of every token, with one theta ~ N(0, I) for each task."""
    theta = normal(generator, features.shape[0], features.shape[-1], 1)
    return (features @ theta)[..., 0]


def _least_squares(features: Tensor, y: Tensor) -> Tensor:
    """Return the mean of <theta, features of the query> given the examples' labels, theta ~ N(0,
    I).
    """
    theta: Tensor = torch.linalg.pinv(features[:, :-1]) @ y[:, :-1, None]
    return (features[:, -1, None] @ theta)[:, 0, 0]


def _rounding(matrix: Tensor) -> float:
    """Return the share of the largest eigenvalue below which an eigenvalue is only rounding."""
    return matrix.shape[-1] * torch.finfo(matrix.dtype).eps


def _cholesky(gram: Tensor) -> tuple[Tensor, Bool[Tensor, "task"]]:
    """Lower factors, and which of them are good: the matrix is positive, and no pivot is rounding.

    A good factor is exact to rounding, however singular the matrix may be.
    """
    factor, info = torch.linalg.cholesky_ex(gram)
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    largest = gram.diagonal(dim1=-2, dim2=-1).amax(-1)
    return factor, (info == 0) & (pivots.square().amin(-1) > _rounding(gram) * largest)


def _eigen(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Absolute eigenvalues, with 0 for those within rounding of 0, and eigenvectors."""
    values, vectors = torch.linalg.eigh(gram)
    values = values.abs()
    least = _rounding(gram) * values.amax(-1, keepdim=True)
    return torch.where(values > least, values, 0.0), vectors


def _coloured(gram: Tensor, noise: Tensor) -> Tensor:
    """F @ noise with K_+ = F F^T; F is the Cholesky factor if K is positive, or else the root.

    The symmetric root does not depend on the signs of the eigenvectors, which machines choose.
    """
    factor, good = _cholesky(gram)
    labels = factor @ noise
    if not good.all():
        values, vectors = _eigen(gram[~good])
        labels[~good] = vectors @ (values.sqrt()[..., None] * (vectors.mT @ noise[~good]))
    return labels


def _flipped(gram: Tensor) -> Tensor:
    """Return K_+, which is K itself where it is positive, that is, where Cholesky succeeds."""
    _, good = _cholesky(gram)
    if good.all():
        return gram
    values, vectors = _eigen(gram[~good])
    flipped = gram.clone()
    flipped[~good] = (vectors * values[..., None, :]) @ vectors.mT
    return flipped


def _conditional_mean(covariance: Tensor, y: Tensor) -> Tensor:
    """Return the mean nu^T K_hat^{-1} y of the last label.

    With K_+ = L L^T the last row of L is (L_hat^{-1} nu, ...), so one triangular solve is enough,
    and the error grows only with the root of the condition number.
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


GAINS = {"relu": 2**0.5}
"""c of `Teachers`: relu loses half of the second moment, and sqrt(2) restores it (default 1)."""

MOST_LAYERS = 1000
"""Deeper teachers take seconds to draw, and say hardly more of an input than its size."""

LARGEST_LABEL = 1e18
"""The sum of the squares of larger labels would overflow in float32."""


@final
@dataclass(frozen=True, eq=False)
class Teachers(AbstractLabels):
    """Labels by networks of `n_layers` layers with `hidden_width` units in each hidden one.

        y = W_N r(c W_{N-1} ... r(c W_1 x)),    each W divided by the root of its fan-in,

    with all entries of W ~ N(mean, 1), no biases, c = sqrt(2) for relu and 1 otherwise. The mean
    is shifted before the division. So a relu teacher is the network with weights N(mean, I)
    itself, times a constant of its sizes. With mean 0 it keeps E[y^2 | x] = |x|^2 / d for every
    depth and width. With another mean its outputs grow: the ones matrix in W has norm |mean|
    sqrt(fan-in) after the division, which is 2.2 at a width of 20 and mean 0.5.
    """

    n_layers: int
    hidden_width: int
    mean: float = 0.0
    activation: str = "relu"
    whitening: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        n_layers = count("n_layers", self.n_layers, most=MOST_LAYERS)
        hidden = count("hidden_width", self.hidden_width)
        set_fields(self, n_layers=n_layers, hidden_width=hidden, mean=finite("mean", self.mean))
        activation_named(self.activation)

    @property
    def name(self) -> str:
        """The law, its depth and its mean."""
        return f"{super().name}, {self.n_layers} layers, N({self.mean:g}, I)"

    def sample(self, x: Tokens, generator: np.random.Generator) -> TokenLabels:
        """Draw a network for each task, and apply it to the task's points."""
        function = activation_named(self.activation).value
        gain, signal = GAINS.get(self.activation, 1.0), self.whitened(x)
        widths = [x.shape[-1], *[self.hidden_width] * (self.n_layers - 1), 1]
        for layer, (n_in, n_out) in enumerate(pairwise(widths)):
            signal = function(gain * signal) if layer else signal
            weights = self.mean + normal(generator, len(x), n_in, n_out)
            signal = (signal @ weights) / n_in**0.5
        return _of_moderate_size(signal[..., 0], self.name)

    def bayes(self, x: Tokens, y: TokenLabels) -> None:
        """The mean is unknown: the posterior of the weights has no closed form."""

    def covariance(self, x: Tokens) -> None:
        """The covariance can only be sampled."""

    def description(self) -> dict[str, object]:
        """Plain data that identifies the law."""
        own = {"n_layers": self.n_layers, "hidden_width": self.hidden_width}
        return {**super().description(), **own, "mean": self.mean, "activation": self.activation}


def _of_moderate_size(labels: Tensor, law: str) -> Tensor:
    """Return the labels, if training can square them."""
    largest = float(labels.abs().max())
    if not largest <= LARGEST_LABEL:  # no number is not below it either
        raise DistributionError(
            f"Labels of {law} overflow: the largest is {largest:.3g}, and training can square "
            f"labels up to {LARGEST_LABEL:.0e}. Give fewer layers, smaller widths, a mean nearer "
            "to 0, or smaller inputs."
        )
    return labels
