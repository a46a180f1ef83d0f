"""Delimiters, decimal marks and headers that a file does not name."""

import gzip
from pathlib import Path

import pytest

from icgd.errors import DataError, UnknownNameError
from icgd.problems.tables import Reading, read_table


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path("data.csv")


def numbers(table):
    return table.numbers(table.names).tolist()


@pytest.mark.parametrize(
    "content",
    [
        "﻿x,y\n1,2\n".encode(),
        b"x,y\r\n1,2\r\n",
        b"x,y\n1,2\n\n\n",
        b"\nx,y\n  \n1,2",
        b'"x", y\n"1", 2 \n',
        b"x;y\n1;2\n",
        b"x\ty\n1\t2\n",
        b"x|y\n1|2\n",
        b"x y\n1 2\n",
        b"x;y\n1,0;2,0\n",
        gzip.compress(b"x,y\n1,2\n", mtime=0),
    ],
    ids=[
        "byte order mark",
        "CRLF",
        "blank end",
        "blank lines",
        "quotes and spaces",
        "semicolons",
        "tabs",
        "bars",
        "spaces",
        "decimal commas",
        "gz",
    ],
)
def test_files_as_programs_write_them(path, content):
    path.write_bytes(content)
    table = read_table(path)
    assert table.names == ("x", "y")
    assert numbers(table) == [[1.0, 2.0]]


def test_a_decimal_comma_is_told_from_a_delimiter(path):
    path.write_text("size;price\n1,5;-2,25e1\n3;4\n")
    assert numbers(read_table(path)) == [[1.5, -22.5], [3.0, 4.0]]
    path.write_text("size;price\n1.5;2,5\n")  # one of the two is no number
    with pytest.raises(DataError, match=r"line 2, column 'price': '2,5' is not a number"):
        numbers(read_table(path))
    assert numbers(read_table(path, Reading(decimal="comma"))) == [[1.5, 2.5]]


def test_what_is_said_of_a_file_goes_before_what_it_looks_like(path):
    path.write_text("1;2\n3;4\n")
    assert read_table(path, Reading(delimiter="comma")).names == ("1;2",)
    assert read_table(path, Reading(header=True)).names == ("1", "2")
    assert numbers(read_table(path, Reading(header=False))) == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(UnknownNameError, match=r"Unknown delimiter 'semikolon'; .*'semicolon'"):
        Reading(delimiter="semikolon")


@pytest.mark.parametrize(
    "text",
    [
        "0,1,2\n0.5,1.5,2.5\n",  # the columns of an array without names
        "2019,2020\n1.5,2.5\n",
        "1990,2000,2010\n1.5,2,3\n",
        "a,2\n1,2\n",
        "1,two\n3,4\n",
    ],
)
def test_a_first_line_that_may_be_either_is_refused(path, text):
    path.write_text(text)
    with pytest.raises(DataError, match=r"may be a header or an example. Give --header or"):
        read_table(path)
    assert len(read_table(path, Reading(header=True)).lines) == 1
    assert len(read_table(path, Reading(header=False)).lines) == 2
