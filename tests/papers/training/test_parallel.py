"""Two processes under torchrun train one model: each takes half of every batch."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from icgd.errors import SettingError
from icgd_papers.training.loop import _shares, train
from tests.papers.training.decoders import trained_decoder
from tests.papers.training.toy import SETTINGS, ToyModel, ToyTask, files_of, forked, train_toy

ONE_STEP = replace(SETTINGS, n_steps=1, resample_every=1, clip_norm=None)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, and the gradient that the last evaluation left."""
    gradients = {
        f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None
    }
    return {name: p.detach() for name, p in model.named_parameters()} | gradients


def as_one_of_two(rank: int, port: int, folder: Path) -> None:
    """One step, a whole run, one with an interruption, and a decoder, in one of two processes.

    The environment is that of torchrun.
    """
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "none",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    one = ToyModel()
    one.weight.data += rank  # the second one must start from the first one's weights
    train(one, ToyTask(), ONE_STEP)
    save_file(state_of(one), folder / f"one step, rank {rank}")
    whole, _ = train_toy(folder / "whole")
    save_file(state_of(whole), folder / f"whole, rank {rank}")
    try:
        train_toy(folder / "resumed", on_step=stop_after_five)
    except KeyboardInterrupt:
        train_toy(folder / "resumed")
    decoder, _ = trained_decoder("relu")
    save_file(state_of(decoder), folder / f"decoder, rank {rank}")


def stop_after_five(done: int, _total: int, _loss: float) -> None:
    if done == 5:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [forked(as_one_of_two, rank, port, folder) for rank in (0, 1)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    return folder


def test_the_gradient_is_the_mean_of_the_shards_gradients(folder):
    together = load_file(folder / "one step, rank 0")
    gradients = []
    for shard in (0, 1):
        model, task = ToyModel(), ToyTask()
        model.load_state_dict({name: together[name] for name in model.state_dict()})
        batch = task.sample(4, seed=0, index=1, shard=shard).to("cpu", torch.float32)
        task.loss(model, batch).backward()
        gradients.append(state_of(model))
    for name in ("gradient of weight", "gradient of bias"):
        assert torch.equal(together[name], (gradients[0][name] + gradients[1][name]) / 2)
        assert not torch.equal(gradients[0][name], gradients[1][name])


@pytest.mark.parametrize("run", ["one step", "whole", "decoder"])
def test_both_processes_end_with_the_same_bits(folder, run):
    first, second = load_file(folder / f"{run}, rank 0"), load_file(folder / f"{run}, rank 1")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_two_processes_draw_other_batches_than_one(folder):
    together, alone = load_file(folder / "decoder, rank 0"), state_of(trained_decoder("relu")[0])
    assert together.keys() == alone.keys()
    assert not torch.equal(together["qkv"], alone["qkv"])


def test_an_interrupted_run_of_two_resumes_with_the_same_bits(folder):
    assert files_of(folder / "resumed") == files_of(folder / "whole")
    assert len(files_of(folder / "whole")) == 4


def test_one_process_is_not_two(folder):
    with pytest.raises(ValueError, match="its n_processes is 2, here it is 1"):
        train_toy(folder / "whole")


def test_a_batch_is_shared_evenly_or_not_at_all():
    assert _shares(replace(SETTINGS, batch_size=12, accumulate=3), 2) == (6, 2)
    with pytest.raises(SettingError, match="batch_size=8 cannot be shared evenly by 3 processes"):
        _shares(SETTINGS, 3)
    with pytest.raises(SettingError, match="accumulate=3 does not divide the 4 tasks"):
        _shares(replace(SETTINGS, accumulate=3), 2)
