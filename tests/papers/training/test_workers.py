import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context, spawn
from pathlib import Path
from threading import Event

import pytest

from icgd.errors import SweepError, WorkerError
from icgd_papers.training import workers
from icgd_papers.training.sweeps import sweep
from icgd_papers.training.workers import working
from tests.papers.training.swept import fails_oddly, is_killed, raises, threads_and_square, waits

PARENT = """
import sys
from pathlib import Path
from icgd_papers.training.workers import working
from tests.papers.training.swept import waits

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with working(waits, [folder] * 4, 2) as all_news:
        for news in all_news:
            print(news.value, flush=True)
"""


@pytest.fixture
def forked(monkeypatch):
    """Workers that start at once."""
    forking = get_context("fork")
    monkeypatch.setattr(workers, "get_context", lambda _: forking)


def started(folder: Path, program: str) -> subprocess.Popen[str]:
    """A process that runs a program on a folder."""
    script = folder / "parent.py"
    script.write_text(program)
    paths = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    return subprocess.Popen(
        [sys.executable, script, folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,
    )


def parent_of_two(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A process with two workers, which are at their first jobs, and their numbers."""
    process = started(folder, PARENT)
    assert process.stdout is not None
    return process, [int(process.stdout.readline()) for _ in range(2)]


def is_alive(process: int) -> bool:
    """Whether it runs; what has ended but was not collected has a state Z."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(processes: list[int]) -> None:
    while any(map(is_alive, processes)):
        time.sleep(0.01)


def test_ctrl_c_interrupts_the_jobs_once_and_starts_no_other(tmp_path):
    """A terminal sends it to the parent and to all workers."""
    process, both = parent_of_two(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate()
    assert out == ""  # no third job
    assert sorted(path.name for path in tmp_path.glob("interrupted-*")) == sorted(
        f"interrupted-{number}" for number in both
    )
    assert errors.count("Traceback") == 1  # of the parent, which does nothing about it
    assert not any(map(is_alive, both))


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_no_worker_outlives_its_parent(tmp_path, number):
    process, both = parent_of_two(tmp_path)
    assert all(map(is_alive, both))
    process.send_signal(number)
    process.communicate()
    assert process.returncode == -number
    wait_for_end(both)


IMPORTING = """
import os, sys, time
from pathlib import Path

folder = Path(sys.argv[1])
if __name__ == "__main__":
    from icgd_papers.training.workers import working
    from tests.papers.training.swept import waits
    with working(waits, [folder] * 2, 2) as all_news:
        next(all_news)
else:  # a worker imports its parent's program first, which takes long here
    (folder / f"importing-{os.getpid()}").touch()
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process that imports")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_that_still_imports_outlives_its_parent(tmp_path, number):
    process = started(tmp_path, IMPORTING)
    while len(both := list(tmp_path.glob("importing-*"))) < 2:
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate()
    wait_for_end([int(path.name.removeprefix("importing-")) for path in both])


def test_a_command_without_code_stays_as_it_is():
    assert workers._bound(["program", "--multiprocessing-fork"]) == [
        "program",
        "--multiprocessing-fork",
    ]


def test_a_command_of_python_first_binds_itself_to_its_parent():
    """The path of Python comes as bytes, which need not be UTF-8."""
    program, *rest = workers._bound([b"/bin/\xff", "-B", "-c", "work()", "--multiprocessing-fork"])
    assert os.fsencode(program) == b"/bin/\xff"
    first = workers.END_WITH_PARENT.format(parent=os.getpid())
    assert rest == ["-B", "-c", first + "work()", "--multiprocessing-fork"]


@pytest.mark.skipif(sys.platform != "linux", reason="commands are changed on Linux alone")
def test_threads_that_start_workers_change_no_command_but_theirs():
    plain = spawn.get_command_line
    entered, go_on = Event(), Event()

    def other():
        with workers._bound_to_this_process():
            entered.set()
            go_on.wait()

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(other) for _ in range(2)]
        entered.wait()
        theirs = spawn.get_command_line(pipe_handle=3)
        go_on.set()
        for each in both:
            each.result()
    assert theirs == plain(pipe_handle=3)
    assert spawn.get_command_line is plain


def test_a_worker_that_is_gone_is_told(forked):
    with pytest.raises(
        SweepError, match=r"Configuration 0, 5, failed with WorkerError: "
    ) as caught:
        sweep(is_killed, [5], runner="pool")
    assert isinstance(caught.value.__cause__, WorkerError)
    assert str(caught.value.__cause__).startswith("A worker's process ended with exit code -9;")


def test_an_exception_that_cannot_be_sent_ends_the_sweep_too(forked):
    with pytest.raises(SweepError, match=r"^Configuration 0, 5, failed with TypeError: "):
        sweep(fails_oddly, [5], runner="pool")


def test_a_failure_brings_its_traceback(forked):
    with working(lambda *_: {}["key"], [None], 1) as all_news:
        [news] = all_news
    assert news.kind == "failure"
    assert isinstance(news.value, KeyError)
    assert "in test_a_failure_brings_its_traceback" not in news.value.__notes__[0]
    assert "KeyError: 'key'" in news.value.__notes__[0]


def test_a_job_that_does_not_listen_is_killed(monkeypatch, tmp_path, forked):
    monkeypatch.setattr(workers, "GRACE", 0.0)
    with working(waits, [tmp_path], 1) as all_news:
        number = next(all_news).value
    assert not is_alive(number)


def test_a_configuration_that_cannot_be_sent_fails_by_itself(forked):
    with pytest.raises(SweepError, match=r"^Configuration 1, <.*>, failed with \w+: Can't pickle"):
        sweep(threads_and_square, [2, lambda: 0], runner="pool")
    with pytest.raises(SweepError, match=r"^Configuration 0, <.*>, failed with \w+: Can't pickle"):
        sweep(threads_and_square, [lambda: 0, 2], n_workers=2, runner="pool")


@pytest.mark.parametrize("problem", [KeyboardInterrupt, GeneratorExit, SystemExit])
def test_whatever_a_job_raises_is_its_failure(forked, capfd, problem):
    with pytest.raises(SweepError, match=f"failed with {problem.__name__}: ") as caught:
        sweep(raises, [problem], runner="pool")
    assert isinstance(caught.value.__cause__, problem)
    assert "Traceback" not in capfd.readouterr().err
