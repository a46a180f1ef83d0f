"""Saving and loading: safetensors with problem and program in the metadata, never a pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from icgd.approximation.claims import check_claims
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import FileError, IcgdError, UnknownNameError
from icgd.problems.problem import Problem
from icgd.program.check import check_program
from icgd.program.program import AbstractProgram
from icgd.program.registry import from_data
from icgd.weights.tensors import raw, stored_tensors, write_tensors

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
    """Write a file that is whole or not there at all.

    `weights` holds the dense transformer's weights by name, or nothing. The program alone rebuilds
    them bit for bit; they are stored for other tools to read.
    """
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in weights.items()}
    texts = {"problem": json.dumps(problem.to_data()), "program": json.dumps(program.to_data())}
    tensors = tensors or {"d_model": torch.tensor([program.layout.width])}
    metadata = {"icgd": str(FORMAT), **texts, "digest": digest(texts, tensors, tensors.__getitem__)}
    write_tensors(Path(path), tensors, metadata)


def load(path: str | os.PathLike[str]) -> tuple[Problem, AbstractProgram]:
    """Read a file that `save` wrote; its checksum and its program are checked."""
    source = Path(path)
    if source.is_dir():
        raise FileError.folder(source)
    if not source.is_file():
        raise FileError.missing(source)
    try:
        with stored_tensors(source) as stored:
            metadata = stored.metadata
            _require_ours(source, metadata)
            texts = {"problem": metadata["problem"], "program": metadata["program"]}
            if metadata["digest"] != digest(texts, stored.entries, stored.read):
                raise FileError.damaged(source, "its checksum does not match")
    except FileError:
        raise
    except KeyError as missing:
        raise FileError.damaged(source, f"its metadata lacks {missing}") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise FileError.damaged(source, str(problem)) from None
    return _described(source, metadata)


def _require_ours(source: Path, metadata: Mapping[str, str]) -> None:
    if "icgd" not in metadata:
        raise FileError.foreign(source)
    if metadata["icgd"] not in READABLE:
        raise FileError.other_format(source, metadata["icgd"], READABLE)


def _described(source: Path, metadata: Mapping[str, str]) -> tuple[Problem, AbstractProgram]:
    """What the texts of a file describe, whose checksum fits."""
    try:
        problem = Problem.from_data(_table(metadata["problem"]))
        data = _table(metadata["program"])
        if metadata["icgd"] == "5" and data["construction"] in ONE_LENGTH:
            raise FileError.one_length(source, data["construction"], "5", FORMAT)
        program = from_data(data)
        check_program(program)
        problem.update.require_steps(program.n_steps)
        if not _trains(program, problem):
            raise FileError.damaged(source, "its program is not one of its problem")
        if reason := _objection(program, problem):
            cannot = f"{program.construction} cannot train its problem: {reason.rstrip('.')}"
            raise FileError.damaged(source, cannot)
        check_claims(program.functions, problem.box)
    except FileError:
        raise
    except UnknownNameError as error:
        raise FileError.unknown_name(source, str(error)) from None
    except (IcgdError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise FileError.damaged(source, f"its metadata does not hold a program: {error}") from None
    return problem, program


def _table(text: str) -> dict[str, Any]:
    if not isinstance(data := json.loads(text), dict):
        raise ValueError(f"{text:.40} is no table")
    return data


def _trains(program: AbstractProgram, problem: Problem) -> bool:
    """Whether inputs, labels and weights of the program have the sizes that the problem asks."""
    widths = {"x": problem.target.input_width, "y": problem.target.output_width}
    found = {slot.name: slot.width for slot in program.layout.slots if slot.name in widths}
    fits = program.weight_shapes == problem.oracle.weight_shapes
    return fits and all(widths[name] == width for name, width in found.items())


def _objection(program: AbstractProgram, problem: Problem) -> str | None:
    """Why the construction of the program cannot serve the problem, if it is one of icgd's own."""
    construction = CONSTRUCTIONS.get(program.construction)
    return None if construction is None else construction.why_not(problem)


def digest(texts: Mapping[str, str], names: Iterable[str], read: Callable[[str], Tensor]) -> str:
    """SHA-256 over the metadata texts and all tensors, by name; `read` is asked for one at a time.

    So a file that is larger than the memory can be checked.
    """
    total = hashlib.sha256()
    for name in sorted(texts):
        total.update(f"{name}\0{texts[name]}\0".encode())
    for name in sorted(names):
        _hash(total, name, read(name))
    return total.hexdigest()


def _hash(total: Any, name: str, tensor: Tensor) -> None:
    total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
    total.update(raw(tensor))
