import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

import icgd
from icgd.cli import show
from icgd.cli.app import COMMANDS, PAPERS
from icgd.cli.cars_demo import QUICK
from tests.cli.files import write_all

TABLES = [
    "demo",
    "run run.safetensors train.csv --queries new.csv",
    "verify run.safetensors train.csv",
    "guarantee line.safetensors train.csv",
    "size --data train.csv --hidden 640 --steps 1000",
    "theorems --list",
    "theorems --run wu-lemma-1",
    "resources smooth --dimension 1 --smoothness 6 --depth 2 --errors 0.1,0.001",
    "reproduce --list",
]
"""Subcommands that print tables; the tables of the others are made by the same functions."""


def test_version(command):
    assert command("--version").stdout == f"icgd {icgd.__version__}\n"


def test_help_lists_every_subcommand_with_its_own_first_sentence(command):
    help_text = command("--help").stdout
    for name, sentence in COMMANDS.items():
        assert f" {name} " in help_text
        package = "icgd_papers.cli" if name in PAPERS else "icgd.cli"
        function = getattr(import_module(f"{package}.{name}"), name)
        assert function.__doc__.splitlines()[0] == sentence


def test_every_file_of_a_subcommand_is_listed():
    """A file with a function of its own name is a subcommand, if that takes options of a shell."""
    packages = [import_module(name) for name in ("icgd.cli", "icgd_papers.cli")]
    files = [path for package in packages for path in Path(package.__file__).parent.glob("*.py")]
    texts = {path.stem: path.read_text() for path in files}
    found = {name for name, text in texts.items() if text.startswith(f'"""`icgd {name}`')}
    assert found == set(COMMANDS)


def test_alone_it_says_what_to_do_first(command):
    outcome = command()
    assert outcome.code == 0
    assert "icgd demo" in outcome.stdout
    assert "icgd init cars.csv" in outcome.stdout


@pytest.mark.parametrize("option", ["--version", "--help", ""])
def test_what_needs_no_torch_imports_none(option):
    code = (
        "import sys; from icgd.cli.app import main\n"
        f"sys.argv = ['icgd', *{[option] if option else []}]\n"
        "try: main()\n"
        "except SystemExit: print({'torch', 'numpy', 'polars'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("set()\n")


@pytest.mark.parametrize("arguments", TABLES)
def test_a_narrow_terminal_shows_every_number_whole(arguments, command, tmp_path, monkeypatch):
    monkeypatch.setattr(import_module("icgd.cli.demo"), "SETTINGS", QUICK)
    monkeypatch.setattr(show, "seconds_text", lambda seconds: "1.25 ms")
    write_all(tmp_path)
    model, update = icgd.LinearModel(4), icgd.ProximalStep(0.1, l2=0.1, box=8.0)
    problem = icgd.Problem(model, "matching", update, icgd.Domain(4.0, 2.0))
    icgd.compile(problem, "linear-stack", n_steps=3).save(tmp_path / "line.safetensors")
    expected = numbers_at(200, arguments, command, monkeypatch)
    assert expected
    assert numbers_at(60, arguments, command, monkeypatch) == expected
    assert numbers_at(40, arguments, command, monkeypatch) == expected


def numbers_at(width, arguments, command, monkeypatch) -> set[str]:
    """All words with a digit that a terminal of this width shows."""
    monkeypatch.setattr(show, "output", Console(highlight=False, width=width))
    outcome = command(*arguments.split())
    assert outcome.code == 0, outcome
    return {word for word in outcome.stdout.split() if any(map(str.isdigit, word))}


def test_wrong_usage_is_refused_with_code_2(command):
    assert command("complie").refusal().endswith("reproduce. Did you mean 'compile'?")
    assert "No such option: --hiden" in command("size", "--hiden", "3").stderr


@pytest.mark.parametrize("line", ["run t.csv t.csv", "draw t.csv", "run t.parquet --tasks a -o b"])
def test_a_table_in_place_of_a_compiled_run_is_named_as_such(command, line):
    message = (
        f"{line.split()[1]} is a table. The first argument is a file that `icgd compile` wrote."
    )
    assert command(*line.split()).refusal() == message


def test_a_message_of_many_lines_is_printed_as_one(command):
    message = command("size", "--hidden", "4\n16").refusal()
    assert message == (
        "--hidden must be whole numbers joined by commas, such as 16,16, got '4\\n16'."
    )


def test_an_interrupt_ends_with_code_130(command, toml, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("icgd.cli.problem_file"), "compile", interrupt)
    outcome = command("size", toml("target.widths = [4, 1]"))
    assert outcome.code == 130
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize("module", ["icgd", "icgd.cli.app"])
def test_the_module_is_the_command(module):
    called = [sys.executable, "-m", module, "--version"]
    result = subprocess.run(called, capture_output=True, text=True, check=True)
    assert result.stdout == f"icgd {icgd.__version__}\n"


def test_the_command_that_is_installed_is_the_module():
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    assert project["project"]["scripts"]["icgd"] == "icgd.__main__:main"


@pytest.mark.parametrize("slow", ["typer", "torch"])
def test_ctrl_c_while_something_is_imported_leaves_no_traceback(tmp_path, slow):
    (tmp_path / f"{slow}.py").write_text("raise KeyboardInterrupt")
    called = [sys.executable, "-m", "icgd", "size", "--hidden", "4"]
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    result = subprocess.run(called, capture_output=True, text=True, env=environment)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="it takes a shell that closes streams")
@pytest.mark.parametrize(
    ("arguments", "closed", "code"),
    [
        ("--help", ">&-", 0),
        ("", ">&- 2>&-", 0),
        ("example cars.csv", ">&-", 0),
        ("fly", "2>&-", 2),
        ("fly", ">&- 2>&-", 2),
    ],
)
def test_a_closed_stream_is_no_obstacle(arguments, closed, code, tmp_path):
    line = f"{sys.executable} -m icgd.cli.app {arguments} {closed}"
    command = ["/bin/sh", "-c", line]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
