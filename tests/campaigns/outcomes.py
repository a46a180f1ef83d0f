"""Campaigns: hostile cases by the thousand, each of which ends in an outcome that has a name.

To add a campaign, write `tests/campaigns/test_<name>.py`:

    from tests.campaigns.outcomes import Campaign, both_sizes, outcome_of

    def cases(n):
        for index in range(n):
            random = Random(f"tables {index}")  # a case is the same in every run
            table = hostile_table(random)
            yield f"case {index}: {table!r}", outcome_of(lambda: read(table))

    CAMPAIGN = Campaign(
        name="tables",
        title="Tables that no program writes",
        sample=100,   # cases of `make test`: a few seconds
        whole=20_000, # cases of `make campaign`: minutes
        allowed={"done": "it is read", "refused": "an error of icgd says why not"},
        cases=cases,
    )

    @both_sizes
    def test_tables_are_read_or_refused(whole):
        CAMPAIGN.carry_out(whole=whole)

`cases(n)` yields pairs: a text by which the case can be found again, and its outcome. It may yield
fewer than n, if there are not so many. `outcome_of` names what a call does: "done", "refused" (an
error of icgd), "foreign: AttributeError" (any other exception); `outcome_of_error` names an
exception. A campaign has outcomes of its own where these do not do, such as "torn" or "orphan".

An outcome that is not in `allowed` fails the test, which lists the first cases of each. The whole
form writes its counts to `tests/campaigns/counts/<name>.json`, which is committed; then
`python -m benchmarks.campaigns_page` writes docs/campaigns.md from all of them. A sample writes
nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from beartype.roar import BeartypeCallHintViolation

from icgd.errors import IcgdError

ROOT = Path(__file__).parents[2]

COUNTS = Path(__file__).parent / "counts"
"""The counts of the last whole campaigns, a file for each."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}

SHOWN = 5
"""How many cases of an outcome that is not allowed are listed."""

both_sizes = pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.campaign)], ids=["sample", "whole"]
)
"""Runs a test twice: on a sample in `make test-papers`, on all cases in `make campaign`."""


@dataclass
class Tally:
    """How often each outcome was met, with the first cases of it and the time of the longest."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[str]] = field(default_factory=dict)
    longest: float = 0.0

    def add(self, case: str, outcome: str, seconds: float) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        if len(known := self.first.setdefault(outcome, [])) < SHOWN:
            known.append(case)
        self.longest = max(self.longest, seconds)

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True)
class Campaign:
    """Cases, how many of them are tried, and the outcomes that they may have."""

    name: str
    title: str
    sample: int
    whole: int
    allowed: Mapping[str, str]
    cases: Callable[[int], Iterable[tuple[str, str]]]

    def carry_out(self, *, whole: bool) -> Tally:
        """Try the cases, print the counts, and fail if an outcome is not allowed."""
        tally, start = Tally(), time.perf_counter()
        for case, outcome in self.cases(self.whole if whole else self.sample):
            now = time.perf_counter()
            tally.add(case, outcome, now - start)
            start = now
        print(f"{self.name}: {tally.total} cases, the longest {tally.longest:.2f} s")
        for outcome in sorted(tally.counts):
            print(f"  {tally.counts[outcome]:7d}  {outcome}")
        if whole:
            self.write(tally)
        self.check(tally)
        return tally

    def write(self, tally: Tally) -> None:
        """Keep the counts; outcomes that are allowed and did not occur count 0."""
        counts = dict.fromkeys(self.allowed, 0) | dict(sorted(tally.counts.items()))
        kept = {
            "title": self.title,
            "cases": tally.total,
            "longest_seconds": round(tally.longest, 2),
            "outcomes": counts,
            "allowed": dict(self.allowed),
        }
        text = json.dumps(kept, indent=1) + "\n"
        COUNTS.mkdir(exist_ok=True)
        (COUNTS / f"{self.name}.json").write_text(text, encoding="utf-8")

    def check(self, tally: Tally) -> None:
        """Fail if there was no case, or one whose outcome is not allowed."""
        wrong = {key: cases for key, cases in tally.first.items() if key not in self.allowed}
        lines = [
            f"{tally.counts[key]} x {key}, such as\n    " + "\n    ".join(cases)
            for key, cases in wrong.items()
        ]
        assert not wrong, f"outcomes that are not allowed in {self.name}:\n" + "\n".join(lines)
        assert tally.total, f"{self.name} had no case"


def outcome_of(call: Callable[[], object]) -> str:
    """What a call does: "done", "refused" by an error of icgd, or "foreign: " and an exception."""
    try:
        call()
    except BaseException as problem:
        return outcome_of_error(problem)
    return "done"


def outcome_of_error(problem: BaseException) -> str:
    """Its name: "refused" if it is an error of icgd, or else "foreign: " and its name.

    What the type checker of `make test` refuses, icgd may refuse later on: it counts as refused.
    `make campaign` runs without the checker.
    """
    if isinstance(problem, IcgdError | BeartypeCallHintViolation):
        return "refused"
    return f"foreign: {type(problem).__name__}"


def of_process(module: str, n: int) -> Iterator[tuple[str, str]]:
    """The outcomes that a process without the type checker of the tests writes, a line each.

    It has one thread, as the tests have: another campaign runs beside it.
    """
    words, surroundings = [sys.executable, "-m", module, str(n)], os.environ | ONE_THREAD
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, cwd=ROOT, env=surroundings, text=True
    ) as process:
        for line in process.stdout or ():
            row = json.loads(line)
            yield f"{row['case']} {row['place']}", row["outcome"]
    assert process.returncode == 0
