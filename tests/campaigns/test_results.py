"""Damaged results of figures and outcomes of studies."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from icgd_papers.checksummed_json import with_checksum
from icgd_papers.partial import FOUND, Job, carry_out, claim
from icgd_papers.results import stored_numbers, stored_rows
from icgd_papers.stopwatch import Stopwatch
from tests.campaigns.mutations import damaged
from tests.campaigns.outcomes import Campaign, both_sizes, outcome_of_error
from tests.papers.committed import RESULTS
from tests.papers.runner.test_partial import Counting

Read = Callable[[Path], Any]


def outcome_in(folder: Path) -> Any:
    return carry_out([Job(Counting(2), folder / "000", "cpu")], 1, None)


def record_in(folder: Path) -> Any:
    return claim(folder, 0, [Counting(2)])


def seconds_in(folder: Path) -> Any:
    return Stopwatch(folder)._earlier


def result_in(folder: Path) -> Any:
    return stored_numbers(folder / "laptop.json"), stored_rows(folder / "laptop.json")


@cache
def work() -> dict[str, tuple[str, bytes, Read]]:
    """Files of an unfinished figure and of a finished one, and what reads each."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        record_in(folder)
        outcome_in(folder)
        outcome, record = (folder / "000" / FOUND).read_bytes(), (folder / "runs.json").read_bytes()
    seconds = json.dumps(with_checksum({"content": 12.5})).encode()
    result = (RESULTS / "wang-rates" / "laptop.json").read_bytes()
    return {
        "outcome": (f"000/{FOUND}", outcome, outcome_in),
        "record": ("runs.json", record, record_in),
        "seconds": ("seconds.json", seconds, seconds_in),
        "result": ("laptop.json", result, result_in),
    }


def read(name: str, content: bytes) -> Any:
    """What is read in a folder with this file."""
    place, _, reads = work()[name]
    with TemporaryDirectory() as folder:
        (Path(folder) / place).parent.mkdir(exist_ok=True)
        (Path(folder) / place).write_bytes(content)
        return reads(Path(folder))


@cache
def expected(name: str) -> Any:
    return read(name, work()[name][1])


def damaged_results(n: int) -> Iterator[tuple[str, str]]:
    for index in range(n):
        random = Random(f"result {index}")
        name = random.choice(list(work()))
        said, content = damaged(random, work()[name][1])
        try:
            same = read(name, content) == expected(name)
            outcome = "the same" if same else "silently changed"
        except BaseException as problem:
            outcome = outcome_of_error(problem)
        yield f"case {index}: {name}, {said}", outcome


DAMAGED = Campaign(
    name="damaged_results",
    title="Results and outcomes with damaged bytes",
    sample=400,
    whole=20_000,
    allowed={"refused": "an error of icgd", "the same": "the damage changed nothing that is read"},
    cases=damaged_results,
)


@both_sizes
def test_damaged_results_are_refused(whole):
    DAMAGED.carry_out(whole=whole)
