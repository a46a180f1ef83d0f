r"""Theorems 4.5 and 4.6, measured: on the predicted family the gradient stays on the family.

The family is B = b S^-1, C = c S^-1 and A = a I in every layer, with S = Sigma^(1/2). The proof
(Proposition E.3) shows that moving B by R changes the loss as much as moving it by
(1/d) tr(R S) S^-1. Since that holds for every R, the gradient is

    dL/dB = g S,    dL/dC = g' S,    dL/dA = g'' I,

so what is a multiple of I is dL/dB S^-1, the gradient in the coordinates B S. (dL/dB itself is
no multiple of S^-1: plain gradient descent leaves the family unless Sigma is a multiple of I.)
The part of these matrices off the multiples of I must vanish up to sampling error.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from icgd_papers.training.covariates import AbstractCovariates
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.similarity import off_identity
from icgd_papers.training.tasks import InContextTask

LARGEST_RATIO = 2.0
"""By chance alone the ratio exceeds this with probability e^-6 in 4 directions."""

STEPS = {"softmax": 1.0}
"""The step of kernels that are normalised; other steps are 1 / the number of examples."""


@dataclass(frozen=True)
class Stationarity:
    """The gradient off the family, with its sampling error, and that at another point."""

    kernel: str
    transforms_covariates: bool
    off_family: float
    """The norm of the mean gradient off the family."""
    standard_error: float
    """The root mean square of the norm that sampling alone would give if the mean were 0."""
    elsewhere: float
    """The norm at a nearby point that is not in the family."""

    @property
    def ratio(self) -> float:
        """The norm over its sampling error: about 1 if the gradient off the family is 0."""
        return self.off_family / self.standard_error


def measure_stationarity(
    kernel: str,
    task: InContextTask,
    *,
    transforms_covariates: bool,
    n_layers: int = 3,
    n_batches: int = 20,
    batch_size: int = 2000,
    seed: int = 0,
) -> Stationarity:
    """Measure with `n_batches` independent batches, at a point whose layers all differ."""
    model = family_point(kernel, task, n_layers, transforms_covariates)
    sizes = {"n_batches": n_batches, "batch_size": batch_size, "seed": seed}
    gradients = _off_family_gradients(model, task, **sizes)
    elsewhere = _off_family_gradients(_moved(model, seed), task, **sizes)
    return Stationarity(
        kernel,
        transforms_covariates,
        off_family=gradients.mean(dim=0).norm().item(),
        standard_error=(gradients.var(dim=0) / n_batches).sum().sqrt().item(),
        elsewhere=elsewhere.mean(dim=0).norm().item(),
    )


def family_point(
    kernel: str, task: InContextTask, n_layers: int, transforms_covariates: bool
) -> KernelTransformer:
    """A point B = b S^-1, C = c S^-1, A = a I, r < 0, with other numbers in every layer."""
    width, whitening = task.covariates.input_width, task.covariates.whitening
    model = KernelTransformer(
        width, n_layers, (kernel,), transforms_covariates=transforms_covariates, seed=0
    )
    step = STEPS.get(kernel, 1 / task.n_examples)
    fade = torch.linspace(1.0, 0.6, n_layers, dtype=torch.float64)
    with torch.no_grad():
        model.r.copy_(-step * fade[:, None])
        model.B.copy_(fade[:, None, None, None] * whitening)
        model.C.copy_(fade.flip(0)[:, None, None, None] * whitening)
        if model.A is not None:
            identity = torch.eye(width, dtype=torch.float64)
            model.A.copy_(-0.3 * step * fade[:, None, None, None] * identity)
    return model


def _moved(model: KernelTransformer, seed: int) -> KernelTransformer:
    """The point with B and C moved off the family by about their own size."""
    generator = torch.Generator().manual_seed(seed)
    moved = deepcopy(model)
    with torch.no_grad():
        for matrix in (moved.B, moved.C):
            matrix.add_(0.5 * torch.randn(matrix.shape, generator=generator, dtype=matrix.dtype))
    return moved


def _off_family_gradients(
    model: KernelTransformer, task: InContextTask, *, n_batches: int, batch_size: int, seed: int
) -> Tensor:
    """A row for each batch: its gradient off the multiples of I, in the theorem's coordinates."""
    rows = []
    for index in range(n_batches):
        model.zero_grad()
        task.loss(model, task.sample(batch_size, seed=seed, index=index)).backward()
        off = [off_identity(part) for part in _gradients(model, task.covariates)]
        rows.append(torch.cat([part.flatten() for part in off]))
    return torch.stack(rows)


def _gradients(model: KernelTransformer, covariates: AbstractCovariates) -> Iterator[Tensor]:
    """The gradients dL/dB S^-1 and dL/dC S^-1, and dL/dA of all layers but the last."""
    for matrix in (model.B, model.C):
        yield _gradient(matrix) @ covariates.whitening
    if model.A is not None:
        yield _gradient(model.A)[:-1]


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
