r"""The family of Theorems 4.5 and 4.6: its best point, and how the loss bends away from it.

On the family B = b S^-1, C = c S^-1 and A = a I in every layer, with S = Sigma^(1/2). Only the
product b c counts, so c is 1 here. A tilt t along a matrix K of norm 1 and trace 0 leaves the
family:

    B = b (I + t sqrt(d) K) S^-1,        A = a S (I + t sqrt(d) K) S^-1.

Then S B^T C S has the distance t / sqrt(1 + t^2) from the multiples of I, in Frobenius norms.

The law here is a batch of prompts, each in all rotations of the whitened inputs. It satisfies the
theorems' assumptions exactly. A rotation changes nothing on the family, so the loss there is the
loss on the prompts themselves, and by symmetry the slope along t is 0 (Proposition E.3). Rotations
carry K to every matrix of its kind, symmetric or antisymmetric, and mix no further, because both
kinds are irreducible. So each kind has one small matrix of second derivatives, with a row for each
tilted matrix: the mean, over an orthonormal basis of K, of those on the prompts alone. Neither
directions nor rotations have to be sampled.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from icgd_papers.training.averaged import AveragedBatch, AveragedTask
from icgd_papers.training.covariates import AbstractCovariates, Square
from icgd_papers.training.models import KernelTransformer

KINDS = ("antisymmetric", "symmetric")
"""The two kinds of tilts; their order is that of all tensors here."""

TILT = 0.002
"""Slopes are compared at tilts of this size: large enough to meet the kinks of relu attention."""

MOST_ITERATIONS = 200

HOMOGENEOUS = ("linear", "relu")
"""Kernels for which a multiple of B is a multiple of A and r, and so has nothing to find."""

Curvatures = Float[Tensor, "kind matrix matrix"]
"""The second derivatives of the loss by the tilts of two matrices, over the loss, for each kind."""


class Tilted(nn.Module):
    """Matrices left (m (I + sqrt(d) sum_k t_k K_k)) right, with a multiple m for each layer."""

    left: Tensor
    right: Tensor
    directions: Tensor

    def __init__(self, multiples: Tensor, left: Square, right: Square) -> None:
        super().__init__()
        self.multiples = nn.Parameter(multiples)
        self.tilts = nn.Parameter(multiples.new_zeros(len(KINDS), len(multiples)))
        for name, matrix in (("left", left), ("right", right)):
            self.register_buffer(name, matrix, persistent=False)
        self.register_buffer("directions", left.new_zeros(len(KINDS), *left.shape))

    def forward(self, _: Tensor) -> Tensor:
        identity = torch.eye(len(self.left), dtype=self.left.dtype)
        tilt = len(identity) ** 0.5 * torch.einsum("kl,kij->lij", self.tilts, self.directions)
        middle = self.multiples[:, None, None] * (identity + tilt)
        matrices: Tensor = self.left @ middle @ self.right
        return matrices[:, None]


def family_model(
    kernel: str,
    covariates: AbstractCovariates,
    n_layers: int,
    step: float,
    *,
    transforms_covariates: bool,
) -> KernelTransformer:
    """Return a model that stays on the family, or is tilted off it.

    Its layers begin with steps around `step` that all differ, since equal layers are a saddle of
    the loss on the family.
    """
    width, root, whitening = covariates.input_width, covariates.root, covariates.whitening
    model = KernelTransformer(
        width, n_layers, (kernel,), transforms_covariates=transforms_covariates, seed=0
    )
    fade = torch.linspace(1.2, 0.4, n_layers, dtype=torch.float64)
    rise = torch.linspace(0.8, 1.2, n_layers, dtype=torch.float64)
    with torch.no_grad():
        model.r.copy_(-step * fade[:, None])
        model.C.copy_(whitening.expand_as(model.C))
    model.C.requires_grad_(False)
    _tilt(model, "B", Tilted(rise, torch.eye(width, dtype=torch.float64), whitening))
    if transforms_covariates:
        _tilt(model, "A", Tilted(-0.1 * step * rise, root, whitening))
    return model


def _tilt(model: KernelTransformer, name: str, tilted: Tilted) -> None:
    # Unsafe, because the matrix no longer depends on the parameter that it replaces.
    register_parametrization(model, name, tilted, unsafe=True)
    getattr(model.parametrizations, name).original.requires_grad_(False)


def tilted_parts(model: KernelTransformer) -> list[Tilted]:
    """Return what makes B and, if it is there, A."""
    names = ("B", "A") if model.transforms_covariates else ("B",)
    return [getattr(model.parametrizations, name)[0] for name in names]


def minimise_on_family(model: KernelTransformer, task: AveragedTask, batch: AveragedBatch) -> float:
    """Minimise the loss on the family by L-BFGS, over the steps r and the multiples; return it.

    On some families the loss falls towards infinity, as that of softmax attention on linear labels
    does with small scores and large steps. Then the end is a point far out.
    """
    parts = tilted_parts(model)
    used = parts[1:] if model.kernels[0] in HOMOGENEOUS else parts
    parameters = [model.r, *(part.multiples for part in used)]
    method = torch.optim.LBFGS(
        parameters,
        max_iter=MOST_ITERATIONS,
        history_size=20,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
    )

    def gradient() -> float:
        method.zero_grad()
        loss = task.mean_loss(model, batch).log()
        loss.backward()
        return float(loss.detach())

    method.step(gradient)
    with torch.no_grad():
        return float(task.mean_loss(model, batch))


def bases(width: int) -> list[Float[Tensor, "matrix width width"]]:
    """Return orthonormal bases of the matrices of trace 0 of each kind."""
    units = torch.eye(width**2, dtype=torch.float64).unflatten(1, (width, width))
    identity = torch.eye(width, dtype=torch.float64)
    symmetric = units + units.mT
    traces = symmetric.diagonal(dim1=1, dim2=2).sum(1)
    spanning = [units - units.mT, symmetric - traces[:, None, None] / width * identity]
    return [_orthonormal(matrices) for matrices in spanning]


def _orthonormal(spanning: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of some matrices."""
    _, sizes, vectors = torch.linalg.svd(spanning.flatten(1))
    basis: Tensor = vectors[sizes > 1e-9].unflatten(1, spanning.shape[1:])
    return basis


