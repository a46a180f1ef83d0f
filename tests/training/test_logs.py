import csv
import json
from dataclasses import replace
from math import inf, nan

import pytest

from icgd.errors import MissingExtraError, TrainingError
from icgd.training import logs
from icgd.training.checkpoints import Checkpoints, State
from icgd.training.logs import Log, write_csv, write_json
from tests.training.toy import SETTINGS, train_toy

LOG = Log(({"step": 0.0, "loss": 0.1 + 0.2}, {"step": 10.0, "loss": 5e-324}))


def test_a_csv_log_reads_back_exactly(tmp_path):
    write_csv(LOG, tmp_path / "log.csv")
    text = (tmp_path / "log.csv").read_text()
    assert text == "step,loss\n0,0.30000000000000004\n10,5e-324\n"
    rows = csv.DictReader(text.splitlines())
    assert [{name: float(cell) for name, cell in row.items()} for row in rows] == list(LOG.rows)


def test_a_json_log_is_json_even_where_numbers_are_none(tmp_path):
    strange = Log((*LOG.rows, {"step": 20.0, "loss": nan}, {"step": 30.0, "loss": -inf}))
    write_json(strange, tmp_path / "log.json")
    text = (tmp_path / "log.json").read_text()
    assert text.splitlines()[1] == '{"step": 0, "loss": 0.30000000000000004},'
    assert [row["loss"] for row in json.loads(text)] == [0.1 + 0.2, 5e-324, None, None]


def test_every_row_has_the_same_columns():
    assert LOG.with_row({"step": 20.0, "loss": 1.0}).column("loss")[2] == 1.0
    with pytest.raises(TrainingError, match=r"columns step, loss; a row came with step, lost\."):
        LOG.with_row({"step": 20.0, "lost": 1.0})


def scalars(folder, name: str) -> list[tuple[int, float]]:
    """What TensorBoard shows."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reading.EventAccumulator(str(folder)).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_shows_every_row_once_also_after_an_interruption(tmp_path, monkeypatch):
    """It is stopped between writing the events of steps 4 to 6 and the checkpoint of step 6."""
    pytest.importorskip("tensorboard")
    settings, save = replace(SETTINGS, log_every=1), Checkpoints.save

    def stop(self, state: State) -> None:
        if state.step == 6:
            raise KeyboardInterrupt
        save(self, state)

    monkeypatch.setattr(Checkpoints, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        train_toy(tmp_path, settings, tensorboard=True)
    monkeypatch.undo()
    assert [step for step, _ in scalars(tmp_path, "first")] == [0, 1, 2, 3, 4, 5, 6]
    _, log = train_toy(tmp_path, settings, tensorboard=True)
    train_toy(tmp_path, settings, tensorboard=True)  # finished: nothing is added
    shown = scalars(tmp_path, "first")
    assert [step for step, _ in shown] == [0, 1, 2, 3, 4, 5, 6]
    assert [value for _, value in shown] == pytest.approx(log.column("first"), rel=1e-6)


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "SummaryWriter", None)
    with pytest.raises(MissingExtraError, match=r"needs tensorboard\. .*'icgd\[train\]'"):
        train_toy(tmp_path, tensorboard=True)
