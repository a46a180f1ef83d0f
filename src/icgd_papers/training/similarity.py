r"""How alike two trained or constructed models are, and how far a model is from the theory.

Kernels of scores see B and C only through M = B^T C: (L^T B, L^-1 C) predicts the same for every
invertible L. Weights are therefore compared in one gauge, B = I and C = M, before a straight line
is drawn between them. Kernels of distances (rbf, laplace, matern) keep their B and C.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity

from icgd.errors import SettingError, quoted
from icgd.problems.settings import count
from icgd_papers.training.covariates import Square, power_of
from icgd_papers.training.models import OF_SCORES, KernelTransformer
from icgd_papers.training.tasks import Batch

MOST_POINTS = 10**4
"""The most models between two that are looked at."""


@dataclass(frozen=True)
class Similarity:
    """Measures of how alike two models are on one batch (von Oswald et al.)."""

    prediction_difference: float
    """The root mean square of the difference of predictions."""
    sensitivity_cosine: float
    """The mean cosine of the angle between the gradients of the predictions by the query."""
    sensitivity_distance: float
    """The mean Euclidean distance of these gradients."""
    losses: tuple[float, ...]
    """The loss at equal steps from the first model's weights to the second's."""


def similarity(
    first: KernelTransformer, second: KernelTransformer, batch: Batch, *, n_points: int = 11
) -> Similarity:
    """Compare two models of the same shape, in float64, whatever their own precision is.

    Args:
        first: a model.
        second: another one. One of them may lack A, which then counts as 0.
        batch: the tasks on which they are compared.
        n_points: the number of points on the line between their weights at which the loss is taken.

    Returns:
        How far their predictions, their sensitivities and their losses on the line are apart.

    Raises:
        SettingError: if the models differ in shape.

    Example:
        >>> import icgd, torch
        >>> from icgd_papers.training import Gaussian, InContextTask, KernelTransformer
        >>> from icgd_papers.training import LinearFunctions, similarity
        >>> law = Gaussian(torch.eye(2, dtype=torch.float64))
        >>> batch = InContextTask(law, LinearFunctions(), n_examples=4).sample(5, seed=0, index=0)
        >>> model = KernelTransformer.constructed(icgd.KernelMachine(2, "linear"), [0.1])
        >>> similarity(model, model, batch).prediction_difference
        0.0
    """
    first, second = _in_float64(first), _in_float64(second)
    batch = batch.to(first.B.device, torch.float64)
    difference = first(batch.x, batch.y) - second(batch.x, batch.y)
    ours, theirs = sensitivities(first, batch), sensitivities(second, batch)
    return Similarity(
        prediction_difference=difference.detach().square().mean().sqrt().item(),
        sensitivity_cosine=cosine_similarity(ours, theirs, dim=-1).mean().item(),
        sensitivity_distance=(ours - theirs).norm(dim=-1).mean().item(),
        losses=tuple(
            _loss(between(first, second, float(fraction)), batch)
            for fraction in torch.linspace(0, 1, count("n_points", n_points, most=MOST_POINTS))
        ),
    )


def _in_float64(model: KernelTransformer) -> KernelTransformer:
    return deepcopy(model).double()


def sensitivities(model: KernelTransformer, batch: Batch) -> Float[Tensor, "task input_width"]:
    """Return the gradient d prediction / d x_query of every task."""
    x = batch.x.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x, batch.y).sum(), x)
    return gradient[:, -1]


def _loss(model: KernelTransformer, batch: Batch) -> float:
    with torch.no_grad():
        return float((model(batch.x, batch.y) - batch.y[:, -1]).square().mean())


def between(
    first: KernelTransformer, second: KernelTransformer, fraction: float
) -> KernelTransformer:
    """Return the model at `fraction` of the line from `first` to `second`, both with B = I."""
    _require_same_shape(first, second)
    has_A = first.transforms_covariates or second.transforms_covariates
    model = KernelTransformer.like(first, transforms_covariates=has_A)
    ends = [canonical(end, has_A).state_dict() for end in (first, second)]
    model.load_state_dict(
        {name: torch.lerp(ends[0][name], ends[1][name], fraction) for name in ends[0]}
    )
    return model


def canonical(model: KernelTransformer, has_A: bool | None = None) -> KernelTransformer:
    """Return a model with the same predictions, whose heads with kernels of scores have B = I."""
    has_A = model.transforms_covariates if has_A is None else has_A
    new = KernelTransformer.like(model, transforms_covariates=has_A)
    with torch.no_grad():
        new.r.copy_(model.r)
        new.B.copy_(model.B)
        new.C.copy_(model.C)
        for head, kernel in enumerate(model.kernels):
            if kernel in OF_SCORES:
                new.C[:, head] = model.B[:, head].mT @ model.C[:, head]
                new.B[:, head] = torch.eye(model.input_width).to(new.B)
        if new.A is not None:
            new.A.copy_(torch.zeros_like(new.A) if model.A is None else model.A)
    return new


def _require_same_shape(first: KernelTransformer, second: KernelTransformer) -> None:
    shapes = [
        f"input_width={model.input_width}, n_layers={model.n_layers}, "
        f"kernels={model.kernels}, shapes={model.shapes}"
        for model in (first, second)
    ]
    if shapes[0] != shapes[1]:
        raise SettingError(f"second must be a model with {shapes[0]}, got {quoted(shapes[1])}.")


def distance_to_identity(matrix: Square) -> float:
    """Return min_a |matrix - a I| / |matrix| in Frobenius norm: 0 for multiples of I, at most 1."""
    return float(off_identity(matrix).norm() / matrix.norm())


def off_identity(matrices: Tensor) -> Tensor:
    """Return each matrix minus its nearest multiple of I."""
    means = matrices.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    return matrices - means[..., None, None] * torch.eye(matrices.shape[-1]).to(matrices)


def matrices(model: KernelTransformer, covariance: Square) -> dict[str, Square]:
    """Return the matrices that theory predicts to be multiples of I: S B^T C S, S = Sigma^(1/2),
    and A.

    The last layer's A is left out, because it never reaches the query's label.
    """
    root = power_of(covariance.to(torch.float64), 0.5).to(model.B)
    return {name: matrix.detach() for name, matrix in _matrices(model, root)}


def _matrices(model: KernelTransformer, root: Tensor) -> Iterator[tuple[str, Tensor]]:
    for layer in range(model.n_layers):
        for head in range(len(model.kernels)):
            place = f"{layer}" if len(model.kernels) == 1 else f"{layer}.{head}"
            yield f"BC_{place}", root @ model.B[layer, head].mT @ model.C[layer, head] @ root
            if model.A is not None and layer < model.n_layers - 1:
                yield f"A_{place}", model.A[layer, head]


def distances_to_identity(model: KernelTransformer, covariance: Square) -> dict[str, float]:
    """Return the distance to identity of all `matrices`, which Figures 3, 5 and 6 show."""
    found = matrices(model, covariance)
    return {name: distance_to_identity(matrix) for name, matrix in found.items()}
