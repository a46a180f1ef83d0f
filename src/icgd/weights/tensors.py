"""Tensors as a safetensors file.

The package safetensors writes a file of its own under a random name, which a kill leaves behind, or
it makes all bytes in memory first. This writes piece by piece into an unfinished file of ours.
Equal tensors and equal metadata give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
