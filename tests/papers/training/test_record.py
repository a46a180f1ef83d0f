import json
from dataclasses import replace
from itertools import count
from math import nan

import pytest
import torch

from icgd.errors import CheckpointError, MissingExtraError, RunFolderError, TrainingError
from icgd_papers.training import checkpoints, loggers, record
from icgd_papers.training.loading import read_log
from icgd_papers.training.loggers import AbstractLogger
from icgd_papers.training.loop import train
from tests.papers.training.toy import SETTINGS, ToyModel, ToyTask, train_toy


class DivergingTask(ToyTask):
    """Its loss is no number in the second batch, which is that of step 4."""

    def loss(self, model, batch):
        second = ToyTask().sample(8, seed=0, index=1).to("cpu", torch.float32)
        return super().loss(model, batch) * (nan if torch.equal(batch.x, second.x) else 1.0)


class Seen(AbstractLogger):
    """It keeps what it is told."""

    told: list[object] = []  # noqa: RUF012  one list for the class, as a test reads it

    def append(self, step, row):
        self.told.append((step, row["loss"]))

    def close(self):
        self.told.append("closed")


def test_a_training_that_diverges_leaves_its_log_and_its_last_good_checkpoint(tmp_path):
    with pytest.raises(TrainingError, match="The loss is nan at step 4"):
        train(ToyModel(), DivergingTask(), replace(SETTINGS, log_every=1), folder=tmp_path)
    rows = json.loads((tmp_path / "log.json").read_text())
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    kept = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert kept == ["checkpoint-000000000.safetensors", "checkpoint-000000003.safetensors"]
    assert not (tmp_path / ".lock").exists()


def test_a_logger_of_ones_own_gets_every_row_once_and_is_closed(tmp_path):
    Seen.told = []
    _, log = train_toy(tmp_path, loggers=[Seen])
    rows = [(int(row["step"]), row["loss"]) for row in log.rows]
    assert Seen.told == [*rows, "closed"]
    train_toy(tmp_path, loggers=[Seen])  # finished: no logger is begun
    assert Seen.told == [*rows, "closed"]


def test_a_logger_that_cannot_begin_leaves_the_folder_unlocked(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"Weights & Biases needs wandb\. .*icgd\[wandb\]"):
        train_toy(tmp_path, loggers=["wandb"])
    assert not (tmp_path / ".lock").exists()
    train_toy(tmp_path)


class Killed(BaseException):
    """The end of a process while it writes."""


def killed_at(monkeypatch, write, number):
    """Let the process end before a file is written for this time."""
    module, name = write
    own, calls = getattr(module, name), []

    def stopped(*arguments):
        calls.append(arguments)
        if len(calls) == number:
            raise Killed
        own(*arguments)

    monkeypatch.setattr(module, name, stopped)


def trained_until_killed(folder, monkeypatch, write, number, settings, measure=None):
    with monkeypatch.context() as patch:
        killed_at(patch, write, number)
        with pytest.raises(Killed):
            train(ToyModel(), ToyTask(), settings, folder=folder, measure=measure)


WRITES = [(record, "write_csv"), (record, "write_json"), (checkpoints, "_write")]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write[1])
@pytest.mark.parametrize("first", [2, 3])
@pytest.mark.parametrize("second", [1, 2])
def test_the_log_fits_the_checkpoint_whenever_it_is_killed(
    tmp_path, monkeypatch, write, first, second
):
    clock = count()
    settings = replace(SETTINGS, log_every=1, checkpoint_every=2)
    for write_now, number in ((WRITES[2], first), (write, second)):
        trained_until_killed(
            tmp_path,
            monkeypatch,
            write_now,
            number,
            settings,
            lambda _: {"clock": float(next(clock))},
        )
        read_log(tmp_path)


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write[1])
def test_the_log_of_a_longer_training_fits_the_checkpoint_of_the_shorter(
    tmp_path, monkeypatch, write
):
    short = replace(SETTINGS, n_steps=5, log_every=2, final_learning_rate=None)
    train(ToyModel(), ToyTask(), short, folder=tmp_path)
    longer = replace(short, n_steps=9, checkpoint_every=6)
    trained_until_killed(tmp_path, monkeypatch, write, 1, longer)
    assert read_log(tmp_path).rows


@pytest.mark.parametrize("name", ["log.csv", "log.json"])
@pytest.mark.parametrize("text", ["step,loss\n0,1\n", '[{"step": 0, "loss": 1}]', "mine"])
def test_a_log_of_somebody_else_is_left_alone(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(RunFolderError) as caught:
        train_toy(tmp_path, loggers=["tensorboard"])
    assert str(caught.value).startswith(f"{tmp_path / name} was not written by a training of icgd")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, text)]


def test_a_best_state_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "best.safetensors").write_text("mine")
    with pytest.raises(CheckpointError, match=r"not a checkpoint .*\. It was left as it is"):
        train_toy(tmp_path, replace(SETTINGS, n_validation=4))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    train_toy(tmp_path)  # which writes no such file
    assert (tmp_path / "best.safetensors").read_text() == "mine"


def test_what_is_no_file_takes_the_place_of_no_log(tmp_path):
    (tmp_path / "log.csv").mkdir()
    with pytest.raises(RunFolderError, match=r"log\.csv was not written by a training"):
        train_toy(tmp_path)


class FailingTask(ToyTask):
    """Its first batch has no loss."""

    def loss(self, model, batch):
        return super().loss(model, batch) * nan


TEXTS = {"note.txt": "any text", "config.toml": "# Folder of the run\n"}


def test_a_training_that_failed_before_its_first_checkpoint_begins_again(tmp_path):
    with pytest.raises(TrainingError):
        train(ToyModel(), FailingTask(), SETTINGS, folder=tmp_path, texts=TEXTS)
    assert not list(tmp_path.glob("checkpoint-*"))
    train_toy(tmp_path, texts={"note.txt": "another", "config.toml": "# mine\n"})
    assert read_log(tmp_path).rows


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write[1])
def test_a_training_that_was_killed_before_its_first_checkpoint_begins_again(
    tmp_path, monkeypatch, write
):
    settings = replace(SETTINGS, n_validation=4)
    trained_until_killed(tmp_path, monkeypatch, write, 1, settings)
    trained_until_killed(tmp_path, monkeypatch, WRITES[2], 2, settings)
    assert not list(tmp_path.glob("checkpoint-*"))
    train_toy(tmp_path, settings)
    assert read_log(tmp_path).rows
