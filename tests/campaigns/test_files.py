"""Files of every construction that were damaged, and files that were altered and sealed again."""

import json
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from safetensors import safe_open

import icgd
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.weights import files
from icgd.weights.tensors import write_tensors
from tests.campaigns.compiled_files import ORDERS, compiled, data_for
from tests.campaigns.mutations import altered, damaged
from tests.campaigns.outcomes import Campaign, both_sizes, outcome_of_error

MOST_STEPS, MOST_WIDTH = 8, 500
"""Sizes up to which an altered program is run; beyond them it may be honest and long."""


@cache
def content_of(name: str, weights: bool) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        compiled(name).save(path, weights=weights)
        return path.read_bytes()


def damaged_files(n: int) -> Iterator[tuple[str, str]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        for index in range(n):
            random = Random(f"damaged {index}")
            name = random.choice(list(ORDERS))
            said, content = damaged(random, content_of(name, random.random() < 0.3))
            path.write_bytes(content)
            yield f"case {index}: {name}, {said}", loaded_as(path, name)


def loaded_as(path: Path, name: str) -> str:
    try:
        return "the same" if icgd.load(path) == compiled(name) else "silently changed"
    except BaseException as problem:
        return outcome_of_error(problem)


@cache
def texts_of(name: str) -> dict[str, str]:
    run = compiled(name)
    return {
        "problem": json.dumps(run.problem.to_data()),
        "program": json.dumps(run.program.to_data()),
    }


def resealed_files(n: int) -> Iterator[tuple[str, str]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        for index in range(n):
            random = Random(f"resealed {index}")
            name, key = (
                random.choice(list(ORDERS)),
                random.choice(["problem", "program", "program"]),
            )
            said, text = altered(random, json.loads(texts_of(name)[key]))
            seal(path, {**texts_of(name), key: text})
            yield f"case {index}: {name}, {key} {said}", used(path)


def seal(path: Path, texts: dict[str, str]) -> None:
    """Write a file whose checksum fits, whatever it says."""
    tensors = {"d_model": torch.tensor([1])}
    found = files.digest(texts, tensors, tensors.__getitem__)
    write_tensors(path, tensors, {"icgd": "6", **texts, "digest": found})


def used(path: Path) -> str:
    """What comes of loading a file, and of using what was loaded in every way."""
    try:
        run = icgd.load(path)
    except BaseException as problem:
        return outcome_of_error(problem)
    try:
        return exercised(run)
    except BaseException as problem:
        return f"{outcome_of_error(problem)} later"


def exercised(run: icgd.Compiled) -> str:
    repr(run), run.listing()
    if run.program.n_steps > MOST_STEPS or run.program.layout.width > MOST_WIDTH:
        return "read, too long to run"
    run.summary()
    run.certificate()
    x, y = data_for(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.run(x, y, queries=x[:1], seed=0)
        report = icgd.verify(run, x, y, seed=0)
    return "bounds hold" if report.verdict.holds else "bounds do not hold"


DAMAGED = Campaign(
    name="damaged_files",
    title="Compiled runs with damaged bytes",
    sample=300,
    whole=20_000,
    allowed={"refused": "an error of icgd", "the same": "the damage changed nothing that is read"},
    cases=damaged_files,
)

RESEALED = Campaign(
    name="resealed_files",
    title="Compiled runs that were altered and sealed again",
    sample=60,
    whole=20_000,
    allowed={
        "refused": "`load` raises an error of icgd",
        "refused later": "what is loaded raises an error of icgd when it is used",
        "bounds hold": "it runs, and its errors are within what it proves",
        "read, too long to run": "it has more steps or more width than are tried",
    },
    cases=resealed_files,
)


@both_sizes
def test_damaged_files_are_refused(whole):
    DAMAGED.carry_out(whole=whole)


@both_sizes
def test_resealed_files_are_refused_or_honest(whole):
    RESEALED.carry_out(whole=whole)


def test_every_construction_has_a_file():
    assert {name.partition(",")[0] for name in ORDERS} == set(CONSTRUCTIONS)


def test_a_seal_of_the_campaign_is_a_seal(tmp_path):
    seal(tmp_path / "run", texts_of("relu-stack"))
    assert icgd.load(tmp_path / "run") == compiled("relu-stack")
    with safe_open(tmp_path / "run", framework="pt") as file:
        assert file.metadata()["icgd"] == str(files.FORMAT)
