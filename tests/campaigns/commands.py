"""Every option of every command of `icgd`, with texts that nobody means.

Run in a process of its own, without the type checker of the tests:
`python -m tests.campaigns.commands 500` tries 500 of all cases and writes a line for each, with its
outcome. A refused call must end in one message, without a traceback, and leave nothing behind.
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import typer
from typer.main import get_command

import icgd
from icgd import training
from icgd.cli import progress
from icgd.cli.app import COMMANDS, PAPERS, main
from icgd_papers.training.checkpoints import LOCK

PATIENCE = 20
"""Seconds after which a command without a bar hangs, and one with a bar is stopped."""

KEPT = "the last checkpoint is kept"
"""What a training says that went on until it met numbers that are not finite."""

ROOM = 12 * 2**30
"""Bytes of addresses that the process may take, so that a call never fills the machine."""

PLAIN = """
x -1 0 1 2 -3 1.5 +5 1_000 0x10 nan inf -inf 1e308 -1e308 1e-320 1e400 None true [] {} %s{0} $(ls)
- --json 1,2 1,,2 2,1, , 0,1 1e3,2 2,1 a,b 0.5,0.5 tanh relu rbf identity squared softmax-stack
. .. / ~ ~nobody/x /dev/null /dev/full /dev/zero folder loop readonly/x.svg missing/deep/x.svg
x.svg x.png x.csv x.json train.csv new.csv empty.csv binary.csv run.safetensors model pipe
"""

TEXTS = {text: text for text in PLAIN.split()} | {
    "empty text": "",
    "blank": " ",
    "a seed that is too large": str(2**32 - 101),
    "2**32": str(2**32),
    "2**63-1": str(2**63 - 1),
    "2**63": str(2**63),
    "2**64": str(2**64),
    "-2**63-1": str(-(2**63) - 1),
    "400 digits": "1" + "0" * 400,
    "5000 digits": "9" * 5000,
    "300 letters": "a" * 300,
    "300 letters and an ending": "a" * 300 + ".svg",
    "5000 letters": "a/" * 2500,
    "large widths": "99999999999999999999,1",
    "wide widths": "100000000,1",
    "accent": "é",
    "lone surrogate": "\udc80",
    "digits of another script": "１２",
    "two lines": "a\nb",
    "control": "\x1b[31m",
}
"""What an option is given, by its name."""

PROBLEM = {"file": "problem.toml", "--steps": "1"}

TOML = """\
steps = 1
construction = "relu-stack"
settings.pieces = 4
target.widths = [2, 1]
domain = {x = 1, y = 1}
"""

CALLS: dict[str, dict[str, str]] = {
    "demo": {"--output": "demo"},
    "example": {"file": "cars.csv"},
    "init": {"data": "train.csv", "--output": "new.toml"},
    "compile": {**PROBLEM, "--output": "new.safetensors"},
    "run": {"file": "run.safetensors", "data": "train.csv"},
    "verify": {"file": "run.safetensors", "data": "train.csv"},
    "certify": {"file": "run.safetensors", "data": "train.csv"},
    "guarantee": {"file": "linear.safetensors", "data": "train.csv"},
    "draw": {"file": "run.safetensors", "--output": "drawn.svg"},
    "size": PROBLEM,
    "compare": {**PROBLEM, "--examples": "2"},
    "theorems": {"--run": "wang-remark-2"},
    "resources": {"kind": "smooth"},
    "train": {"--folder": "new", "--n-steps": "1", "--batch-size": "2", "--n-examples": "2"},
    "plot": {"folder": "model", "--output": "log.svg"},
    "reproduce": {"figures": "cheng-fig3", "--preset": "smoke", "--output": "results"},
}
"""A valid call of every command: the value of each option, and of each argument by its name."""


def parameters() -> Iterator[tuple[str, str, bool]]:
    """Every command, every name of an option or argument, and whether it is a flag."""
    for name in COMMANDS:
        alone = typer.Typer(add_completion=False)
        package = "icgd_papers.cli" if name in PAPERS else "icgd.cli"
        alone.command(name)(getattr(import_module(f"{package}.{name}"), name))
        for part in get_command(alone).params:
            yield name, part.opts[0], bool(getattr(part, "is_flag", False))


def arguments(command: str, changed: str, text: str, is_flag: bool) -> list[str]:
    """The arguments of a call in which one differs from the valid call."""
    given = CALLS[command] | {changed: text}
    if is_flag and not text:
        named = [changed, *(f"{key}={value}" for key, value in CALLS[command].items() if _is(key))]
    else:
        named = [f"{key}={value}" for key, value in given.items() if _is(key)]
    return [command, *named, "--", *(value for key, value in given.items() if not _is(key))]


def _is(name: str) -> bool:
    """Whether it is an option; an argument has a name without dashes."""
    return name.startswith("-")


def prepare(folder: Path) -> None:
    """The files that calls name, and things that are no files."""
    step, domain = icgd.GradientStep(0.1, box=1.0), icgd.Domain(x=1.0, y=1.0)
    network = icgd.Problem(icgd.MLP((2, 1)), "squared", step, domain)
    icgd.compile(network, "relu-stack", n_steps=1, pieces=4).save(folder / "run.safetensors")
    descent = icgd.ProximalStep(0.5, box=4.0)
    linear = icgd.Problem(icgd.LinearModel(2), "matching", descent, domain)
    icgd.compile(linear, "linear-stack", n_steps=1).save(folder / "linear.safetensors")
    (folder / "problem.toml").write_text(TOML)
    (folder / "train.csv").write_text("a,b,price\n0.5,-1,1\n1,0.25,-0.5\n-1,1,0.75\n")
    (folder / "new.csv").write_text("a,b\n1,0\n0,0.5\n")
    (folder / "empty.csv").write_text("")
    (folder / "binary.csv").write_bytes(bytes(range(256)))
    (folder / "folder").mkdir()
    options = {"folder": str(folder / "model"), "n_steps": 2, "batch_size": 2, "n_examples": 2}
    training.train_config(training.read_config(options=options))
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / "readonly").mkdir(mode=0o500)


def contents(folder: Path) -> dict[str, object]:
    """Every file with its bytes, but for what locks a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.name != LOCK
    }


