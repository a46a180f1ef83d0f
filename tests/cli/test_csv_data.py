import re
from pathlib import Path

import numpy as np
import pytest

from icgd.cli.csv_data import csv_content, read_examples, read_queries, read_table
from icgd.errors import DataError, UnknownNameError
from icgd.problems.mlp import MLP


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path("data.csv")


def examples_in(path: Path, text: str, labels: list[str] | None = None):
    path.write_text(text)
    return read_examples(path, MLP((2, 1)), labels)


def test_a_first_row_without_numbers_is_a_header(path):
    path.write_text("x,y\n1,2\n3,4\n")
    table = read_table(path)
    assert table.names == ("x", "y")
    assert table.has_header
    assert table.numbers.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_without_a_header_columns_are_numbered(path):
    path.write_text("1,2\n3,-4e-1\n")
    table = read_table(path)
    assert table.names == ("column_1", "column_2")
    assert not table.has_header
    assert table.numbers.tolist() == [[1.0, 2.0], [3.0, -0.4]]


@pytest.mark.parametrize(
    "content",
    [
        "﻿x,y\n1,2\n".encode(),
        b"x,y\r\n1,2\r\n",
        b"x,y\n1,2\n\n\n",
        b"\nx,y\n  \n1,2",
        b'"x" , y\n"1", 2 \n',
    ],
    ids=["byte order mark", "CRLF", "blank end", "blank lines", "quotes and spaces"],
)
def test_files_as_spreadsheets_write_them(path, content):
    path.write_bytes(content)
    table = read_table(path)
    assert table.names == ("x", "y")
    assert table.numbers.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Cannot read data.csv: it is empty."),
        (b"\n\n", "Cannot read data.csv: it is empty."),
        (b"x,y\n", "Cannot read data.csv: it has a header and no rows."),
        (b"x,\xff\n1,2\n", "Cannot read data.csv: byte 2 is not UTF-8 text."),
        (b"x,x\n1,2\n", "data.csv has two columns called 'x'; column names must be unique."),
        (b"x,y\n1\n", "data.csv, line 2 has 1 cells; the first line has 2."),
        (
            b"x,y\n\n1,\n",
            "data.csv, line 3, column 'y' is empty; a number is expected. "
            "Fill the cell, or remove the line.",
        ),
        (
            b"1,two\n3,4\n",
            "data.csv, line 1 holds numbers ('1') and text ('two'), so it is neither a header nor "
            "an example. Give every column a name that is not a number.",
        ),
        (
            b"x,y\n1,1_000\n",
            "data.csv, line 2, column 'y': '1_000' is not a number. "
            "Remove the column or encode it as numbers.",
        ),
    ],
)
def test_unusable_files_are_refused(path, content, message):
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_table(path)
    assert str(caught.value) == message


def test_a_cell_beyond_the_readers_limit_is_refused(path):
    path.write_text("x,y\n1," + "9" * 200_000)
    with pytest.raises(DataError, match=r"Cannot read data.csv: field larger than field limit"):
        read_table(path)


def test_a_folder_is_refused(path):
    path.mkdir()
    with pytest.raises(DataError, match=r"Cannot read data.csv: Is a directory\."):
        read_table(path)


def test_not_a_number_is_left_to_the_librarys_check(path):
    path.write_text("x,y\nnan,inf\n")
    assert np.isnan(read_table(path).numbers[0, 0])


def test_labels_are_the_last_columns(path):
    examples = examples_in(path, "a,b,c\n1,2,3\n4,5,6\n")
    assert examples.input_names == ("a", "b")
    assert examples.label_names == ("c",)
    assert examples.inputs.tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert examples.labels.tolist() == [[3.0], [6.0]]


def test_labels_are_found_by_name_and_keep_their_order(path):
    path.write_text("a,b,c\n1,2,3\n")
    examples = read_examples(path, MLP((1, 2)), ["c", "a"])
    assert examples.input_names == ("b",)
    assert examples.labels.tolist() == [[3.0, 1.0]]


def test_numbered_columns_can_be_labels(path):
    assert examples_in(path, "1,2,3\n", ["column_1"]).inputs.tolist() == [[2.0, 3.0]]


def test_an_unknown_label_suggests_the_nearest(path):
    with pytest.raises(UnknownNameError) as caught:
        examples_in(path, "weight,power,price\n1,2,3\n", ["prize"])
    assert str(caught.value) == (
        "Unknown column 'prize' in data.csv; known are weight, power, price. Did you mean 'price'?"
    )


@pytest.mark.parametrize("labels", [["c", "c"], ["b", "c"]])
def test_as_many_labels_as_outputs_are_needed(path, labels):
    with pytest.raises(DataError) as caught:
        examples_in(path, "a,b,c\n1,2,3\n", labels)
    assert str(caught.value) == (
        f"The model has 1 output, but the label columns are {', '.join(labels)}. "
        "Give --label once for each output."
    )


@pytest.mark.parametrize(("text", "got"), [("a,b\n1,2\n", 2), ("a,b,c,d\n1,2,3,4\n", 4)])
def test_the_number_of_columns_must_fit_the_network(path, text, got):
    with pytest.raises(DataError) as caught:
        examples_in(path, text)
    assert str(caught.value) == (
        f"data.csv has {got} columns; the model needs 3 "
        "(inputs first, then labels; name label columns with --label)."
    )


def test_queries_are_matched_by_name(path, tmp_path):
    examples = examples_in(path, "a,b,c\n1,2,3\n")
    queries = tmp_path / "queries.csv"
    queries.write_text("extra,b,a\n9,2,1\n")
    assert read_queries(queries, examples).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("data", "queries"), [("1,2,3\n", "a,b\n5,6\n"), ("a,b,c\n1,2,3\n", "5,6\n")]
)
def test_queries_without_common_names_are_matched_by_place(path, data, queries):
    examples = examples_in(path, data)
    path.write_text(queries)
    assert read_queries(path, examples).tolist() == [[5.0, 6.0]]


def test_queries_that_lack_an_input_are_refused(path):
    examples = examples_in(path, "alpha,beta,c\n1,2,3\n")
    path.write_text("alpha,betta\n1,2\n")
    with pytest.raises(
        UnknownNameError, match=r"Unknown column 'beta' in data.csv; .*Did you mean 'betta'\?"
    ):
        read_queries(path, examples)


def test_queries_of_another_width_are_refused(path):
    examples = examples_in(path, "1,2,3\n")
    path.write_text("1,2,3\n")
    with pytest.raises(DataError) as caught:
        read_queries(path, examples)
    assert str(caught.value) == (
        "data.csv has 3 columns; a query has 2 inputs. Keep only those, or give both files a "
        "header, so that inputs are found by name."
    )


def test_written_numbers_read_back_bit_for_bit(path):
    rows = [[0.1, 1 / 3], [-1e-300, 12345678.9]]
    path.write_bytes(csv_content(["a", "b, c"], rows))
    table = read_table(path)
    assert table.names == ("a", "b, c")
    assert table.numbers.tolist() == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,\n", "data.csv, line 2, column 'b' is empty; a number is expected."),
        ("a;b\n1;2\n", "'1;2' is not a number. Put commas between the cells."),
        ("a,2\n1,2\n", "line 1 holds numbers ('2') and text ('a')"),
    ],
    ids=["empty", "semicolons", "mixed"],
)
def test_what_is_wrong_with_a_file_is_said(path, text, message):
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(message)):
        read_table(path)
