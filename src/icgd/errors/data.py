"""Errors in data, whether they come from arrays or from files of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from icgd.errors.base import IcgdError, at


class DataError(IcgdError, ValueError):
    """Data cannot be used: not numbers, not finite, of the wrong shape or type."""

    @classmethod
    def not_finite(cls, name: str, index: Sequence[int], value: float) -> DataError:
        return cls(
            f"{name}{at(index)} is {value}; every entry must be finite. "
            "Drop or fill such rows first."
        )

    @classmethod
    def overflows(cls, name: str, index: Sequence[int], value: float, dtype: str) -> DataError:
        return cls(
            f"{name}{at(index)} is {value:.12g}, too large for {dtype}. "
            "Rescale the data, or run in float64."
        )

    @classmethod
    def not_an_array(cls, name: str, problem: str) -> DataError:
        return cls(
            f"{name} is not a rectangular array of numbers ({problem}). "
            "Every row must have the same length."
        )

    @classmethod
    def empty(cls, name: str, shape: Sequence[int]) -> DataError:
        return cls(f"{name} is empty: its shape is {tuple(shape)}. Give at least one row.")

    @classmethod
    def wrong_dtype(cls, name: str, dtype: object) -> DataError:
        return cls(
            f"{name} has dtype {dtype}; float64 or float32 is expected. "
            "Convert it explicitly to one of them."
        )

    @classmethod
    def wrong_shape(cls, name: str, shape: Sequence[int], expected: str) -> DataError:
        return cls(f"{name} has shape {tuple(shape)}; expected {expected}.")

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
            f"Recode the labels, or use {kind}={other!r}."
        )

    @classmethod
    def one_class(cls, value: object) -> DataError:
        return cls(
            f"All labels are of one class, {value!r}; a classifier needs examples of at least two "
            "classes."
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
        where = f"{path}, line {line}, column {column!r}"
        if not cell:
            return cls(
                f"{where} is empty; a number is expected. Fill the cell, or remove the line."
            )
        if ";" in cell or "\t" in cell:
            return cls(f"{where}: {cell!r} is not a number. Put commas between the cells.")
        return cls(f"{where}: {cell!r} is not a number. Remove the column or encode it as numbers.")

    @classmethod
    def not_finite_cell(cls, path: object, row: int, column: str, value: float) -> DataError:
        """`row` counts from 1, without the header."""
        return cls(
            f"{path}, row {row}, column {column!r} is {value}; every number must be finite. "
            "Fill the cell, or remove the task."
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
    def mixed_header(cls, path: object, line: int, number: str, text: str) -> DataError:
        return cls(
            f"{path}, line {line} holds numbers ({number!r}) and text ({text!r}), so it is neither "
            "a header nor an example. Give every column a name that is not a number."
        )

    @classmethod
    def ragged_csv(cls, path: object, line: int, got: int, expected: int) -> DataError:
        return cls(f"{path}, line {line} has {got} cells; the first line has {expected}.")

    @classmethod
    def too_few_columns(cls, path: object, got: int, expected: int) -> DataError:
        return cls(
            f"{path} has {got} columns; the model needs {expected} "
            "(inputs first, then labels; name label columns with --label)."
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
        return cls(f"{path} has two columns called {name!r}; column names must be unique.")

    @classmethod
    def wrong_labels(cls, labels: Sequence[str], expected: int) -> DataError:
        return cls(
            f"The model has {expected} output{'s' * (expected > 1)}, but the label columns are "
            f"{', '.join(labels)}. Give --label once for each output."
        )

    @classmethod
    def wrong_query_columns(cls, path: object, got: int, expected: int) -> DataError:
        return cls(
            f"{path} has {got} columns; a query has {expected} inputs. Keep only those, or give "
            "both files a header, so that inputs are found by name."
        )


class SeparableDataError(IcgdError, ValueError):
    """A linear model has no minimiser: its coefficients would grow for ever."""

    @classmethod
    def of(
        cls, link: str, is_complete: bool, direction: Sequence[float], task: int | None
    ) -> SeparableDataError:
        """`direction` is one along which the loss falls for ever, `task` its place in a batch."""
        where = "" if task is None else f" of task {task}"
        extent = "completely" if is_complete else "quasi-completely"
        falls = "every example" if is_complete else "some examples and rises at none"
        largest = max(range(len(direction)), key=lambda i: abs(direction[i]))
        return cls(
            f"The data{where} are {extent} separable, so no minimiser exists: along a direction "
            f"(most of it coefficient {largest}) the {link} loss falls for ever at {falls}. "
            "Add an l2 penalty, such as l2=0.01."
        )

    @classmethod
    def intercept(cls, link: str, label: float, task: int | None) -> SeparableDataError:
        where = "" if task is None else f" of task {task}"
        return cls(
            f"Every label{where} is {label:g}, so no minimiser exists: the intercept of the {link} "
            "link grows for ever, and penalties leave it out. Use intercept=False, or give "
            "examples with other labels."
        )


class DomainError(IcgdError, ValueError):
    """Data or weights lie outside the bounds that the certificate relies on."""

    @classmethod
    def outside(
        cls, name: str, index: Sequence[int], value: float, bound: float, setting: str
    ) -> DomainError:
        return cls(
            f"{name}{at(index)} is {value:.12g}, outside [-{bound:g}, {bound:g}]. "
            f"Rescale the data or compile with a larger {setting}."
        )
