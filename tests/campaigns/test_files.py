"""Damaged files of every construction."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import icgd
from icgd.constructions.registry import CONSTRUCTIONS
from tests.campaigns.compiled_files import ORDERS, compiled
from tests.campaigns.mutations import damaged
from tests.campaigns.outcomes import Campaign, both_sizes, outcome_of_error


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


DAMAGED = Campaign(
    name="damaged_files",
    title="Compiled runs with damaged bytes",
    sample=300,
    whole=20_000,
    allowed={"refused": "an error of icgd", "the same": "the damage changed nothing that is read"},
    cases=damaged_files,
)


@both_sizes
def test_damaged_files_are_refused(whole):
    DAMAGED.carry_out(whole=whole)


def test_every_construction_has_a_file():
    assert {name.partition(",")[0] for name in ORDERS} == set(CONSTRUCTIONS)
