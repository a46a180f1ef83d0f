"""A run's folder has one process at a time.

The operating system holds the lock, and drops it when the process ends, however it ends. So the
file that a killed process leaves behind locks nobody out. The file says which process has it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from time import sleep

from icgd.errors import FileError, RunFolderError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = ".lock"
"""The file in a run's folder that is locked while a process works there."""

LOCKED_BYTE = 2**30
"""Windows locks bytes, which nobody else may read then: this one is far behind the text."""

MOST_TRIES = 100
"""How often a file is asked for that another process may be removing or writing just now."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep `folder`, which is made if it is missing, to the block.

    Raises `RunFolderError` if another process, or another block of this one, has it. The lock's
    file is removed at the end. Where a file system has no locks, a warning is given.
    """
    try:
        file = _own_file(folder)
    except OSError as problem:
        raise FileError.unwritable(folder, problem.strerror or str(problem)) from None
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
            return FileIO(folder / LOCK, "a+")
    raise FileNotFoundError(f"{LOCK} is removed again and again")


def _is_locked(file: int, folder: Path) -> bool:
    """Lock the file; False if it is no longer the one in the folder."""
    try:
        _ask_for_lock(file)
    except (BlockingIOError, PermissionError):
        raise RunFolderError.in_use(folder, _owner(file)) from None
    except OSError as problem:
        text = f"{folder} cannot be locked ({problem.strerror}). Let no other process use it."
        warnings.warn(text, stacklevel=2)
    try:
        return os.path.samestat(os.fstat(file), (folder / LOCK).stat())
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
        os.lseek(file, 0, os.SEEK_SET)
        if text := os.read(file, 100).decode().strip():
            return text
        sleep(0.01)
    return "unknown"
