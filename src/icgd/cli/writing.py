"""Writing what a command was asked for: whole files, predictions, trained weights."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
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
    """Write a file that users may edit; `FileError` if there is one with another content."""
    require_writable(path)
    if path.exists() and path.read_bytes() != content:
        raise FileError(
            f"{path} exists already, and has another content. Remove it, or name another file."
        )
    write_file(path, content)


def require_writable(*paths: Path | None, read: Iterable[Path | None] = ()) -> None:
    """Raise `FileError` before the work if a file could not be written after it.

    No file may replace one that the command has `read`, nor another one that it writes.
    """
    taken = [path for path in read if path is not None]
    for path in paths:
        if path is not None:
            _require_place(path)
            _require_apart(path, taken)
            taken.append(path)


def _require_place(path: Path) -> None:
    if path.is_dir():
        raise FileError(f"Cannot write {path}: it is a folder.")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise FileError(f"Cannot write {path}: there is no folder {path.parent}.")
    if not os.access(folder, os.W_OK):
        raise FileError(f"Cannot write {path}: the folder {path.parent} is read-only.")
    require_replaceable(path)


def _require_apart(path: Path, taken: Iterable[Path]) -> None:
    for other in taken:
        if is_same_file(path, other):
            raise FileError(
                f"Cannot write {path}: it is the same file as {other}, which this command reads or "
                "writes too. Nothing was changed; name another file."
            )


def require_picture(path: Path | None) -> None:
    """Raise `FileError` if there is a name, but without an ending that pictures are written to."""
    if path is not None:
        pictures.picture.writer_for(path)


def predictions_content(
    queries: pl.DataFrame, names: Sequence[str], rows: Sequence[Sequence[object]]
) -> bytes:
    """Return a CSV file of the queries with their predictions beside them; numbers read back bit
    for bit.

    A column that the queries have too is called "predicted ...", as often as it takes.
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


WeightsOut = Annotated[
    Path | None,
    typer.Option(
        "--weights-out",
        help="File to write the trained weights to: weights_1, bias_1, ..., or coefficients.",
        metavar="W.safetensors|W.json",
    ),
]


def _as_safetensors(weights: Mapping[str, Tensor]) -> bytes:
    content: bytes = save({name: part.contiguous() for name, part in weights.items()})
    return content


def _as_json(weights: Mapping[str, Tensor]) -> bytes:
    data = {name: part.tolist() for name, part in weights.items()}
    return f"{json.dumps(data, indent=1)}\n".encode()


WRITERS: dict[str, Callable[[Mapping[str, Tensor]], bytes]] = {
    ".safetensors": _as_safetensors,
    ".json": _as_json,
}
"""How weights become a file, by the ending of its name."""


def require_weights_file(path: Path) -> None:
    """Raise `FileError` if the name has no ending that weights are written to."""
    if path.suffix.lower() not in WRITERS:
        raise FileError(
            f"Weights are written to a {' or '.join(WRITERS)} file; {path} has another "
            "ending. Rename it."
        )


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write named matrices, all of them or none."""
    write_file(path, WRITERS[path.suffix.lower()](weights))
