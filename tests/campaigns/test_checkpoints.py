"""Checkpoints that were damaged, and checkpoints that were altered and sealed again."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from safetensors import safe_open
from torch import Tensor

from icgd.training.checkpoints import HEADER
from icgd.training.covariates import Gaussian
from icgd.training.labels import LinearFunctions
from icgd.training.loading import load
from icgd.training.loop import Settings, train
from icgd.training.models import KernelTransformer
from icgd.training.tasks import InContextTask
from icgd.weights.files import digest
from icgd.weights.tensors import NAMES, write_tensors
from tests.campaigns.mutations import altered, damaged
from tests.campaigns.outcomes import Campaign, both_sizes, outcome_of, outcome_of_error

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


@cache
def parts() -> tuple[dict, dict[str, Tensor]]:
    """The header and the tensors of the checkpoint."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        path.write_bytes(half_way())
        with safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()[HEADER])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    header.pop("digest")
    return header, tensors


def altered_tensors(random: Random, tensors: dict[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """The tensors with one of them dropped, renamed, added, or of another form or content."""
    name, tensors = random.choice(list(tensors)), dict(tensors)
    tensor, dtype = tensors[name], random.choice(list(NAMES))
    kind = random.choice(["drop", "rename", "add", "type", "shape", "value", "flat"])
    if kind in ("drop", "rename"):
        del tensors[name]
    if kind in ("rename", "add"):
        tensors[random.choice([f"{name}x", "", "model.", "adam.B.step", "log.x"])] = tensor
    if kind == "type":
        tensors[name] = tensor.to(dtype)
    if kind == "shape":
        tensors[name] = torch.stack([tensor, tensor])
    if kind == "value":
        tensors[name] = torch.full_like(tensor, random.choice([0.0, -1.0, 1e30, torch.nan]))
    if kind == "flat":
        tensors[name] = tensor.flatten()[: random.randrange(3)]
    return f"{kind} {name} {dtype}", tensors


def resealed_checkpoints(n: int) -> Iterator[tuple[str, str]]:
    for index in range(n):
        random, (header, tensors) = Random(f"resealed checkpoint {index}"), parts()
        said, text = "", json.dumps(header)
        if random.random() < 0.7:
            said, text = altered(random, header)
        else:
            said, tensors = altered_tensors(random, tensors)
        yield f"case {index}: {said}", used(text, tensors)


def used(text: str, tensors: dict[str, Tensor]) -> str:
    """What comes of loading the model of a checkpoint, and of training on from it."""
    with TemporaryDirectory() as folder:
        seal(Path(folder) / FILE, text, tensors)
        said = [outcome_of(partial(use, Path(folder))) for use in (load, trained)]
    return " and ".join(dict.fromkeys(said)).replace("done", "used")


def seal(path: Path, text: str, tensors: dict[str, Tensor]) -> None:
    """Write a checkpoint whose checksum fits, whatever it says."""
    found = digest({HEADER: text}, tensors, tensors.__getitem__)
    end = f'"digest": "{found}"}}'
    sealed = text[:-1] + ("" if text == "{}" else ", ") + end if text.endswith("}") else text
    write_tensors(path, tensors, {HEADER: sealed})


DAMAGED = Campaign(
    name="damaged_checkpoints",
    title="Checkpoints with damaged bytes",
    sample=60,
    whole=20_000,
    allowed={"refused": "an error of icgd", "the same": "the damage changed nothing that is read"},
    cases=damaged_checkpoints,
)

RESEALED = Campaign(
    name="resealed_checkpoints",
    title="Checkpoints that were altered and sealed again",
    sample=60,
    whole=20_000,
    allowed={
        "refused": "neither the model is loaded nor training goes on",
        "used and refused": "the model is loaded, but it is not one of this training",
        "refused and used": "training goes on, but the model cannot be built from its description",
        "used": "it is a state that a training might have had",
    },
    cases=resealed_checkpoints,
)


@both_sizes
def test_damaged_checkpoints_are_refused(whole):
    DAMAGED.carry_out(whole=whole)


@both_sizes
def test_resealed_checkpoints_are_refused_or_sound(whole):
    RESEALED.carry_out(whole=whole)


def test_a_seal_of_the_campaign_is_a_seal():
    header, tensors = parts()
    assert used(json.dumps(header), tensors) == "used"
    beyond = {**header, "step": SETTINGS.n_steps + 1}
    assert used(json.dumps(beyond), tensors) == "refused"


def test_the_campaign_goes_on_from_the_middle():
    whole = replace(SETTINGS, checkpoint_every=100)
    model = new_model()
    train(model, TASK, whole)
    assert torch.equal(torch.cat([t.flatten() for t in model.parameters()]), end())
