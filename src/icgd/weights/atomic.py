"""Files that are whole or not there at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from icgd.errors import FileError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its name when the block has written it."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.partial"
    try:
        temporary.touch()
        yield temporary
        temporary.replace(path)
    except OSError as problem:
        raise FileError.unwritable(path, problem.strerror or str(problem)) from None
    finally:
        with suppress(OSError):  # renamed, or never written
            temporary.unlink()
