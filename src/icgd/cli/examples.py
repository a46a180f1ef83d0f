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
from icgd.cli.data_options import DROP, FILLS, GivenTable, Source, is_table
from icgd.compiled import Compiled
from icgd.environment import warn
from icgd.errors import DataError, DomainError, FileError, quoted
from icgd.pipeline import load
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
from icgd.problems.tables import Codes, Numbers, Scaling, Table, as_texts, read_table

MOST_CLASSES = 2_000
"""The most classes that numbers may stand for: more take gigabytes to compile."""

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
class Examples:
    """Inputs and labels as the transformer sees them, with the names of their columns."""

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
        """Return a row for each query, in the units of the table; a class comes first."""
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
        """Return labels of queries with the names of the outputs, if they are known."""
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
        return name, *(f"score of {shown_class}" for shown_class in shown)


@dataclass(frozen=True)
class Queries:
    """Inputs to predict labels for, as the transformer sees them; `table` is as the file has it."""

    inputs: Numbers
    table: Table


def loss_for(source: Source) -> tuple[str, str]:
    """Return the default loss of a network for the labels of a table, and the reason."""
    texts = _label_texts(source)
    if texts is None:
        return SQUARED.name, "the labels are numbers"
    loss = LOGISTIC if len(texts) == 2 else CROSS_ENTROPY
    return loss.name, f"the labels are {len(texts)} classes"


def _label_texts(source: Source) -> set[str] | None:
    """Return the different texts of the label column, or None if there are numbers or columns."""
    table = source.opened()
    targets = source.targets or table.names[-1:]
    if len(targets) > 1:
        return None
    if source.missing == DROP:  # a class may occur in dropped rows only
        table = table.without_gaps(table.names)
    texts = table.texts(targets[0])
    return None if texts is None else {text for text in texts if text is not None}


def widths_in(source: Source, loss: str) -> tuple[int, int]:
    """Count the inputs and outputs that a table needs: an output for each label or class."""
    table = source.opened()
    targets = source.targets or table.names[-1:]
    coded, _ = source.encoded(table, targets)
    n_inputs = sum(name not in targets for name in coded.names)
    if n_inputs == 0:
        raise DataError(
            f"{source.data} has no column of inputs beside {', '.join(targets)}. Ignore fewer "
            "columns, or name another label with --target."
        )
    if len(targets) > 1:
        return n_inputs, len(targets)
    has_scores = loss == CROSS_ENTROPY.name
    if (texts := _label_texts(source)) is not None:
        return n_inputs, 1 if len(texts) == 2 and not has_scores else len(texts)
    if not has_scores:
        return n_inputs, 1
    if source.missing == DROP:
        table = table.without_gaps(table.names)
    largest = float(table.without_gaps(targets).numbers(targets).max())
    if largest >= MOST_CLASSES:
        raise DataError(
            f"{source.data}, column {quoted(targets[0])} has the class {largest:.12g}; the "
            f"cross_entropy loss makes an output for each class from 0, at most {MOST_CLASSES:,}. "
            "Number the classes 0, 1, 2, ..., or give them names that are texts."
        )
    return n_inputs, int(max(largest, 1)) + 1


