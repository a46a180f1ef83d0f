"""Hostile ends of `icgd reproduce`.

Whatever stops it, nothing is lost, damaged or left running.
"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from icgd.errors import FileError
from icgd_papers.registry import figure_named
from icgd_papers.runner import Reproduction, reproduce

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
FORKING = get_context("forkserver")  # no fork of a process whose threads hold locks
FORKING.set_forkserver_preload(["icgd_papers.registry", "icgd_papers.figures.cheng"])

STOPPED = 130

WAITING = "import sys; from icgd.cli.app import main; print('ready', flush=True); input(); main()"
"""A program that has imported everything, and begins when it is told to."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The rows of a run that nobody stopped."""
    return rows_of(reproduce_here(tmp_path_factory.mktemp("whole")).table)


def reproduce_here(out: Path):
    return reproduce(Reproduction(figure_named("cheng-fig3"), "smoke", out))


def rows_of(table):
    """All numbers but the times."""
    return [row | {"seconds": 0} for row in table["rows"]]


def written(out: Path):
    folder = out / "cheng-fig3"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["smoke.csv", "smoke.json", "smoke.png"]  # nothing half-done is left
    return rows_of(json.loads((folder / "smoke.json").read_text()))


def command(out: Path, n_workers: int) -> list[str]:
    return [
        "reproduce",
        "cheng-fig3",
        "--preset",
        "smoke",
        "--out",
        str(out),
        "--workers",
        str(n_workers),
    ]


def started(*arguments: str) -> subprocess.Popen[str]:
    """`icgd` with these arguments in a session of its own, ready to begin."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def members(session: int) -> list[int]:
    """The processes of a session that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of_session = path.read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:  # it has just ended
            continue
        if int(of_session) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def stop(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Stop it as a terminal or a batch system does; returns whether it was still at work."""
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, errors = process.communicate()
    while members(process.pid):  # workers end by themselves
        time.sleep(0.01)
    if number is signal.SIGINT and process.returncode == STOPPED:
        assert "Traceback" not in errors
        assert errors.rstrip().endswith("Give the same command again to resume.")
    return process.returncode in (STOPPED, -number)


def stop_after(
    process: subprocess.Popen[str], folder: Path, number: signal.Signals, moment: float
) -> bool:
    """Let it begin, and stop it `moment` seconds after its folder is there."""
    begin(process)
    while process.poll() is None and not folder.exists():
        time.sleep(0.001)
    time.sleep(moment)
    return stop(process, number)


def stop_and_resume(out: Path, n_workers: int, number: signal.Signals, moment: float) -> bool:
    """Start, stop after `moment` seconds of work, and go on to the end here.

    Returns whether the run was still at work when it was stopped.
    """
    process = started(*command(out, n_workers))
    was_at_work = stop_after(process, out / "cheng-fig3", number, moment)
    reproduce_here(out)
    return was_at_work


def test_ctrl_c_ends_two_workers_and_nothing_is_lost(tmp_path, expected):
    """A run in which workers have only just begun, so that it is certainly stopped."""
    assert stop_and_resume(tmp_path, 2, signal.SIGINT, 0.0)
    assert written(tmp_path) == expected


def time_of(*arguments: str) -> float:
    """The seconds of a run that nobody stops."""
    process = started(*arguments)
    start = time.monotonic()
    begin(process)
    process.communicate()
    assert process.returncode == 0
    return time.monotonic() - start


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [1, 2])
def test_stops_at_random_moments_change_no_number(tmp_path, expected, n_workers):
    chance, hits = random.Random(n_workers), 0
    longest = time_of(*command(tmp_path / "whole", n_workers))
    assert written(tmp_path / "whole") == expected
    for trial in range(25):
        number, moment = chance.choice(SIGNALS), chance.uniform(0, longest)
        hits += stop_and_resume(tmp_path / f"{trial}", n_workers, number, moment)
        assert written(tmp_path / f"{trial}") == expected
    assert hits >= 10


def test_kills_at_random_moments_change_no_number(tmp_path, expected):
    """Forked processes, which are killed while files are being written."""
    chance, hits = random.Random(0), 0
    for number in 3 * SIGNALS:
        process = FORKING.Process(target=reproduce_here, args=(tmp_path,))
        process.start()
        while process.is_alive() and not (tmp_path / "cheng-fig3/.smoke.partial").exists():
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.1))
        os.kill(process.pid, number)
        process.join()
        hits += process.exitcode != 0
    reproduce_here(tmp_path)
    assert hits >= 3
    assert written(tmp_path) == expected


def on_a_full_disk(out: Path, answers) -> None:
    """Files of this process may hold no more than 3000 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
    try:
        reproduce_here(out)
    except FileError as problem:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        answers.put(str(problem))


def test_a_full_disk_is_one_clear_error_and_the_work_goes_on_later(tmp_path, expected):
    answers = FORKING.Queue()
    process = FORKING.Process(target=on_a_full_disk, args=(tmp_path, answers))
    process.start()
    message = answers.get()
    process.join()
    assert message.startswith(f"Cannot write {tmp_path}/cheng-fig3/.smoke.partial/")
    assert message.endswith(": File too large.")
    reproduce_here(tmp_path)
    assert written(tmp_path) == expected
