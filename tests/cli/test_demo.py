import json
from importlib import import_module

import pytest

import icgd
from icgd.cli.cars_demo import QUICK, numbers
from tests.cli.files import listing


@pytest.fixture
def demo(command, monkeypatch):
    """`icgd demo` with settings that take a moment."""
    monkeypatch.setattr(import_module("icgd.cli.demo"), "SETTINGS", QUICK)
    return lambda *options: command("demo", *options)


def test_it_tells_the_story_and_saves_figure_and_numbers(demo, tmp_path):
    outcome = demo()
    assert outcome.code == 0
    for part in (
        "A 4-3-3-1 tanh network learns the miles per gallon",
        "The transformer (relu-stack)",
        "HOLDS for this run: every measured error is within its proved bound",
        "Proved: the whole run is within",
        "real gradient descent",
        "transformer, 5 steps",
    ):
        assert part in outcome.stdout
    assert listing(tmp_path) == ["icgd-demo", "icgd-demo/demo.json", "icgd-demo/demo.png"]
    assert (tmp_path / "icgd-demo/demo.png").read_bytes().startswith(b"\x89PNG")
    assert outcome.stdout.endswith("Saved icgd-demo/demo.png and icgd-demo/demo.json\n")


def test_the_example_of_the_help_with_json_holds_the_librarys_numbers(demo, command, tmp_path):
    outcome = command(*demo("--help").example(), "--json")
    data, expected = json.loads(outcome.stdout), numbers(QUICK)
    assert json.loads((tmp_path / "icgd-demo/demo.json").read_text()) == data
    assert icgd.Problem.from_data(data["problem"]) == QUICK.problem
    assert data["transformer_losses"] == list(expected.transformer_losses)
    assert data["transformer_rmse"] == expected.transformer_rmse
    assert data["predictions"][0]["car"] == expected.predictions[0].car
    assert data["report"]["verdict"] == "HOLDS"
    assert data["report"]["headline"] == expected.report.headline
    assert data["report"]["step_errors"] == expected.report.step_errors.tolist()
    assert data["summary"]["dense_bytes"] == 8 * expected.summary.parameters


def test_a_folder_that_cannot_be_is_refused(demo, tmp_path):
    (tmp_path / "taken").touch()
    assert demo("--out", "taken").refusal() == "Cannot write taken: File exists."
    assert listing(tmp_path) == ["taken"]
