import sys
from importlib import import_module
from io import StringIO

import pytest

from icgd.cli.progress import progress, training_progress
from icgd.reprs import duration


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_silent_where_nobody_looks(capsys):
    with progress("training") as on_progress:
        on_progress(3, 7)
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", "")


def test_a_terminal_shows_title_and_count_on_stderr(monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("training") as on_progress:
        on_progress(3, 7)
    assert "training" in terminal.getvalue()
    assert "3/7" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def shown(monkeypatch, updates):
    """What a terminal shows of a training, whose updates come at these seconds."""
    terminal, now = Terminal(), [0.0]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(import_module("icgd.cli.progress"), "monotonic", lambda: now[0])
    with training_progress("cheng-fig2") as bar:
        for seconds, arguments in updates:
            now[0] = seconds
            bar.update(**arguments)
    return terminal.getvalue()


def test_a_training_shows_its_loss_its_speed_and_the_time_left(monkeypatch):
    updates = [
        (0.0, {"done": 50, "total": 1000}),
        (40.0, {"done": 100, "total": 1000}),  # to start took long, and does not count
        (90.0, {"done": 200, "total": 1000, "loss": 0.5}),
    ]
    last = shown(monkeypatch, updates)
    for text in ("cheng-fig2", "200/1000", "loss 0.5", "2 steps/s", "6 min 40 s left"):
        assert text in last  # 100 steps in 50 s, 800 to go


def test_a_loss_stays_until_the_next_one(monkeypatch):
    updates = [(0.0, {"done": 1, "total": 9, "loss": 0.25}), (1.0, {"done": 2, "total": 9})]
    assert "loss 0.25" in shown(monkeypatch, updates).split("2/9")[1]


def test_time_left_counts_the_work_and_not_the_steps(monkeypatch):
    """A tenth of the work in 50 s, and nine tenths to go, though half the steps are done."""
    updates = [
        (0.0, {"done": 0, "total": 10, "share": 0.0}),
        (9.0, {"done": 1, "total": 10, "share": 0.0}),
        (59.0, {"done": 5, "total": 10, "share": 0.1}),
    ]
    assert "7 min 30 s left" in shown(monkeypatch, updates)


def test_nothing_is_promised_before_anything_is_done(monkeypatch):
    last = shown(monkeypatch, [(0.0, {"done": 0, "total": 0}), (1.0, {"done": 0, "total": 10})])
    assert "left" not in last
    assert "steps/s" not in last


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (7500, "2 h 05 min"),
        (200_000, "2 days 7 h"),
    ],
)
def test_durations_have_two_units(seconds, text):
    assert duration(float(seconds)) == text
