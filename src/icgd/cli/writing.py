"""Writing what a command was asked for."""

from __future__ import annotations

from pathlib import Path

from icgd.errors import FileError
from icgd.weights.atomic import whole_file


def write_file(path: Path, content: bytes) -> None:
    """Write a file that is whole or not there at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


def make_folder(path: Path) -> None:
    """Make sure that there is a folder `path`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileError.unwritable(path, problem.strerror or str(problem)) from None
