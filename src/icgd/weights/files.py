"""Save and load compiled runs: safetensors files with problem and program in the metadata.

Nothing is pickled, and loading executes nothing. A checksum over everything detects damage. It is
no signature: whoever alters a file can compute it again. `icgd.verify` compares what a file does
with exact gradient descent.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from icgd.errors import FileError, IcgdError, UnknownNameError
from icgd.problems.problem import Problem
from icgd.program.check import from_data
from icgd.program.program import AbstractProgram

FORMAT = 6
"""The version of the file format. It rises when older readers could misread a file."""

READABLE = ("5", "6")
"""The formats that can be read; those of format 5 only if not in `ONE_LENGTH`."""

ONE_LENGTH = ("cot-ridge", "cot-lasso", "cot-glm")
"""Constructions whose programs of format 5 were made for one number of examples."""


def save(
    path: str | os.PathLike[str],
    problem: Problem,
    program: AbstractProgram,
    weights: Mapping[str, Tensor],
) -> None:
    """Write a compiled run.

    `weights` holds the dense transformer's weights by name, or nothing. The program alone rebuilds
    them bit for bit; they are stored for other tools to read.
    """
    tensors = dict(weights) or {"d_model": torch.tensor([program.layout.width])}
    texts = {"problem": json.dumps(problem.to_data()), "program": json.dumps(program.to_data())}
    metadata = {"icgd": str(FORMAT), **texts, "digest": checksum(texts, tensors)}
    write_tensors(Path(path), tensors, metadata)


def load(path: str | os.PathLike[str]) -> tuple[Problem, AbstractProgram]:
    """Read what `save` wrote, or raise `FileError`."""
    source = Path(path)
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
            f"{' and '.join(READABLE)}. Compile it again, or load it with the icgd that wrote it."
        )
    texts = {name: metadata.get(name, "") for name in ("problem", "program")}
    if metadata.get("digest") != checksum(texts, tensors):
        raise FileError(f"{source} is damaged: its checksum does not match. Compile it again.")
    try:
        data = json.loads(texts["program"])
        if metadata["icgd"] == "5" and data["construction"] in ONE_LENGTH:
            raise FileError(
                f"{source} has file format 5, in which {data['construction']} was made for one "
                f"number of examples; this version of icgd writes format {FORMAT}, in which it "
                "takes any. Compile it again, or load it with the icgd that wrote it."
            )
        return Problem.from_data(json.loads(texts["problem"])), from_data(data)
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
    """Write a safetensors file."""
    plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    file = safetensors.save(plain, dict(metadata))
    # Sort the metadata, which safetensors writes in any order, so that equal runs have equal files.
    length = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header.pop("__metadata__").items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    with whole_file(path) as temporary:
        temporary.write_bytes(len(text).to_bytes(8, "little") + text + file[8 + length :])


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read the metadata and all tensors of a safetensors file; `ValueError` if it is none.

    The file is opened once. `safe_open` opens it twice by its name, which another process may have
    given to a new file in between.
    """
    content = path.read_bytes()
    try:
        tensors = safetensors.load(content)
    except (SafetensorError, KeyError) as error:  # a type of numbers that is unknown is a KeyError
        raise ValueError(str(error)) from None
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata = header.pop("__metadata__", None) or {}
    return metadata, {name: tensors[name] for name in header}  # in the order of the file


def checksum(texts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Compute SHA-256 over texts and tensors, each with its name, type and shape."""
    total = hashlib.sha256()
    for name, text in sorted(texts.items()):
        total.update(f"{name}\0{text}\0".encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`, which takes its name once the block has written it.

    If the block fails, or Ctrl-C ends it, the temporary file is removed and what was at `path`
    stays. Links are followed, and a file that is replaced keeps its permissions.
    """
    require_replaceable(path)
    target = Path(os.path.realpath(path))
    # Names have at most 255 bytes, so only a part of a long one is kept.
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.icgd-partial")
    try:
        temporary.touch(exist_ok=False)
        mode = (target if target.exists() else temporary).stat().st_mode
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
        if os.name == "posix":  # bring the rename to the disk, where the folder allows it
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
    except (OSError, ValueError) as error:  # such as a loop of links, or a zero in the name
        problem = getattr(error, "strerror", None) or str(error)
    if problem:
        raise FileError(f"Cannot write {path}: {problem}.")


def is_same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two names lead to one file, which need not exist yet."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
    except ValueError:  # no file has a zero in its name
        return False
