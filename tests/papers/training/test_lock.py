import errno
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from threading import Thread

import pytest

from icgd.errors import FileError, RunFolderError
from icgd_papers.training.lock import LOCK, _own_file, locked

HOLDER = """
import sys
from pathlib import Path
from icgd_papers.training.lock import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that keeps the folder until its input ends, or until it is killed."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    return process


def refusal(folder: Path) -> str:
    with pytest.raises(RunFolderError) as caught, locked(folder):
        pass
    return str(caught.value)


def test_a_second_process_is_refused_with_the_number_of_the_first(tmp_path):
    with holder(tmp_path / "run") as first:
        assert refusal(tmp_path / "run") == (
            f"{tmp_path}/run is in use by process {first.pid}; two would overwrite each other's "
            "files. Nothing was changed; wait until that process ends, or use another folder."
        )
        assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]
        first.stdin.close()
    with locked(tmp_path / "run"):
        pass
    assert list((tmp_path / "run").iterdir()) == []


def test_a_killed_process_locks_nobody_out(tmp_path):
    with holder(tmp_path) as first:
        first.kill()
    assert (tmp_path / LOCK).read_text() == f"{first.pid}\n"
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"


def test_the_same_process_and_its_threads_are_refused_too(tmp_path):
    messages: list[str] = []
    with locked(tmp_path):
        thread = Thread(target=lambda: messages.append(refusal(tmp_path)))
        thread.start()
        thread.join()
        messages.append(refusal(tmp_path))
    assert [f"process {os.getpid()};" in message for message in messages] == [True, True]


def test_an_error_in_the_block_gives_the_folder_back(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        pass


def test_a_folder_that_goes_away_meanwhile_is_made_again(tmp_path, monkeypatch):
    """The one who had the folder removes it after the other has opened the file."""
    lock = import_module("icgd_papers.training.lock")
    real, folder, asked = lock._ask_for_lock, tmp_path / "run", []

    def removed_meanwhile(file: int) -> None:
        if not asked:
            (folder / LOCK).unlink()
            folder.rmdir()
        asked.append(file)
        real(file)

    monkeypatch.setattr(lock, "_ask_for_lock", removed_meanwhile)
    with locked(folder):
        assert len(asked) == 2
        assert (folder / LOCK).read_text() == f"{os.getpid()}\n"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(FileError) as caught, locked(tmp_path / "taken" / "run"):
        pass
    assert str(caught.value) == f"Cannot write {tmp_path}/taken/run: Not a directory."


def test_a_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch):
    lock = import_module("icgd_papers.training.lock")

    def refused(file: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_ask_for_lock", refused)
    expected = r"cannot be locked \(No locks available\)\. Let no other process use it\."
    with pytest.warns(UserWarning, match=expected), locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_ctrl_c_takes_away_is_dropped(tmp_path):
    """The file that is locked may be handed over just when the interrupt comes."""
    file = _own_file(tmp_path)
    with pytest.raises(RunFolderError), locked(tmp_path):
        pass
    del file
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert not (tmp_path / LOCK).exists()


def test_ctrl_c_while_the_lock_is_removed_gives_the_folder_back(tmp_path, monkeypatch):
    """Also while somebody holds the error, as an interactive session does with the last one."""

    def interrupt(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught, locked(tmp_path):
            pass
    with locked(tmp_path):
        assert caught.value.__traceback__ is not None


FOREIGN = ["poetry\n", "12 13\n", "4711\n\n", "9" * 200]
"""What another program may have written into a file of this name."""


@pytest.mark.parametrize("text", FOREIGN)
def test_the_lock_of_another_program_is_left_alone(tmp_path, text):
    (tmp_path / LOCK).write_text(text)
    assert refusal(tmp_path) == (
        f"{tmp_path}/{LOCK} was not written by a training of icgd, which would replace it. Nothing "
        "was changed; move that file away, or train in another folder."
    )
    assert (tmp_path / LOCK).read_text() == text


def test_a_lock_is_no_link_and_no_pipe(tmp_path):
    target, run = tmp_path / "target.txt", tmp_path / "run"
    target.write_text("4711\n")
    run.mkdir()
    (run / LOCK).symlink_to("../target.txt")
    assert "was not written by a training of icgd" in refusal(run)
    assert (run / LOCK).is_symlink()
    assert target.read_text() == "4711\n"
    (run / LOCK).unlink()
    os.mkfifo(run / LOCK)
    assert "was not written by a training of icgd" in refusal(run)
    assert (run / LOCK).is_fifo()


def test_an_empty_lock_is_taken(tmp_path):
    (tmp_path / LOCK).touch()
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
