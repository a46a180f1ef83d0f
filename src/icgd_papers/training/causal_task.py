"""Tasks whose loss is taken at every token of a prompt, with prompts that may grow in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from icgd.errors import DataError, SettingError, brief
from icgd.problems.settings import count, settle
from icgd_papers.training.tasks import AbstractTask, Batch, InContextTask, generator_of


@final
@dataclass(frozen=True)
class Curriculum:
    """Prompts that grow: inputs of `first_width` active entries, and `first_examples` examples.

    Both grow linearly with the number of the batch, in whole steps, and have their full size from
    batch `n_batches` on. Entries that are not active are 0, and labels are those of such inputs.
    """

    first_width: int
    first_examples: int
    n_batches: int

    def __post_init__(self) -> None:
        for name in ("first_width", "first_examples", "n_batches"):
            settle(self, **{name: count(name, getattr(self, name))})

    def sizes(self, index: int, width: int, n_examples: int) -> tuple[int, int]:
        """The active entries and the examples of batch `index`, where the last two are the full."""
        share = min(index, self.n_batches)
        starts = (self.first_width, width), (self.first_examples, n_examples)
        grown = [first + (full - first) * share // self.n_batches for first, full in starts]
        return grown[0], grown[1]


@final
@dataclass(frozen=True)
class CausalTask(AbstractTask):
    """Predict the label of every token from the examples before it; the loss is the mean over all.

    The tasks are those of `task`. A model must have `predictions(x, y)`, as `Decoder` does. With a
    `curriculum`, which an `InContextTask` can follow, prompts grow in training; those for
    validation have their full size.
    """

    task: AbstractTask
    curriculum: Curriculum | None = None

    def __post_init__(self) -> None:
        if self.curriculum is not None:
            self._require_growth(self.curriculum)

    def _require_growth(self, curriculum: Curriculum) -> None:
        if not isinstance(self.task, InContextTask):
            raise SettingError(
                "A curriculum needs an InContextTask, whose sizes it can change; got "
                f"{type(self.task).__name__}. Leave the curriculum out."
            )
        count("first_width", curriculum.first_width, most=self.task.covariates.input_width)
        count("first_examples", curriculum.first_examples, most=self.task.n_examples)

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> Batch:
        """Draw what `task` draws; under a curriculum, prompts of the sizes of this batch."""
        if self.curriculum is None or not isinstance(self.task, InContextTask):
            return self.task.sample(n_tasks, seed=seed, index=index, shard=shard)
        full = self.task.covariates.input_width, self.task.n_examples
        width, n_examples = self.curriculum.sizes(index, *full)
        return self.task.draw(n_tasks, generator_of(seed, index, shard), n_examples, width)

    def validation(self, n_tasks: int, *, seed: int) -> Batch:
        """The tasks that `task` holds out."""
        return self.task.validation(n_tasks, seed=seed)

    def require(self, model: nn.Module) -> None:
        """Raise `SettingError` unless the model predicts every token."""
        if not callable(getattr(model, "predictions", None)):
            raise SettingError(
                "model must be a model that predicts every token (a Decoder), got "
                f"{brief(type(model).__name__)}."
            )

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean of (prediction - label)^2 over tasks, tokens and the label's entries."""
        self.require(model)
        predictions: Tensor = model.predictions(batch.x, batch.y)  # type: ignore[operator]
        if predictions.shape != batch.y.shape:
            raise DataError(
                f"The model's predictions have shape {tuple(predictions.shape)}; expected "
                f"{tuple(batch.y.shape)}, the shape of the labels."
            )
        return mse_loss(predictions, batch.y)

    def description(self) -> dict[str, object]:
        """The description of `task`, what is predicted, and how prompts grow."""
        growth = self.curriculum
        own: dict[str, object] = {"predicts": "every token"}
        if growth is not None:
            own |= {
                "first_width": growth.first_width,
                "first_examples": growth.first_examples,
                "n_batches": growth.n_batches,
            }
        return {**self.task.description(), **own}
