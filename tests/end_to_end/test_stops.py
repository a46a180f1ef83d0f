"""Hostile ends of `icgd reproduce` and `icgd train`.

Whatever stops them, nothing is lost, damaged or left running.
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

from icgd.errors import FileError, RunFolderError
from icgd_papers.figures.cheng_matrices import FIGURE_3
from icgd_papers.results import reproduce
from icgd_papers.training.lock import LOCK

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
FORKING = get_context("fork")  # starts at once

REFUSED, STOPPED = 2, 130

WAITING = "import sys; from icgd.cli.app import main; print('ready', flush=True); input(); main()"
"""A program that has imported everything, and begins when it is told to."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The rows of a run that nobody stopped."""
    return rows_of(reproduce(FIGURE_3, "smoke", out=tmp_path_factory.mktemp("whole")).numbers)


def rows_of(numbers):
    """All numbers but the times."""
    return [row | {"seconds": 0} for row in numbers["rows"]]


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
        assert errors.rstrip().endswith(
            ("Give the same command again to go on.", "again to continue.")
        )
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
    reproduce(FIGURE_3, "smoke", out=out)
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


def training(folder: Path) -> list[str]:
    """The arguments of a training that saves all the time."""
    options = {
        "labels": "exp",
        "kernels": "exp",
        "n-steps": 150,
        "batch-size": 16,
        "n-validation": 8,
        "log-every": 2,
        "checkpoint-every": 1,
        "folder": folder,
    }
    return [
        "train",
        *(text for name, value in options.items() for text in (f"--{name}", str(value))),
    ]


def files_of(folder: Path) -> dict[str, bytes]:
    """What a training wrote, without the lock."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK}


def test_a_training_that_is_stopped_ends_with_the_same_bytes(tmp_path):
    whole, folder = tmp_path / "whole" / "run", tmp_path / "stopped" / "run"
    assert time_of(*training(whole)) > 0
    assert stop_after(started(*training(folder)), folder, signal.SIGINT, 0.0)
    time_of(*training(folder))
    assert files_of(folder) == files_of(whole)


@pytest.mark.slow
def test_trainings_that_are_stopped_at_random_moments_end_with_the_same_bytes(tmp_path):
    chance, hits, trials = random.Random(0), 0, 50
    longest = time_of(*training(tmp_path / "whole" / "run"))
    for trial in range(trials):
        folder, moment = tmp_path / f"{trial}" / "run", chance.uniform(0, longest)
        process, number = started(*training(folder)), chance.choice(SIGNALS)
        hits += stop_after(process, folder, number, moment)
        time_of(*training(folder))
        assert files_of(folder) == files_of(tmp_path / "whole" / "run")
    assert hits >= trials // 2


def reproduce_here(out: Path) -> None:
    """What a forked process does."""
    reproduce(FIGURE_3, "smoke", out=out)


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
    reproduce(FIGURE_3, "smoke", out=tmp_path)
    assert hits >= 3
    assert written(tmp_path) == expected


def use(out: Path, barrier, answers) -> None:
    barrier.wait()
    try:
        reproduce(FIGURE_3, "smoke", out=out)
        answers.put("finished")
    except RunFolderError as refusal:
        answers.put(str(refusal))


def test_of_two_processes_on_one_folder_one_is_refused(tmp_path, expected):
    for trial in range(3):
        out = tmp_path / f"{trial}"
        barrier, answers = FORKING.Barrier(2), FORKING.Queue()
        both = [FORKING.Process(target=use, args=(out, barrier, answers)) for _ in range(2)]
        for process in both:
            process.start()
        refusal, end = sorted((answers.get() for _ in both), key=lambda text: text == "finished")
        for process in both:
            process.join()
        assert end == "finished"
        texts = [
            f"{out}/cheng-fig3/.smoke.partial is in use by process {each.pid};" for each in both
        ]
        assert refusal.startswith(tuple(texts))
        assert written(out) == expected


@pytest.mark.slow
def test_of_two_commands_on_one_folder_one_is_refused(tmp_path, expected):
    for trial in range(20):
        out = tmp_path / f"{trial}"
        both = [started(*command(out, 1)) for _ in range(2)]
        for process in both:
            begin(process)
        errors = {process.pid: process.communicate()[1] for process in both}
        [refused] = [process.pid for process in both if process.returncode == REFUSED]
        [other] = errors.keys() - {refused}
        assert f" is in use by process {other};" in errors[refused]
        assert errors[refused].count("\n") == 1
        assert written(out) == expected


def on_a_full_disk(out: Path, answers) -> None:
    """Files of this process may hold no more than 3000 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
    try:
        reproduce(FIGURE_3, "smoke", out=out)
    except FileError as problem:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        answers.put(str(problem))


def test_a_full_disk_is_one_clear_error_and_the_work_goes_on_later(tmp_path, expected):
    answers = FORKING.Queue()
    process = FORKING.Process(target=on_a_full_disk, args=(tmp_path, answers))
    process.start()
    message = answers.get()
    process.join()
    assert message.startswith(f"Cannot write {tmp_path}/cheng-fig3/.smoke.partial/000/")
    assert message.endswith(": File too large.")
    reproduce(FIGURE_3, "smoke", out=tmp_path)
    assert written(tmp_path) == expected
