"""Examples and queries from CSV files, predictions to CSV files."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from icgd.errors import DataError
from icgd.problems.csv_table import Numbers, read_table
from icgd.problems.problem import Target


@dataclass(frozen=True)
class Examples:
    """Inputs and labels, with a row for each example, and the names of their columns."""

    inputs: Numbers
    labels: Numbers
    input_names: tuple[str, ...]
    label_names: tuple[str, ...]
    has_header: bool


def read_examples(path: Path, target: Target, label_names: Sequence[str] | None = None) -> Examples:
    """The examples in `path`; the labels are the columns of these names, or the last columns."""
    table, n_labels = read_table(path), target.output_width
    if len(table.names) != target.input_width + n_labels:
        expected = target.input_width + n_labels
        raise DataError.too_few_columns(path, len(table.names), expected)
    labels = tuple(label_names or table.names[-n_labels:])
    if not len(labels) == len(set(labels)) == n_labels:
        raise DataError.wrong_labels(labels, n_labels)
    y = table.columns(labels)
    inputs = tuple(name for name in table.names if name not in labels)
    return Examples(table.columns(inputs), y, inputs, labels, table.has_header)


def read_queries(path: Path, examples: Examples) -> Numbers:
    """The inputs in `path`: the examples' columns if both files have headers, else all columns."""
    table = read_table(path)
    if table.has_header and examples.has_header:
        return table.columns(examples.input_names)
    if len(table.names) != len(examples.input_names):
        raise DataError.wrong_query_columns(path, len(table.names), len(examples.input_names))
    return table.numbers


def csv_content(names: Sequence[str], rows: Sequence[Sequence[float]]) -> bytes:
    """The content of a CSV file with a header; numbers read back bit for bit."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue().encode()