class Hangs(BaseException):
    """A command took too long."""


BARS = []
"""The bars that are shown now."""


def _stop(*_: object) -> None:
    raise Hangs


def _watched(make: Any) -> Any:
    def bar(*columns: Any) -> Any:
        BARS.append(columns)
        return make(*columns)

    return bar


def call(words: list[str]) -> tuple[int, str, str]:
    """The exit code and both streams of `icgd` with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["icgd", *words]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def outcome(words: list[str], folder: Path) -> tuple[str, str]:
    """What becomes of a call in this folder, and where it went wrong."""
    before = contents(folder)
    BARS.clear()
    signal.alarm(PATIENCE)
    try:
        code, _, err = call(words)
    except Hangs:
        return ("goes on under a bar" if BARS else "hangs"), _place()
    except BaseException as error:
        return f"traceback: {type(error).__name__}", f"{_place()} {str(error)[:100]!r}"
    finally:
        signal.alarm(0)
    if "Traceback" in err:
        return "traceback", err[-200:]
    if code == 2 and KEPT not in err and (left := contents(folder)) != before:
        changed = [key for key in {**left, **before} if left.get(key) != before.get(key)]
        return "refused, and something is left", str(changed)[:150] + err[-150:]
    return {0: "done", 1: "the verdict is no", 2: "refused"}.get(code, f"exit code {code}"), ""


def _place() -> str:
    """The last line of icgd in the traceback."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    ours = [frame for frame in frames if "/icgd/" in frame.filename]
    frame = (ours or frames)[-1]
    return f"{frame.filename.rpartition('/icgd/')[2]}:{frame.lineno}"


def cases() -> list[tuple[str, str, bool, str]]:
    """Every command, option and text; a flag is also given without a text."""
    return [
        (command, name, is_flag, key)
        for command, name, is_flag in parameters()
        for key in (("empty text", "x", "1") if is_flag else TEXTS)
    ]


def tried(chosen: list[tuple[str, str, bool, str]]) -> Iterator[dict[str, str]]:
    """The outcomes of these cases, each in a folder of its own."""
    with tempfile.TemporaryDirectory() as kept:
        template = Path(kept) / "template"
        template.mkdir()
        prepare(template)
        for command, name, is_flag, key in chosen:
            place = Path(kept) / "case"
            shutil.copytree(template, place, symlinks=True, copy_function=_copy)
            os.chdir(place)
            found, where = outcome(arguments(command, name, TEXTS[key], is_flag), place)
            os.chdir("/")
            shutil.rmtree(place)
            yield {"case": f"{command} {name}={key}", "outcome": found, "place": where}


def _copy(source: str, target: str) -> None:
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copy2(source, target)


def run(number: int, only: str = "") -> None:
    """Try a number of all cases, and write a line of JSON for each."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    signal.signal(signal.SIGALRM, _stop)
    progress._bar = _watched(progress._bar)
    every = [case for case in cases() if case[0].startswith(only)]
    chosen = every if number >= len(every) else Random(0).sample(every, number)
    results = sys.stdout
    for row in tried(chosen):
        results.write(json.dumps(row) + "\n")
        results.flush()


if __name__ == "__main__":
    run(int(sys.argv[1]), *sys.argv[2:])
