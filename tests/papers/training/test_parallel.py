import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from icgd.errors import SettingError
from icgd_papers.training.loop import train
from icgd_papers.training.parallel import Processes, joined
from tests.papers.training.decoders import trained_decoder
from tests.papers.training.toy import SETTINGS, ToyModel, ToyTask, files_of, forked, train_toy

ROOT = Path(__file__).parents[3]
ONE_STEP = replace(SETTINGS, n_steps=1, resample_every=1, clip_norm=None)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, and the gradient that the last evaluation left."""
    gradients = {
        f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None
    }
    return {name: p.detach() for name, p in model.named_parameters()} | gradients


def as_one_of_two(rank: int, folder: Path) -> None:
    """What each of two processes does: one step, a whole run, and one with an interruption."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
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
    dist.barrier()
    dist.destroy_process_group()


def stop_after_five(done: int, _total: int, _loss: float) -> None:
    if done == 5:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    processes = [forked(as_one_of_two, rank, folder) for rank in (0, 1)]
    for process in processes:
        process.join(60)
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


@pytest.mark.parametrize("run", ["one step", "whole"])
def test_both_processes_end_with_the_same_bits(folder, run):
    first, second = load_file(folder / f"{run}, rank 0"), load_file(folder / f"{run}, rank 1")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["weight"], ToyModel().weight)


def test_two_processes_train_a_decoder(folder):
    """The same bits in both, from other batches than one process draws."""
    first, second = (load_file(folder / f"decoder, rank {rank}") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    alone = state_of(trained_decoder("relu")[0])
    assert first.keys() == alone.keys()
    assert not torch.equal(first["qkv"], alone["qkv"])


def test_an_interrupted_run_of_two_goes_on_with_the_same_bits(folder):
    assert files_of(folder / "resumed") == files_of(folder / "whole")
    assert len(files_of(folder / "whole")) == 4


def test_one_process_is_not_two(folder):
    with pytest.raises(ValueError, match="its n_processes is 2, here it is 1"):
        train_toy(folder / "whole")


@pytest.mark.slow
def test_torchrun_gives_what_two_joined_processes_give(folder, tmp_path):
    script = (
        "import sys; from pathlib import Path; from tests.papers.training.toy import train_toy; "
    )
    (tmp_path / "run.py").write_text(script + "train_toy(Path(sys.argv[1]))")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [sys.executable, *command, str(tmp_path / "run.py"), str(tmp_path / "run")],
        check=True,
        cwd=ROOT,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)},
    )
    assert files_of(tmp_path / "run") == files_of(folder / "whole")


def test_a_batch_is_shared_evenly_or_not_at_all():
    assert Processes(0, 4).share_of(12) == 3
    with pytest.raises(SettingError, match="batch_size=8 cannot be shared evenly by 3 processes"):
        Processes(0, 3).share_of(8)
    assert Processes(1, 2).part_of(4, 2) == 2
    with pytest.raises(SettingError, match="accumulate=3 does not divide the 4 tasks"):
        Processes(1, 2).part_of(4, 3)


def test_one_process_is_alone_and_exchanges_nothing():
    tensor = torch.tensor([1.0, 2.0])
    alone = joined(torch.device("cpu"))
    alone.average([tensor])
    alone.copy_from_first([tensor])
    alone.wait()
    assert alone == Processes(rank=0, count=1)
    assert tensor.tolist() == [1.0, 2.0]
