"""A run's folder has one process at a time.

The operating system holds the lock, and drops it when the process ends, however it ends. So the
file that a killed process leaves behind locks nobody out. The file says which process has it.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from time import sleep

from icgd.environment import warn
from icgd.errors import FileError, RunFolderError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = ".lock"
"""The file in a run's folder that is locked while a process works there."""

LOCKED_BYTE = 2**30
"""Windows locks bytes, which nobody else may read then: this one is far behind the text."""

OWN_TEXT = re.compile(rb"[0-9]{0,20}\n?")
"""What may stand in the file: the number of a process, or less while that is being written."""

MOST_TRIES = 100
"""How often a file is asked for that another process may be removing or writing just now."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep `folder`, which is made if it is missing, to the block.

    Raises `RunFolderError` if another process, or another block of this one, has it, or if the
    lock's file is that of another program. Ours is removed at the end. Where a file system has no
    locks, a warning is given.
    """
    try:
        file = _own_file(folder)
    except OSError as problem:
        raise FileError(f"Cannot write {folder}: {problem.strerror or problem}.") from None
    with file:  # which is closed whatever happens, also if Ctrl-C comes while it is removed
        try:
            yield
        finally:
            with suppress(OSError):  # Windows removes no open file
                (folder / LOCK).unlink()


def _own_file(folder: Path) -> FileIO:
    """The folder's lock file: open, locked and signed."""
    while True:
        file = _opened(folder)
        try:
            _require_own(file.fileno(), folder)
            if _is_locked(file.fileno(), folder):
                _sign(file.fileno())
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # whoever had the folder has removed this file


def _opened(folder: Path) -> FileIO:
    """The lock file. The one who had the folder may remove both at any moment.

    It is an object and no number, because an object that Ctrl-C takes away is closed.
    """
    for _ in range(MOST_TRIES):
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            if (folder / LOCK).is_symlink():
                raise foreign(folder / LOCK)
            return FileIO(folder / LOCK, "a+", opener=_open_no_link)
    raise FileNotFoundError(f"{LOCK} is removed again and again")


def _open_no_link(path: str | Path, flags: int) -> int:
    """Open a file for `FileIO`, but no link, also if it took the file's place just now."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _require_own(file: int, folder: Path) -> None:
    """Raise `RunFolderError` if another program wrote the file."""
    is_plain = stat.S_ISREG(os.fstat(file).st_mode)
    if not is_plain or not OWN_TEXT.fullmatch(_start(file)):
        raise foreign(folder / LOCK)


def foreign(path: Path) -> RunFolderError:
    """The error of a file that stands in the way."""
    return RunFolderError(
        f"{path} was not written by a training of icgd, which would replace it. Nothing was "
        "changed; move that file away, or train in another folder."
    )


def _start(file: int) -> bytes:
    """The first bytes of the file, more than a lock's file has."""
    os.lseek(file, 0, os.SEEK_SET)
    return os.read(file, 100)


def _is_locked(file: int, folder: Path) -> bool:
    """Lock the file; False if it is no longer the one in the folder."""
    try:
        _ask_for_lock(file)
    except (BlockingIOError, PermissionError):
        raise RunFolderError(
            f"{folder} is in use by process {_owner(file)}; two would overwrite each other's "
            "files. Nothing was changed; wait until that process ends, or use another folder."
        ) from None
    except OSError as problem:
        text = f"{folder} cannot be locked ({problem.strerror}). Let no other process use it."
        warn(UserWarning(text))
    try:
        return os.path.samestat(os.fstat(file), (folder / LOCK).lstat())
    except FileNotFoundError:
        return False


def _ask_for_lock(file: int) -> None:
    if sys.platform == "win32":
        os.lseek(file, LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sign(file: int) -> None:
    """Write the number of this process, for those who find the folder taken."""
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    os.write(file, f"{os.getpid()}\n".encode())


def _owner(file: int) -> str:
    """The number of the process that signed the file, which it does as soon as it is locked."""
    for _ in range(MOST_TRIES):
        if text := _start(file).decode(errors="replace").strip():
            return text
        sleep(0.01)
    return "unknown"
