"""Files of a reproduction: what they hold, and that an interrupted one goes on."""

import csv
import json
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
import torch

from icgd.errors import (
    CheckpointError,
    FileError,
    InterruptedStudiesError,
    RunFolderError,
    SettingError,
    SweepError,
    UnknownNameError,
)
from icgd_papers.checksummed_json import read_checksummed, write_checksummed
from icgd_papers.figures.cheng_matrices import FIGURE_3
from icgd_papers.results import Order, circumstances, reproduce, stored_rows
from icgd_papers.studies.wang_rates import RATES
from icgd_papers.training.devices import Device
from icgd_papers.training.lock import locked

RESULTS = import_module("icgd_papers.results")
TRAINING = import_module("icgd_papers.figures.cheng_training")


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
    monkeypatch.setattr(RESULTS, "__file__", str(tmp_path / "src/icgd_papers/results.py"))
    (tmp_path / "src/icgd_papers").mkdir(parents=True)
    assert len(RESULTS.commit()) == 40


def test_rows_are_read_from_the_numbers(finished, tmp_path):
    assert stored_rows(finished.folder / "smoke.json") == finished.numbers["rows"]
    for table in ({"figure": "cheng-fig3"}, {"rows": []}, {"rows": [1]}, {"rows": {"a": 1}}):
        (tmp_path / "bad.json").write_text(json.dumps(with_checksum(table)))
        with pytest.raises(CheckpointError, match=r"bad\.json is damaged .*\(it has no rows\)"):
            stored_rows(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text('{"rows": [{"loss": 1.0}]}')
    with pytest.raises(CheckpointError, match=r"bad\.json is damaged .*\(it has no checksum\)"):
        stored_rows(tmp_path / "bad.json")


def test_an_interrupted_reproduction_goes_on(finished, tmp_path, monkeypatch):
    real, trained = TRAINING.train_once, []

    def interrupted(run, folder, conduct):
        trained.append(run.transforms_covariates)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return real(run, folder, conduct)

    monkeypatch.setattr(TRAINING, "train_once", interrupted)
    with pytest.raises(InterruptedStudiesError) as caught:
        reproduce(FIGURE_3, "smoke", out=tmp_path)
    assert str(caught.value) == (
        f"Stopped with 1 of 2 studies finished and 0 begun; they are kept in "
        f"{tmp_path}/cheng-fig3/.smoke.partial. Give the same command again to go on."
    )
    assert (tmp_path / "cheng-fig3/.smoke.partial/000/outcome.json").exists()
    again = reproduce(FIGURE_3, "smoke", out=tmp_path)
    assert trained == [False, True, True]  # the first model was not trained again
    for row, expected in zip(again.numbers["rows"], finished.numbers["rows"], strict=True):
        assert row | {"seconds": 0} == expected | {"seconds": 0}
    assert not (tmp_path / "cheng-fig3/.smoke.partial").exists()


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A folder in which a reproduction failed at its first model."""

    def fails(run, folder, conduct):
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
    stored = read_checksummed(record)
    stored["models.1.budget.n_steps"] = 9
    write_checksummed(record, stored)
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


def without_seconds(rows):
    return [row | {"seconds": 0} for row in rows]


def test_a_part_has_its_own_files_and_its_models_are_kept_for_the_whole(
    finished, tmp_path, monkeypatch
):
    part = reproduce(FIGURE_3, "smoke", out=tmp_path, only=["panel-b"])
    assert part.files == ("smoke-panel-b.json", "smoke-panel-b.csv", "smoke-panel-b.png")
    assert (part.numbers["only"], part.numbers["n_models"]) == (["panel-b"], 1)
    of_panel = [row for row in finished.numbers["rows"] if row["transforms_covariates"]]
    assert without_seconds(part.numbers["rows"]) == without_seconds(of_panel)
    kept = tmp_path / "cheng-fig3/.smoke.partial"
    assert sorted(path.name for path in kept.iterdir()) == ["001", "runs.json"]
    real, trained = TRAINING.train_once, []
    monkeypatch.setattr(
        TRAINING, "train_once", lambda *given: trained.append(given[0]) or real(*given)
    )
    whole = reproduce(FIGURE_3, "smoke", out=tmp_path)
    assert [study.transforms_covariates for study in trained] == [False]  # panel b is there
    assert without_seconds(whole.numbers["rows"]) == without_seconds(finished.numbers["rows"])
    assert not kept.exists()
    assert (tmp_path / "cheng-fig3/smoke-panel-b.json").exists()


def test_a_folder_in_use_is_refused_and_left_as_it_is(stopped):
    kept = stopped / "cheng-fig3/.smoke.partial"
    with locked(kept):
        before = sorted((path, path.stat().st_mtime_ns) for path in kept.rglob("*"))
        with pytest.raises(RunFolderError, match=r"\.smoke\.partial is in use by process \d+; "):
            reproduce(FIGURE_3, "smoke", out=stopped)
        assert sorted((path, path.stat().st_mtime_ns) for path in kept.rglob("*")) == before


def test_another_preset_may_run_at_the_same_time(tmp_path):
    with locked(tmp_path / "cheng-fig3/.laptop.partial"):
        assert reproduce(FIGURE_3, "smoke", out=tmp_path).numbers["n_models"] == 2


@pytest.mark.parametrize(
    ("options", "problem", "message"),
    [
        ({"seed": 2**32}, SettingError, "seed must be at most 4294967195, got 4294967296"),
        ({"n_workers": 0}, SettingError, "n_workers must be a whole number of at least 1"),
        ({"device": "cuda:9"}, SettingError, "device='cuda:9' is not there"),
        ({"only": ["panel-z"]}, UnknownNameError, "Unknown part of cheng-fig3 'panel-z'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, options, problem, message):
    with pytest.raises(problem, match=f"^{message}"):
        reproduce(FIGURE_3, "smoke", out=tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_a_figure_would_not_use_is_refused(tmp_path, monkeypatch):
    there = Device(torch.device("meta"))
    monkeypatch.setattr(RESULTS, "device_named", lambda name: there)
    with pytest.raises(SettingError, match=r"^device='cuda' would not be used: .* wang-rates "):
        reproduce(RATES, "smoke", out=tmp_path / "out", device="cuda")
    assert list(tmp_path.iterdir()) == []
    assert Order(RATES, "smoke", tmp_path, device="auto").facts["device"] == "cpu"
    assert Order(FIGURE_3, "smoke", tmp_path, device="cuda").facts["device"] == "meta"