def read_examples(source: Source, problem: Problem) -> Examples:
    """Return the examples in a table, as the problem needs them."""
    table = source.opened()
    targets = _targets(table, source, problem)
    columns = _input_columns(table, targets, source)
    table = replace(table, frame=table.frame.select([*columns, *targets]))
    table, codes = source.encoded(table, targets)
    inputs = tuple(name for name in table.names if name not in targets)
    if len(inputs) != problem.target.input_width:
        shown = ", ".join(inputs[:6]) + ", ..." * (len(inputs) > 6)
        raise DataError(
            f"{source.data} has {len(inputs)} columns of inputs ({shown or 'none'}); the model has "
            f"{problem.target.input_width}. Name the label columns with --target and columns to "
            "leave out with --ignore, or compile for this table with --data."
        )
    table, fills = _without_gaps(table, inputs, targets, source.missing)
    classes, labels = _labels(table, targets, problem)
    x = table.numbers(inputs)
    # Labels may be scaled if the loss depends on their distance to the prediction.
    if isinstance(problem.target, LinearModel):
        is_measured = problem.target.link == "identity"
    else:
        is_measured = problem.loss in MEASURING or problem.loss.startswith((SMOOTH_L1, QUANTILE))
    is_measured = is_measured and classes is None
    x_scaling, y_scaling = (
        Scaling.of(numbers) if source.standardize and is_scaled else Scaling.none(numbers.shape[1])
        for numbers, is_scaled in ((x, True), (labels, is_measured))
    )
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


def load_run(file: Path) -> Compiled:
    """Return the compiled run in a file; say so if the file is a table."""
    if is_table(file):
        raise FileError(
            f"{file} is a table. The first argument is a file that `icgd compile` wrote."
        )
    return load(file)


def open_run(
    file: Path, table: GivenTable, queries: Path | None = None
) -> tuple[Compiled, Examples, Queries | None]:
    """Return the compiled run in a file, and examples and queries as it reads them.

    All numbers are within the domain that it was compiled for.
    """
    compiled = load_run(file)
    examples = read_examples(table.source(compiled.table, file), compiled.problem)
    asked = read_queries(queries, examples) if queries else None
    require_within(compiled.problem.domain, examples, asked)
    return compiled, examples, asked


def read_queries(path: Path, examples: Examples) -> Queries:
    """Return the queries in a table: columns are found by name if both tables have a header."""
    table = read_table(path, examples.source.reading)
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
    for name in examples.input_names:
        if gaps := inputs.gaps(name):
            raise DataError(
                f"{path}, line {gaps[0]} has no value in column {quoted(name)}, and a query cannot "
                "be dropped. Fill it, or give --missing mean or median, which are those of the "
                "examples."
            )
    x = examples.input_scaling.applied(inputs.numbers(examples.input_names))
    return Queries(x, table)


def _targets(table: Table, source: Source, problem: Problem) -> tuple[str, ...]:
    """Return the label columns: one of classes, or one for each output."""
    n_outputs = problem.target.output_width
    if not source.targets and table.texts(table.names[-1]) is not None:
        return table.names[-1:]
    is_one_short = len(table.names) == problem.target.input_width + 1
    n_labels = 1 if is_one_short and _numbers_classes(problem) else n_outputs
    targets = source.targets or table.names[-n_labels:]
    texts = [name for name in targets if table.texts(name) is not None]
    if texts and len(targets) > 1:
        raise DataError(
            f"{source.data}, column {quoted(texts[0])} has texts, which are classes and must be "
            f"the only label, but the label columns are {', '.join(targets)}. Give one --target."
        )
    is_of_classes = bool(texts) or (len(targets) == 1 and _numbers_classes(problem))
    if not is_of_classes and not len(targets) == len(set(targets)) == n_outputs:
        raise DataError(
            f"The model has {n_outputs} output{'s' * (n_outputs > 1)}, but the label columns are "
            f"{', '.join(targets)}. Give --target once for each output."
        )
    return targets


def _input_columns(table: Table, targets: Sequence[str], source: Source) -> tuple[str, ...]:
    """Return the columns of inputs in the order that was compiled for: weights are drawn by it."""
    columns = tuple(name for name in table.names if name not in targets)
    expected = tuple(source.inputs or ())
    if not expected or not table.has_header:
        return columns
    if set(columns) == set(expected):
        return expected
    if len(columns) == len(expected):
        new = [name for name in columns if name not in expected]
        missing = [name for name in expected if name not in columns]
        warn(
            UserWarning(
                f"{source.data} has {', '.join(new)} where the table that was compiled for has "
                f"{', '.join(missing)}. Inputs are taken in the order of {source.data}. If that is "
                "not what you want, compile for this table with --data."
            )
        )
    return columns


