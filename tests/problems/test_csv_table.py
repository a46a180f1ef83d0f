import re
from pathlib import Path

import numpy as np
import pytest

from icgd.errors import DataError
from icgd.problems.csv_table import read_table


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path("data.csv")


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