def curvatures(model: KernelTransformer, task: AveragedTask, batch: AveragedBatch) -> Curvatures:
    """Return the curvatures of the loss, over the loss, on the prompts of a batch in all rotations.

    They are differences of slopes, because relu attention has kinks, which a second derivative of
    a sample misses.
    """
    parts = tilted_parts(model)
    # The last A never reaches the query's label.
    n_used = [model.n_layers, model.n_layers - 1][: len(parts)]

    def slopes(kind: int) -> Tensor:
        gradients = torch.autograd.grad(task.mean_loss(model, batch), [p.tilts for p in parts])
        return torch.cat([slope[kind, :n] for slope, n in zip(gradients, n_used, strict=True)])

    hessians = []
    for kind, basis in enumerate(bases(model.input_width)):
        total = torch.zeros(sum(n_used), sum(n_used), dtype=torch.float64)
        for direction in basis:
            for part in parts:
                part.directions[kind] = direction
            tilts = [
                part.tilts.detach()[kind, layer]
                for part, n in zip(parts, n_used, strict=True)
                for layer in range(n)
            ]
            for row, tilt in enumerate(tilts):
                tilt.fill_(TILT)
                ahead = slopes(kind)
                tilt.fill_(-TILT)
                total[row] += (ahead - slopes(kind)) / (2 * TILT)
                tilt.zero_()
        hessians.append((total + total.mT) / (2 * len(basis)))
    with torch.no_grad():
        return torch.stack(hessians) / task.mean_loss(model, batch)
