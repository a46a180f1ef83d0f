import sys
from io import StringIO

from icgd.cli.progress import progress


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
