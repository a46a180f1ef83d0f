"""`icgd train` stopped at random moments: resumed, it ends with the bytes of an undisturbed run."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from icgd_papers.training import read_config, train_config

OPTIONS = {
    "labels": "exp",
    "kernels": "exp",
    "n_steps": 40,
    "batch_size": 16,
    "n_validation": 8,
    "log_every": 2,
    "checkpoint_every": 1,
}
"""A training that saves all the time, so that most kills hit while files are being written."""

INTERRUPTED = 130

WAITING = "import sys; from icgd.cli.app import main; print('ready', flush=True); input(); main()"
"""A program that has imported everything, and begins when it is told to."""


def resume(folder: Path) -> dict[str, bytes]:
    """Train to the end in this process, and return the files of the folder."""
    train_config(read_config(options={**OPTIONS, "folder": str(folder)}))
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def stop(folder: Path, number: signal.Signals, moment: float) -> bool:
    """Stop `icgd train` some seconds after its folder appears; return whether it was at work."""
    options = {**OPTIONS, "folder": folder}.items()
    arguments = [text for name, value in options for text in (f"--{name}", str(value))]
    arguments = [text.replace("_", "-") if text.startswith("--") else text for text in arguments]
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, "train", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()
    while process.poll() is None and not folder.exists():
        time.sleep(0.001)
    time.sleep(moment)
    process.send_signal(number)
    _, errors = process.communicate()
    if process.returncode == INTERRUPTED:
        assert errors.rstrip().endswith("again to resume.")
    assert "Traceback" not in errors
    return process.returncode in (INTERRUPTED, -number)


def stop_and_resume(tmp_path: Path, n_trials: int) -> int:
    """Return how many of the trials stopped a training at work; all must end with equal bytes."""
    chance, n_hits = random.Random(0), 0
    resume(tmp_path / "first")  # so that the time of imports is not counted
    start = time.monotonic()
    expected = resume(tmp_path / "whole")
    longest = time.monotonic() - start
    assert len(expected) == 6
    for trial in range(n_trials):
        folder = tmp_path / f"{trial}"
        number = chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
        n_hits += stop(folder, number, chance.uniform(0, 0.8 * longest))
        assert resume(folder) == expected, (trial, number)
    return n_hits


def test_a_training_that_is_stopped_ends_with_the_same_bytes(tmp_path):
    assert stop_and_resume(tmp_path, 3) >= 1


@pytest.mark.campaign
def test_fifty_trainings_that_are_stopped_end_with_the_same_bytes(tmp_path):
    n_hits = stop_and_resume(tmp_path, 50)
    assert n_hits >= 25, n_hits
