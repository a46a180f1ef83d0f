"""Parts of a study that are found once: a file keeps each, for a study that is interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from icgd.reproductions.partial import read_json
from icgd.weights.atomic import whole_file


def kept(folder: Path | None, name: str, find: Callable[[], Any]) -> Any:
    """What `find` returns, or what it once returned here: plain data that JSON can hold.

    JSON writes a float64 with all its digits, so what is read has the same bits.
    """
    if folder is None:
        return find()
    path = folder / f"{name}.json"
    if path.exists():
        return read_json(path)
    found = find()
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(found), encoding="utf-8")
    return found
