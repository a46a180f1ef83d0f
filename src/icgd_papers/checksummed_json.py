"""JSON files with a checksum, so that a changed digit is noticed.

The checksum is that of the content, not of the file: it does not mind spaces, the order of keys or
ends of lines. A table keeps it as its last entry. Any other content is put into a table first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icgd.errors import CheckpointError
from icgd.weights.files import whole_file

DIGEST = "digest"


def with_checksum(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with its checksum."""
    return {**table, DIGEST: _digest(table)}


def without_checksum(path: Path, table: object) -> dict[str, Any]:
    """Return the table that `with_checksum` was given; `CheckpointError` if its checksum does not
    fit.
    """
    if not isinstance(table, dict) or DIGEST not in table:
        raise damaged(path, "it has no checksum")
    content = {key: value for key, value in table.items() if key != DIGEST}
    try:
        is_whole = table[DIGEST] == _digest(content)
    except RecursionError as problem:  # it can be read, but not be written again
        raise damaged(path, problem) from None
    if not is_whole:
        raise damaged(path, "its checksum does not match")
    return content


def write_checksummed(path: Path, content: Any) -> None:
    """Write any content that JSON can hold, whole or not at all."""
    text = json.dumps(with_checksum({"content": content}))
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_checksummed(path: Path) -> Any:
    """Return what `write_checksummed` was given; `CheckpointError` if it is damaged."""
    try:
        return without_checksum(path, read_json(path))["content"]
    except KeyError:
        raise damaged(path, "it has no content") from None


def read_json(path: Path) -> Any:
    """Return the data of a file; `CheckpointError` if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise damaged(path, problem) from None


def damaged(path: object, problem: object) -> CheckpointError:
    """Return the error of a file that cannot be read."""
    return CheckpointError(
        f"{path} is damaged or was not written by icgd ({problem}). It was left as it is; remove "
        "it to start without it."
    )


def _digest(table: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the table as it is read back: its keys are texts, in their order."""
    read_back = json.loads(json.dumps(table))
    text = json.dumps(read_back, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
