"""Files that are whole or not there at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from icgd.errors import FileError


def write_file(path: Path, content: bytes) -> None:
    """Write under a temporary name in the same folder and rename it."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.partial"
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as problem:
        raise FileError.unwritable(path, problem.strerror or str(problem)) from None
    finally:
        with suppress(OSError):  # renamed, or never written
            temporary.unlink()


def make_folder(path: Path) -> None:
    """Make sure that there is a folder `path`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileError.unwritable(path, problem.strerror or str(problem)) from None
