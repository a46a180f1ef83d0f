"""Tasks to train on: batches drawn from exact seeds, and the loss of a model on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from inspect import signature
from statistics import fmean
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from icgd.errors import DataError, SettingError, quoted
from icgd.problems.data import device_of
from icgd.problems.settings import count, set_fields
from icgd_papers.training.covariates import AbstractCovariates, require_width
from icgd_papers.training.labels import AbstractLabels

LARGEST_SEED = 2**32 - 1
"""The largest seed: the seed sequence reads each number as one word of 32 bits."""


VALIDATION_INDEX = LARGEST_SEED
"""The number of the batch for validation, which training never reaches."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Many tasks at once: each has its examples first and its query last, with the true label.

    A label is a number or, with a last axis, a vector. A subclass may hold further tensors.
    """

    x: Float[Tensor, "task token input_width"]
    y: Float[Tensor, "task token *output_width"]

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.x)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Batch:
        """Return the tasks on a device, in a precision."""
        place = device_of(device)
        return type(self)(*(tensor.to(place, dtype) for tensor in self._tensors()))

    def split(self, n_tasks: int) -> list[Batch]:
        """Return the same tasks in parts of `n_tasks`; the last part may have fewer."""
        parts = zip(
            *(tensor.split(count("n_tasks", n_tasks)) for tensor in self._tensors()), strict=True
        )
        return [type(self)(*part) for part in parts]

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]


def generator_of(seed: int, index: int, shard: int = 0) -> np.random.Generator:
    """Random numbers that belong to (seed, index, shard) alone.

    A seed sequence mixes the three into 128 bits, so streams of different triples are independent.
    A generator of torch reads only 32 bits of its seed on the CPU.
    """
    count("seed", seed, least=0, most=LARGEST_SEED)
    count("index", index, least=0, most=LARGEST_SEED)
    count("shard", shard, least=0, most=LARGEST_SEED)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(index, shard)))


class AbstractTask(ABC):
    """What a model is trained on. A task has no state: a batch depends on the arguments only."""

    CALLED_WITH: ClassVar[tuple[str, ...] | None] = None
    """What the loss calls the model with; None if only the task itself knows."""

    @abstractmethod
    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> Batch:
        """Batch number `index` of the training `seed` for process `shard`, in float64 on the CPU.

        The same arguments give the same bits (to rounding, if torch runs with other threads);
        another seed, index or shard gives independent draws.
        """

    def validation(self, n_tasks: int, *, seed: int) -> Batch:
        """Return tasks that training never sees; a law draws them from a stream of their own."""
        return self.sample(n_tasks, seed=seed, index=VALIDATION_INDEX)

    def require(self, model: nn.Module) -> None:
        """Raise `SettingError` if no loss of this model can be taken; asked before training."""
        if self.CALLED_WITH is not None and not _takes(model, self.CALLED_WITH):
            raise SettingError(
                f"model must be a model whose forward takes ({', '.join(self.CALLED_WITH)}), as "
                f"{type(self).__name__} calls it, got {quoted(type(model).__name__)}."
            )

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the loss that training makes small."""

    @abstractmethod
    def description(self) -> dict[str, object]:
        """Plain data that identifies the task; a checkpoint holds it."""


