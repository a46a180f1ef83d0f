from pathlib import Path

import pytest

from icgd.cli.data_options import Source
from icgd.cli.examples import labels_of, read_examples, read_queries
from icgd.errors import DataError, UnknownNameError
from tests.cli.files import network_of


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path("data.csv")


def examples_in(path: Path, text: str, labels: list[str] | None = None):
    path.write_text(text)
    return read_examples(Source(path, labels), network_of(2, 1))


def test_labels_are_the_last_columns(path):
    examples = examples_in(path, "a,b,c\n1,2,3\n4,5,6\n")
    assert examples.input_names == ("a", "b")
    assert examples.label_names == ("c",)
    assert examples.inputs.tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert examples.labels.tolist() == [[3.0], [6.0]]


def test_labels_are_found_by_name_and_keep_their_order(path):
    path.write_text("a,b,c\n1,2,3\n")
    examples = read_examples(Source(path, ["c", "a"]), network_of(1, 2))
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
        "Give --target once for each output."
    )


@pytest.mark.parametrize(
    ("text", "got", "names"), [("a,b\n1,2\n", 1, "a"), ("a,b,c,d\n1,2,3,4\n", 3, "a, b, c")]
)
def test_the_number_of_columns_must_fit_the_network(path, text, got, names):
    with pytest.raises(DataError) as caught:
        examples_in(path, text)
    assert str(caught.value) == (
        f"data.csv has {got} columns of inputs ({names}); the model has 2. Name the label columns "
        f"with --target and columns to leave out with --ignore, or compile for this table with "
        "--data."
    )


def test_queries_are_matched_by_name(path, tmp_path):
    examples = examples_in(path, "a,b,c\n1,2,3\n")
    queries = tmp_path / "queries.csv"
    queries.write_text("extra,b,a\n9,2,1\n")
    assert read_queries(queries, examples).inputs.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("data", "queries"), [("1,2,3\n", "a,b\n5,6\n"), ("a,b,c\n1,2,3\n", "5,6\n")]
)
def test_queries_without_common_names_are_matched_by_place(path, data, queries):
    examples = examples_in(path, data)
    path.write_text(queries)
    assert read_queries(path, examples).inputs.tolist() == [[5.0, 6.0]]


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


def test_labels_of_queries_are_read_where_they_are(path, tmp_path):
    examples = examples_in(path, "a,b,c\n1,2,3\n4,5,7\n")
    queries = tmp_path / "queries.csv"
    queries.write_text("a,b,c\n9,2,1\n")
    assert labels_of(read_queries(queries, examples), examples).tolist() == [[1.0]]
    queries.write_text("a,b,c\n9,2,\n")
    assert labels_of(read_queries(queries, examples), examples) is None
    queries.write_text("a,b,c\n9,2,\n9,2,1\n")
    with pytest.warns(UserWarning, match="not scored: .* line 2 has no value in column 'c'"):
        assert labels_of(read_queries(queries, examples), examples) is None


@pytest.mark.parametrize(
    ("text", "reason"), [("tbd", "has texts, the examples have numbers"), ("inf", "is inf; every")]
)
def test_labels_of_queries_that_are_no_numbers_are_not_scored(path, tmp_path, text, reason):
    examples = examples_in(path, "a,b,c\n1,2,3\n4,5,7\n")
    queries = tmp_path / "queries.csv"
    queries.write_text(f"a,b,c\n9,2,{text}\n")
    asked = read_queries(queries, examples)
    assert asked.inputs.tolist() == [[9.0, 2.0]]
    with pytest.warns(UserWarning, match=f"The predictions are not scored: .*{reason}"):
        assert labels_of(asked, examples) is None


def test_inputs_are_filled_with_what_the_examples_have(path, tmp_path):
    path.write_text("a,b,c\n1,2,3\n,4,5\n5,6,7\n")
    examples = read_examples(Source(path, missing="mean"), network_of(2, 1))
    assert examples.inputs.tolist() == [[1, 2], [3, 4], [5, 6]]
    queries = tmp_path / "queries.csv"
    queries.write_text("a,b\n,\n")
    assert read_queries(queries, examples).inputs.tolist() == [[3.0, 4.0]]


def test_a_label_is_never_made_up(path):
    path.write_text("a,b,c\n1,2,3\n4,5,\n")
    with pytest.raises(DataError, match="line 3 has no value in column 'c'"):
        read_examples(Source(path, missing="mean"), network_of(2, 1))
