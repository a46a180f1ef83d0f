r"""Learnt models as programs: every layer is a step of descent with a kernel of its own.

A layer adds r K(C x, B x_j) times what is left at example j to what is left at x. With r < 0 that
is the step

    f <- f + step_size * sum_j e_j K(C x, B x_j),    step_size = -r,

which the construction `functional` runs as it is. It is gradient descent in function space where
the kernel is symmetric. Kernels of scores see M = B^T C alone, so that M must be symmetric and have
no negative eigenvalue: then K(C x, B x') = K(G x, G x') with G = M^(1/2). For other kernels B must
equal C. A linear head with r > 0 is one with r < 0 and -C for C.

A matrix A moves the inputs along, x <- x + A sum_j K x_j (GD++). Several heads must agree on A.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from icgd.compiled import Compiled
from icgd.errors import SettingError, TrainingError, quoted
from icgd.pipeline import compile as compile_problem
from icgd.problems.data import Domain
from icgd.problems.kernel_machine import KernelHead, KernelMachine
from icgd.problems.problem import Problem
from icgd.problems.steps import FunctionalStep
from icgd_papers.training.models import OF_SCORES, KernelTransformer

ROUNDING = 1e-12
"""Matrices that differ by less, relative to their size, count as the same."""


@dataclass(frozen=True)
class Nearest:
    """The model of gradient descent that is nearest to a learnt one.

    `distance` is the largest distance of a head's matrix, relative to the learnt one's size.
    """

    model: KernelTransformer
    distance: float


def as_compiled(model: nn.Module, *, domain: Domain) -> Compiled:
    """Return the learnt model as a compiled run: it predicts the same, and its program is its
    descent.

    Args:
        model: the learnt model, a `KernelTransformer`.
        domain: bounds on the data, which proofs rely on.

    Returns:
        The compiled run.

    Raises:
        TrainingError: if a layer is no step of descent.
        SettingError: if `model` is another kind of module.

    Example:
        >>> import icgd
        >>> from icgd_papers.training import KernelTransformer, as_compiled
        >>> model = KernelTransformer.constructed(icgd.KernelMachine(2, "linear"), [0.1, 0.2])
        >>> as_compiled(model, domain=icgd.Domain(x=1.0, y=1.0)).program.n_steps
        2
    """
    learnt = _kernel_transformer(model)
    steps = [step for layer in range(learnt.n_layers) if (step := _step(learnt, layer)).heads]
    if not steps:
        raise _no_step("r = 0 in every head, so that it predicts 0")
    machine = KernelMachine(learnt.input_width, steps[0].heads)
    alike = all(step.heads == steps[0].heads for step in steps)
    update = FunctionalStep(
        tuple(step.size for step in steps),
        transforms=[step.transform for step in steps if step.transform is not None],
        heads=() if alike else [step.heads for step in steps],
    )
    problem = Problem(machine, "squared", update, domain)
    return compile_problem(problem, "functional", n_steps=len(steps))


def why_not_descent(model: nn.Module) -> str | None:
    """Why the model is not gradient descent in function space to rounding; None if it is.

    Args:
        model: the learnt model, a `KernelTransformer`.

    Returns:
        A sentence or None.

    Raises:
        SettingError: if `model` is another kind of module.

    Example:
        >>> import icgd
        >>> from icgd_papers.training import KernelTransformer, why_not_descent
        >>> model = KernelTransformer.constructed(icgd.KernelMachine(2, "softmax"), [0.1])
        >>> why_not_descent(model)
        'the softmax kernel is not symmetric, whatever B and C are.'
    """
    learnt = _kernel_transformer(model)
    for function in learnt.heads():
        if not function.is_symmetric:
            return f"the {function.name} kernel is not symmetric, whatever B and C are."
    reasons = (_why_not(learnt, layer, head) for layer, head in _places(learnt))
    return next((reason for reason in reasons if reason), None)


def _why_not(model: KernelTransformer, layer: int, head: int) -> str | None:
    if reason := _uphill(layer, head, _signed(model, layer, head)[0]):
        return f"{reason}."
    distance = _distance(model, layer, head)
    if distance <= ROUNDING:
        return None
    what = "B^T C is off the nearest symmetric matrix without negative eigenvalues"
    what = what if model.kernels[head] in OF_SCORES else "B and C are off their mean"
    return f"in layer {layer}, head {head}, {what} by {distance:.2g} of its size."


def nearest_descent(model: nn.Module) -> Nearest:
    """Return the model with the nearest B = C in every head, and r = 0 where a head goes uphill.

    Args:
        model: the learnt model, a `KernelTransformer`.

    Returns:
        That model, and how far the learnt one is from it.

    Raises:
        SettingError: if `model` is another kind of module.

    Example:
        >>> import icgd
        >>> from icgd_papers.training import KernelTransformer, nearest_descent
        >>> model = KernelTransformer.constructed(icgd.KernelMachine(2, "linear"), [0.1])
        >>> nearest_descent(model).distance < 1e-12
        True
    """
    learnt = _kernel_transformer(model)
    new = KernelTransformer.like(learnt, transforms_covariates=learnt.transforms_covariates)
    with torch.no_grad():
        if new.A is not None and learnt.A is not None:
            new.A.copy_(learnt.A)
        for layer, head in _places(learnt):
            new.r[layer, head] = _signed(learnt, layer, head)[0].clamp_max(0)
            new.B[layer, head] = new.C[layer, head] = _common(learnt, layer, head)
    return Nearest(new, float(distances_to_descent(model).max()))


def distances_to_descent(model: nn.Module) -> Tensor:
    """Return the relative distance of every head's B^T C (or B and C) from gradient descent."""
    learnt = _kernel_transformer(model)
    distances = [_distance(learnt, layer, head) for layer, head in _places(learnt)]
    return torch.tensor(distances, dtype=torch.float64).view(learnt.n_layers, -1)


