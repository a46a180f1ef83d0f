"""Tables: what is read from files, what is refused, and the scaling of columns."""

import gzip
import random
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from icgd.errors import DataError, UnknownNameError
from icgd.problems.tables import Reading, Scaling, read_table


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path("data.csv")


def numbers(table):
    return table.numbers(table.names).tolist()


def test_a_first_row_without_numbers_is_a_header(path):
    path.write_text("x,y\n1,2\n3,4\n")
    table = read_table(path)
    assert table.names == ("x", "y")
    assert table.has_header
    assert numbers(table) == [[1.0, 2.0], [3.0, 4.0]]
    assert table.lines == (2, 3)


def test_without_a_header_columns_are_numbered(path):
    path.write_text("1,2.5\n3,-4e-1\n")
    table = read_table(path)
    assert table.names == ("column_1", "column_2")
    assert not table.has_header
    assert numbers(table) == [[1.0, 2.5], [3.0, -0.4]]
    assert table.lines == (1, 2)


def test_texts_are_columns_too(path):
    path.write_text("5.1,3.5,setosa\n6.0,2.2,virginica\n")
    table = read_table(path)
    assert not table.has_header
    assert table.texts("column_3") == ["setosa", "virginica"]
    assert table.texts("column_1") is None
    with pytest.raises(DataError, match=r"line 1, column 'column_3': 'setosa' is not a number"):
        table.numbers(["column_3"])


CUT_GZ = gzip.compress(b"x,y\n1,2\n", mtime=0)[:-6]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Cannot read data.csv: it is empty."),
        (b"\n\n", "Cannot read data.csv: it is empty."),
        (b"x,y\n", "Cannot read data.csv: it has a header and no rows."),
        (b"x,\xff\n1,2\n", "Cannot read data.csv: byte 2 is not UTF-8 text."),
        (b"x,x\n1,2\n", "data.csv has two columns called 'x'; column names must be unique."),
        (b"x,y\n1\n", "data.csv, line 2 has no value in column 'y'. Fill it"),
        (b"x,y\n\n1,\n", "data.csv, line 3 has no value in column 'y'. Fill it"),
        (b"x,y\n1,2,3\n", "Cannot read data.csv: a line has more cells than the first one"),
        (b'x,y\n"1"2,3\n', "Cannot read data.csv: a cell has text outside its quotes."),
        (b"x,y\n1,1_000\n", "data.csv, line 2, column 'y': '1_000' is not a number."),
        (b"x,y\n1,inf\n", "data.csv, line 2, column 'y' is inf; every number must be finite."),
        (b"x,y\n1,nan\n3,?\n", "line 2 has no value in column 'y' (2 are missing, in y)."),
        (b"x,y\n,\n3,4\n", "line 2 has no value in column 'x'."),
        (b",x\n0,5\n1,6\n", "The first column of data.csv has no name and only counts the rows."),
        (
            gzip.compress(b"x,y\n1,2\n", mtime=0)[:-6],
            "Cannot read data.csv: it is not a complete gz file (",
        ),
    ],
)
def test_unusable_files_are_refused(path, content, message):
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(message)):
        numbers(read_table(path))


def test_a_folder_and_a_file_that_is_not_there_are_refused(path):
    with pytest.raises(DataError, match=r"Cannot read data.csv: No such file or directory\."):
        read_table(path)
    path.mkdir()
    with pytest.raises(DataError, match=r"Cannot read data.csv: Is a directory\."):
        read_table(path)


def test_parquet_and_arrow_keep_their_types(tmp_path):
    frame = pl.DataFrame(
        {"a": [1, 2], "b": [True, None], "c": ["x", "y"], "d": [0.5, float("nan")]}
    )
    frame.write_parquet(tmp_path / "t.parquet")
    frame.write_ipc(tmp_path / "t.arrow")
    for name in ("t.parquet", "t.arrow"):
        table = read_table(tmp_path / name)
        assert table.numbers(["a"]).tolist() == [[1.0], [2.0]]
        assert table.texts("c") == ["x", "y"]
        assert (table.gaps("b"), table.gaps("d")) == ([2], [2])
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"Cannot read .*bad.parquet: "):
        read_table(tmp_path / "bad.parquet")
    frame.clear().write_parquet(tmp_path / "none.parquet")
    with pytest.raises(DataError, match=r"none.parquet: it has no rows\."):
        read_table(tmp_path / "none.parquet")


def test_a_type_that_is_no_number_is_named(tmp_path):
    pl.DataFrame({"a": [[1.0]]}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"column 'a' has type List\(Float64\); expected numbers"):
        read_table(tmp_path / "t.parquet").numbers(["a"])


def test_gaps_are_dropped_or_filled(path):
    path.write_text("x,y,z\n1,2,\n3,,5\n8,10,7\n")
    table = read_table(path)
    whole = table.without_gaps(["x", "y"])
    assert whole.lines == (2, 4)
    assert whole.numbers(["x", "y"]).tolist() == [[1.0, 2.0], [8.0, 10.0]]
    assert table.means(["x", "y"], "mean") == {"x": 4.0, "y": 6.0}
    assert table.means(["x", "y"], "median") == {"x": 3.0, "y": 6.0}
    assert table.filled({"y": 6.0}).numbers(["y"]).tolist() == [[2.0], [6.0], [10.0]]
    path.write_text("x,y\n1,\n,2\n")
    with pytest.raises(DataError, match=r"Every row of data\.csv lacks a value"):
        read_table(path).without_gaps(["x", "y"])


