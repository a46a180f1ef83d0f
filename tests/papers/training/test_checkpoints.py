"""The folder of a run: what it holds, and that an interrupted training ends with the same bits."""

import json
import os
import pickletools
import signal
import threading
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.optim import Adam

from icgd.errors import (
    CheckpointError,
    FileError,
    InterruptedTrainingError,
    RunFolderError,
    TrainingError,
)
from icgd_papers.training.checkpoints import Checkpoints, State, locked, restore, tensors_of
from icgd_papers.training.loading import read_log
from icgd_papers.training.logs import Log
from icgd_papers.training.loop import train
from icgd_papers.training.settings import OPTIMIZERS
from tests.papers.training.toy import (
    KILLED,
    SETTINGS,
    ToyModel,
    ToyTask,
    end_at,
    files_of,
    forked,
    measure,
    train_toy,
)

SIX = "checkpoint-000000006.safetensors"
THREE = "checkpoint-000000003.safetensors"
VALIDATED = replace(SETTINGS, n_validation=10, log_every=1)


@pytest.fixture
def folder(tmp_path):
    """A finished run: checkpoints of steps 3 and 6."""
    train_toy(tmp_path)
    return tmp_path


def damage(path, how: str) -> None:
    content = path.read_bytes()
    flipped = content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]
    path.write_bytes({"flipped": flipped, "truncated": content[:-20], "empty": b""}[how])


def header_in(path) -> dict:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["icgd_checkpoint"])


