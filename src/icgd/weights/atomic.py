"""Files that are whole or not there at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from icgd.errors import FileError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its name when the block has written it.

    A link is followed, and only an ordinary file is ever replaced: a device or a pipe is refused.
    """
    target = path.resolve()
    if target.exists() and not target.is_file() and not target.is_dir():
        raise FileError.unwritable(path, "it is not an ordinary file")
    temporary = target.parent / f".{target.name}.{os.getpid()}.partial"
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)  # whoever wrote it may have made it private
        temporary.replace(target)
    except OSError as problem:
        raise FileError.unwritable(path, problem.strerror or str(problem)) from None
    finally:
        with suppress(OSError):  # renamed, or never written
            temporary.unlink()
