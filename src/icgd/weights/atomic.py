"""Files that are whole or not there at all, whatever happens while they are written.

A file is written under a random name beside its place. Its bytes reach the disk, then it takes its
name by one rename, and the rename reaches the disk too. While it is written it is locked. The
operating system drops the lock with the process, however that ends: an unfinished file that nobody
has locked is stale, and the next one who writes into the folder removes it.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from icgd.errors import FileError

if sys.platform != "win32":
    import fcntl

UNFINISHED = re.compile(r"\..*\.[0-9a-f]{16}\.icgd-partial", re.DOTALL)
"""The names of unfinished files."""

LONGEST_PART = 40
"""The letters of a file's name that its unfinished form has too; names have at most 255 bytes."""

MOST_TRIES = 100
"""How often a name is drawn; another process takes one only in the moment before it is locked."""

OLD = 86400.0
"""The seconds after which an unfinished file is stale on Windows, which has no such locks."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its name when the block has written it.

    A link is followed. Only an ordinary file is ever replaced, which keeps its rights: a device, a
    pipe or a read-only file is refused.
    """
    target = _target(path)
    try:
        rights = _rights(path, target)
        remove_stale(target.parent)
        with _unfinished(target, is_private=rights is not None) as file:
            temporary, usual = Path(file.name), os.fstat(file.fileno()).st_mode
            yield temporary
            temporary.chmod(usual if rights is None else rights)
            os.fsync(file.fileno())
            if sys.platform == "win32":
                file.close()  # Windows renames no open file
            temporary.replace(target)
            _sync_folder(target.parent)
    except OSError as problem:
        raise FileError.unwritable(path, problem.strerror or str(problem)) from None


def require_replaceable(path: Path) -> None:
    """Raise `FileError` if there is something at `path` that `whole_file` would not replace."""
    try:
        _rights(path, _target(path))
    except OSError as problem:
        raise FileError.unwritable(path, problem.strerror or str(problem)) from None


def is_same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two names, each of a file that may be missing, lead to one file."""
    try:
        return Path(one).samefile(other)
    except (OSError, ValueError):
        return _real(one) == _real(other)


def _real(path: str | os.PathLike[str]) -> Path:
    """The file that a name leads to; the name itself if its links lead round in circles."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError):
        return Path(path).absolute()


def remove_stale(folder: Path) -> None:
    """Remove the unfinished files of processes that have ended; what cannot be removed stays."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if UNFINISHED.fullmatch(entry.name):
                _remove_if_stale(Path(entry.path))


def _target(path: Path) -> Path:
    """The file that a path leads to."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as problem:  # a loop of links, a zero in the name
        raise FileError.unwritable(path, str(problem)) from None


def _rights(path: Path, target: Path) -> int | None:
    """The rights of the file that is to be replaced; None if there is none."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise FileError.unwritable(path, "it is not an ordinary file")
    if not mode & 0o222 or not os.access(target, os.W_OK):
        raise FileError.unwritable(path, "it is read-only")
    return stat.S_IMODE(mode)


@contextmanager
def _unfinished(target: Path, *, is_private: bool) -> Iterator[BinaryIO]:
    """A new file beside `target`, locked, which is removed unless it was renamed."""
    file = _locked_file(target, 0o600 if is_private else 0o666)
    try:
        yield file
    finally:
        _discard(file)


def _discard(file: BinaryIO) -> None:
    """Close and remove an unfinished file."""
    file.close()
    with suppress(OSError):
        Path(file.name).unlink()


def _locked_file(target: Path, mode: int) -> BinaryIO:
    start = f".{target.name[:LONGEST_PART]}"
    for _ in range(MOST_TRIES):
        path = target.parent / f"{start}.{secrets.token_hex(8)}.icgd-partial"
        file = open(path, "xb", opener=partial(os.open, mode=mode))  # noqa: SIM115
        try:
            if _is_locked(file) and path.exists():  # nobody took it for a stale one before
                return file
        except BaseException:  # such as Ctrl-C: nobody else knows of the file
            _discard(file)
            raise
        file.close()
    raise OSError(errno.EAGAIN, "every unfinished file is removed at once")


def _is_locked(file: BinaryIO) -> bool:
    """Lock the file; False if somebody else has it. A file system without locks is no obstacle."""
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
    return True


def _remove_if_stale(path: Path) -> None:
    with suppress(OSError), path.open("r+b") as file:
        if _is_stale(file):
            path.unlink()


def _is_stale(file: BinaryIO) -> bool:
    """Whether no process has the file; it is left alone if that cannot be known."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        return False
    if sys.platform == "win32":
        return time.time() - status.st_mtime > OLD
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError says that it is in use
    return True


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder reach the disk, where a file system can do that."""
    if sys.platform == "win32":
        return
    with suppress(PermissionError):  # the folder may be written, but not read
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        except OSError as problem:
            if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(number)
