import json
from dataclasses import replace
from math import nan

import pytest
import torch

from icgd.errors import MissingExtraError, TrainingError
from icgd.training import loggers
from icgd.training.loggers import AbstractLogger
from icgd.training.loop import train
from tests.training.toy import SETTINGS, ToyModel, ToyTask, train_toy


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
