"""Every public callable, with one argument replaced by each of about 200 kinds of values."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.campaigns.outcomes import Campaign, both_sizes

ROOT = Path(__file__).parents[2]


def cases(n: int) -> Iterator[tuple[str, str]]:
    """The outcomes that a process without the type checker of the tests writes."""
    words = [sys.executable, "-m", "tests.campaigns.calls", str(n)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        for line in process.stdout or ():
            row = json.loads(line)
            yield f"{row['case']} {row['place']}", row["outcome"]
    assert process.returncode == 0


CAMPAIGN = Campaign(
    name="calls",
    title="Every public callable with wrong values, one argument at a time",
    sample=1500,
    whole=1_000_000,
    allowed={
        "done": "the value is right, or one of those that the argument may have",
        "refused": "an error of icgd names the argument",
        "refused in other words": "an error of icgd names what follows from the argument",
        "raised by what was given": "a callback of the caller raises, and icgd lets it through",
    },
    cases=cases,
)


@both_sizes
def test_wrong_values_are_refused_by_errors_of_icgd(whole):
    CAMPAIGN.carry_out(whole=whole)


def test_every_public_callable_is_called():
    code = "from tests.campaigns.calls import uncalled; print(*sorted(uncalled()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == [], done.stderr
    assert done.returncode == 0, done.stderr
