r"""The transformer of cheng as its equations (1) to (6) write it, a column for each token.

    Z_0 = [ x_1 ... x_n x_q ; y_1 ... y_n 0 ],    Z_{l+1} = Z_l + V_l Z_l M h(B_l X_l, C_l X_l)

X_l are the first d rows of Z_l, and M removes the query. A batch of tasks may stand in front.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from icgd_papers.training.covariates import Ellipsoid

Activation = Callable[[Tensor, Tensor], Tensor]
"""h: from columns U and W to the matrix of all pairs; its last row belongs to the query."""

EXACT = 1e-12
"""The largest difference that rounding may cause between numbers of order 1."""

DIFFERENCE = "largest difference"
"""The unit of most comparisons."""

WIDTH = 5
"""The paper's d."""


def difference(left: Tensor, right: Tensor) -> float:
    """Return the largest difference between two tensors that should be equal."""
    return float((left - right).abs().max())


def generator(seed: int, stream: int = 0) -> np.random.Generator:
    """Return random numbers that depend on the seed and on a number for each use."""
    return np.random.default_rng((seed, stream))


def eye(size: int = WIDTH) -> Tensor:
    """Return the identity matrix in float64."""
    return torch.eye(size, dtype=torch.float64)


def sphere_points(n_tokens: int, seed: int) -> Tensor:
    """Draw points on the unit sphere, a row for each token."""
    return Ellipsoid.sphere(WIDTH).sample(1, n_tokens, generator(seed))[0]


def wave(points: Tensor) -> Tensor:
    """Label every point with a sine of the sum of its coordinates."""
    return torch.sin(3 * points.sum(-1))


def linear(U: Tensor, W: Tensor) -> Tensor:
    """Return <u, w> of all pairs of columns (Example 1)."""
    return U.mT @ W


def relu(U: Tensor, W: Tensor) -> Tensor:
    """Return max(0, <u, w>) of all pairs of columns (Example 2)."""
    return torch.relu(U.mT @ W)


def exponential(U: Tensor, W: Tensor) -> Tensor:
    """Return exp(<u, w>) of all pairs of columns (12)."""
    return torch.exp(U.mT @ W)


def softmax(U: Tensor, W: Tensor) -> Tensor:
    """Return exp(<u, w>) over its sum over the examples; the query's row is 0 (6)."""
    scores = mask(U.shape[-1]) @ exponential(U, W)
    return scores / scores.sum(-2, keepdim=True)


ACTIVATIONS: dict[str, Activation] = {
    "linear": linear,
    "relu": relu,
    "exp": exponential,
    "softmax": softmax,
}


def mask(n_tokens: int) -> Tensor:
    """Return M: ones on the diagonal, but 0 for the query, which is last."""
    ones = torch.ones(n_tokens, dtype=torch.float64)
    ones[-1] = 0
    return ones.diag()


def prompt(x: Tensor, labels: Tensor) -> Tensor:
    """Return Z_0 of points (token, d) and labels (token), the query last in both."""
    return torch.cat([x.mT, labels[..., None, :]], dim=-2)


def hidden(labels: Tensor) -> Tensor:
    """Replace the query's label by 0."""
    return labels @ mask(labels.shape[-1])


def value_matrix(A: Tensor, r: float) -> Tensor:
    """Return V = diag(A, r) (Assumption 4.4)."""
    V: Tensor = torch.block_diag(A, torch.tensor([[r]], dtype=torch.float64))
    return V


def layer(Z: Tensor, V: Tensor, B: Tensor, C: Tensor, h: Activation) -> Tensor:
    """Return Z + V Z M h(B X, C X) (3)."""
    X = Z[..., :-1, :]
    return Z + V @ Z @ mask(Z.shape[-1]) @ h(B @ X, C @ X)


def label_rows(x: Tensor, labels: Tensor, h: Activation, step: float, n_layers: int) -> Tensor:
    """Return the labels before and after every layer of V = diag(0, -step), B = C = I.

    The prompt has a 0 in place of the query's label.
    """
    Z, V = prompt(x, hidden(labels)), value_matrix(torch.zeros_like(eye()), -step)
    rows = [Z[-1]]
    for _ in range(n_layers):
        Z = layer(Z, V, eye(), eye(), h)
        rows.append(Z[-1])
    return torch.stack(rows)
