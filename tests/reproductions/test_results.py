"""Files of a reproduction: what they hold, and that an interrupted one goes on."""

import csv
import json
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from icgd.errors import CheckpointError, FileError, SweepError
from icgd.reproductions.cheng_matrices import FIGURE_3
from icgd.reproductions.results import circumstances, reproduce, stored_rows

RESULTS = import_module("icgd.reproductions.results")
TRAINING = import_module("icgd.reproductions.cheng_training")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The smoke preset of one figure."""
    out = tmp_path_factory.mktemp("results")
    return reproduce(FIGURE_3, "smoke", out=out)


def test_numbers_and_picture_are_apart(finished):
    names = sorted(path.name for path in finished.folder.iterdir())
    assert names == ["smoke.csv", "smoke.json", "smoke.png"]  # and nothing partial
    data = json.loads((finished.folder / "smoke.json").read_text())
    assert data == json.loads(json.dumps(finished.numbers))
    with (finished.folder / "smoke.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["BC_2"] for line in lines] == [str(row["BC_2"]) for row in data["rows"]]
    assert lines[0]["A_1"] == ""


def test_the_numbers_say_how_they_came_about(finished):
    data = finished.numbers
    assert (data["figure"], data["preset"], data["seed"]) == ("cheng-fig3", "smoke", 0)
    assert data["n_models"] == 2
    assert [budget["n_steps"] for budget in data["budgets"]] == [4, 10]  # A = 0, and A free
    assert set(data["machine"]) == {"cores", "architecture"}
    assert data["date"] == circumstances()["date"]
    assert len(data["date"]) == len("2024-01-31")
    assert data["seconds"] >= data["training_seconds"] > 0


def test_the_commit_is_that_of_the_source():
    root = Path(RESULTS.__file__).parents[3]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True)
    if head.returncode:
        assert RESULTS.commit() is None
    else:
        assert RESULTS.commit().removesuffix("-dirty") == head.stdout.strip()


def test_the_commit_of_a_repository_around_an_installation_is_not_taken(monkeypatch, tmp_path):
    who = ("-c", "user.name=n", "-c", "user.email=e")
    for command in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(RESULTS, "__file__", str(tmp_path / "icgd/reproductions/results.py"))
    (tmp_path / "icgd/reproductions").mkdir(parents=True)
    assert RESULTS.commit() is None
    monkeypatch.setattr(RESULTS, "__file__", str(tmp_path / "src/icgd/reproductions/results.py"))
    (tmp_path / "src/icgd/reproductions").mkdir(parents=True)
    assert len(RESULTS.commit()) == 40


def test_rows_are_read_from_the_numbers(finished, tmp_path):
    assert stored_rows(finished.folder / "smoke.json") == finished.numbers["rows"]
    for content in ("[]", '{"figure": "cheng-fig3"}', '{"rows": []}'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"bad\.json is damaged .*\(it has no rows\)"):
            stored_rows(tmp_path / "bad.json")


def test_an_interrupted_reproduction_goes_on(finished, tmp_path, monkeypatch):
    real, trained = TRAINING.train_once, []

    def interrupted(run, folder):
        trained.append(run.transforms_covariates)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return real(run, folder)

    monkeypatch.setattr(TRAINING, "train_once", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce(FIGURE_3, "smoke", out=tmp_path)
    assert (tmp_path / "cheng-fig3/.smoke.partial/000/outcome.json").exists()
    again = reproduce(FIGURE_3, "smoke", out=tmp_path)
    assert trained == [False, True, True]  # the first model was not trained again
    for row, expected in zip(again.numbers["rows"], finished.numbers["rows"], strict=True):
        assert row | {"seconds": 0} == expected | {"seconds": 0}
    assert not (tmp_path / "cheng-fig3/.smoke.partial").exists()


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A folder in which a reproduction failed at its first model."""

    def fails(run, folder):
        raise RuntimeError("no power")

    monkeypatch.setattr(TRAINING, "train_once", fails)
    with pytest.raises(SweepError, match="no power"):
        reproduce(FIGURE_3, "smoke", out=tmp_path)
    return tmp_path


def test_partial_results_of_another_seed_are_refused(stopped):
    kept = stopped / "cheng-fig3/.smoke.partial"
    with pytest.raises(CheckpointError) as caught:
        reproduce(FIGURE_3, "smoke", out=stopped, seed=7)
    assert str(caught.value) == (
        f"{kept} belongs to another run: its seed is 0, here it is 7. It was left as it is; "
        "go on with the old value, or train in another folder."
    )
    assert kept.exists()


def test_partial_results_of_other_settings_are_refused(stopped):
    record = stopped / "cheng-fig3/.smoke.partial/runs.json"
    stored = json.loads(record.read_text())
    stored["models.1.budget.n_steps"] = 9
    record.write_text(json.dumps(stored))
    expected = r"its models\.1\.budget\.n_steps is 9, here it is 10\."
    with pytest.raises(CheckpointError, match=expected):
        reproduce(FIGURE_3, "smoke", out=stopped)


def test_a_damaged_record_is_named(stopped):
    record = stopped / "cheng-fig3/.smoke.partial/runs.json"
    record.write_text("{")
    with pytest.raises(CheckpointError, match=r"runs\.json is damaged or not a checkpoint"):
        reproduce(FIGURE_3, "smoke", out=stopped)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(FileError) as caught:
        reproduce(FIGURE_3, "smoke", out=tmp_path / "taken")
    assert str(caught.value) == f"Cannot write {tmp_path}/taken/cheng-fig3: Not a directory."
