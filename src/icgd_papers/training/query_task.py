"""Tasks with several queries: what a run through `through_the_run.py` is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from icgd.errors import DataError
from icgd.problems.settings import count, settle
from icgd_papers.training.tasks import AbstractTask, Batch

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
        settle(self, n_queries=count("n_queries", self.n_queries))

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> Batch:
        return self.family.sample(n_tasks, seed=seed, index=index, shard=shard)

    def validation(self, n_tasks: int, *, seed: int) -> Batch:
        return self.family.validation(n_tasks, seed=seed)

    def parts(self, batch: Batch) -> Parts:
        """The examples and the queries of the tasks; labels have an axis for their entries."""
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
