"""Examples and queries from tables: which columns are labels, what is missing, what units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scipy

from icgd.cli.classes import Classes
from icgd.environment import warn
from icgd.errors import DataError, DomainError, SettingError, quoted
from icgd.problems.data import Domain
from icgd.problems.linear_model import LinearModel
from icgd.problems.losses import (
    CROSS_ENTROPY,
    HUBER,
    L1,
    LOG_COSH,
    LOGISTIC,
    POISSON,
    QUANTILE,
    SMOOTH_L1,
    SQUARED,
)
from icgd.problems.problem import Problem
from icgd.problems.tables import Codes, Numbers, Reading, Scaling, Table, read_table

FILLS = ("mean", "median")
CHOICES = ("refuse", "drop", *FILLS)
"""What may be done about missing values."""

MEASURING = (SQUARED.name, HUBER.name, LOG_COSH.name, L1.name)
"""Losses of the distance between prediction and label, beside those named by a number."""

EXPECTED_LABEL: dict[str, Callable[[Any], Any]] = {
    # scipy imports its special functions, which takes long, when they are first asked for.
    LOGISTIC.name: lambda scores: scipy.special.expit(scores),
    CROSS_ENTROPY.name: lambda scores: scipy.special.softmax(scores, axis=1),
    POISSON.name: np.exp,
}
"""The label that a network's score stands for, where the loss has a link."""


@dataclass(frozen=True)
class Source:
    """A table of examples, and how it is read; with `codes` texts and dates become numbers."""

    path: Path
    targets: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading)
    missing: str = "refuse"
    standardized: bool = False
    ignored: tuple[str, ...] = ()
    encoded: bool = False
    codes: Codes | None = None
    input_order: tuple[str, ...] = ()
    """The columns of inputs that were compiled for, if they have names."""

    def __post_init__(self) -> None:
        if self.missing not in CHOICES:
            raise SettingError(
                f"--missing must be one of {', '.join(CHOICES)}, got {quoted(self.missing)}."
            )
        for name in self.ignored:
            if name in self.targets:
                raise DataError(
                    f"Column {quoted(name)} is both a label and ignored. Name it with --target or "
                    "with --ignore, not with both."
                )

    def opened(self) -> Table:
        """Read the table, without the columns that are ignored."""
        return read_table(self.path, self.reading).without(self.ignored)

    def inputs(self, table: Table, targets: Sequence[str]) -> tuple[Table, Codes]:
        """Return the inputs and labels as numbers, and the codes of the inputs."""
        if not self.encoded:
            return table, {}
        columns = [name for name in table.names if name not in targets]
        codes = table.codes(columns) if self.codes is None else self.codes
        return table.encoded(codes), codes


