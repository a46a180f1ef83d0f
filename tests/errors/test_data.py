import pytest

from icgd.errors import data
from icgd.errors.data import DataError, DataTypeError, DomainError
from tests.contracts.messages import assert_complete, assert_every_message_is_made, made

MESSAGES = [
    (
        made(DataError.transformed, "queries"),
        "queries is inside a transform of torch.func, such as grad, jvp or vmap. A run records no "
        "gradients, so they would be 0. Use icgd.training.LearnableRun, which has gradients "
        "(torch.autograd), and a leading axis of tasks in place of vmap.",
    ),
    (
        made(DataError.no_batch),
        "This is one task, which has no places. Use it as it is.",
    ),
    (
        made(DataError.negative_rate, (3,), -0.5),
        "rates[3] is -0.5; a rate is a number from 0 to domain.rate, by which the gradient of an "
        "example is multiplied.",
    ),
    (
        made(DataError.no_queries),
        "tolerance_of='predictions' is about predictions at queries, and the task has none. Give "
        "them: icgd.as_task(problem, X, y, queries=...).",
    ),
    (
        made(DataError.one_class, "setosa"),
        "All labels are of one class, 'setosa'; a classifier needs examples of at least two "
        "classes.",
    ),
    (
        made(DataError.no_weight, 442),
        "The weight of all 442 examples is zero; at least one sample_weight must be positive.",
    ),
    (
        made(DataError.not_counts, -1.5),
        "Labels of a poisson model are counts or rates of at least 0, but one is -1.5.",
    ),
    (
        made(DataError.not_counts, 0.0),
        "Labels of a poisson model are counts or rates of at least 0, but all are 0, which no "
        "finite intercept fits.",
    ),
    (
        made(DataError.score_too_large, 3, 8.125, 6.5),
        "The expected count of row 3 (counted from 0) is exp(8.12) times as large or small as the "
        "mean label, but the heads are made for up to exp(6.5). Leave such rows out, or clip their "
        "inputs to the range of the context.",
    ),
    (
        made(DataError.not_finite_cell, "tasks.csv", 3, "x_2", float("nan")),
        "tasks.csv, line 3, column 'x_2' is nan; every number must be finite. Correct the cell, or "
        "remove the line.",
    ),
    (
        made(DataError.uneven_tasks, "tasks.csv", 1.0, 4, 2.0, 5),
        "tasks.csv: task 1 has 4 rows, but task 2 has 5. Give every task as many rows: its "
        "examples, and last its query.",
    ),
    (
        made(DataError.short_log, "run", 0),
        "The log of run has 0 rows; a curve needs two. Train longer, or with a smaller log_every.",
    ),
    (
        made(DataError.smaller_than_batch, 3, 4),
        "X has 3 examples, fewer than batch_size=4 that a step takes. "
        "Give at least 4, or a smaller batch_size.",
    ),
    (
        made(DataError.wrong_label, "link", "probit", [3, 0], 2.0, "labels between 0 and 1"),
        "y[3, 0] is 2; the probit link needs labels between 0 and 1. "
        "Recode the labels, or use link='identity'.",
    ),
    (
        made(DataError.not_finite, "X", [3, 1], float("nan")),
        "X[3, 1] is nan; every entry must be finite. Drop or fill such rows first.",
    ),
    (
        made(DataError.not_finite, "X", [3, 1], float("nan"), ("age", "size")),
        "X[3, 1] (column 'size') is nan; every entry must be finite. Drop or fill such rows first.",
    ),
    (
        made(DataError.no_number, "X", [3, 1], "red", ("age", "colour")),
        "X[3, 1] (column 'colour') is 'red', which is not a number. Remove the column or encode it "
        "as numbers; drop or fill what is missing.",
    ),
    (
        made(DataError.wrong_state, (4,), -1.0, "second_moment", 0.0, float("inf")),
        "initial[4] is -1; it belongs to the second moment, a mean of squares, which is not "
        "negative. Give another one, or weights alone: the optimiser then starts from 0.",
    ),
    (
        made(DataError.wrong_state, (4,), 1e160, "momentum", -9e16, 9e16),
        "initial[4] is 1e+160; it belongs to the momentum, which lies within [-9e+16, 9e+16], or "
        "no digit of a weight is left. Give another one, or weights alone: the optimiser then "
        "starts from 0.",
    ),
    (
        made(DataError.other_columns, "queries", ("size", "age"), ("age", "size")),
        "queries has the columns size, age, but X has age, size. Give the same columns in the same "
        "order.",
    ),
    (
        made(DataError.overflows, "X", [3, 1], 1e200, "float32"),
        "X[3, 1] is 1e+200, too large for float32. Rescale the data, or run in float64.",
    ),
    (
        made(DataError.not_an_array, "X", "dtype object"),
        "X is not a rectangular array of numbers (dtype object). "
        "Every row must have the same length.",
    ),
    (
        made(DataError.empty, "y", [0, 1]),
        "y is empty: its shape is (0, 1). Give at least one row.",
    ),
    (
        made(DataError.too_large_whole, "y", 2**60, 2**53),
        "y holds the whole number 1152921504606846976, beyond 9007199254740992, which float64 "
        "would round. Rescale the data, or convert them to float64 yourself.",
    ),
    (
        made(DataError.wrong_dtype, "X", "float16"),
        "X has dtype float16; float64, float32, integers or bool are expected. "
        "Convert it explicitly to one of them.",
    ),
    (
        made(DataError.wrong_shape, "X", [5, 2], "(n, 3)"),
        "X has shape (5, 2); expected (n, 3).",
    ),
    (
        made(DataError.wrong_label, "loss", "logistic", [2, 0], 1.5, "labels between 0 and 1"),
        "y[2, 0] is 1.5; the logistic loss needs labels between 0 and 1. "
        "Recode the labels, or use loss='squared'.",
    ),
    (
        made(DataError.text_cell, "data.csv", 7, "age", "old"),
        "data.csv, line 7, column 'age': 'old' is not a number. "
        "Remove the column or encode it as numbers. `icgd run` can leave it out: --ignore age.",
    ),
    (
        made(DataError.nothing_left, "data.csv", ["age", "sex"]),
        "data.csv has no column beside those that are ignored: age, sex. Ignore fewer of them.",
    ),
    (
        made(DataError.ignored_label, "age"),
        "Column 'age' is both a label and ignored. Name it with --target or with --ignore, not "
        "with both.",
    ),
    (
        made(DataError.missing_value, "data.csv", 7, ["age"], 1),
        "data.csv, line 7 has no value in column 'age'. Fill it, or remove the line.",
    ),
    (
        made(
            DataError.missing_value, "data.csv", 7, ["age", "sex"], 1200, ", or give --missing drop"
        ),
        "data.csv, line 7 has no value in column 'age' (1,200 are missing, in age, sex). Fill it, "
        "or remove the line, or give --missing drop.",
    ),
    (
        made(DataError.missing_in_query, "new.csv", 3, "age"),
        "new.csv, line 3 has no value in column 'age', and a query cannot be dropped. Fill it, or "
        "give --missing mean or median, which are those of the examples.",
    ),
    (
        made(DataError.nothing_there, "data.csv", "age"),
        "data.csv, column 'age' has no value at all, so nothing can fill it. Leave it out: "
        "--ignore age.",
    ),
    (
        made(DataError.no_whole_row, "data.csv"),
        "Every row of data.csv lacks a value, so --missing drop leaves none. Use --missing mean or "
        "median, or leave the columns with gaps out (--ignore).",
    ),
    (
        made(DataError.other_type, "data.parquet", "day", "Date"),
        "data.parquet, column 'day' holds Date; numbers are expected. Remove the column or encode "
        "it as numbers.",
    ),
    (
        made(DataError.row_numbers, "data.csv"),
        "The first column of data.csv has no name and only counts the rows. Remove it, or give it "
        "a name if it is an input.",
    ),
    (
        made(DataError.long_line, "data.csv", ","),
        "Cannot read data.csv: a line has more cells than the first one, with ',' between cells. "
        "Mend the line, or give --delimiter.",
    ),
    (
        made(DataError.unclear_header, "data.csv", ["0", "1", "2", "3", "4"]),
        "The first line of data.csv (0, 1, 2, 3, ...) may be a header or an example. Give --header "
        "or --no-header (header=True or False in Python).",
    ),
    (
        made(DataError.wrong_inputs, "data.csv", ["a", "b"], 5),
        "data.csv has 2 columns of inputs (a, b); the model has 5. Name the label columns with "
        "--target and columns to leave out with --ignore, or compile with --widths "
        "that begin with 2.",
    ),
    (
        made(DataError.one_class_in, "data.csv", "kind", "red"),
        "data.csv, column 'kind' has only the class 'red'; two are needed. Name another column "
        "with --target.",
    ),
    (
        made(DataError.wrong_classes, "data.csv", "kind", ["blue", "green", "red"], 1),
        "data.csv, column 'kind' has 3 classes (blue, green, red), but the model has 1 output. "
        "Compile with --widths that end with 3.",
    ),
    (
        made(DataError.unknown_class, "new.csv", "kind", "blau", ["blue", "red"]),
        "new.csv, column 'kind' has the class 'blau', which the examples lack; known are blue, "
        "red. Did you mean 'blue'?",
    ),
    (
        made(DomainError.column_outside, "data.csv", "age", -71.0, 50.0, "--x-bound", ""),
        "data.csv, column 'age' goes to -71, but the transformer was made for 50 at most. Compile "
        "with --x-bound 71.07 or larger, or with --bounds-from a table that holds such values.",
    ),
    (made(DataError.unreadable, "data.csv", "no such file"), "Cannot read data.csv: no such file."),
    (
        made(DataError.repeated_column, "data.csv", "age"),
        "data.csv has two columns called 'age'; column names must be unique.",
    ),
    (
        made(DataError.wrong_labels, ["a", "b"], 3),
        "The model has 3 outputs, but the label columns are a, b. "
        "Give --target once for each output.",
    ),
    (
        made(DataError.wrong_query_columns, "queries.csv", 4, 3),
        "queries.csv has 4 columns; a query has 3 inputs. Keep only those, or give "
        "both files a header, so that inputs are found by name.",
    ),
    (
        made(DomainError.outside, "X", [3, 1], 5.5, 4.0, "domain.x"),
        "X[3, 1] is 5.5, outside [-4, 4]. Rescale the data or compile with a larger domain.x.",
    ),
    (
        made(DataError.too_long, 30, 61, 41),
        "A prompt of 30 examples and a query takes 61 places; the decoder has n_positions=41. Give "
        "shorter prompts, or make a decoder with n_positions=61, or without positions "
        "(n_positions=None).",
    ),
    (
        made(DataError.refused, "X", "Expected 2D array, got scalar array instead."),
        "X cannot be used: Expected 2D array, got scalar array instead.",
    ),
    (
        made(DataTypeError.of, "X", "Sparse data was passed."),
        "X cannot be used: Sparse data was passed.",
    ),
    (
        made(DataError.no_line, "y"),
        "y cannot be used: Complex data not supported, nor dates, durations and records. Give real "
        "numbers.",
    ),
    (
        made(DataError.other_precision, "y", "torch.float32", "torch.float64"),
        "y has dtype float32, and the other data float64. Convert one of them.",
    ),
    (
        made(DataError.no_class, [2], 3.0, 3),
        "y[2] is 3; the cross_entropy loss of 3 outputs needs classes from 0 to 2, or a row of 3 "
        "shares for each example.",
    ),
    (
        made(DataError.no_class_number, "data.csv", "kind", "3", 3),
        "data.csv, column 'kind' has the class 3; the cross_entropy loss of 3 outputs needs "
        "classes from 0 to 2.",
    ),
    (
        made(DataError.wrong_sum, "cross_entropy", [1], 1.5),
        "The labels of example [1] add up to 1.5; the cross_entropy loss needs shares that add up "
        "to 1, such as a 1 for the class and 0 for all others.",
    ),
    (
        made(DataError.other_number_of_examples, 3, 2),
        "X has 3 examples, but the transformer was made for prompts of 2. Give 2, or compile with "
        "n_examples=3.",
    ),
    (
        made(DataError.between_levels, "y", [1, 0], 0.50001, 0.5, 0.5001220703125),
        "y[1, 0] is 0.50001, on the ramp between two levels: the table has no entry for examples "
        "strictly between 0.5 and 0.500122070312. Move it out, or compile with a smaller "
        "kink_width.",
    ),
]


@pytest.mark.parametrize(("error", "text"), MESSAGES)
def test_the_message_is_complete(error, text):
    assert_complete(error, text)


def test_every_message_is_tested():
    assert_every_message_is_made(data)