def _numbers_classes(problem: Problem) -> bool:
    """Return whether one column of numbers may say the class of every example."""
    return problem.loss == CROSS_ENTROPY.name and problem.target.output_width > 1


def _without_gaps(
    table: Table, inputs: Sequence[str], targets: Sequence[str], missing: str | None
) -> tuple[Table, dict[str, float] | None]:
    """Return the table without missing values, and what fills those of inputs."""
    if missing == DROP:
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


def _cells(table: Table, name: str, known: Sequence[str] = ()) -> list[str]:
    """Return the cells of a column of classes as texts; a number is the class that has its value.

    `known` are the classes of the examples, which may write the number 1 as "1.0".
    """
    texts = table.texts(name)
    if texts is not None:
        return texts
    return as_texts(pl.Series(table.numbers([name])[:, 0]), known).to_list()


def require_within(domain: Domain, examples: Examples, queries: Queries | None = None) -> None:
    """Raise `DomainError` for the largest number that the transformer was not made for."""
    path = examples.source.data
    labels = examples.label_names * (examples.labels.shape[1] // len(examples.label_names))
    checked = [
        (path, examples.inputs, examples.input_names, examples.input_scaling, "x"),
        (path, examples.labels, labels, examples.label_scaling, "y"),
    ]
    if queries is not None:
        checked.append((queries.table.path, queries.inputs, *checked[0][2:]))
    for path, numbers, names, scaling, key in checked:
        bound, largest = getattr(domain, key), np.abs(numbers).max(0)
        column = int(largest.argmax())
        if largest[column] > bound:
            value = float(numbers[np.abs(numbers[:, column]).argmax(), column])
            units = " in standard units" * bool(scaling.scale[column] != 1)
            raise DomainError(
                f"{path}, column {quoted(names[column])} goes to {value:.6g}{units}, but the "
                f"transformer was made for {bound:g} at most. Compile with [domain] {key} = "
                f"{abs(value) * 1.001:.4g} or larger in problem.toml, or with --data a table that "
                "holds such values."
            )


def labels_of(queries: Queries, examples: Examples) -> Numbers | None:
    """Return the labels of queries, as the transformer sees them, if their table has labels.

    Labels that cannot be used give a warning: predictions need none, only their score does.
    """
    table, names = queries.table, examples.label_names
    if not examples.has_header or any(name not in table.names for name in names):
        return None
    if all(len(table.gaps(name)) == len(table.frame) for name in names):
        return None
    try:
        table.require_whole(names)
        if examples.classes is not None:
            cells = _cells(table, names[0], examples.classes.names)
            return examples.classes.encoded(table.path, names[0], cells)
        if texts := [name for name in names if table.texts(name) is not None]:
            raise DataError(
                f"{table.path}, column {quoted(texts[0])} has texts, the examples have numbers."
            )
        return examples.label_scaling.applied(table.numbers(names))
    except DataError as problem:
        warn(UserWarning(f"The predictions are not scored: {problem}"))
        return None


def score(
    predictions: Numbers, labels: Numbers, classes: Classes | None, loss: str
) -> tuple[str, float]:
    """Return the accuracy of classes, or R^2, which is 1 - squared error / variance.

    If the loss has a link, predictions are scores, and their expected labels are compared.
    """
    if classes is not None:
        found, true = classes.decoded(predictions), classes.decoded(labels)
        return "accuracy", float(np.mean([a == b for a, b in zip(found, true, strict=True)]))
    predictions = EXPECTED_LABEL.get(loss, np.asarray)(predictions)
    spread = np.square(labels - labels.mean(0)).sum()
    left = np.square(predictions - labels).sum()
    return "R²", float(1 - left / spread) if spread else float("nan")
