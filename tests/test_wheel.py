"""The package as a user gets it: built, installed by itself, and run without a network."""

import os
import resource
import shutil
import subprocess
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import icgd

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
JUNK = {".venv", ".git", "__pycache__", "build", "dist", "icgd-demo", ".hypothesis"}


def done(*command: object, **options: object) -> str:
    """What a command prints; it has to succeed."""
    texts = [str(part) for part in command]
    finished = subprocess.run(texts, capture_output=True, text=True, **options)
    assert finished.returncode == 0, f"{' '.join(texts)}\n{finished.stdout}{finished.stderr}"
    return finished.stdout


def made(folder: Path, *packages: object) -> Path:
    """The folder of programs of a new environment with these packages."""
    venv.create(folder, with_pip=True)
    done(folder / "bin" / "pip", "install", "--quiet", *packages)
    return folder / "bin"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist and the wheel that was made from it, both checked."""
    tools = made(tmp_path_factory.mktemp("tools") / "env", "build", "twine")
    folder = tmp_path_factory.mktemp("dist")
    done(tools / "python", "-m", "build", "--outdir", folder, ROOT)
    files = sorted(folder.iterdir())
    assert done(tools / "twine", "check", "--strict", *files).count("PASSED") == 2
    return folder


@pytest.fixture(scope="module")
def programs(built, tmp_path_factory) -> Iterator[Path]:
    """The programs of an environment that has the wheel and what it needs, without extras."""
    [wheel] = built.glob("*.whl")
    folder = tmp_path_factory.mktemp("plain") / "env"
    yield made(folder, "-c", ROOT / "constraints.txt", wheel)
    shutil.rmtree(folder)  # more than 1 GB


@pytest.fixture
def offline(programs, tmp_path):
    """Run a program of the environment in an empty folder, with the network cut."""
    cut = ["unshare", "-rn"]
    works = shutil.which("unshare") and subprocess.run([*cut, "true"]).returncode == 0
    settings = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **NO_NETWORK}

    def run(name: str, *arguments: str) -> str:
        command = [*(cut if works else []), programs / name, *arguments]
        return done(*command, cwd=tmp_path, env=settings)

    return run


def test_the_source_archive_holds_the_project_and_no_junk(built):
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        paths = [Path(name) for name in opened.getnames()]
    parts = {part for path in paths for part in path.parts[1:]}
    assert {"LICENSE", "README.md", "CITATION.cff", "tests", "docs", "results"} <= parts
    assert parts & JUNK == set()


def processor_seconds() -> float:
    """What all finished commands took; other work on the machine does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    ("option", "start"), [("--version", f"icgd {icgd.__version__}\n"), ("--help", "")]
)
def test_the_answer_comes_at_once(option, start, offline):
    times = []
    for _ in range(5):
        before = processor_seconds()
        assert offline("icgd", option).startswith(start)
        times.append(processor_seconds() - before)
    assert min(times) < 0.3


def test_alone_it_says_what_to_do_first(offline, tmp_path):
    assert "icgd demo" in offline("icgd")
    assert list(tmp_path.iterdir()) == []


def test_the_demo_runs_in_an_empty_folder(offline, tmp_path):
    assert "HOLDS for this run: every measured error is within its" in " ".join(
        offline("icgd", "demo").split()
    )
    assert {path.name for path in (tmp_path / "icgd-demo").iterdir()} == {"demo.json", "demo.png"}


def test_every_name_is_there_without_an_extra(offline):
    code = "import icgd; print(len([getattr(icgd, name) for name in icgd.__all__]))"
    assert offline("python", "-c", code) == f"{len(icgd.__all__)}\n"
    assert offline("python", "-m", "pip", "check") == "No broken requirements found.\n"