def test_a_checkpoint_holds_model_optimizer_log_and_configuration_and_no_pickle(folder):
    with safe_open(folder / SIX, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header = header_in(folder / SIX)
    model, log = train_toy(None)
    assert torch.equal(tensors["model.weight"], model.weight)
    assert tensors["optimizer.weight.step"].item() == 6.0
    assert tensors["optimizer.weight.exp_avg_sq"].shape == (2,)
    assert tensors["log"].tolist() == [list(row.values()) for row in log.rows]
    assert not [name for name in tensors if name.startswith("optimizer.idle")]
    assert (header["format"], header["step"]) == (2, 6)
    assert header["configuration"]["settings"]["learning_rate"] == 0.1
    assert header["configuration"]["task"] == ToyTask().description()
    with pytest.raises(ValueError, match="opcode"):
        list(pickletools.genops((folder / SIX).read_bytes()))


def test_a_state_comes_back_bit_for_bit(tmp_path):
    nan_with_payload = torch.tensor([0x7FC00123, 1], dtype=torch.int32).view(torch.float32)
    rows = ({"step": 0.0, "loss": 0.1 + 0.2}, {"step": 7.0, "loss": 5e-324})
    tensors = {"scalar": torch.tensor(-0.0), "numbers": nan_with_payload}
    state = State(7, tensors, Log(rows))
    Checkpoints(tmp_path, {"settings": {}}).save(state)
    loaded = Checkpoints(tmp_path, {"settings": {}}).load()
    assert loaded is not None
    assert (loaded.step, loaded.log) == (7, state.log)
    bits = {name: tensor.view(torch.int32).tolist() for name, tensor in loaded.tensors.items()}
    assert bits == {"scalar": -(2**31), "numbers": [0x7FC00123, 1]}


def test_tied_weights_and_adams_moments_are_restored(tmp_path):
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        model[1].weight = model[0].weight
        return model

    def step(model: nn.Module, optimizer: Adam) -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    model, other = tied(), tied()
    optimizer, fresh = Adam(model.parameters()), Adam(other.parameters())
    step(model, optimizer)
    restore(tensors_of(model, optimizer), other, fresh)
    step(model, optimizer)
    step(other, fresh)
    assert torch.equal(other[1].weight, model[0].weight)
    assert fresh.state[other[0].weight]["step"].item() == 2.0


# Damaged and foreign checkpoints


@pytest.mark.parametrize("how", ["flipped", "truncated", "empty"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(folder, how):
    whole = files_of(folder)
    damage(folder / SIX, how)
    with pytest.warns(UserWarning, match=rf"{SIX} is damaged .*{THREE} is used instead"):
        train_toy(folder)
    assert files_of(folder) == whole


def test_if_every_checkpoint_is_damaged_none_is_touched(folder):
    for name in (THREE, SIX):
        damage(folder / name, "flipped")
    before = files_of(folder)
    with pytest.raises(CheckpointError, match=rf"{SIX} is damaged .*\(its checksum does not match"):
        train_toy(folder)
    assert files_of(folder) == before


def test_a_good_checkpoint_outlives_a_later_damaged_one(folder):
    """Resuming from step 3, the file of step 6 stays until the run comes there again."""
    damage(folder / SIX, "flipped")
    store = Checkpoints(folder, header_in(folder / THREE)["configuration"])
    with pytest.warns(UserWarning, match="damaged"):
        state = store.load()
    store.save(replace(state, step=4))
    names = [name for name in files_of(folder) if name.startswith("checkpoint")]
    assert names == [THREE, "checkpoint-000000004.safetensors", SIX]


def test_a_foreign_file_is_no_checkpoint(tmp_path):
    save_file({"weight": torch.zeros(2)}, tmp_path / SIX)
    with pytest.raises(CheckpointError, match=r"has checkpoint format None; .* formats 1 and 2\."):
        train_toy(tmp_path)
    save_file({"log": torch.zeros(2)}, tmp_path / SIX, metadata={"icgd_checkpoint": "[]"})
    before = files_of(tmp_path)
    with pytest.raises(CheckpointError, match=r"not written by icgd \(its header is not a table"):
        train_toy(tmp_path)
    assert files_of(tmp_path) == before


class OtherTask(ToyTask):
    def description(self):
        return {"task": "toy", "weights": {"first": 1.0, "second": -3.0}}


class OtherModel(ToyModel):
    def description(self):
        return {"width": 2}


@pytest.mark.parametrize(
    ("model", "task", "setting", "message"),
    [
        (ToyModel, ToyTask, {"learning_rate": 0.2}, "settings.learning_rate is 0.1, here it is 0"),
        (ToyModel, ToyTask, {"patience": 2}, "settings.patience is None, here it is 2"),
        (ToyModel, ToyTask, {"n_steps": 7}, "settings.n_steps is 6, here it is 7"),
        (ToyModel, OtherTask, {}, "task.weights.second is -2.0, here it is -3.0"),
        (OtherModel, ToyTask, {}, "model.width is None, here it is 2"),
    ],
)
def test_another_configuration_is_named_and_nothing_is_touched(
    folder, model, task, setting, message
):
    before = files_of(folder)
    with pytest.raises(CheckpointError) as problem:
        train(model(), task(), replace(SETTINGS, **setting), folder=folder)
    assert f"{SIX} belongs to another run: its {message}" in str(problem.value)
    assert files_of(folder) == before


def test_a_run_of_constant_rate_may_be_prolonged_but_not_shortened(tmp_path):
    """The first run ends at step 5, where the longer one has no row."""
    constant = replace(SETTINGS, final_learning_rate=None)
    _, short = train_toy(tmp_path / "two", replace(constant, n_steps=5))
    assert short.column("step") == [0.0, 3.0, 5.0]
    train_toy(tmp_path / "two", constant)
    train_toy(tmp_path / "one", constant)
    one, two = files_of(tmp_path / "one"), files_of(tmp_path / "two")
    assert all(one[name] == two[name] for name in (SIX, "log.csv", "log.json"))
    with pytest.raises(CheckpointError, match=r"settings\.n_steps is 6, here it is 5\."):
        train_toy(tmp_path / "one", replace(constant, n_steps=5))


def test_a_finished_run_returns_at_once(folder, monkeypatch):
    whole = files_of(folder)
    (folder / "log.csv").unlink()  # as if the run had been killed before it was written
    monkeypatch.setattr(ToyTask, "loss", None)  # nothing is computed
    model, log = train_toy(folder)
    assert log.column("step") == [0.0, 3.0, 6.0]
    monkeypatch.undo()
    assert torch.equal(model.weight, train_toy(None)[0].weight)
    assert files_of(folder) == whole


def test_a_run_that_lost_patience_stays_stopped(tmp_path):
    """One batch, and steps so long that the loss only grows after its first row."""
    settings = replace(
        SETTINGS, n_steps=50, learning_rate=100.0, resample_every=50, log_every=2, patience=3
    )
    model, log = train_toy(tmp_path, settings)
    assert log.column("step") == [0.0, 2.0, 4.0, 6.0]
    again, same = train_toy(tmp_path, settings)
    assert same == log
    assert torch.equal(again.weight, model.weight)


# Kills and Ctrl-C

EVENTS = [
    (ToyTask, "sample"),
    (ToyTask, "loss"),
    (Adam, "step"),
    *[(Path, name) for name in ("mkdir", "write_bytes", "write_text", "replace", "unlink")],
]


def train_until(n_events: int, folder: Path, settings) -> None:
    end_at(n_events, EVENTS)
    train_toy(folder, settings, texts={"note.txt": "a text\n"})


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_that_ends_at_any_point_resumes_with_the_same_bits(tmp_path, every):
    """Before each batch, loss, update, and before each single operation on a file."""
    settings = replace(SETTINGS, n_validation=4, resample_every=2)
    train_toy(tmp_path / "whole", settings, texts={"note.txt": "a text\n"})
    whole = files_of(tmp_path / "whole")
    assert list(whole) == ["best.safetensors", THREE, SIX, "log.csv", "log.json", "note.txt"]
    for n_events in range(1, 200, every):
        folder = tmp_path / str(n_events)
        process = forked(train_until, n_events, folder, settings)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == KILLED
        train_toy(folder, settings, texts={"note.txt": "a text\n"})
        assert files_of(folder) == whole, f"ended at event {n_events}"
    assert n_events > 40


def press_ctrl_c(step: int, *_: object) -> None:
    """Press Ctrl-C in step 2, which is no step of a checkpoint."""
    if step == 2:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_after_ctrl_c_the_step_is_whole_and_training_resumes_with_the_same_bits(
    tmp_path, optimizer
):
    settings = replace(SETTINGS, optimizer=optimizer)
    train_toy(tmp_path / "whole", settings)
    text = r"interrupted after 2 of 6 steps\. The checkpoint of this step is in .*stopped"
    with pytest.raises(InterruptedTrainingError, match=text):
        train_toy(str(tmp_path / "stopped"), settings, on_step=press_ctrl_c)
    assert "checkpoint-000000002.safetensors" in files_of(tmp_path / "stopped")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    train_toy(tmp_path / "stopped", replace(settings, checkpoint_every=1))
    train_toy(tmp_path / "stopped", settings)
    stopped, whole = (files_of(tmp_path / name) for name in ("stopped", "whole"))
    assert stopped["log.json"] == whole["log.json"]
    with (
        safe_open(tmp_path / "stopped" / SIX, "pt") as one,
        safe_open(tmp_path / "whole" / SIX, "pt") as two,
    ):
        for name in two.keys():  # noqa: SIM118
            assert torch.equal(one.get_tensor(name), two.get_tensor(name)), name


def test_ctrl_c_without_a_folder_says_that_nothing_was_saved():
    with pytest.raises(KeyboardInterrupt, match=r"after 2 of 6 steps\. Nothing was saved"):
        train_toy(None, on_step=press_ctrl_c)


def test_ctrl_c_during_the_last_step_is_not_lost():
    with pytest.raises(InterruptedTrainingError, match="after 6 of 6 steps"):
        train_toy(None, on_step=lambda step, *_: step == 6 and signal.raise_signal(signal.SIGINT))


def test_a_second_ctrl_c_interrupts_at_once():
    def press_twice(step: int, *_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        train_toy(None, on_step=press_twice)
    assert not isinstance(caught.value, InterruptedTrainingError)


def test_a_thread_trains_without_signals():
    models = []
    thread = threading.Thread(target=lambda: models.append(train_toy(None)[0]))
    thread.start()
    thread.join()
    assert torch.equal(models[0].weight, train_toy(None)[0].weight)


# The best state


def best_step(folder: Path) -> int:
    return header_in(folder / "best.safetensors")["step"]


def test_the_best_checkpoint_is_that_of_the_smallest_validation_loss(tmp_path):
    """Steps so long that the loss grows again."""
    settings = replace(VALIDATED, learning_rate=1.0, final_learning_rate=None, n_steps=12)
    _, log = train_toy(tmp_path, settings)
    losses = log.column("validation_loss")
    assert best_step(tmp_path) == losses.index(min(losses))
    assert 0 < best_step(tmp_path) < 12


def test_a_best_state_off_the_schedule_outlives_worse_rows_of_a_longer_run(tmp_path):
    """The loss is smallest at the end of the short run, where the longer one has no row."""
    rising = replace(VALIDATED, learning_rate=1.0, final_learning_rate=None)
    losses = train_toy(None, replace(rising, n_steps=12))[1].column("validation_loss")
    best = losses.index(min(losses))
    train_toy(tmp_path, replace(rising, n_steps=best, log_every=best + 1))
    assert best_step(tmp_path) == best
    _, log = train_toy(tmp_path, replace(rising, n_steps=best + 1, log_every=best + 1))
    assert log.column("step") == [0.0, best + 1]
    assert best_step(tmp_path) == best


# Failures, locks, and files of other programs


class FailingTask(ToyTask):
    """Its loss is NaN in one of its batches."""

    def __init__(self, index: int) -> None:
        self.failing = ToyTask().sample(8, seed=0, index=index).to("cpu", torch.float32)

    def loss(self, model, batch):
        return super().loss(model, batch) * (nan if torch.equal(batch.x, self.failing.x) else 1.0)


def test_a_training_that_diverges_leaves_its_log_and_its_last_good_checkpoint(tmp_path):
    """The second batch is that of step 4."""
    settings = replace(SETTINGS, log_every=1)
    with pytest.raises(TrainingError, match=r"The loss is nan at step 4; training has stopped"):
        train(ToyModel(), FailingTask(1), settings, folder=tmp_path, measure=measure)
    assert read_log(tmp_path).column("step") == [0.0, 1.0, 2.0, 3.0]
    kept = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert kept == ["checkpoint-000000000.safetensors", THREE]
    model, _ = train_toy(tmp_path, settings)
    assert torch.equal(model.weight, train_toy(None)[0].weight)


def test_a_training_that_fails_at_its_first_step_leaves_nothing_in_the_way(tmp_path):
    with pytest.raises(TrainingError, match="The loss is nan at step 0"):
        train(ToyModel(), FailingTask(0), SETTINGS, folder=tmp_path, texts={"note.txt": "first"})
    assert files_of(tmp_path) == {}
    train_toy(tmp_path, texts={"note.txt": "second"})
    assert (tmp_path / "note.txt").read_text() == "second"


def test_a_full_disk_is_named_and_the_last_checkpoints_stay(tmp_path, monkeypatch):
    open_path = Path.open

    def full_at_six(path: Path, *given, **named):
        if "000000006" in path.name:
            raise OSError(28, "No space left on device")
        return open_path(path, *given, **named)

    monkeypatch.setattr(Path, "open", full_at_six)
    with pytest.raises(FileError, match=rf"Cannot write .*{SIX}: No space left on device\."):
        train_toy(tmp_path)
    monkeypatch.undo()
    names = ["checkpoint-000000000.safetensors", THREE, "log.csv", "log.json"]
    assert list(files_of(tmp_path)) == names
    assert torch.equal(train_toy(tmp_path)[0].weight, train_toy(None)[0].weight)


@pytest.mark.parametrize("name", ["log.csv", "log.json", "config.toml"])
def test_files_of_somebody_else_are_left_alone(tmp_path, name):
    (tmp_path / name).write_text("mine\n")
    with pytest.raises(RunFolderError, match=f"{name} was not written by a training of icgd"):
        train_toy(tmp_path, texts={"config.toml": "# Folder of the run\nfolder = '.'\n"})
    assert files_of(tmp_path) == {name: b"mine\n"}
    (tmp_path / name).unlink()
    (tmp_path / "config.toml").write_text("# Folder of the run\nfolder = '..'\n")
    train_toy(tmp_path, texts={"config.toml": "# Folder of the run\nfolder = '.'\n"})
    assert "folder = '.'" in (tmp_path / "config.toml").read_text()


def test_a_best_state_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "best.safetensors").write_text("mine")
    with pytest.raises(CheckpointError, match=r"not written by icgd .*\. It was left as it is"):
        train_toy(tmp_path, VALIDATED)
    train_toy(tmp_path)  # which writes no such file
    assert (tmp_path / "best.safetensors").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"Cannot write .*file/run: Not a directory\."):
        train_toy(tmp_path / "file" / "run")


def test_a_second_training_in_a_folder_is_refused_and_harms_nothing(tmp_path):
    def train_here_too(step: int, *_: object) -> None:
        if step == 4:
            train_toy(tmp_path)

    with pytest.raises(RunFolderError, match="is in use by another process"):
        train_toy(tmp_path, on_step=train_here_too)
    model, _ = train_toy(tmp_path)
    assert torch.equal(model.weight, train_toy(None)[0].weight)


def test_a_killed_process_locks_nobody_out(tmp_path):
    def hold() -> None:
        with locked(tmp_path):
            (tmp_path / "held").touch()
            signal.pause()

    process = forked(hold)
    while not (tmp_path / "held").exists():
        assert process.is_alive()
    with pytest.raises(RunFolderError), locked(tmp_path):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with locked(tmp_path):
        pass