def _no_step(reason: str) -> TrainingError:
    return TrainingError(
        f"This model is not a program of functional descent: {reason}. Compile "
        "nearest_descent(model).model in its place, or run the torch module itself."
    )


def _kernel_transformer(model: nn.Module) -> KernelTransformer:
    if not isinstance(model, KernelTransformer):
        raise SettingError(
            f"model must be of type KernelTransformer, got {quoted(type(model).__name__)}."
        )
    return model


@dataclass(frozen=True)
class _Step:
    """A layer as a step: its size, the heads whose weights add up to 1, and A."""

    size: float
    heads: tuple[KernelHead, ...]
    transform: Tensor | None


def _step(model: KernelTransformer, layer: int) -> _Step:
    moves = model.A is not None
    sizes = [-_signed(model, layer, head)[0] for head in range(len(model.kernels))]
    for head, size in enumerate(sizes):
        if reason := _uphill(layer, head, -size, moves):
            raise _no_step(reason)
    total = float(torch.stack(sizes).sum())
    weights = {head: float(size) / total for head, size in enumerate(sizes) if size > 0}
    heads = tuple(_head(model, layer, head, weight) for head, weight in weights.items())
    return _Step(total, heads, _common_move(model, layer, weights) if moves else None)


def _uphill(layer: int, head: int, r: Tensor, moves: bool = False) -> str | None:
    """Return what is wrong with r of a head; 0 does nothing, unless the head moves the inputs."""
    if r < 0 or (r == 0 and not moves):
        return None
    return f"r = {float(r):.6g} in layer {layer}, head {head}, and a step of descent has r < 0"


def _head(model: KernelTransformer, layer: int, head: int, weight: float) -> KernelHead:
    """Return head with one transform if it is descent to rounding, else with another for keys."""
    kernel, shape = model.kernels[head], model.shapes[head]
    _, B, C = _signed(model, layer, head)
    if torch.equal(B, C):
        return KernelHead(kernel, C, weight, shape)
    if _distance(model, layer, head) <= ROUNDING:
        return KernelHead(kernel, _common(model, layer, head), weight, shape)
    return KernelHead(kernel, C, weight, shape, key_transform=B)


def _common_move(model: KernelTransformer, layer: int, weights: dict[int, float]) -> Tensor:
    """Return the matrix A of which every head's is a multiple, by its weight."""
    if model.A is None:
        raise _no_step("it has no A")
    A = model.A.detach().cpu().double()[layer]
    first, *others = [A[head] / weight for head, weight in weights.items()]
    for head, other in enumerate(others, start=1):
        difference = float((other - first).norm() / max(first.norm(), other.norm()))
        if difference > ROUNDING:
            raise _no_step(
                f"in layer {layer}, heads 0 and {head} move the inputs by matrices A that are no "
                f"multiples by their weights r; they differ by {difference:.2g} of their size"
            )
    return first


def _places(model: KernelTransformer) -> Iterable[tuple[int, int]]:
    """Every layer and head."""
    return product(range(model.n_layers), range(len(model.kernels)))


def _signed(model: KernelTransformer, layer: int, head: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return numbers r, B and C of a head in float64; the sign of a linear head is put into C."""
    parts = (part[layer, head].detach().cpu().double() for part in (model.r, model.B, model.C))
    r, B, C = parts
    return (-r, B, -C) if r > 0 and model.kernels[head] == "linear" else (r, B, C)


def _common(model: KernelTransformer, layer: int, head: int) -> Tensor:
    """Return the matrix G that is nearest to B and C: a root of the nearest M, or their mean."""
    _, B, C = _signed(model, layer, head)
    if torch.equal(B, C):
        return C
    if model.kernels[head] not in OF_SCORES:
        return (B + C) / 2
    values, vectors = _spectrum(B.mT @ C)
    return vectors * values.clamp_min(0).sqrt() @ vectors.mT


def _distance(model: KernelTransformer, layer: int, head: int) -> float:
    """Return how far the head's matrix is from that of G, relative to its size."""
    _, B, C = _signed(model, layer, head)
    if torch.equal(B, C):
        return 0.0
    if model.kernels[head] not in OF_SCORES:
        return float((B - C).norm() / (B + C).norm())
    M = B.mT @ C
    values, vectors = _spectrum(M)
    nearest = vectors * values.clamp_min(0) @ vectors.mT
    return float((M - nearest).norm() / M.norm()) if M.any() else 0.0


def _spectrum(M: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues and eigenvectors of the symmetric part."""
    values, vectors = torch.linalg.eigh((M + M.mT) / 2)
    return values, vectors
