"""A stopwatch goes on after an interruption."""

import math
from importlib import import_module

import pytest

from icgd.errors import CheckpointError
from icgd_papers.checksummed_json import write_checksummed
from icgd_papers.stopwatch import Stopwatch

STOPWATCH = import_module("icgd_papers.stopwatch")


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    times = [100.0]
    monkeypatch.setattr(STOPWATCH, "perf_counter", lambda: times[-1])
    return times


def test_every_leg_adds_its_time(clock, tmp_path):
    for leg, expected in enumerate((7.0, 14.0, 21.0)):
        clock.append(1000.0 * leg)
        stopwatch = Stopwatch(tmp_path)
        clock.append(1000.0 * leg + 7)
        assert stopwatch.seconds == expected
        stopwatch.keep()
        clock.append(1000.0 * leg + 7.5)
        stopwatch.keep()  # too early: half a second is lost
    assert [path.name for path in tmp_path.iterdir()] == ["seconds.json"]


def test_without_a_folder_nothing_is_kept(clock, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stopwatch = Stopwatch()
    clock.append(105.0)
    stopwatch.keep()
    assert stopwatch.seconds == 5.0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [None, [], "soon", 3, -1.0, math.inf, math.nan])
def test_a_file_that_says_no_seconds_is_named(tmp_path, content):
    write_checksummed(tmp_path / "seconds.json", content)
    with pytest.raises(CheckpointError, match=r"seconds\.json is damaged .* expected seconds\)"):
        Stopwatch(tmp_path)


@pytest.mark.parametrize("content", ["", "null", "[]", "soon", "7.0"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "seconds.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"seconds\.json is damaged or not a checkpoint"):
        Stopwatch(tmp_path)
