"""The command line as a user meets it: arguments in, exit code and two streams out."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Outcome:
    """What one call of `icgd` left behind."""

    code: int
    stdout: str
    stderr: str

    def refusal(self) -> str:
        """The message, if the call was refused in one clear line, without a traceback."""
        assert self.code == 2, self
        assert self.stdout == "", self
        assert self.stderr.count("\n") == 1, self
        assert self.stderr.startswith("icgd: error: "), self
        return self.stderr.removeprefix("icgd: error: ").rstrip("\n")

    def example(self) -> list[str]:
        """The arguments of the example that a help text shows."""
        text = re.sub("\x1b.*?m", "", self.stdout)
        found = re.search("Example: icgd (.*?)\n\\s*\n", text, re.DOTALL)
        assert found, self
        return found[1].split()


Command = Callable[..., Outcome]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`icgd` with the given arguments, in the empty folder `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["icgd", *(str(part) for part in arguments)])
        main = import_module("icgd.cli.app").main  # late, so that shapes are checked
        with pytest.raises(SystemExit) as stopped:
            main()
        written = capsys.readouterr()
        return Outcome(stopped.value.code or 0, written.out, written.err)

    return run


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], str]:
    """Write a problem.toml, and return its name."""

    def write(text: str) -> str:
        (tmp_path / "problem.toml").write_text(text)
        return "problem.toml"

    return write
