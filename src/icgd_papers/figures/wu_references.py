r"""What a prompt tells without any network: its mean label, ridge regression, a Gaussian process.

The last token of a prompt is the query; its label is not read. Every function returns the
prediction at the query of each prompt, in float64.

A teacher of N layers without biases, with independent weights of mean 0, is a Gaussian process in
the limit of infinite width. Its kernel begins with the inner product; each ReLU layer turns it into

    K'(u, v) = sqrt(K(u, u) K(v, v)) (sin t + (pi - t) cos t) / pi,    cos t = K(u, v) / sqrt(...),

twice the mean of relu(a) relu(b) for normal a, b with covariance K (the arc-cosine kernel of degree
1). The factor 2 keeps K(u, u), and no factor changes the prediction k^T K^{-1} y.
"""

from __future__ import annotations

from math import pi

import torch
from jaxtyping import Float
from torch import Tensor

Inputs = Float[Tensor, "task token input_width"]
TokenLabels = Float[Tensor, "task token"]
Predictions = Float[Tensor, "task"]

JITTER = 1e-10
"""What is added to the kernel's diagonal, as a share of its mean: labels have no noise."""


def label_mean(x: Inputs, y: TokenLabels) -> Predictions:
    """The mean of the examples' labels."""
    del x
    return y[:, :-1].double().mean(1)


def ridge(x: Inputs, y: TokenLabels, penalty: float) -> Predictions:
    """Least squares with an intercept, which has no penalty; the others have `penalty` |w|^2."""
    examples, known = x[:, :-1].double(), y[:, :-1].double()
    centre, level = examples.mean(1, keepdim=True), known.mean(1)
    moved, left = examples - centre, known - level[:, None]
    square = moved.mT @ moved + penalty * torch.eye(x.shape[-1], dtype=torch.float64)
    slope = torch.linalg.solve(square, moved.mT @ left[..., None])
    predicted: Tensor = level + ((x[:, -1:].double() - centre) @ slope)[:, 0, 0]
    return predicted


def arc_cosine(x: Inputs, y: TokenLabels, n_layers: int) -> Predictions:
    """The mean at the query of the Gaussian process that wide teachers of `n_layers` layers are."""
    kernel = arc_cosine_kernel(x.double(), n_layers)
    gram, to_query = kernel[:, :-1, :-1], kernel[:, -1, None, :-1]
    size = gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    steady = gram + JITTER * size * torch.eye(gram.shape[-1], dtype=torch.float64)
    weights = torch.linalg.solve(steady, y[:, :-1, None].double())
    predicted: Tensor = (to_query @ weights)[:, 0, 0]
    return predicted


def arc_cosine_kernel(x: Inputs, n_layers: int) -> Float[Tensor, "task token token"]:
    """The covariance of the labels of wide teachers, whose layers but the last end in ReLUs."""
    kernel: Tensor = x @ x.mT / x.shape[-1]
    for _ in range(n_layers - 1):
        kernel = _after_relu(kernel)
    return kernel


def _after_relu(kernel: Tensor) -> Tensor:
    size = kernel.diagonal(dim1=-2, dim2=-1).sqrt()
    scale = size[..., None] * size[..., None, :]
    cosine = (kernel / scale).clamp(-1, 1)
    turned: Tensor = scale * ((1 - cosine**2).sqrt() + (pi - cosine.acos()) * cosine) / pi
    return turned


def label_size(y: TokenLabels) -> Float[Tensor, "task 1"]:
    """The root mean square of the examples' labels; 1 if all are 0."""
    size = y[:, :-1].double().square().mean(1, keepdim=True).sqrt()
    return torch.where(size > 0, size, 1.0)


def relative_error(predictions: Predictions, y: TokenLabels) -> float:
    """The mean squared error in units of each prompt's labels, so that no large prompt decides."""
    return float(((predictions - y[:, -1]) / label_size(y)[:, 0]).square().mean())


def r_squared(errors: Predictions, labels: Predictions) -> float:
    """1 - (mean of squared errors) / (variance of the queries' labels), over all prompts."""
    return 1 - float(errors.square().mean() / labels.double().var(correction=0))


def r_squared_within(errors: Predictions, y: TokenLabels) -> float:
    """The same with the mean variance of the labels within a prompt in the denominator."""
    return 1 - float(errors.square().mean() / y.double().var(1, correction=0).mean())
