"""Errors in data, whether they come from arrays or from files of numbers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from icgd.errors.base import IcgdError, at, brief, cut, did_you_mean


class DataError(IcgdError, ValueError):
    """Data cannot be used: not numbers, not finite, of the wrong shape or type."""

    @classmethod
    def no_queries(cls) -> DataError:
        return cls(
            "tolerance_of='predictions' is about predictions at queries, and the task has none. "
            "Give them: icgd.as_task(problem, X, y, queries=...)."
        )

    @classmethod
    def not_finite(
        cls, name: str, index: Sequence[int], value: float, columns: Sequence[str] = ()
    ) -> DataError:
        """`columns` has the names of all columns, if they are known."""
        return cls(
            f"{name}{at(index, columns)} is {value}; every entry must be finite. "
            "Drop or fill such rows first."
        )

    @classmethod
    def no_number(
        cls, name: str, index: Sequence[int], value: object, columns: Sequence[str]
    ) -> DataError:
        return cls(
            f"{name}{at(index, columns)} is {brief(value)}, which is not a number. Remove the "
            "column or encode it as numbers; drop or fill what is missing."
        )

    @classmethod
    def negative_rate(cls, index: Sequence[int], value: float) -> DataError:
        return cls(
            f"rates{at(index)} is {value:.12g}; a rate is a number from 0 to domain.rate, by which "
            "the gradient of an example is multiplied."
        )

    @classmethod
    def wrong_state(
        cls, index: Sequence[int], value: float, name: str, low: float, high: float
    ) -> DataError:
        """`name` is what the optimiser remembers there, such as "momentum"."""
        why = (
            "a mean of squares, which is not negative"
            if low == 0.0
            else f"which lies within [{low:.6g}, {high:.6g}], or no digit of a weight is left"
        )
        return cls(
            f"initial{at(index)} is {value:.12g}; it belongs to the {name.replace('_', ' ')}, "
            f"{why}. Give another one, or weights alone: the optimiser then starts from 0."
        )

    @classmethod
    def other_columns(cls, name: str, columns: Sequence[str], expected: Sequence[str]) -> DataError:
        return cls(
            f"{name} has the columns {', '.join(columns)}, but X has {', '.join(expected)}. Give "
            "the same columns in the same order."
        )

    @classmethod
    def overflows(
        cls,
        name: str,
        index: Sequence[int],
        value: float,
        dtype: str,
        columns: Sequence[str] = (),
    ) -> DataError:
        return cls(
            f"{name}{at(index, columns)} is {value:.12g}, too large for {dtype}. "
            "Rescale the data, or run in float64."
        )

    @classmethod
    def not_an_array(cls, name: str, problem: str) -> DataError:
        return cls(
            f"{name} is not a rectangular array of numbers ({problem}). "
            "Every row must have the same length."
        )

    @classmethod
    def transformed(cls, name: str) -> DataError:
        return cls(
            f"{name} is inside a transform of torch.func, such as grad, jvp or vmap. A run records "
            "no gradients, so they would be 0. Use icgd.training.LearnableRun, which has gradients "
            "(torch.autograd), and a leading axis of tasks in place of vmap."
        )

    @classmethod
    def refused(cls, name: str, problem: str) -> DataError:
        """`problem` is in the words of the library that reads the data."""
        return cls(f"{name} cannot be used: {cut(problem)}")

    @classmethod
    def no_line(cls, name: str) -> DataError:
        return cls(
            f"{name} cannot be used: Complex data not supported, nor dates, durations and records. "
            "Give real numbers."
        )

    @classmethod
    def no_batch(cls) -> DataError:
        return cls("This is one task, which has no places. Use it as it is.")

    @classmethod
    def empty(cls, name: str, shape: Sequence[int]) -> DataError:
        return cls(f"{name} is empty: its shape is {tuple(shape)}. Give at least one row.")

    @classmethod
    def too_large_whole(cls, name: str, value: int, most: int) -> DataError:
        return cls(
            f"{name} holds the whole number {value}, beyond {most}, which float64 would round. "
            "Rescale the data, or convert them to float64 yourself."
        )

    @classmethod
    def wrong_dtype(cls, name: str, dtype: object) -> DataError:
        return cls(
            f"{name} has dtype {dtype}; float64, float32, integers or bool are expected. "
            "Convert it explicitly to one of them."
        )

    @classmethod
    def wrong_shape(cls, name: str, shape: Sequence[int], expected: str) -> DataError:
        return cls(f"{name} has shape {tuple(shape)}; expected {expected}.")

    @classmethod
    def other_precision(cls, name: str, dtype: object, expected: object) -> DataError:
        found, other = (str(kind).removeprefix("torch.") for kind in (dtype, expected))
        return cls(f"{name} has dtype {found}, and the other data {other}. Convert one of them.")

    @classmethod
    def too_long(cls, n_examples: int, n_places: int, n_positions: int) -> DataError:
        return cls(
            f"A prompt of {n_examples} examples and a query takes {n_places} places; the decoder "
            f"has n_positions={n_positions}. Give shorter prompts, or make a decoder with "
            f"n_positions={n_places}, or without positions (n_positions=None)."
        )

    @classmethod
    def other_number_of_examples(cls, got: int, expected: int) -> DataError:
        return cls(
            f"X has {got} examples, but the transformer was made for prompts of {expected}. "
            f"Give {expected}, or compile with n_examples={got}."
        )

    @classmethod
    def smaller_than_batch(cls, n_examples: int, batch_size: int) -> DataError:
        return cls(
            f"X has {n_examples} examples, fewer than batch_size={batch_size} that a step takes. "
            f"Give at least {batch_size}, or a smaller batch_size."
        )

    @classmethod
    def between_levels(
        cls, name: str, index: Sequence[int], value: float, low: float, high: float
    ) -> DataError:
        return cls(
            f"{name}{at(index)} is {value:.12g}, on the ramp between two levels: the table has no "
            f"entry for examples strictly between {low:.12g} and {high:.12g}. Move it out, or "
            "compile with a smaller kink_width."
        )

    @classmethod
    def wrong_label(
        cls, kind: str, name: str, index: Sequence[int], value: float, expected: str
    ) -> DataError:
        """`kind` is what allows certain labels only: "loss" or "link"."""
        other = {"loss": "squared", "link": "identity"}[kind]
        return cls(
            f"y{at(index)} is {value:.12g}; the {name} {kind} needs {expected}. "
            f"Recode the labels, or use {kind}={brief(other)}."
        )

    @classmethod
    def no_class(cls, index: Sequence[int], value: float, n_classes: int) -> DataError:
        return cls(
            f"y{at(index)} is {value:.12g}; the cross_entropy loss of {n_classes} outputs needs "
            f"classes from 0 to {n_classes - 1}, or a row of {n_classes} shares for each example."
        )

    @classmethod
    def no_class_number(cls, path: object, column: str, cell: str, n_classes: int) -> DataError:
        return cls(
            f"{path}, column {column!r} has the class {cell}; the cross_entropy loss of "
            f"{n_classes} outputs needs classes from 0 to {n_classes - 1}."
        )

    @classmethod
    def wrong_sum(cls, loss: str, index: Sequence[int], total: float) -> DataError:
        return cls(
            f"The labels of example {at(index)} add up to {total:.12g}; the {loss} loss needs "
            "shares that add up to 1, such as a 1 for the class and 0 for all others."
        )

    @classmethod
    def one_class(cls, value: object) -> DataError:
        return cls(
            f"All labels are of one class, {brief(value)}; a classifier needs examples of at least "
            "two classes."
        )

    @classmethod
    def no_weight(cls, n_rows: int) -> DataError:
        return cls(
            f"The weight of all {n_rows} examples is zero; at least one sample_weight must be "
            "positive."
        )

    @classmethod
    def not_counts(cls, least: float) -> DataError:
        """`least` is the smallest label."""
        found = f"one is {least:g}" if least < 0 else "all are 0, which no finite intercept fits"
        return cls(f"Labels of a poisson model are counts or rates of at least 0, but {found}.")

    @classmethod
    def score_too_large(cls, row: int, score: float, limit: float) -> DataError:
        return cls(
            f"The expected count of row {row} (counted from 0) is exp({score:.3g}) times as large "
            f"or small as the mean label, but the heads are made for up to exp({limit:g}). Leave "
            "such rows out, or clip their inputs to the range of the context."
        )

    @classmethod
    def text_cell(cls, path: object, line: int, column: str, cell: str) -> DataError:
        return cls(
            f"{path}, line {line}, column {brief(column)}: {brief(cell)} is not a number. Remove "
            "the column or encode it as numbers. `icgd run` can leave it out: --ignore "
            f"{shlex.quote(column)}."
        )

    @classmethod
    def not_finite_cell(cls, path: object, line: int, column: str, value: float) -> DataError:
        return cls(
            f"{path}, line {line}, column {brief(column)} is {value}; every number must be finite. "
            "Correct the cell, or remove the line."
        )

    @classmethod
    def missing_value(
        cls, path: object, line: int, columns: Sequence[str], total: int, remedy: str = ""
    ) -> DataError:
        """The first one is in `line` of the first of `columns`; there are `total` of them.

        `remedy` is what else would help, such as ", or give --missing drop".
        """
        rest = f" ({total:,} are missing, in {', '.join(columns)})" if total > 1 else ""
        return cls(
            f"{path}, line {line} has no value in column {columns[0]!r}{rest}. Fill it, or remove "
            f"the line{remedy}."
        )

    @classmethod
    def missing_in_query(cls, path: object, line: int, column: str) -> DataError:
        return cls(
            f"{path}, line {line} has no value in column {brief(column)}, and a query cannot be "
            "dropped. Fill it, or give --missing mean or median, which are those of the examples."
        )

    @classmethod
    def nothing_there(cls, path: object, column: str) -> DataError:
        return cls(
            f"{path}, column {brief(column)} has no value at all, so nothing can fill it. Leave it "
            f"out: --ignore {shlex.quote(column)}."
        )

    @classmethod
    def no_whole_row(cls, path: object) -> DataError:
        return cls(
            f"Every row of {path} lacks a value, so --missing drop leaves none. Use --missing mean "
            "or median, or leave the columns with gaps out (--ignore)."
        )

    @classmethod
    def other_type(cls, path: object, column: str, kind: str) -> DataError:
        return cls(
            f"{path}, column {brief(column)} holds {kind}; numbers are expected. Remove the column "
            "or encode it as numbers."
        )

    @classmethod
    def row_numbers(cls, path: object) -> DataError:
        return cls(
            f"The first column of {path} has no name and only counts the rows. Remove it, or give "
            "it a name if it is an input."
        )

    @classmethod
    def long_line(cls, path: object, delimiter: str) -> DataError:
        return cls(
            f"Cannot read {path}: a line has more cells than the first one, with "
            f"{brief(delimiter)} between cells. Mend the line, or give --delimiter."
        )

    @classmethod
    def unclear_header(cls, path: object, cells: Sequence[str]) -> DataError:
        shown = ", ".join(cells[:4]) + ", ..." * (len(cells) > 4)
        return cls(
            f"The first line of {path} ({shown}) may be a header or an example. Give --header or "
            "--no-header (header=True or False in Python)."
        )

    @classmethod
    def uneven_tasks(
        cls, path: object, first: float, n_first: int, other: float, n_other: int
    ) -> DataError:
        return cls(
            f"{path}: task {first:g} has {n_first} rows, but task {other:g} has {n_other}. Give "
            "every task as many rows: its examples, and last its query."
        )

    @classmethod
    def wrong_inputs(cls, path: object, inputs: Sequence[str], expected: int) -> DataError:
        """`inputs` are all columns but the labels."""
        shown = ", ".join(inputs[:6]) + ", ..." * (len(inputs) > 6)
        return cls(
            f"{path} has {len(inputs)} columns of inputs ({shown or 'none'}); the model has "
            f"{expected}. Name the label columns with --target and columns to leave out with "
            f"--ignore, or compile with --widths that begin with {len(inputs)}."
        )

    @classmethod
    def nothing_left(cls, path: object, ignored: Sequence[str]) -> DataError:
        return cls(
            f"{path} has no column beside those that are ignored: {', '.join(ignored)}. Ignore "
            "fewer of them."
        )

    @classmethod
    def ignored_label(cls, column: str) -> DataError:
        return cls(
            f"Column {brief(column)} is both a label and ignored. Name it with --target or with "
            "--ignore, not with both."
        )

    @classmethod
    def one_class_in(cls, path: object, column: str, name: str) -> DataError:
        return cls(
            f"{path}, column {brief(column)} has only the class {brief(name)}; two are needed. "
            "Name another column with --target."
        )

    @classmethod
    def wrong_classes(
        cls, path: object, column: str, names: Sequence[str], n_outputs: int
    ) -> DataError:
        shown = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
        return cls(
            f"{path}, column {brief(column)} has {len(names)} classes ({shown}), but the model has "
            f"{n_outputs} output{'s' * (n_outputs > 1)}. Compile with --widths that end with "
            f"{len(names)}."
        )

    @classmethod
    def unknown_class(cls, path: object, column: str, cell: str, names: Sequence[str]) -> DataError:
        return cls(
            f"{path}, column {brief(column)} has the class {brief(cell)}, which the examples lack; "
            f"known are {', '.join(names)}.{did_you_mean(cell, names)}"
        )

    @classmethod
    def unreadable(cls, path: object, problem: str) -> DataError:
        return cls(f"Cannot read {path}: {problem}.")

    @classmethod
    def short_log(cls, name: str, n_rows: int) -> DataError:
        return cls(
            f"The log of {name} has {n_rows} row{'s' * (n_rows != 1)}; a curve needs two. Train "
            "longer, or with a smaller log_every."
        )

    @classmethod
    def repeated_column(cls, path: object, name: str) -> DataError:
        return cls(f"{path} has two columns called {brief(name)}; column names must be unique.")

    @classmethod
    def wrong_labels(cls, labels: Sequence[str], expected: int) -> DataError:
        return cls(
            f"The model has {expected} output{'s' * (expected > 1)}, but the label columns are "
            f"{', '.join(labels)}. Give --target once for each output."
        )

    @classmethod
    def wrong_query_columns(cls, path: object, got: int, expected: int) -> DataError:
        return cls(
            f"{path} has {got} columns; a query has {expected} inputs. Keep only those, or give "
            "both files a header, so that inputs are found by name."
        )


class DataTypeError(DataError, TypeError):
    """Data are of a type that holds no numbers."""

    @classmethod
    def of(cls, name: str, problem: str) -> DataTypeError:
        return cls(f"{name} cannot be used: {cut(problem)}")


class DomainError(IcgdError, ValueError):
    """Data or weights lie outside the bounds that the certificate relies on."""

    @classmethod
    def outside(
        cls,
        name: str,
        index: Sequence[int],
        value: float,
        bound: float,
        setting: str,
        columns: Sequence[str] = (),
    ) -> DomainError:
        return cls(
            f"{name}{at(index, columns)} is {value:.12g}, outside [-{bound:g}, {bound:g}]. "
            f"Rescale the data or compile with a larger {setting}."
        )

    @classmethod
    def column_outside(
        cls, path: object, column: str, value: float, bound: float, option: str, units: str
    ) -> DomainError:
        """`value` is the largest of the column; `units` are empty or those that it is in."""
        return cls(
            f"{path}, column {brief(column)} goes to {value:.6g}{units}, but the transformer was "
            f"made for {bound:g} at most. Compile with {option} {abs(value) * 1.001:.4g} or "
            "larger, or with --bounds-from a table that holds such values."
        )
