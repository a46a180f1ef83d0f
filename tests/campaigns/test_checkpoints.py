"""Damaged checkpoints."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from icgd_papers.training.covariates import Gaussian
from icgd_papers.training.labels import LinearFunctions
from icgd_papers.training.loop import Settings, train
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.tasks import InContextTask
from tests.campaigns.mutations import damaged
from tests.campaigns.outcomes import Campaign, both_sizes, outcome_of_error

TASK = InContextTask(Gaussian(torch.eye(2).double()), LinearFunctions(), n_examples=4)
SETTINGS = Settings(n_steps=4, batch_size=8, learning_rate=0.05, log_every=1, checkpoint_every=2)
FILE = "checkpoint-000000002.safetensors"


def new_model() -> KernelTransformer:
    return KernelTransformer(2, 1, ("linear",), transforms_covariates=True, seed=1)


def trained(folder: Path) -> KernelTransformer:
    model = new_model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model, TASK, SETTINGS, folder=folder)
    return model


@cache
def half_way() -> bytes:
    """The checkpoint in the middle of a training."""
    with TemporaryDirectory() as folder:
        trained(Path(folder))
        return (Path(folder) / FILE).read_bytes()


@cache
def end() -> Tensor:
    return trained_on(half_way())


def trained_on(content: bytes) -> Tensor:
    """What training makes of a checkpoint."""
    with TemporaryDirectory() as folder:
        (Path(folder) / FILE).write_bytes(content)
        return torch.cat([tensor.flatten() for tensor in trained(Path(folder)).parameters()])


def damaged_checkpoints(n: int) -> Iterator[tuple[str, str]]:
    for index in range(n):
        random = Random(f"checkpoint {index}")
        said, content = damaged(random, half_way())
        yield f"case {index}: {said}", continued(content)


def continued(content: bytes) -> str:
    try:
        return "the same" if torch.equal(trained_on(content), end()) else "silently changed"
    except BaseException as problem:
        return outcome_of_error(problem)


DAMAGED = Campaign(
    name="damaged_checkpoints",
    title="Checkpoints with damaged bytes",
    sample=60,
    whole=20_000,
    allowed={"refused": "an error of icgd", "the same": "the damage changed nothing that is read"},
    cases=damaged_checkpoints,
)


@both_sizes
def test_damaged_checkpoints_are_refused(whole):
    DAMAGED.carry_out(whole=whole)


def test_the_campaign_goes_on_from_the_middle():
    whole = replace(SETTINGS, checkpoint_every=100)
    model = new_model()
    train(model, TASK, whole)
    assert torch.equal(torch.cat([t.flatten() for t in model.parameters()]), end())