@dataclass(frozen=True)
class Examples:
    """Inputs and labels as the transformer sees them, and what their columns are called."""

    inputs: Numbers
    labels: Numbers
    input_names: tuple[str, ...]
    label_names: tuple[str, ...]
    columns: tuple[str, ...]
    """The columns of inputs as the file has them, before texts and dates became numbers."""
    has_header: bool
    source: Source
    input_scaling: Scaling
    label_scaling: Scaling
    classes: Classes | None = None
    fills: Mapping[str, float] | None = None
    codes: Codes = field(default_factory=dict)

    def answers(self, predictions: Numbers) -> list[list[float | str]]:
        """Return a row for each query, in the units of the table; the class first, if there are
        any.
        """
        rows: list[list[float | str]] = self.label_scaling.undone(predictions).tolist()
        if self.classes is None:
            return rows
        return [
            [name, *row] for name, row in zip(self.classes.decoded(predictions), rows, strict=True)
        ]

    @property
    def frame(self) -> pl.DataFrame:
        """The inputs with the names of their columns."""
        return pl.DataFrame(self.inputs, schema=list(self.input_names))

    def named(self, labels: Numbers | None) -> pl.DataFrame | None:
        """Labels of queries with the names of the outputs, if they are known."""
        if labels is None:
            return None
        return pl.DataFrame(labels, schema=list(self.answer_names[-labels.shape[1] :]))

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The columns of `answers`."""
        if self.classes is None:
            return self.label_names
        name = self.label_names[0]
        shown = self.classes.names[-1:] if self.classes.n_outputs == 1 else self.classes.names
        return name, *(f"{name} {each}" for each in shown)


@dataclass(frozen=True)
class Queries:
    """Inputs to predict labels for, as the transformer sees them; the labels too if they are there.

    `table` has them as the file does.
    """

    inputs: Numbers
    labels: Numbers | None
    table: Table


def widths_in(source: Source, loss: str) -> tuple[int, int]:
    """Count the inputs and outputs that a table needs: an output for each label or class."""
    table = source.opened()
    targets = source.targets or table.names[-1:]
    coded, _ = source.inputs(table, targets)
    n_inputs = sum(name not in targets for name in coded.names)
    if n_inputs == 0:
        raise DataError(
            f"{source.path} has no column of inputs beside {', '.join(targets)}. Ignore fewer "
            "columns, or name another label with --target."
        )
    if len(targets) > 1:
        return n_inputs, len(targets)
    if source.missing == "drop":  # a class may stand in rows that are dropped alone
        table = table.without_gaps(table.names)
    has_scores = loss == CROSS_ENTROPY.name
    if (texts := table.texts(targets[0])) is not None:
        n_classes = len({text for text in texts if text is not None})
        return n_inputs, 1 if n_classes == 2 and not has_scores else n_classes
    if not has_scores:
        return n_inputs, 1
    labels = table.without_gaps(targets).numbers(targets)
    return n_inputs, int(max(labels.max(), 1)) + 1


def read_examples(source: Source, problem: Problem) -> Examples:
    """Return examples in a table; the labels are the columns that it names, or the last ones."""
    table = source.opened()
    targets = _targets(table, source, problem)
    columns = _input_columns(table, targets, source)
    table = replace(table, frame=table.frame.select([*columns, *targets]))
    table, codes = source.inputs(table, targets)
    inputs = tuple(name for name in table.names if name not in targets)
    if len(inputs) != problem.target.input_width:
        shown = ", ".join(inputs[:6]) + ", ..." * (len(inputs) > 6)
        raise DataError(
            f"{source.path} has {len(inputs)} columns of inputs ({shown or 'none'}); the model has "
            f"{problem.target.input_width}. Name the label columns with --target and columns to "
            "leave out with --ignore, or compile for this table with --data."
        )
    table, fills = _without_gaps(table, inputs, targets, source.missing)
    classes, labels = _labels(table, targets, problem)
    x = table.numbers(inputs)
    measured = classes is None and _measures_labels(problem)
    x_scaling = _scaling(x, source.standardized)
    y_scaling = _scaling(labels, source.standardized and measured)
    return Examples(
        inputs=x_scaling.applied(x),
        labels=y_scaling.applied(labels),
        input_names=inputs,
        label_names=targets,
        columns=columns,
        has_header=table.has_header,
        source=source,
        input_scaling=x_scaling,
        label_scaling=y_scaling,
        classes=classes,
        fills=fills,
        codes=codes,
    )


def read_queries(path: Path, examples: Examples) -> Queries:
    """Return the queries in a table: columns are found by name if both tables have a header."""
    table = read_table(path, examples.source.reading)
    labels = _known_labels(table, examples)
    inputs = table
    if not (table.has_header and examples.has_header):
        if len(table.names) != len(examples.columns):
            raise DataError(
                f"{path} has {len(table.names)} columns; a query has {len(examples.columns)} "
                "inputs. Keep only those, or give both files a header, so that inputs are found "
                "by name."
            )
        inputs = table.renamed(examples.columns)
    inputs = inputs.encoded(examples.codes)
    if examples.fills is not None:
        inputs = inputs.filled(examples.fills)
    else:
        _refuse_gaps(inputs, examples.input_names)
    x = examples.input_scaling.applied(inputs.numbers(examples.input_names))
    return Queries(x, labels, table)


def _targets(table: Table, source: Source, problem: Problem) -> tuple[str, ...]:
    """Return the label columns: one of classes, or one for each output."""
    n_outputs = problem.target.output_width
    if not source.targets and table.texts(table.names[-1]) is not None:
        return table.names[-1:]
    is_one_short = len(table.names) == problem.target.input_width + 1
    n_labels = 1 if is_one_short and _numbers_classes(problem) else n_outputs
    targets = source.targets or table.names[-n_labels:]
    is_of_texts = len(targets) == 1 and table.texts(targets[0]) is not None
    is_of_classes = is_of_texts or (len(targets) == 1 and _numbers_classes(problem))
    if not is_of_classes and not len(targets) == len(set(targets)) == n_outputs:
        raise DataError(
            f"The model has {n_outputs} output{'s' * (n_outputs > 1)}, but the label columns are "
            f"{', '.join(targets)}. Give --target once for each output."
        )
    return targets


def _input_columns(table: Table, targets: Sequence[str], source: Source) -> tuple[str, ...]:
    """Return the columns of inputs in the order that was compiled for: weights are drawn by it."""
    columns = tuple(name for name in table.names if name not in targets)
    if not source.input_order or not table.has_header:
        return columns
    if set(columns) == set(source.input_order):
        return source.input_order
    if len(columns) == len(source.input_order):
        new = [name for name in columns if name not in source.input_order]
        missing = [name for name in source.input_order if name not in columns]
        warn(
            UserWarning(
                f"{source.path} has {', '.join(new)} where the table that was compiled for has "
                f"{', '.join(missing)}. Inputs are taken in the order of {source.path}; compile "
                "for it with --data if that is not meant."
            )
        )
    return columns


def _measures_labels(problem: Problem) -> bool:
    """Return whether labels may be scaled: the loss depends on their distance to a prediction."""
    if isinstance(problem.target, LinearModel):
        return bool(problem.target.link == "identity")
    return problem.loss in MEASURING or problem.loss.startswith((SMOOTH_L1, QUANTILE))


def _numbers_classes(problem: Problem) -> bool:
    """Return whether one column of numbers may say the class of every example."""
    return problem.loss == CROSS_ENTROPY.name and problem.target.output_width > 1


def _without_gaps(
    table: Table, inputs: Sequence[str], targets: Sequence[str], missing: str
) -> tuple[Table, dict[str, float] | None]:
    """Return the table without missing values, and what fills those of inputs."""
    if missing == "drop":
        return table.without_gaps([*inputs, *targets]), None
    if missing in FILLS:
        fills = table.means(inputs, missing)
        table = table.filled(fills)
        table.require_whole(targets, ", or give --missing drop: labels are not made up")
        return table, fills
    table.require_whole([*inputs, *targets], ", or give --missing drop, mean or median")
    return table, None


def _labels(
    table: Table, targets: Sequence[str], problem: Problem
) -> tuple[Classes | None, Numbers]:
    name, is_numbered = targets[0], len(targets) == 1 and _numbers_classes(problem)
    is_of_texts = table.texts(name) is not None
    if not is_of_texts and not is_numbered:
        return None, table.numbers(targets)
    find, cells = Classes.of if is_of_texts else Classes.numbered, _cells(table, name)
    classes = find(table.path, name, cells, problem)
    return classes, classes.encoded(table.path, name, cells)


def _cells(table: Table, name: str) -> list[str]:
    """Return the cells of a column of classes as texts; 1 and 1.0 are the same class."""
    texts = table.texts(name)
    if texts is not None:
        return texts
    return [f"{number:.12g}" for number in table.numbers([name])[:, 0]]


def _scaling(numbers: Numbers, is_scaled: bool) -> Scaling:
    return Scaling.of(numbers) if is_scaled else Scaling.none(numbers.shape[1])


def require_within(domain: Domain, examples: Examples, queries: Queries | None = None) -> None:
    """Raise `DomainError` for the largest number that the transformer was not made for."""
    path, units = examples.source.path, " in standard units" * examples.source.standardized
    _require_within(path, examples.inputs, examples.input_names, domain.x, "x", units)
    labels = examples.label_names * (examples.labels.shape[1] // len(examples.label_names))
    _require_within(path, examples.labels, labels, domain.y, "y", units)
    if queries is not None:
        names, path = examples.input_names, queries.table.path
        _require_within(path, queries.inputs, names, domain.x, "x", units)


def _require_within(
    path: Path, numbers: Numbers, names: Sequence[str], bound: float, key: str, units: str
) -> None:
    largest = np.abs(numbers).max(0)
    column = int(largest.argmax())
    if largest[column] > bound:
        value = float(numbers[np.abs(numbers[:, column]).argmax(), column])
        raise DomainError(
            f"{path}, column {quoted(names[column])} goes to {value:.6g}{units}, but the "
            f"transformer was made for {bound:g} at most. Compile with [domain] {key} = "
            f"{abs(value) * 1.001:.4g} or larger in problem.toml, or with --data a table that "
            "holds such values."
        )


def _refuse_gaps(table: Table, inputs: Sequence[str]) -> None:
    for name in inputs:
        gaps = table.gaps(name)
        if gaps:
            raise DataError(
                f"{table.path}, line {gaps[0]} has no value in column {quoted(name)}, and a query "
                "cannot be dropped. Fill it, or give --missing mean or median, which are those of "
                "the examples."
            )


def _known_labels(table: Table, examples: Examples) -> Numbers | None:
    """Return the labels of queries, as the transformer sees them, if the table has them all."""
    names = examples.label_names
    if not examples.has_header or any(n not in table.names or table.gaps(n) for n in names):
        return None
    if examples.classes is None:
        return examples.label_scaling.applied(table.numbers(names))
    return examples.classes.encoded(table.path, names[0], _cells(table, names[0]))


def score(
    predictions: Numbers, labels: Numbers, classes: Classes | None, loss: str
) -> tuple[str, float]:
    """Return the accuracy of classes, or R^2, which is 1 - squared error / variance over all
    outputs. Scores of a loss that has a link are compared with labels as expected labels.
    """
    if classes is not None:
        found, true = classes.decoded(predictions), classes.decoded(labels)
        return "accuracy", float(np.mean([a == b for a, b in zip(found, true, strict=True)]))
    predictions = EXPECTED_LABEL.get(loss, np.asarray)(predictions)
    spread = np.square(labels - labels.mean(0)).sum()
    left = np.square(predictions - labels).sum()
    return "R²", float(1 - left / spread) if spread else float("nan")
