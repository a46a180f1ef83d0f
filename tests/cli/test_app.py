import subprocess
import sys
from importlib import import_module

import icgd


def test_version(command):
    assert command("--version").stdout == f"icgd {icgd.__version__}\n"


def test_help_lists_every_subcommand(command):
    help_text = command("--help").stdout
    for name in ("demo", "compile", "run", "verify", "size", "reproduce"):
        assert f" {name} " in help_text


def test_wrong_usage_is_refused_with_code_2(command):
    assert command("fly").code == 2
    assert command("size", "--widths", "4,1", "--box", "wide").code == 2


def test_a_message_of_many_lines_is_printed_as_one(command):
    message = command("size", "--widths", "4\n16").refusal()
    assert message == (
        "--widths must be whole numbers joined by commas, such as 4,16,1, got '4\\n16'."
    )


def test_an_interrupt_ends_with_code_130(command, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("icgd.cli.problem_options"), "compile", interrupt)
    outcome = command("size", "--widths", "4,1")
    assert outcome.code == 130
    assert "Traceback" not in outcome.stderr


def test_the_module_is_the_command():
    called = [sys.executable, "-m", "icgd.cli.app", "--version"]
    result = subprocess.run(called, capture_output=True, text=True, check=True)
    assert result.stdout == f"icgd {icgd.__version__}\n"