def test_a_column_without_any_value_cannot_be_filled(path):
    path.write_text("x,y\n1,\n2,\n")
    with pytest.raises(DataError, match=r"column 'y' has no values"):
        read_table(path).means(["x", "y"], "mean")


def test_numbers_are_read_to_the_last_bit(path):
    chance = random.Random(0)
    rows = [[chance.uniform(-1, 1) * 10.0 ** chance.randint(-300, 300)] for _ in range(2000)]
    path.write_text("x\n" + "".join(f"{row[0]!r}\n" for row in rows))
    assert numbers(read_table(path)) == rows


def test_columns_can_be_left_out_but_not_all_of_them(path):
    path.write_text("a,b,c\n1,2,3\n4,5,6\n")
    table = read_table(path)
    assert table.without(["b"]).names == ("a", "c")
    assert table.without(["b"]).numbers(["c"]).tolist() == [[3.0], [6.0]]
    assert table.without([]).names == ("a", "b", "c")
    with pytest.raises(UnknownNameError, match="Unknown column 'd'"):
        table.without(["a", "d"])
    with pytest.raises(DataError, match="no columns besides the ignored ones: a, b, c"):
        table.without(["c", "b", "a"])


@pytest.mark.parametrize("path", ["/dev/null", "/dev/full"])
def test_a_device_is_no_table(path):
    with pytest.raises(
        DataError, match=f"Cannot read {path}: it is a device or a pipe; expected a file"
    ):
        read_table(Path(path))


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


def test_marks_of_unicode_within_a_cell_end_no_line(path):
    path.write_text("x,note\n1,a\u2028b\n2,c\x85d\n", encoding="utf-8")
    assert read_table(path).frame.rows() == [(1.0, "a\u2028b"), (2.0, "c\x85d")]


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


def test_columns_get_mean_0_and_deviation_1_and_come_back():
    numbers = np.random.default_rng(0).normal(5.0, [1.0, 1e6, 1e-6], (50, 3))
    scaling = Scaling.of(numbers)
    standard = scaling.applied(numbers)
    assert np.allclose(standard.mean(0), 0, atol=1e-9)
    assert np.allclose(standard.std(0), 1)
    assert np.allclose(scaling.undone(standard), numbers, rtol=1e-14)


def test_no_square_of_huge_or_tiny_numbers_is_lost():
    numbers = np.array([[1e300, 1e-300], [-1e300, 3e-300]])
    assert Scaling.of(numbers).applied(numbers) == pytest.approx(
        np.array([[1.0, -1.0], [-1.0, 1.0]])
    )


def test_a_constant_column_is_only_centred():
    assert Scaling.of(np.full((4, 1), 0.1)).applied(np.array([[0.1], [0.6]])).tolist() == [
        [0.0],
        [0.5],
    ]


def test_none_leaves_every_bit():
    numbers = np.array([[0.1, -1e300]])
    assert Scaling.none(2).undone(Scaling.none(2).applied(numbers)).tolist() == numbers.tolist()


COLOURS = "day,colour,size\n2024-01-01,red,1\n2024-01-03,blue,2\n,red,3\n2023-12-31,,4\n"


def test_texts_and_dates_become_numbers(path):
    path.write_text(COLOURS)
    table = read_table(path)
    codes = table.codes(table.names)
    assert codes == {"day": "date", "colour": ["blue", "red"]}
    frame = table.encoded(codes).frame
    assert frame.columns == ["day", "colour=blue", "colour=red", "size"]
    assert frame.rows() == [
        (19723.0, 0.0, 1.0, 1.0),
        (19725.0, 1.0, 0.0, 2.0),
        (None, 0.0, 1.0, 3.0),
        (19722.0, None, None, 4.0),
    ]


@pytest.mark.parametrize(
    ("cells", "days"),
    [
        (["31.12.1969", "02.01.1970"], [-1.0, 1.0]),
        (["1970/01/02", "1970/02/01"], [1.0, 31.0]),
        (["1970-01-01 12:00", "1970-01-02 06:00"], [0.5, 1.25]),
        (["1970-01-02T00:00:00", "1970-01-03T18:00:00"], [1.0, 2.75]),
    ],
)
def test_dates_have_several_forms(path, cells, days):
    path.write_text("when,y\n" + "".join(f"{cell},1\n" for cell in cells))
    table = read_table(path)
    assert table.encoded(table.codes(["when"])).frame["when"].to_list() == days


def test_a_day_that_depends_on_the_country_is_no_date(path):
    path.write_text("when,y\n3/4/2026,1\n3/4/2026,2\n4/3/2026,1\n")
    assert read_table(path).codes(["when"]) == {"when": ["3/4/2026", "4/3/2026"]}


def test_parquet_has_dates_and_categories_of_its_own(tmp_path):
    path = tmp_path / "own.parquet"
    days = pl.Series("day", ["1970-01-02", "1970-01-05"]).str.to_date()
    kinds = pl.Series("kind", ["b", "a"], dtype=pl.Categorical)
    pl.DataFrame([days, kinds]).write_parquet(path)
    table = read_table(path)
    encoded = table.encoded(table.codes(table.names))
    assert numbers(encoded) == [[1.0, 0.0, 1.0], [4.0, 1.0, 0.0]]


def test_columns_that_cannot_be_encoded_are_named(path):
    path.write_text("name,size\nann,1\nbob,2\ncarl,3\n")
    with pytest.raises(DataError, match=r"a different text in every row, .*--ignore name\."):
        read_table(path).codes(["name"])
    path.write_text("day,y\n2024-13-01,1\n")
    with pytest.raises(DataError, match="has dates in the examples, but here '2024-13-01'"):
        read_table(path).encoded({"day": "date"})
