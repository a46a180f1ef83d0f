"""A task and a model that train in milliseconds, and processes that are killed on the way."""

import os
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor, nn

from icgd_papers.training.loop import Settings, train
from icgd_papers.training.tasks import AbstractTask, Batch, generator_of

KILLED = 9
"""Exit code of a process that ends on the spot, without any cleaning up."""


class ToyTask(AbstractTask):
    """Labels <(1, -2), x>, so that a linear model can learn them."""

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> Batch:
        x = torch.from_numpy(generator_of(seed, index, shard).standard_normal((n_tasks, 3, 2)))
        return Batch(x, x @ torch.tensor([1.0, -2.0], dtype=torch.float64))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.x, batch.y) - batch.y[:, -1]).square().mean()

    def description(self) -> dict[str, object]:
        return {"task": "toy", "weights": {"first": 1.0, "second": -2.0}}


class ToyModel(nn.Module):
    """<weight, x> of the query; `idle` gets no gradient, `bias` shows a parameter without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, 0.25]))
        self.bias = nn.Parameter(torch.tensor(0.1))
        self.idle = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x[:, -1] @ self.weight + self.bias


SETTINGS = Settings(
    n_steps=6,
    batch_size=8,
    learning_rate=0.1,
    clip_norm=1.0,
    resample_every=4,
    final_learning_rate=0.01,
    log_every=3,
    checkpoint_every=3,
)


def measure(model: nn.Module) -> dict[str, float]:
    return {"first": model.weight[0].item()}


def train_toy(folder: Path | None, settings: Settings = SETTINGS, **options):
    """A fresh model and the log after training, or after resuming."""
    model = ToyModel()
    return model, train(model, ToyTask(), settings, folder=folder, measure=measure, **options)


def files_of(folder: Path) -> dict[str, bytes]:
    """All files of a run with their content, bit for bit; the lock stays and is empty."""
    paths = sorted(path for path in folder.iterdir() if path.name != ".lock")
    return {path.name: path.read_bytes() for path in paths}


def end_at(n_events: int, places: list[tuple[object, str]]) -> None:
    """Let this process end on the spot when the named functions are called the n-th time."""
    calls = 0

    def ending(function):
        def wrapper(*args, **settings):
            nonlocal calls
            calls += 1
            if calls == n_events:
                os._exit(KILLED)
            return function(*args, **settings)

        return wrapper

    for owner, name in places:
        setattr(owner, name, ending(getattr(owner, name)))


def forked(target, *args):
    """A process that starts at once, because it need not import anything."""
    process = get_context("fork").Process(target=target, args=args)
    process.start()
    return process
