"""Tensors as a safetensors file.

The package safetensors writes a file of its own under a random name, which a kill leaves behind, or
it makes all bytes in memory first. This writes piece by piece into an unfinished file of ours.
Equal tensors and equal metadata give equal bytes.

To read, the package opens a file twice by its name, which may be that of another file by then. This
opens it once, and reads one tensor at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import torch
from torch import Tensor

from icgd.errors import FileError
from icgd.weights.atomic import whole_file

NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}
"""What the format calls the types of tensors."""

DTYPES = {name: dtype for dtype, name in NAMES.items()}

LONGEST_HEADER = 100_000_000
"""The most bytes of a header, as in the package."""

ALIGNMENT = 8
"""Tensors start at a multiple of so many bytes."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file that is whole or not there at all.

    Wide types come first, so that every tensor is aligned.
    """
    if unknown := [tensor.dtype for tensor in tensors.values() if tensor.dtype not in NAMES]:
        raise FileError.unwritable(path, f"safetensors cannot hold {unknown[0]}")
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name in names:
        end = start + tensors[name].nbytes
        header[name] = _entry(tensors[name], start, end)
        start = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with whole_file(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(raw(tensors[name]))


def _entry(tensor: Tensor, start: int, end: int) -> dict[str, Any]:
    return {
        "dtype": NAMES[tensor.dtype],
        "shape": list(tensor.shape),
        "data_offsets": [start, end],
    }


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a tensor on the processor, which share its memory if it is contiguous."""
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data


@dataclass(frozen=True)
class Entry:
    """Where a tensor stands in a file, counted from the end of the header, and what it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class StoredTensors:
    """The metadata of an open safetensors file, and its tensors, each read when it is asked for.

    Raises `ValueError` if the file is no such file, or if it is not whole.
    """

    def __init__(self, file: BinaryIO) -> None:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 0 < length <= min(size - 8, LONGEST_HEADER):
            raise ValueError("it has no header")
        self._file, self._start = file, 8 + length
        header = json.loads(file.read(length).decode())
        if not isinstance(header, dict):
            raise ValueError("its header is no table")
        self.metadata = _metadata(header.pop("__metadata__", {}))
        self.entries = {name: _read_entry(name, data) for name, data in header.items()}
        _require_whole(self.entries, size - self._start)

    def read(self, name: str) -> Tensor:
        """The tensor of this name."""
        entry = self.entries[name]
        content = torch.empty(entry.end - entry.start, dtype=torch.uint8, device="cpu")
        self._file.seek(self._start + entry.start)
        if self._file.readinto(content.numpy()) != len(content):  # type: ignore[attr-defined]
            raise ValueError("it was shortened while it was read")
        return content.view(entry.dtype).reshape(entry.shape)


@contextmanager
def stored_tensors(path: Path) -> Iterator[StoredTensors]:
    """The tensors of a file, which is open as long as the block runs."""
    with path.open("rb") as file:
        yield StoredTensors(file)


def _metadata(data: object) -> dict[str, str]:
    if not isinstance(data, dict) or not all(isinstance(text, str) for text in data.values()):
        raise ValueError("its metadata are no texts")
    return data


def _read_entry(name: str, data: object) -> Entry:
    """The entry that a header describes; its bytes must be as many as its numbers take."""
    if not isinstance(data, dict) or not isinstance(data.get("dtype"), str):
        raise ValueError(f"it does not describe {name!r:.40}")
    shape, places = (data.get(key) for key in ("shape", "data_offsets"))
    if not _are_counts(shape) or not _are_counts(places) or len(places) != 2:
        raise ValueError(f"it does not say where {name!r:.40} is")
    if (dtype := DTYPES.get(data["dtype"])) is None:
        raise ValueError(f"it has {name!r:.40} of the unknown type {data['dtype']!r:.40}")
    entry = Entry(dtype, tuple(shape), *places)
    if entry.end - entry.start != prod(shape) * dtype.itemsize:
        raise ValueError(f"the size of {name!r:.40} is not that of its shape")
    return entry


def _are_counts(data: object) -> TypeGuard[list[int]]:
    return isinstance(data, list) and all(type(each) is int and each >= 0 for each in data)


def _require_whole(entries: Mapping[str, Entry], size: int) -> None:
    """Raise unless the tensors fill the file, one after the other."""
    end = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
        if entry.start != end:
            raise ValueError("its tensors overlap, or leave gaps")
        end = entry.end
    if end != size:
        raise ValueError(f"it has {size} bytes of tensors, expected {end}")
