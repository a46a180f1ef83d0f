"""A task: the data of one training run, or of a batch of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from icgd.errors import DataError
from icgd.facts import counted, in_short, shown
from icgd.problems.settings import within
from icgd.shapes import Inputs, Labels, Parameters, Points, Queries, Rates


@shown
@dataclass(frozen=True)
class Task:
    """Examples (x, y), queries and initial weights; with a leading axis for many tasks.

    `icgd.as_task` and `Compiled.task` make checked tasks.

    Attributes:
        x: the inputs of the examples.
        y: their labels.
        queries: the inputs of the queries.
        initial: the initial weights. A task of a kernel machine has, for weights, the values of the
            function at all tokens.
        rates: the rates of the examples, if they have any: (..., n, 1).
        input_names: the names of the columns of x, if it was a data frame.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> task = icgd.as_task(problem, [[0.5, 1.0]], [1.0], queries=[[0.0, 1.0], [1.0, 1.0]])
        >>> task.n_examples, task.n_queries, task.n_tokens
        (1, 2, 3)
    """

    x: Inputs
    y: Labels
    queries: Queries
    initial: Parameters
    rates: Rates | None = field(default=None, kw_only=True)
    input_names: tuple[str, ...] = field(default=(), kw_only=True)

    def facts(self) -> dict[str, str]:
        """What it shows of itself in a line or in a notebook.

        Returns:
            A text for each name.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.as_task(problem, [[0.5, 1.0]], [1.0]).facts()["examples"]
            '1 of 2 inputs, 1 label'
        """
        tasks = {"tasks": f"{self.batch[0]:,}"} if self.batch else {}
        inputs = counted(self.x.shape[-1], "input")
        names = {"inputs": in_short(self.input_names)} if self.input_names else {}
        return tasks | {
            "examples": f"{self.n_examples:,} of {inputs}, {counted(self.y.shape[-1], 'label')}",
            **names,
            **({} if self.rates is None else {"rates": "one for each example"}),
            "queries": f"{self.n_queries:,}",
            "initial": counted(self.initial.shape[-1], "number"),
            "dtype": str(self.x.dtype).removeprefix("torch."),
        }

    @property
    def n_examples(self) -> int:
        """The number of examples."""
        return self.x.shape[-2]

    @property
    def n_queries(self) -> int:
        """The number of queries."""
        return self.queries.shape[-2]

    @property
    def n_tokens(self) -> int:
        """The number of examples and queries."""
        return self.n_examples + self.n_queries

    @property
    def points(self) -> Points:
        """The inputs of examples and queries, in float64."""
        return torch.cat([self.x, self.queries], dim=-2).double()

    @property
    def batch(self) -> tuple[int, ...]:
        """() for one task, (n_tasks,) for a batch."""
        return tuple(self.x.shape[:-2])

    def double(self) -> Task:
        """The same task in float64.

        Returns:
            A task with the same numbers.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.as_task(problem, [[0.5, 1.0]], [1.0], dtype="float32").double().x.dtype
            torch.float64
        """
        names = ("x", "y", "queries", "initial", "rates")
        parts = {name: part for name in names if (part := getattr(self, name)) is not None}
        return replace(self, **{name: part.double() for name, part in parts.items()})

    def of_batch(self, place: int | slice) -> Task:
        """The task at this place of a batch, or the tasks of a slice.

        Args:
            place: which tasks.

        Returns:
            A task without a leading axis, or a smaller batch.

        Raises:
            DataError: if it is one task.
            SettingError: if there is no such place.

        Example:
            >>> import icgd, torch
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> batch = icgd.as_task(problem, torch.ones(4, 3, 2), torch.ones(4, 3))
            >>> batch.of_batch(0).batch, batch.of_batch(slice(2)).batch
            ((), (2,))
        """
        if not self.batch:
            raise DataError("This is one task, which has no places. Use it as it is.")
        if not isinstance(place, slice):
            within("place", place, -len(self.x), len(self.x) - 1)
        rates = None if self.rates is None else self.rates[place]
        parts = (part[place] for part in (self.x, self.y, self.queries, self.initial))
        return Task(*parts, rates=rates)
