"""Every option of every command, with each of about 90 hostile texts."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.campaigns.outcomes import Campaign, both_sizes, of_process

ROOT = Path(__file__).parents[2]


CAMPAIGN = Campaign(
    name="commands",
    title="Every option of the command line with texts that nobody means",
    sample=40,
    whole=1_000_000,
    allowed={
        "done": "the text is one that the option may have",
        "refused": "exit code 2 after one message, and nothing is left behind",
        "the verdict is no": "exit code 1, such as of a bound that does not hold",
        "goes on under a bar": "work that takes more than 20 seconds shows how far it is",
    },
    cases=partial(of_process, "tests.campaigns.commands"),
)


@both_sizes
def test_hostile_options_are_refused_in_one_line(whole):
    CAMPAIGN.carry_out(whole=whole)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk_is_told_in_one_line(stream, tmp_path):
    words = [sys.executable, "-m", "icgd.cli.app", "size", "--data=train.csv"]
    (tmp_path / "train.csv").write_text("a,b\n1,2\n2,1\n")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, **streams | {stream: full}, text=True, cwd=tmp_path)
    if stream == "stdout":
        found = "icgd: error: Cannot use standard output: No space left on device.\n"
        assert (done.returncode, done.stderr) == (2, found)
    else:
        assert done.returncode == 0
