from pathlib import Path

import numpy as np
import pytest

import icgd
from icgd.cli.classes import Classes
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


def test_classes_are_learnt_in_batches_by_cross_entropy(command, tmp_path):
    rows = ["a,b,kind", "0.1,0.2,red", "0.9,0.8,blue", "0.5,-0.5,green", "-0.3,0.1,red"]
    (tmp_path / "data.csv").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "new.csv").write_text("a,b\n0.9,0.9\n", encoding="utf-8")
    options = ("--loss", "cross_entropy", "--batch-size", "3", "--biases", "--step-size", "1")
    saved = ("--steps", "40", "-o", "run.safetensors")
    assert command("compile", "--widths", "2,3", *options, *saved).code == 0
    assert icgd.load(tmp_path / "run.safetensors").problem.loss == "cross_entropy"
    found = command("run", "run.safetensors", "data.csv", "--queries", "new.csv", "-o", "out.csv")
    assert found.code == 0, found
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").split(",")[-4].endswith("blue")
    assert command("verify", "run.safetensors", "data.csv").code == 0
