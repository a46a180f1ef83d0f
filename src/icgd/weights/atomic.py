"""Write files that are complete or not there at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from icgd.errors import FileError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`, which takes its name once the block has written it.

    If the block fails, or Ctrl-C ends it, the temporary file is removed and what was at `path`
    stays. Links are followed, and a file that is replaced keeps its permissions.
    """
    require_replaceable(path)
    target = Path(os.path.realpath(path))
    # Names have at most 255 bytes, so only a part of a long one is kept.
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.icgd-partial")
    try:
        temporary.touch(exist_ok=False)
        mode = (target if target.exists() else temporary).stat().st_mode
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise FileError(f"Cannot write {path}: {error.strerror or error}.") from None
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Bring a rename to the disk, where the system and the permissions of the folder allow it."""
    if os.name == "posix":
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def require_replaceable(path: Path) -> None:
    """Raise `FileError` if `path` is a folder, a device, a pipe or a read-only file."""
    problem = None
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            problem = "it is a folder"
        elif not stat.S_ISREG(mode):
            problem = "it is not an ordinary file"
        elif not mode & 0o222 or not os.access(path, os.W_OK):  # root may write to any file
            problem = "it is read-only"
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # such as a loop of links, or a zero in the name
        problem = getattr(error, "strerror", None) or str(error)
    if problem:
        raise FileError(f"Cannot write {path}: {problem}.")


def is_same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two names lead to one file, which need not exist yet."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
    except ValueError:  # no file has a zero in its name
        return False
