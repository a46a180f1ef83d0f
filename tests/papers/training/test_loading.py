"""A trained module comes back from the folder of its run, or the error says why it does not."""

import json
import re

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import icgd
from icgd.errors import CheckpointError, FileError, UnknownNameError
from icgd.problems.kernel_machine import KERNELS
from icgd_papers.training.checkpoints import HEADER
from icgd_papers.training.covariates import Gaussian
from icgd_papers.training.labels import LinearFunctions
from icgd_papers.training.loading import load, read_log
from icgd_papers.training.loop import Settings, train
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.tasks import InContextTask

TASK = InContextTask(Gaussian(torch.eye(2).double()), LinearFunctions(), n_examples=4)
SETTINGS = Settings(n_steps=3, batch_size=8, learning_rate=0.05, checkpoint_every=1)


def trained(folder, *, kernels=("exp",), dtype="float32", **settings):
    """A small model that was trained in `folder`."""
    model = KernelTransformer(2, 2, kernels, transforms_covariates=True, seed=1, **settings)
    train(model, TASK, Settings(**{**vars(SETTINGS), "dtype": dtype}), folder=folder)
    return model


def same(first, second):
    pairs = zip(first.state_dict().items(), second.state_dict().items(), strict=True)
    return all(a == b and torch.equal(t, u) for (a, t), (b, u) in pairs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_module_is_that_which_was_trained(tmp_path, dtype):
    model = trained(tmp_path, kernels=("polynomial", "softmax"), shapes=(3.0, None), dtype=dtype)
    found = load(str(tmp_path))
    assert same(found, model)
    assert found.description() == model.description()
    assert str(found.B.dtype) == f"torch.{dtype}"
    batch = TASK.sample(5, seed=9, index=0).to("cpu", found.B.dtype)
    assert torch.equal(found(batch.x, batch.y), model(batch.x, batch.y))


def test_a_model_that_learnt_in_units_comes_back_without_them(tmp_path):
    model = KernelTransformer(2, 2, ("linear", "exp"), transforms_covariates=True, seed=1)
    model.learn_in_units(r=torch.tensor([0.5, 2.0]), A=torch.tensor(0.1), B=torch.tensor(3.0))
    train(model, TASK, SETTINGS, folder=tmp_path)
    found = load(tmp_path)
    assert {*found.state_dict()} == {"r", "A", "B", "C"}
    assert all(torch.equal(getattr(found, name), getattr(model, name)) for name in "rABC")
    assert found.units == {}
    assert type(found) is KernelTransformer


def test_the_best_checkpoint_is_another_file(tmp_path):
    trained(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no best\.safetensors, which a training with"):
        load(tmp_path, which="best")
    first = tmp_path / "checkpoint-000000002.safetensors"
    first.rename(tmp_path / "best.safetensors")
    assert not same(load(tmp_path, which="best"), load(tmp_path))


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path):
    trained(tmp_path)
    older, newest = sorted(tmp_path.glob("checkpoint-*"))
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match=f"{newest.name} is damaged .*{older.name} is used"):
        load(tmp_path)
    older.write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{newest.name} is damaged or was not"):
        load(tmp_path)
    assert newest.read_bytes() == content


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_checkpoints_is_named(tmp_path, there):
    folder = tmp_path if there else tmp_path / "nothing"
    with pytest.raises(CheckpointError, match=f"^{folder} has no checkpoint. Give the folder that"):
        load(folder)


def test_an_unknown_checkpoint_is_no_checkpoint(tmp_path):
    with pytest.raises(UnknownNameError, match=r"Unknown checkpoint 'lst'.*Did you mean 'last'"):
        load(tmp_path, which="lst")


def test_a_file_of_another_version_is_refused(tmp_path):
    trained(tmp_path)
    for path in tmp_path.glob("checkpoint-*"):
        with safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()[HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        save_file(tensors, path, metadata={HEADER: json.dumps({**header, "format": 99})})
    with pytest.raises(CheckpointError, match="has checkpoint format 99; this version of icgd"):
        load(tmp_path)


class Mine(nn.Module):
    """A model of a user, which predicts a multiple of the mean label."""

    def __init__(self, width=1):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(width))

    def forward(self, x, y):
        return self.factor.sum() * y[:, :-1].mean(1)


def test_own_models_are_filled_in_place(tmp_path):
    model = Mine()
    train(model, TASK, SETTINGS, folder=tmp_path)
    with pytest.raises(
        CheckpointError,
        match=re.escape(
            "a model of kind 'Mine', and icgd can build decoder, kernel transformer, plain "
            "operator, product operator only. Make"
        ),
    ):
        load(tmp_path)
    other = Mine()
    assert load(tmp_path, model=other) is other
    assert same(other, model)
    with pytest.raises(
        CheckpointError,
        match=re.escape("for 'factor' it has shape [1], the module shape [2]. Give a module"),
    ):
        load(tmp_path, model=Mine(2))
    with pytest.raises(CheckpointError, match=r"for 'factor' it has shape .*, the module none"):
        load(tmp_path, model=nn.Identity())


def test_a_module_of_the_same_shape_with_another_kernel_is_refused(tmp_path):
    trained(tmp_path)
    other = KernelTransformer(2, 2, ("rbf",), transforms_covariates=True, seed=1)
    with pytest.raises(CheckpointError, match=r"its kernels\.0 is 'exp', here it is 'rbf'"):
        load(tmp_path, model=other)
    again = KernelTransformer(2, 2, ("exp",), transforms_covariates=True, seed=7, init_scale=2.0)
    load(tmp_path, model=again)


def test_kernels_of_ones_own_must_be_registered_again(tmp_path):
    icgd.register_kernel("own for loading", lambda u, w: u @ w.mT)
    trained(tmp_path, kernels=("own for loading",))
    load(tmp_path)
    del KERNELS["own for loading"]
    with pytest.raises(FileError, match=r"Unknown kernel 'own for loading'.*icgd.register_kernel"):
        load(tmp_path)


def test_the_log_is_that_of_the_training(tmp_path):
    model = KernelTransformer(2, 2, ("exp",), transforms_covariates=True, seed=1)
    log = train(model, TASK, SETTINGS, folder=tmp_path)
    assert read_log(tmp_path) == log
    assert len(log.rows) == 2
