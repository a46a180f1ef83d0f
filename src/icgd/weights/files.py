"""Save and load compiled runs: safetensors files with problem and program in the metadata.

Nothing is pickled, and loading executes no code. A checksum over the whole content detects damage.
It is not a signature: whoever alters a file can recompute it. `icgd.verify` compares what a file
does with exact gradient descent.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors
from torch import Tensor

from icgd.constructions.cot_network import CotNetwork
from icgd.errors import FileError, IcgdError, UnknownNameError
from icgd.problems.problem import Problem
from icgd.program.check import FORMER_LINEAR_STACKS, from_data
from icgd.program.program import AbstractProgram

FORMAT = 9
"""The version of the file format, increased when older readers could misread a file.

Format 7 added sparse weights, which readers of format 6 report as damage. In format 8 chains find
their own blocks and have a head for each entry that a query holds, and a file may hold the widths
of a narrower network. Format 9 added how tables are read, such as in standard units.
"""

READABLE = ("5", "6", "7", "8", "9")
"""The formats that can be read, except chains before format 8 and linear models of format 5, which
were made for one number of examples."""

TEXTS = ("problem", "program", "layers", "widths", "table")
"""The metadata entries that the checksum covers."""

Content = TypeVar("Content")


def save(
    path: str | os.PathLike[str],
    problem: Problem | None,
    program: AbstractProgram,
    weights: Mapping[str, Tensor],
    layers: Mapping[str, Any] | None = None,
    *,
    widths: Sequence[int] | None = None,
    table: Mapping[str, Any] | None = None,
) -> None:
    """Write a compiled run, or a program without a problem, which trains nothing.

    `weights` are the transformer's weights by name, and may be empty; `layers` describes the layers
    of sparse weights. The weights are stored only for other tools: the program rebuilds them bit
    for bit. `widths` are those of the trained network if it is narrower than that of the problem.
    `table` says how the command line reads tables for it.
    """
    tensors = dict(weights) or {"d_model": torch.tensor([program.layout.width])}
    texts = {} if problem is None else {"problem": json.dumps(problem.to_data())}
    texts["program"] = json.dumps(program.to_data())
    if layers is not None:
        texts["layers"] = json.dumps(layers)
    if widths is not None:
        texts["widths"] = json.dumps(widths)
    if table is not None:
        texts["table"] = json.dumps(table)
    metadata = {"icgd": str(FORMAT), **texts, "digest": checksum(texts, tensors)}
    write_tensors(Path(path), tensors, metadata)


Loaded = tuple[Problem, AbstractProgram, Sequence[int] | None, Mapping[str, Any] | None]


def load(path: str | os.PathLike[str]) -> Loaded:
    """Read the problem, program, widths and table that `save` wrote, or raise `FileError`."""

    def run_in(texts: Mapping[str, str], data: Any) -> Loaded:
        if "problem" not in texts:
            raise FileError(
                f"{path} holds no training run but a function that is looked up. Read it with "
                "icgd.UniversalFunction.load."
            )
        widths, table = (json.loads(texts.get(name, "null")) for name in ("widths", "table"))
        return Problem.from_data(json.loads(texts["problem"])), from_data(data), widths, table

    return _read(Path(path), run_in)


def load_program(path: str | os.PathLike[str]) -> AbstractProgram:
    """Read a program that `save` wrote without a problem, or raise `FileError`."""

    def program_in(texts: Mapping[str, str], data: Any) -> AbstractProgram:
        if "problem" in texts:
            raise FileError(
                f"{path} holds a training run, not a function that is looked up. Read it with "
                "icgd.load."
            )
        return from_data(data)

    return _read(Path(path), program_in)


def _read(source: Path, parse: Callable[[Mapping[str, str], Any], Content]) -> Content:
    """Check a file, and return what `parse` makes of its texts and the data of its program."""
    if source.is_dir():
        raise FileError(f"{source} is a folder; a file that icgd wrote is expected.")
    try:
        metadata, tensors = read_tensors(source)
    except FileNotFoundError:
        raise FileError(f"There is no file {source}.") from None
    except (OSError, ValueError) as error:
        raise FileError(
            f"{source} is damaged or not a safetensors file ({error}). Compile it again."
        ) from None
    if "icgd" not in metadata:
        raise FileError(
            f"{source} is a safetensors file, but not one that icgd wrote: its metadata has no "
            "'icgd' entry."
        )
    if metadata["icgd"] not in READABLE:
        raise FileError(
            f"{source} has file format {metadata['icgd']}; this version of icgd reads formats "
            f"{', '.join(READABLE)}. Compile it again, or load it with the icgd that wrote it."
        )
    texts = {name: metadata[name] for name in TEXTS if name in metadata}
    if metadata.get("digest") != checksum(texts, tensors):
        raise FileError(f"{source} is damaged: its checksum does not match. Compile it again.")
    try:
        data = json.loads(texts["program"])
        if metadata["icgd"] == "5" and data["construction"] in FORMER_LINEAR_STACKS:
            raise FileError(
                f"{source} has file format 5, in which {data['construction']} was made for one "
                f"number of examples; this version of icgd writes format {FORMAT}, in which it "
                "takes any. Compile it again, or load it with the icgd that wrote it."
            )
        if int(metadata["icgd"]) < 8 and data["construction"] == CotNetwork.name:
            raise FileError(
                f"{source} has file format {metadata['icgd']}, in which cot-network had a head for "
                f"every entry of a product; this version of icgd writes format {FORMAT}, in which "
                "heads are fewer and find their own blocks. Compile it again, or load it with the "
                "icgd that wrote it."
            )
        return parse(texts, data)
    except FileError:
        raise
    except UnknownNameError as error:
        raise FileError(
            f"{source} needs what is not known here: {error} Register kernels of your own with "
            "icgd.register_kernel, and state their constants again, before loading."
        ) from None
    except (IcgdError, LookupError, TypeError, ValueError) as error:
        raise FileError(
            f"{source} does not hold a run that this version of icgd can read ({error}). Compile "
            "it again."
        ) from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with sorted metadata, so that equal runs have equal files."""
    cpu_tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    # safetensors would hold the whole file in memory twice, so let it write only the header, for
    # empty tensors, and fill in shapes and offsets here.
    empty = {name: torch.empty(0, dtype=tensor.dtype) for name, tensor in cpu_tensors.items()}
    header = json.loads(safetensors.save(empty, dict(metadata))[8:])
    sorted_header = {"__metadata__": dict(sorted(header.pop("__metadata__").items()))}
    end = 0
    for name, entry in header.items():
        start, end = end, end + cpu_tensors[name].nbytes
        offsets = {"shape": list(cpu_tensors[name].shape), "data_offsets": [start, end]}
        sorted_header[name] = {**entry, **offsets}
    text = json.dumps(sorted_header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # align the tensors to eight bytes
    with whole_file(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in header:
            file.write(_bytes(cpu_tensors[name]))


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.flatten().view(torch.uint8).numpy().data


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read the metadata and all tensors of a safetensors file, or raise `ValueError`.

    Tensors are read from disk on first use. `safe_open` opens the path twice, and another process
    may replace the file in between, so it is given the path of an open descriptor.
    """
    with path.open("rb") as file:
        descriptor = f"/dev/fd/{file.fileno()}"
        try:
            source = descriptor if Path(descriptor).exists() else path
            with safe_open(source, framework="pt") as opened:
                names = list(opened.keys())
                tensors = {name: opened.get_tensor(name) for name in names}
        except (SafetensorError, KeyError) as error:  # a KeyError for an unknown dtype
            raise ValueError(str(error)) from None
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    metadata = header.pop("__metadata__", None) or {}
    return metadata, {name: tensors[name] for name in header}  # in the order of the file


def checksum(texts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of texts and tensors, each with its name, dtype and shape."""
    digest = hashlib.sha256()
    for name, text in sorted(texts.items()):
        digest.update(f"{name}\0{text}\0".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(_bytes(tensor.detach().cpu().contiguous()))
    return digest.hexdigest()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Replace `path` atomically: yield a temporary file beside it, and rename it after the block.

    If the block fails or is interrupted, the temporary file is removed and `path` is unchanged.
    Links are followed, and a file that is replaced keeps its permissions.
    """
    require_replaceable(path)
    target = Path(os.path.realpath(path))
    # File names have at most 255 bytes, so truncate long ones.
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.icgd-partial")
    try:
        temporary.touch(exist_ok=False)
        mode = (target if target.exists() else temporary).stat().st_mode
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
        if os.name == "posix":  # make the rename durable, if the folder can be opened
            with suppress(OSError):
                folder = os.open(target.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
    except OSError as error:
        raise FileError(f"Cannot write {path}: {error.strerror or error}.") from None
    finally:
        temporary.unlink(missing_ok=True)


def require_replaceable(path: Path) -> None:
    """Raise `FileError` if `path` is a folder, a device, a pipe or a read-only file."""
    problem = None
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            problem = "it is a folder"
        elif not stat.S_ISREG(mode):
            problem = "it is not an ordinary file"
        elif not mode & 0o222 or not os.access(path, os.W_OK):  # root may write to any file
            problem = "it is read-only"
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # such as a loop of links, or a null byte in the name
        problem = getattr(error, "strerror", None) or str(error)
    if problem:
        raise FileError(f"Cannot write {path}: {problem}.")


def is_same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Return whether two paths are the same file, which need not exist yet."""
    try:
        with suppress(OSError):
            return Path(one).samefile(other)
        return os.path.realpath(one) == os.path.realpath(other)
    except ValueError:  # a null byte in the name
        return False
