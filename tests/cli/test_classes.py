import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import icgd
from icgd.cli.classes import Classes
from icgd.cli.data_options import Source
from icgd.cli.examples import labels_of, read_examples, read_queries
from icgd.errors import DataError
from tests.cli.files import network_of

FILE, CELLS = Path("data.csv"), ["red", "blue", "red"]


def test_two_classes_with_one_output_are_0_and_1():
    classes = Classes.of(FILE, "kind", CELLS, network_of(2, 1))
    assert classes.names == ("blue", "red")
    assert classes.encoded(FILE, "kind", CELLS).tolist() == [[1.0], [0.0], [1.0]]
    assert classes.decoded(np.array([[0.49], [0.51]])) == ["blue", "red"]


def test_the_logistic_loss_returns_scores():
    step, domain = icgd.GradientStep(0.1, 3.0), icgd.Domain(1.0, 1.0)
    problem = icgd.Problem(icgd.MLP((2, 1)), "logistic", step, domain)
    classes = Classes.of(FILE, "kind", CELLS, problem)
    assert classes.decoded(np.array([[-0.1], [0.1]])) == ["blue", "red"]


def test_every_class_may_have_an_output():
    classes = Classes.of(FILE, "kind", [*CELLS, "green"], network_of(2, 3))
    assert classes.encoded(FILE, "kind", ["green"]).tolist() == [[0.0, 1.0, 0.0]]
    assert classes.decoded(np.array([[0.1, 0.2, 0.3], [3, 1, 2]])) == ["red", "blue"]


@pytest.mark.parametrize(
    ("cells", "n_outputs", "message"),
    [
        (["red"], 1, "only the class 'red'"),
        (["a", "b", "c"], 1, r"3 classes \(a, b, c\), but the model has 1 output\."),
        (["a", "b"], 3, r"2 classes \(a, b\), but the model has 3 outputs\."),
    ],
)
def test_outputs_must_tell_the_classes_apart(cells, n_outputs, message):
    with pytest.raises(DataError, match=message):
        Classes.of(FILE, "kind", cells, network_of(2, n_outputs))


def test_classes_are_learnt_in_batches_by_cross_entropy(command, toml, tmp_path):
    rows = ["a,b,kind", "0.1,0.2,red", "0.9,0.8,blue", "0.5,-0.5,green", "-0.3,0.1,red"]
    (tmp_path / "data.csv").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "new.csv").write_text("a,b\n0.9,0.9\n", encoding="utf-8")
    lines = """
        loss = "cross_entropy"
        steps = 40
        target = {widths = [2, 3], biases = true}
        update = {batch_size = 3, step_size = 1.0}
    """
    assert command("compile", toml(lines), "-o", "run.safetensors").code == 0
    assert icgd.load(tmp_path / "run.safetensors").problem.loss == "cross_entropy"
    found = command("run", "run.safetensors", "data.csv", "--queries", "new.csv", "-o", "out.csv")
    assert found.code == 0, found
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").split(",")[-4].endswith("blue")
    assert command("verify", "run.safetensors", "data.csv").code == 0


NUMBERED = "a,b,kind\n0.1,0.2,2\n0.9,0.8,0\n0.5,-0.5,1\n-0.3,0.1,2\n"


def cross_entropy_of(*widths: int) -> icgd.Problem:
    return replace(network_of(*widths), loss="cross_entropy")


@pytest.mark.parametrize("targets", [None, ["kind"]])
def test_a_column_of_numbers_has_the_classes_of_cross_entropy(tmp_path, targets):
    path = tmp_path / "data.csv"
    path.write_text(NUMBERED, encoding="utf-8")
    examples = read_examples(Source(path, targets), cross_entropy_of(2, 3))
    assert examples.input_names == ("a", "b")
    assert examples.classes.names == ("0", "1", "2")
    assert examples.labels.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    queries = tmp_path / "new.csv"
    queries.write_text("a,b,kind\n1,1,1\n", encoding="utf-8")
    assert labels_of(read_queries(queries, examples), examples).tolist() == [[0, 1, 0]]
    assert examples.answers(np.array([[0.5, 2.0, 1.0]])) == [["1", 0.5, 2.0, 1.0]]


def test_a_number_in_queries_is_the_class_of_its_value(tmp_path):
    """A column of texts in the examples may hold numbers alone in the queries."""
    path, queries = tmp_path / "data.csv", tmp_path / "new.csv"
    path.write_text("a,b,kind\n0.1,0.2,1.0\n0.9,0.8,2.0\n0.5,0.4,x\n", encoding="utf-8")
    examples = read_examples(Source(path), cross_entropy_of(2, 3))
    queries.write_text("a,b,kind\n1,1,2.0\n1,1,1.0\n", encoding="utf-8")
    found = labels_of(read_queries(queries, examples), examples)
    assert found.tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("targets", ["kind,c", "c,kind"])
def test_classes_are_the_only_label(command, tmp_path, targets):
    """The other label would be left out silently: two classes have two outputs too."""
    (tmp_path / "data.csv").write_text("a,c,kind\n0.1,0.2,x\n0.9,0.8,y\n", encoding="utf-8")
    made = ("compile", "--data", "data.csv", "--target", targets, "-o", "run.safetensors")
    message = "data.csv, column 'kind' has texts, which are classes and must be the only label"
    assert command(*made).refusal().startswith(message)


def test_numbers_that_are_names_are_refused_as_classes(command, tmp_path):
    """Postcodes, say: an output for each number from 0 would not fit into memory."""
    (tmp_path / "data.csv").write_text(f"{NUMBERED}1,1,90210\n", encoding="utf-8")
    made = ("compile", "--data", "data.csv", "--loss", "cross_entropy", "-o", "run.safetensors")
    assert command(*made).refusal().startswith("data.csv, column 'kind' has the class 90210; the")


def test_a_column_for_each_class_has_shares(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("a,b,c,d\n0.1,0.2,1,0\n0.9,0.8,0.25,0.75\n", encoding="utf-8")
    examples = read_examples(Source(path), cross_entropy_of(2, 2))
    assert examples.classes is None
    assert examples.labels.tolist() == [[1, 0], [0.25, 0.75]]


@pytest.mark.parametrize("cell", ["3", "-1", "0.5"])
def test_numbers_that_are_no_classes_are_refused(tmp_path, cell):
    path = tmp_path / "data.csv"
    path.write_text(f"{NUMBERED}1,1,{cell}\n", encoding="utf-8")
    with pytest.raises(DataError) as refused:
        read_examples(Source(path), cross_entropy_of(2, 3))
    assert str(refused.value) == (
        f"{path}, column 'kind' has the class {cell}; the cross_entropy loss of 3 outputs needs "
        "classes from 0 to 2."
    )


def test_numbered_classes_are_learnt_and_scored(command, toml, tmp_path):
    (tmp_path / "data.csv").write_text(NUMBERED, encoding="utf-8")
    lines = "target = {hidden = [], biases = true}\n"
    options = ("--loss", "cross_entropy", "--optimiser", "momentum", "--data", "data.csv")
    saved = ("--steps", "30", "-o", "run.safetensors")
    assert command("compile", toml(lines), *options, *saved).code == 0
    found = command("run", "run.safetensors", "data.csv", "--queries", "data.csv", "--json")
    data = json.loads(found.stdout)
    assert (data["measure"], data["score"]) == ("accuracy", 1.0)
    assert [row[0] for row in data["predictions"]] == ["2", "0", "1", "2"]
    assert command("verify", "run.safetensors", "data.csv").code == 0
