"""Damaged results of figures, damaged rows of their jobs, and figures that are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import polars as pl

from icgd_papers.checksummed_json import read_checksummed
from icgd_papers.figures import cheng
from icgd_papers.registry import figure_named
from icgd_papers.runner import Reproduction, reproduce, stored_results, stored_rows
from tests.campaigns.mutations import damaged
from tests.campaigns.outcomes import ONE_THREAD, ROOT, Campaign, both_sizes, outcome_of_error
from tests.papers.test_runner import POWERS


def rows_of_a_job(path: Path) -> Any:
    return read_checksummed(path)


def result(path: Path) -> Any:
    return stored_results(path), stored_rows(path).to_dicts()


@cache
def contents() -> dict[str, tuple[bytes, Any]]:
    """A file of an unfinished figure and one of a finished figure, and what reads each."""
    with TemporaryDirectory() as name:
        order = Reproduction(POWERS, "smoke", Path(name), only=("panel-a",))
        reproduce(order)
        rows = order.rows_file(order.settings[0]).read_bytes()
    committed = (ROOT / "results" / "wang-rates" / "laptop.json").read_bytes()
    return {"rows": (rows, rows_of_a_job), "result": (committed, result)}


def damaged_results(n: int) -> Iterator[tuple[str, str]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file.json"
        for index in range(n):
            random = Random(f"result {index}")
            name = random.choice(list(contents()))
            whole, read = contents()[name]
            said, content = damaged(random, whole)
            path.write_bytes(whole)
            expected = read(path)
            path.write_bytes(content)
            try:
                outcome = "the same" if read(path) == expected else "silently changed"
            except BaseException as problem:
                outcome = outcome_of_error(problem)
            yield f"case {index}: {name}, {said}", outcome


DAMAGED = Campaign(
    name="damaged_results",
    title="Results and rows of jobs with damaged bytes",
    sample=400,
    whole=20_000,
    allowed={"refused": "an error of icgd", "the same": "the damage changed nothing that is read"},
    cases=damaged_results,
)


@both_sizes
def test_damaged_results_are_refused(whole):
    DAMAGED.carry_out(whole=whole)


def few_steps(preset: str, seed: int) -> list[cheng.Model]:
    """Three models of Figure 5 that train for about a second each."""
    models = figure_named("cheng-fig5").settings("laptop", seed)[:3]
    return [replace(x, budget=replace(x.budget, n_steps=300, n_test=50)) for x in models]


def reproduced(folder: Path) -> pl.DataFrame:
    figure = replace(figure_named("cheng-fig5"), settings=few_steps)
    return reproduce(Reproduction(figure, "laptop", folder, n_workers=2)).rows.drop("seconds")


SCRIPT = """
import sys
from pathlib import Path
from tests.campaigns.test_results import reproduced
reproduced(Path(sys.argv[1]))
"""


def started(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def workers_of(group: int) -> list[str]:
    """The processes of a session that are left."""
    done = subprocess.run(["ps", "-o", "pid=", "-s", str(group)], capture_output=True, text=True)
    return done.stdout.split()


def killed_figures(n: int) -> Iterator[tuple[str, str]]:
    with TemporaryDirectory() as name:
        start = monotonic()
        started(Path(name) / "timed").wait()
        seconds = monotonic() - start
        expected = reproduced(Path(name) / "undisturbed")
        for index in range(n):
            random = Random(f"killed figure {index}")
            folder = Path(name) / str(index)
            process = started(folder)
            moment = random.uniform(0.1, 1.0) * seconds
            sleep(moment)
            process.send_signal(random.choice([signal.SIGKILL, signal.SIGTERM]))
            process.wait()
            # A worker that is still importing ends when it has done so.
            deadline = monotonic() + 30
            while workers_of(process.pid) and monotonic() < deadline:
                sleep(0.2)
            if workers_of(process.pid):
                yield f"case {index}, after {moment:.2f} s", "orphan"
                continue
            same = reproduced(folder).equals(expected)
            yield f"case {index}, after {moment:.2f} s", "the same rows" if same else "other rows"


KILLED = Campaign(
    name="killed_figures",
    title="Figures that are killed at a random moment and started again",
    sample=1,
    whole=50,
    allowed={"the same rows": "no worker outlived its parent, and the rows are those of one run"},
    cases=killed_figures,
)


@both_sizes
def test_killed_figures_end_with_the_same_rows(whole):
    KILLED.carry_out(whole=whole)
