r"""The transformer of cheng as its equations (1) to (6) write it, a column for each token.

    Z_0 = [ x_1 ... x_n x_q ; y_1 ... y_n 0 ],    Z_{l+1} = Z_l + V_l Z_l M h(B_l X_l, C_l X_l)

X_l are the first d rows of Z_l, and M removes the query. A batch of tasks may stand in front.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from icgd_papers.theorems.statement import Comparison
from icgd_papers.training.covariates import Ellipsoid
from icgd_papers.training.tasks import generator_of

Activation = Callable[[Tensor, Tensor], Tensor]
"""h: from columns U and W to the matrix of all pairs; its last row belongs to the query."""

EXACT = 1e-12
"""The largest difference that rounding may cause."""

WIDTH = 5
"""The paper's d."""


def agreement(case: str, left: Tensor, right: Tensor, allowed: float = EXACT) -> Comparison:
    """Compare two tensors that should be equal by their largest difference."""
    return Comparison(case, float((left - right).abs().max()), allowed, "largest difference")


def identity() -> Tensor:
    """The d x d matrix I."""
    return torch.eye(WIDTH, dtype=torch.float64)


def sphere_points(n_tokens: int, seed: int) -> Tensor:
    """Points on the unit sphere, with a row for each token."""
    return Ellipsoid.sphere(WIDTH).sample(1, n_tokens, generator_of(seed, 0))[0]


def wave(points: Tensor) -> Tensor:
    """A label for every point: a sine of the sum of its coordinates."""
    return torch.sin(3 * points.sum(-1))


def linear(U: Tensor, W: Tensor) -> Tensor:
    """<u, w> of all pairs of columns (Example 1)."""
    return U.mT @ W


def relu(U: Tensor, W: Tensor) -> Tensor:
    """max(0, <u, w>) of all pairs of columns (Example 2)."""
    return torch.relu(U.mT @ W)


def exponential(U: Tensor, W: Tensor) -> Tensor:
    """exp(<u, w>) of all pairs of columns (12)."""
    return torch.exp(U.mT @ W)


def softmax(U: Tensor, W: Tensor) -> Tensor:
    """exp(<u, w>) over its sum over the examples; the query's row is 0 (6)."""
    scores = mask(U.shape[-1]) @ exponential(U, W)
    return scores / scores.sum(-2, keepdim=True)


ACTIVATIONS: dict[str, Activation] = {
    "linear": linear,
    "relu": relu,
    "exp": exponential,
    "softmax": softmax,
}


def mask(n_tokens: int) -> Tensor:
    """M: ones on the diagonal, but 0 for the query, which is last."""
    ones = torch.ones(n_tokens, dtype=torch.float64)
    ones[-1] = 0
    return ones.diag()


def stream(x: Tensor, labels: Tensor) -> Tensor:
    """Z_0 of points (token, d) and labels (token), the query last in both."""
    return torch.cat([x.mT, labels[..., None, :]], dim=-2)


def hidden(labels: Tensor) -> Tensor:
    """The labels with 0 for that of the query."""
    return labels @ mask(labels.shape[-1])


def layer(Z: Tensor, V: Tensor, B: Tensor, C: Tensor, h: Activation) -> Tensor:
    """Z + V Z M h(B X, C X) (3)."""
    X = Z[..., :-1, :]
    return Z + V @ Z @ mask(Z.shape[-1]) @ h(B @ X, C @ X)


def descent_layers(Z: Tensor, h: Activation, step: float, n_layers: int) -> Tensor:
    """The label rows before and after every layer of V = diag(0, -step), B = C = I."""
    V = torch.zeros(WIDTH + 1, WIDTH + 1, dtype=torch.float64)
    V[-1, -1] = -step
    rows = [Z[-1]]
    for _ in range(n_layers):
        Z = layer(Z, V, identity(), identity(), h)
        rows.append(Z[-1])
    return torch.stack(rows)
