import json
import pickletools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.optim import Adam

from icgd.errors import CheckpointError, FileError
from icgd_papers.training.checkpoints import Checkpoints, State, restore, tensors_of
from icgd_papers.training.logs import Log
from icgd_papers.training.loop import train
from tests.papers.training.toy import SETTINGS, ToyModel, ToyTask, files_of, train_toy

SIX = "checkpoint-000000006.safetensors"
THREE = "checkpoint-000000003.safetensors"


@pytest.fixture
def folder(tmp_path):
    """A finished run: checkpoints of steps 3 and 6."""
    train_toy(tmp_path)
    return tmp_path


def damage(path, how: str) -> None:
    content = path.read_bytes()
    if how == "flipped":
        content = content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]
    elif how == "truncated":
        content = content[:-20]
    elif how == "empty":
        content = b""
    path.write_bytes(content)


def test_a_checkpoint_holds_model_adam_log_and_configuration_and_no_pickle(folder):
    with safe_open(folder / SIX, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(file.metadata()["icgd_checkpoint"])
    model, log = train_toy(None)
    assert torch.equal(tensors["model.weight"], model.weight)
    assert tensors["adam.weight.step"].item() == 6.0
    assert tensors["adam.weight.exp_avg_sq"].shape == (2,)
    assert tensors["log"].tolist() == [list(row.values()) for row in log.rows]
    assert not [name for name in tensors if name.startswith("adam.idle")]
    assert (header["format"], header["step"]) == (1, 6)
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
    Checkpoints(tmp_path, {}).save(State(1, tensors_of(model, optimizer), Log()))
    loaded = Checkpoints(tmp_path, {}).load()
    assert loaded is not None
    restore(loaded.tensors, other, fresh)
    step(model, optimizer)
    step(other, fresh)
    assert torch.equal(other[1].weight, model[0].weight)
    assert fresh.state[other[0].weight]["step"].item() == 2.0


@pytest.mark.parametrize("how", ["flipped", "truncated", "empty"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(folder, how):
    whole = files_of(folder)
    damage(folder / SIX, how)
    with pytest.warns(UserWarning, match=rf"{SIX} is damaged .* Going on from .*{THREE}"):
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
    """Going on from step 3, the file of step 6 stays until the run comes there again."""
    damage(folder / SIX, "flipped")
    store = Checkpoints(folder, configuration_in(folder / THREE))
    with pytest.warns(UserWarning, match="damaged"):
        state = store.load()
    assert state is not None
    store.save(replace(state, step=4))
    names = [name for name in files_of(folder) if name.startswith("checkpoint")]
    assert names == [THREE, "checkpoint-000000004.safetensors", SIX]


def configuration_in(path) -> dict:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["icgd_checkpoint"])["configuration"]


def test_a_foreign_file_is_no_checkpoint(tmp_path):
    save_file({"weight": torch.zeros(2)}, tmp_path / SIX)
    before = files_of(tmp_path)
    with pytest.raises(CheckpointError, match=r"has checkpoint format None; .* reads format 1\."):
        train_toy(tmp_path)
    assert files_of(tmp_path) == before


def test_a_header_that_is_no_table_is_no_checkpoint(tmp_path):
    save_file({"log": torch.zeros(2)}, tmp_path / SIX, metadata={"icgd_checkpoint": "[]"})
    with pytest.raises(
        CheckpointError, match=r"is damaged or not a checkpoint \(its header is no "
    ):
        train_toy(tmp_path)


class OtherTask(ToyTask):
    def description(self):
        return {"task": "toy", "weights": {"first": 1.0, "second": -3.0}}


class OtherModel(ToyModel):
    def description(self):
        return {"width": 2}


@pytest.mark.parametrize(
    ("model", "task", "setting", "message"),
    [
        (
            ToyModel,
            ToyTask,
            {"learning_rate": 0.2},
            "settings.learning_rate is 0.1, here it is 0.2",
        ),
        (ToyModel, ToyTask, {"patience": 2}, "settings.patience is None, here it is 2"),
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
    assert f"{SIX} belongs to another run: its {message}. It was left as it is;" in str(
        problem.value
    )
    assert files_of(folder) == before


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
    assert list(files_of(tmp_path)) == [
        "checkpoint-000000000.safetensors",
        THREE,
        "log.csv",
        "log.json",
    ]
    assert torch.equal(train_toy(tmp_path)[0].weight, train_toy(None)[0].weight)
