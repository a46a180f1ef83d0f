"""Write files that are whole or not there at all: results, predictions, trained weights."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import polars as pl
from safetensors.torch import save
from torch import Tensor

from icgd import pictures
from icgd.errors import FileError
from icgd.weights.files import is_same_file, require_replaceable, whole_file


def write_file(path: Path, content: bytes) -> None:
    """Write a file that is whole or not there at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


def write_new_file(path: Path, content: bytes) -> None:
    """Write a file that users may edit; raise `FileError` rather than replace what they wrote."""
    require_writable(path)
    if path.exists() and path.read_bytes() != content:
        raise FileError(
            f"{path} exists already, with other content. Remove it, or name another file."
        )
    write_file(path, content)


def require_writable(*paths: Path | None, read: Iterable[Path | None] = ()) -> None:
    """Raise `FileError` before the work if a file could not be written after it.

    No file may replace one that the command has `read`, nor another one that it writes.
    """
    taken = [path for path in read if path is not None]
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise FileError(f"Cannot write {path}: it is a folder.")
        folder = path.absolute().parent
        if not folder.is_dir():
            raise FileError(f"Cannot write {path}: there is no folder {path.parent}.")
        if not os.access(folder, os.W_OK):
            raise FileError(f"Cannot write {path}: the folder {path.parent} is read-only.")
        require_replaceable(path)
        for other in taken:
            if is_same_file(path, other):
                raise FileError(
                    f"Cannot write {path}: it is the same file as {other}, which this command "
                    "reads or writes too. Nothing was changed; name another file."
                )
        taken.append(path)


def require_picture(path: Path | None) -> None:
    """Raise `FileError` if the name of a picture has an ending that no picture has."""
    if path is not None:
        pictures.picture.writer_for(path)


def predictions_content(
    queries: pl.DataFrame, names: Sequence[str], rows: Sequence[Sequence[object]]
) -> bytes:
    """Return a CSV file of the queries and their predictions; numbers read back bit for bit.

    "predicted " is put before the name of a column that the queries have too, until it is new.
    """
    free = list[str]()
    for name in names:
        while name in (*queries.columns, *free):
            name = f"predicted {name}"
        free.append(name)
    predictions = pl.DataFrame(rows, schema=free, orient="row")
    return queries.hstack(predictions).write_csv().encode()


def make_folder(path: Path) -> None:
    """Make sure that there is a folder `path`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileError(f"Cannot write {path}: {problem.strerror or problem}.") from None


WEIGHTS_ENDINGS = (".safetensors", ".json")


def require_weights_file(path: Path | None) -> None:
    """Raise `FileError` if the name has no ending that weights are written to."""
    if path is not None and path.suffix.lower() not in WEIGHTS_ENDINGS:
        raise FileError(
            f"Weights are written to a {' or '.join(WEIGHTS_ENDINGS)} file; {path} has another "
            "ending. Rename it."
        )


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write named matrices, all of them or none."""
    if path.suffix.lower() == ".json":
        data = {name: matrix.tolist() for name, matrix in weights.items()}
        write_file(path, f"{json.dumps(data, indent=1)}\n".encode())
    else:
        write_file(path, save({name: matrix.contiguous() for name, matrix in weights.items()}))
