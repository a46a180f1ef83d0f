"""Parts of a study that are found once: a file keeps each, for a study that is interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from icgd_papers.checksummed_json import read_checksummed, write_checksummed


def kept(folder: Path | None, name: str, find: Callable[[], Any]) -> Any:
    """What `find` returns, or what it once returned here: plain data that JSON can hold.

    JSON writes a float64 with all its digits, so what is read has the same bits.
    """
    if folder is None:
        return find()
    path = folder / f"{name}.json"
    if path.exists():
        return read_checksummed(path)
    found = find()
    folder.mkdir(parents=True, exist_ok=True)
    write_checksummed(path, found)
    return found
