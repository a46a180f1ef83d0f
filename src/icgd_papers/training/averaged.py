r"""The in-context loss with the labels averaged out: its mean is the same, without their noise.

A prediction is linear in the labels, sum_j w_j y_j, with weights that depend on the inputs alone.
So the mean of the loss (5) over labels of covariance K_+, for fixed inputs, is a quadratic form:

    E[(prediction - y_q)^2 | X] = c^T K_+ c,    c = (w_1, ..., w_n, -1).

Its gradient has the noise of the inputs only. At 30 examples this saves tens of times the tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.errors import SettingError, quoted
from icgd.problems.settings import count, instance
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.tasks import AbstractTask, Batch, InContextTask, generator_of

ROUNDING = 1e-6
"""A smaller loss is rounding of float32, and may have any sign."""


@final
@dataclass(frozen=True, eq=False)
class AveragedBatch(Batch):
    """The inputs of many tasks with the covariance of their labels; the labels themselves are 0."""

    covariance: Float[Tensor, "task token token"]


@final
@dataclass(frozen=True)
class AveragedTask(AbstractTask):
    """A task whose labels are averaged in closed form, for a model that is linear in them.

    If `logarithmic`, training makes the logarithm of a batch's loss small. For large batches it has
    the same minima, and its gradient does not fade as the loss does, so that Adam's long memory
    does no harm. In small batches rare large errors weigh less.
    """

    task: InContextTask
    logarithmic: bool = False

    def __post_init__(self) -> None:
        instance("task", self.task, InContextTask)

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> AveragedBatch:
        """Draw the inputs that `task` draws with the same arguments."""
        generator = generator_of(seed, index, shard)
        n_tokens = self.task.n_examples + 1
        x = self.task.covariates.sample(count("n_tasks", n_tasks), n_tokens, generator)
        covariance = self.task.labels.covariance(x)
        if covariance is None:
            raise SettingError(
                "labels must be a law of known covariance, got "
                f"{quoted(type(self.task.labels).__name__)}."
            )
        return AveragedBatch(x, x.new_zeros(x.shape[:2]), covariance)

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean loss, or its logarithm."""
        mean = self.mean_loss(model, batch)
        return (mean.clamp_min(0) + ROUNDING).log() if self.logarithmic else mean

    def mean_loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean of c^T K_+ c over the tasks; bfloat16 would lose too much, as in the
        model.
        """
        if not isinstance(model, KernelTransformer):
            raise SettingError(
                f"model must be of type KernelTransformer, got {quoted(type(model).__name__)}."
            )
        if not isinstance(batch, AveragedBatch):
            raise SettingError(
                f"batch must be of type AveragedBatch, got {quoted(type(batch).__name__)}."
            )
        with torch.autocast(batch.x.device.type, enabled=False):
            weights = model.label_weights(batch.x)
            against = torch.cat([weights, -torch.ones_like(weights[:, :1])], dim=1)
            mean: Tensor = (against[:, None] @ batch.covariance @ against[..., None]).mean()
        return mean

    def bayes_loss(self, batch: AveragedBatch) -> float:
        """Return the mean loss of the best weights, w = K_hat^{-1} nu: the variance they leave."""
        covariance = batch.covariance.double()
        examples, towards = covariance[:, :-1, :-1], covariance[:, :-1, -1:]
        explained = towards.mT @ torch.linalg.pinv(examples, hermitian=True) @ towards
        return float((covariance[:, -1, -1] - explained[:, 0, 0]).mean())

    def description(self) -> dict[str, object]:
        """Return the description of `task`, and how the loss differs."""
        loss = {"averages_labels": True, "logarithmic": self.logarithmic}
        return {**self.task.description(), **loss}