def _takes(model: nn.Module, arguments: tuple[str, ...]) -> bool:
    """Return whether a model can be called with these; True if its function does not say."""
    try:
        signature(model.forward).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def query_loss(model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
    """Return the mean of (prediction - label of the query)^2 over the tasks and the label's
    entries.
    """
    prediction: Tensor = model(batch.x, batch.y)
    if prediction.shape != batch.y[:, -1].shape:
        raise DataError(
            f"The model's prediction has shape {tuple(prediction.shape)}; expected "
            f"{tuple(batch.y[:, -1].shape)}, the shape of the queries' labels."
        )
    return (prediction - batch.y[:, -1]).square().mean()


@final
@dataclass(frozen=True)
class InContextTask(AbstractTask):
    """Predict the label of the query from `n_examples` examples; the loss is eq. (5) of cheng.

    With an `output_width` above 1 a label is a vector, whose entries are independent draws of the
    law; the loss is the mean over them.
    """

    CALLED_WITH = ("x", "y")

    covariates: AbstractCovariates
    labels: AbstractLabels
    n_examples: int
    output_width: int = 1

    def __post_init__(self) -> None:
        sizes = {"n_examples": self.n_examples, "output_width": self.output_width}
        set_fields(self, **{name: count(name, size) for name, size in sizes.items()})
        width = self.labels.input_width
        if width is not None:
            require_width(self.covariates.input_width, width)

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> Batch:
        """Draw inputs, then labels given the inputs, from one stream of random numbers."""
        width = self.covariates.input_width
        return self.draw(n_tasks, generator_of(seed, index, shard), self.n_examples, width)

    def draw(
        self, n_tasks: int, generator: np.random.Generator, n_examples: int, active_width: int
    ) -> Batch:
        """Draw tasks of `n_examples` examples whose inputs are 0 beyond `active_width` entries."""
        x = self.covariates.sample(count("n_tasks", n_tasks), n_examples + 1, generator)
        x[..., active_width:] = 0
        drawn = [self.labels.sample(x, generator) for _ in range(self.output_width)]
        return Batch(x, torch.stack(drawn, -1) if self.output_width > 1 else drawn[0])

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean of (prediction - label of the query)^2 over the tasks."""
        return query_loss(model, batch)

    def bayes_loss(self, batch: Batch) -> float | None:
        """Return the loss of the best predictor there is; None if it is unknown."""
        entries = batch.y.unbind(-1) if batch.y.ndim == 3 else [batch.y]
        best = [(self.labels.bayes(batch.x, y), y) for y in entries]
        losses = [(mean - y[:, -1]).square().mean().item() for mean, y in best if mean is not None]
        return fmean(losses) if losses else None

    def description(self) -> dict[str, object]:
        """Return the two laws and the number of examples."""
        return {
            "task": type(self).__name__,
            "covariates": self.covariates.description(),
            "labels": self.labels.description(),
            "n_examples": self.n_examples,
            **({"output_width": self.output_width} if self.output_width > 1 else {}),
        }


Parts = tuple[Tensor, Tensor, Tensor, Tensor]
"""Inputs and labels of the examples, then inputs and labels of the queries."""


@final
@dataclass(frozen=True)
class QueryTask(AbstractTask):
    """Predict the labels of the last `n_queries` tokens of tasks that `family` draws.

    A model is called with the inputs and labels of the examples and the inputs of the queries. The
    loss is the mean of (prediction - label)^2 over queries, entries of labels, and tasks.
    """

    CALLED_WITH = ("x", "y", "queries")

    family: AbstractTask
    n_queries: int

    def __post_init__(self) -> None:
        set_fields(self, n_queries=count("n_queries", self.n_queries))

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> Batch:
        return self.family.sample(n_tasks, seed=seed, index=index, shard=shard)

    def validation(self, n_tasks: int, *, seed: int) -> Batch:
        return self.family.validation(n_tasks, seed=seed)

    def parts(self, batch: Batch) -> Parts:
        """Return examples and the queries of the tasks; labels have an axis for their entries."""
        n_tokens = batch.x.shape[1]
        if n_tokens <= self.n_queries:
            raise DataError(
                f"x has shape {tuple(batch.x.shape)}; expected more tokens than {self.n_queries}, "
                "the number of queries."
            )
        sizes = [n_tokens - self.n_queries, self.n_queries]
        x, queries = batch.x.split(sizes, dim=1)
        y, labels = batch.y.reshape(*batch.x.shape[:2], -1).split(sizes, dim=1)
        return x, y, queries, labels

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        x, y, queries, labels = self.parts(batch)
        prediction: Tensor = model(x, y, queries)
        if prediction.shape != labels.shape:
            raise DataError(
                f"The model's prediction has shape {tuple(prediction.shape)}; expected "
                f"{tuple(labels.shape)}, the shape of the queries' labels."
            )
        return (prediction - labels).square().mean()

    def description(self) -> dict[str, object]:
        return {"task": type(self).__name__, "n_queries": self.n_queries} | {
            "family": self.family.description()
        }


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
            set_fields(self, **{name: count(name, getattr(self, name))})

    def sizes(self, index: int, width: int, n_examples: int) -> tuple[int, int]:
        """Return the active entries and the examples of batch `index`, where the last two are the
        full.
        """
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
        """Return the tasks that `task` holds out."""
        return self.task.validation(n_tasks, seed=seed)

    def require(self, model: nn.Module) -> None:
        """Raise `SettingError` unless the model predicts every token."""
        if not callable(getattr(model, "predictions", None)):
            raise SettingError(
                "model must be a model that predicts every token (a Decoder), got "
                f"{quoted(type(model).__name__)}."
            )

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean of (prediction - label)^2 over tasks, tokens and the label's entries."""
        self.require(model)
        predictions: Tensor = model.predictions(batch.x, batch.y)  # type: ignore[operator]
        if predictions.shape != batch.y.shape:
            raise DataError(
                f"The model's predictions have shape {tuple(predictions.shape)}; expected "
                f"{tuple(batch.y.shape)}, the shape of the labels."
            )
        return mse_loss(predictions, batch.y)

    def description(self) -> dict[str, object]:
        """Return the description of `task`, what is predicted, and how prompts grow."""
        growth = self.curriculum
        own: dict[str, object] = {"predicts": "every token"}
        if growth is not None:
            own |= {
                "first_width": growth.first_width,
                "first_examples": growth.first_examples,
                "n_batches": growth.n_batches,
            }
        return {**self.task.description(), **own}
