r"""The in-context loss with the labels averaged out: the same mean, without the labels' noise.

A prediction is linear in the labels, sum_j w_j y_j, with weights that depend on the inputs alone.
So the mean of the loss (5) over labels of covariance K_+, for fixed inputs, is a quadratic form:

    E[(prediction - y_q)^2 | X] = c^T K_+ c,    c = (w_1, ..., w_n, -1).

Its gradient has the noise of the inputs only. At 30 examples that is worth tens of times the tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.errors import SettingError
from icgd.problems.settings import count, instance
from icgd.training.models import KernelTransformer
from icgd.training.tasks import AbstractTask, Batch, InContextTask, generator_of

ROUNDING = 1e-6
"""A loss below this is rounding of float32, and of any sign."""


@final
@dataclass(frozen=True, eq=False)
class AveragedBatch(Batch):
    """Inputs of many tasks, with the covariance of their labels in place of labels, which are 0."""

    covariance: Float[Tensor, "task token token"]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> AveragedBatch:
        """The same tasks elsewhere, or with fewer digits."""
        moved = super().to(device, dtype)
        return AveragedBatch(moved.x, moved.y, self.covariance.to(device, dtype))


@final
@dataclass(frozen=True)
class AveragedTask(AbstractTask):
    """`task`, whose labels are averaged in closed form; for a model that is linear in them.

    If `logarithmic`, training makes the logarithm of a batch's loss small. For large batches it has
    the same minima, and its gradient does not fade as the loss does, so that Adam's long memory
    does no harm. In small batches it pays less attention to rare large errors.
    """

    task: InContextTask
    logarithmic: bool = False

    def __post_init__(self) -> None:
        instance("task", self.task, InContextTask)

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> AveragedBatch:
        """The inputs that `task` draws with the same arguments."""
        generator = generator_of(seed, index, shard)
        n_tokens = self.task.n_examples + 1
        x = self.task.covariates.sample(count("n_tasks", n_tasks), n_tokens, generator)
        covariance = self.task.labels.covariance(x)
        if covariance is None:
            law = type(self.task.labels).__name__
            raise SettingError.wrong_kind("labels", law, "a law of known covariance")
        return AveragedBatch(x, x.new_zeros(x.shape[:2]), covariance)

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Mean of c^T K_+ c over the tasks, or its logarithm."""
        mean = self.mean_loss(model, batch)
        return (mean.clamp_min(0) + ROUNDING).log() if self.logarithmic else mean

    def mean_loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Mean of c^T K_+ c over the tasks."""
        if not isinstance(model, KernelTransformer):
            raise SettingError.wrong_kind("model", type(model).__name__, "KernelTransformer")
        if not isinstance(batch, AveragedBatch):
            raise SettingError.wrong_kind("batch", type(batch).__name__, "AveragedBatch")
        weights = label_weights(model, batch.x)
        against = torch.cat([weights, -torch.ones_like(weights[:, :1])], dim=1)
        mean: Tensor = (against[:, None] @ batch.covariance @ against[..., None]).mean()
        return mean

    def bayes_loss(self, batch: AveragedBatch) -> float:
        """The same mean for the best weights, w = K_hat^{-1} nu: the variance that is left."""
        covariance = batch.covariance.double()
        examples, towards = covariance[:, :-1, :-1], covariance[:, :-1, -1:]
        explained = towards.mT @ torch.linalg.pinv(examples, hermitian=True) @ towards
        return float((covariance[:, -1, -1] - explained[:, 0, 0]).mean())

    def description(self) -> dict[str, object]:
        """That of `task`, and how the loss differs."""
        own = {"averages_labels": True, "logarithmic": self.logarithmic}
        return {**self.task.description(), **own}


def label_weights(
    model: KernelTransformer, x: Float[Tensor, "task token input_width"]
) -> Float[Tensor, "task example"]:
    """w of prediction = sum_j w_j y_j, at the cost of one prediction.

    A layer turns the labels y into (I + T) y, with T = sum_heads r K. So the row of the query is
    multiplied from the last layer back to the first, a vector times a matrix each time.
    """
    *matrices, last = _label_matrices(model, x)
    row = last
    for matrix in reversed(matrices):
        row = row + row @ matrix[:, :-1] + matrix[:, -1:]
    return -row[:, 0]


def _label_matrices(model: KernelTransformer, x: Tensor) -> list[Tensor]:
    """T of every layer: a row for each reader, the query last and in the last layer alone."""
    totals = []
    for layer in range(model.n_layers):
        readers = x if layer < model.n_layers - 1 else x[:, -1:]
        kernels = _kernel_matrices(model, layer, readers, x[:, :-1])
        totals.append(_sum([r * kernel for r, kernel in zip(model.r[layer], kernels, strict=True)]))
        if model.A is not None and layer < model.n_layers - 1:
            gathered = [kernel @ x[:, :-1] for kernel in kernels]
            pairs = zip(gathered, model.A[layer], strict=True)
            x = x + _sum([points @ A.mT for points, A in pairs])
    return totals


def _kernel_matrices(
    model: KernelTransformer, layer: int, readers: Tensor, examples: Tensor
) -> list[Tensor]:
    """K(C x_i, B x_j) of every head, a row for each reader i."""
    heads = zip(model.heads(), model.B[layer], model.C[layer], strict=True)
    return [kernel.matrix(readers @ C.mT, examples @ B.mT) for kernel, B, C in heads]


def _sum(parts: list[Tensor]) -> Tensor:
    first, *others = parts
    for part in others:
        first = first + part
    return first
