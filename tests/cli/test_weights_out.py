import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from icgd.cli.writing import write_weights
from tests.cli.files import compiled_run, listing, write_all

X = np.array([[0.5, -1, 2, 0], [1, 0.25, -3, 1], [-2, 1, 0, 0.125]])
Y = np.array([[1], [-0.5], [0.75]])


@pytest.fixture
def run(command, tmp_path):
    write_all(tmp_path)
    return lambda *options: command("run", "run.safetensors", "train.csv", *options)


def test_a_safetensors_file_holds_the_trained_matrices(run):
    assert "Saved w.safetensors" in run("--seed", 7, "--weights-out", "w.safetensors").stdout
    expected = compiled_run().run(X, Y, seed=7).weights
    found = load_file("w.safetensors")
    assert list(found) == list(expected) == ["weights_1", "weights_2"]
    assert all(found[name].equal(expected[name]) for name in expected)


def test_a_json_file_holds_the_same_numbers(run):
    assert run("--weights-out", "w.json", "--json").code == 0
    expected = compiled_run().run(X, Y, seed=0).weights
    data = json.loads(Path("w.json").read_text())
    assert data == {name: part.tolist() for name, part in expected.items()}


def test_transposed_matrices_and_single_numbers_are_written(tmp_path):
    weights = {"weights_1": torch.ones(3, 2).mT, "intercept": torch.tensor(2.0)}
    write_weights(tmp_path / "w.safetensors", weights)
    found = load_file(tmp_path / "w.safetensors")
    assert {name: part.tolist() for name, part in found.items()} == {
        "weights_1": [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], "intercept": 2.0
    }  # fmt: skip
    write_weights(tmp_path / "w.json", weights)
    assert json.loads((tmp_path / "w.json").read_text())["intercept"] == 2.0


def test_another_ending_is_refused_before_the_run(run, tmp_path):
    before = listing(tmp_path)
    assert run("--weights-out", "w.csv").refusal() == (
        "Weights are written to a .safetensors or .json file; w.csv has another ending. Rename it."
    )
    assert listing(tmp_path) == before
