"""Tasks of your own to train on: a table of them, or a function that draws them."""

from __future__ import annotations

import hashlib
import inspect
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from icgd.errors import DataError, SettingError, quoted
from icgd.problems.data import checked_array
from icgd.problems.settings import count, entries, is_row, require_between
from icgd.problems.tables import Table, read_table
from icgd_papers.training.covariates import require_numbers
from icgd_papers.training.tasks import AbstractTask, Batch, generator_of, query_loss

Indices = NDArray[np.intp]

Draw = Callable[[int, np.random.Generator], tuple[Any, Any]]
"""A function of the number of tasks and of a random generator that returns their x and y."""

TASK_COLUMN = "task"
"""The column of a CSV file that says to which task a row belongs."""


@final
@dataclass(frozen=True, eq=False)
class TaskTable(AbstractTask):
    """Tasks in a table: x (task, token, input_width), y (task, token) or with a width of labels.

    The last token of a task is its query. A batch draws tasks at random, and none twice before all
    were drawn once. `validation_share` of the tasks, chosen once at random, are held out. If
    `shuffles_tokens`, the tokens of a task are shuffled each time, so that any may be the query.
    """

    CALLED_WITH = ("x", "y")

    x: Tensor
    y: Tensor
    validation_share: float = 0.1
    shuffles_tokens: bool = False

    def __post_init__(self) -> None:
        x, y = checked_tasks(self.x, self.y, "x", "y")
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y)
        require_between("validation_share", self.validation_share, 0.0, 0.9)
        if self.n_held_out == len(x):
            raise SettingError(
                f"validation_share={self.validation_share:g} of {len(x)} tasks holds all of them "
                "out for validation, and none is left to train on. Give a smaller share."
            )

    @classmethod
    def read(
        cls, path: Path | str, *, label_columns: Sequence[str] = (), **options: Any
    ) -> TaskTable:
        """Read the tasks in a file: CSV, Parquet, Arrow, or NPZ with the arrays x and y.

        A table has a header and a row for each token. Its column `task` says to which task a
        row belongs; `label_columns` (default: the last other column) are labels, the rest inputs.
        """
        path = Path(path)
        read = _read_npz(path) if path.suffix == ".npz" else _read_table(path, label_columns)
        return cls(*checked_tasks(*read, f"x in {path}", f"y in {path}"), **options)

    @cached_property
    def _order(self) -> Indices:
        """Return the tasks in a random order, in which those for validation come last."""
        return np.random.default_rng(0).permutation(len(self.x))

    @property
    def n_held_out(self) -> int:
        """The number of tasks that are held out for validation."""
        return round(self.validation_share * len(self.x))

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> Batch:
        """Draw tasks that are not held out."""
        generator = generator_of(seed, index, shard)
        tasks = self._order[: len(self.x) - self.n_held_out]
        require_numbers(count("n_tasks", n_tasks), *self.x.shape[1:])
        n_rounds = -(-n_tasks // len(tasks))
        rounds = [generator.permutation(tasks) for _ in range(n_rounds)]
        return self._batch(np.concatenate(rounds)[:n_tasks], generator)

    def validation(self, n_tasks: int, *, seed: int) -> Batch:
        """Return the first `n_tasks` of the tasks that are held out, or all if they are fewer."""
        if not self.n_held_out:
            raise SettingError(
                f"validation_share={self.validation_share:g} of {len(self.x)} tasks holds none out "
                "for validation. Give a larger share, or n_validation=0."
            )
        held_out = self._order[len(self.x) - self.n_held_out :]
        return self._batch(held_out[:n_tasks], None)

    def _batch(self, tasks: Indices, generator: np.random.Generator | None) -> Batch:
        rows = torch.from_numpy(tasks)[:, None]
        order = np.tile(np.arange(self.x.shape[1]), (len(tasks), 1))
        if self.shuffles_tokens and generator is not None:
            order = generator.permuted(order, axis=1)
        tokens = torch.from_numpy(order)
        return Batch(self.x[rows, tokens], self.y[rows, tokens])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean of (prediction - label of the query)^2."""
        return query_loss(model, batch)

    def description(self) -> dict[str, object]:
        """Return a digest of all numbers, their shapes, and how they are used."""
        return {
            "task": type(self).__name__,
            "shapes": [list(self.x.shape), list(self.y.shape)],
            "digest": _digest(self.x.numpy().tobytes() + self.y.numpy().tobytes()),
            "validation_share": self.validation_share,
            "shuffles_tokens": self.shuffles_tokens,
        }


@final
@dataclass(frozen=True)
class GeneratedTask(AbstractTask):
    """Tasks that a function draws: `draw(n_tasks, generator)` returns x and y.

    x is (task, token, input_width), y is (task, token) or has a width of labels, in float64 or
    float32, and the last token is the query. All random numbers must come from `generator`, a
    `numpy.random.Generator`, so that a training that resumes sees the same tasks.
    """

    CALLED_WITH = ("x", "y")

    draw: Draw

    def __post_init__(self) -> None:
        if not callable(self.draw):
            raise SettingError(
                f"draw must be a function that draws tasks, got {quoted(self.draw)}."
            )

    @property
    def name(self) -> str:
        return getattr(self.draw, "__name__", type(self.draw).__name__)

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> Batch:
        """Call the function with a generator that belongs to these numbers alone."""
        drawn = self.draw(count("n_tasks", n_tasks), generator_of(seed, index, shard))
        if not isinstance(drawn, tuple | list) or len(drawn) != 2:
            raise SettingError(
                f"The result of {self.name} must be a pair of x and y, got {quoted(drawn)}."
            )
        x, y = checked_tasks(*drawn, f"x of {self.name}", f"y of {self.name}")
        if len(x) != n_tasks:
            raise DataError(
                f"x of {self.name} has shape {tuple(x.shape)}; expected {n_tasks} tasks."
            )
        return Batch(x, y)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean of (prediction - label of the query)^2."""
        return query_loss(model, batch)

    def description(self) -> dict[str, object]:
        """Return the function's name and a digest of its source, so that changes are noticed."""
        try:
            source = inspect.getsource(self.draw)
        except (OSError, TypeError):  # it was not read from a file
            source = ""
        return {"task": type(self).__name__, "draw": self.name, "digest": _digest(source.encode())}


def checked_tasks(x: Any, y: Any, x_name: str, y_name: str) -> tuple[Tensor, Tensor]:
    """Return inputs and labels in float64, if they are finite and have the shapes of tasks."""
    x, y = (checked_array(name, data).double().cpu() for name, data in ((x_name, x), (y_name, y)))
    if x.ndim != 3 or x.shape[1] < 2:
        raise DataError(
            f"{x_name} has shape {tuple(x.shape)}; expected (task, token, input_width) with at "
            "least 2 tokens, the last of them the query."
        )
    if y.ndim not in (2, 3) or y.shape[:2] != x.shape[:2]:
        sizes = f"{x.shape[0]}, {x.shape[1]}"
        raise DataError(
            f"{y_name} has shape {tuple(y.shape)}; expected ({sizes}) or ({sizes}, output_width)."
        )
    return x, y


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_npz(path: Path) -> tuple[Any, Any]:
    try:
        arrays = np.load(path, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            raise ValueError("it holds one array without a name, not x and y")
        with arrays:
            for name in ("x", "y"):
                if name not in arrays:
                    raise ValueError(f"it has no array called {name!r}")
            return arrays["x"], arrays["y"]
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as problem:
        raise DataError(f"Cannot read {path}: {problem}.") from None


def _read_table(path: Path, label_columns: Sequence[str]) -> tuple[Any, Any]:
    """Return inputs and labels with an axis for tasks, which must all have equally many rows."""
    table = read_table(path)
    numbers = table.numbers([TASK_COLUMN])[:, 0]
    inputs, labels = _inputs_and_labels(table, label_columns)
    if not inputs:
        raise DataError(f"Cannot read {path}: it has no column of inputs.")
    names, counts = np.unique(numbers, return_counts=True)
    if len(set(counts)) > 1:
        other = int(np.argmax(counts != counts[0]))
        raise DataError(
            f"{path}: task {names[0]:g} has {counts[0]} rows, but task {names[other]:g} has "
            f"{counts[other]}. Give every task equally many rows: its examples, last its query."
        )
    shape = (len(names), counts[0], -1)
    order = np.argsort(numbers, kind="stable")
    x, y = (table.numbers(names)[order].reshape(shape) for names in (inputs, labels))
    return x, y[..., 0] if len(labels) == 1 else y


def _inputs_and_labels(
    table: Table, label_columns: Sequence[str]
) -> tuple[list[str], Sequence[str]]:
    """Return the names of these columns; the column `task` is neither."""
    others = [name for name in table.names if name != TASK_COLUMN]
    if not is_row(label_columns):
        raise SettingError(f"label_columns must be a list of columns, got {quoted(label_columns)}.")
    labels = entries(label_columns) or others[-1:]
    if not all(isinstance(name, str) for name in labels):
        raise SettingError(f"label_columns must be a list of texts, got {quoted(label_columns)}.")
    if TASK_COLUMN in labels or len(set(labels)) < len(labels):
        raise SettingError(
            f"label_columns must be a list of columns other than {TASK_COLUMN!r}, each named once, "
            f"got {quoted(label_columns)}."
        )
    return [name for name in others if name not in labels], labels
