r"""Proof-carrying files: a run with all that is needed to check how close it is to exact descent.

`icgd-check` reads such a certificate, encloses exact descent from its data again, and accepts or
refuses it, without icgd. docs/certificates.md lists its fields. Distances are rounded up to three
digits, and a seal over the whole text shows whether anything was altered by accident.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from decimal import ROUND_UP, Context, Decimal
from math import inf, isfinite, nextafter
from pathlib import Path
from typing import Any

from icgd.backends.run import OnProgress
from icgd.certificates.rigorous import (
    checker,
    exact_data,
    hexadecimal,
    require_enclosable,
    rigorous_trajectory,
)
from icgd.errors import DataError, FileError, ProofError
from icgd.facts import number, shown
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.shapes import History
from icgd.weights.atomic import is_same_file, whole_file

DIGITS = 3
"""The decimal digits of a distance in a certificate."""


@dataclass(frozen=True)
class Sources:
    """Where a run comes from: the transformer, and the files that it and the data were read from.

    `transformer` describes the construction in plain data. A file is None if there is none.
    """

    transformer: dict[str, Any]
    file: str | os.PathLike[str] | None = None
    data: str | os.PathLike[str] | None = None


@shown
@dataclass(frozen=True)
class Proof:
    """A certificate as text. After step l no number is further than `distances[l - 1]`."""

    claim: str
    distances: tuple[float, ...]
    bits: int
    text: str

    def facts(self) -> dict[str, str]:
        return {
            "claim": self.claim,
            "steps": f"{len(self.distances):,}",
            "distance in the end": f"at most {number(self.distances[-1])}",
            "bits": str(self.bits),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate, whole or not at all."""
        with whole_file(Path(path)) as temporary:
            temporary.write_text(self.text)


def prove(
    problem: Problem,
    task: Task,
    history: History,
    sources: Sources,
    on_progress: OnProgress | None = None,
) -> Proof:
    """Certify the run of one task.

    Raises `ProofError` if exact descent has no finite enclosure, `DataError` for several tasks.
    """
    n_steps = history.shape[-2] - 1
    require_provable(problem, task, n_steps)
    enclosed = rigorous_trajectory(problem, task, history, on_progress)
    distances = tuple(rounded_up(distance) for distance in enclosed.distances.tolist())
    if not all(map(isfinite, distances)):
        step = list(map(isfinite, distances)).index(False) + 1
        raise ProofError(
            f"Nothing can be proved of step {step}: {enclosed.bits} bits enclose exact descent in "
            "no finite interval. Certify fewer steps, or take a smaller step size."
        )
    claim = checker().CLAIM.format(n_steps, distances[-1])
    fields = {
        "version": checker().VERSION,
        "claim": claim,
        "transformer": sources.transformer,
        "file_sha256": _hash_of(sources.file),
        "data_sha256": _hash_of(sources.data),
        "problem": problem.oracle.described(task, n_steps),
        "data": exact_data(task),
        "bits": enclosed.bits,
        "distances": hexadecimal(distances),
        "steps": [hexadecimal(numbers) for numbers in history[1:].double().tolist()],
    }
    return Proof(claim, distances, enclosed.bits, _sealed(fields))


def require_provable(problem: Problem, task: Task, n_steps: int) -> None:
    """Raise an error if no run of this task could be certified, before it takes its time."""
    require_enclosable(problem, task, n_steps)
    if task.batch:
        raise DataError(
            f"X has shape {tuple(task.x.shape)}; expected (n, d_x): one task at a time."
        )
    if not n_steps:
        raise ProofError(
            "The run has no steps, so there is nothing to certify. Compile at least one step."
        )


def require_elsewhere(path: str | os.PathLike[str] | None, sources: Sources) -> None:
    """Raise `FileError` if a certificate at `path` would replace a file that it is about."""
    files = [file for file in (sources.file, sources.data) if file is not None]
    if path is not None and any(is_same_file(path, file) for file in files):
        raise FileError(
            f"The certificate would replace {path}, a file that it is about. Write it elsewhere."
        )


def rounded_up(distance: float) -> float:
    """The distance with few digits, rounded up; as a double it is not below the distance either."""
    if not isfinite(distance) or distance == 0.0:
        return distance
    short = float(Context(prec=DIGITS, rounding=ROUND_UP).create_decimal(Decimal(distance)))
    return short if short >= distance else nextafter(distance, inf)


def _hash_of(path: str | os.PathLike[str] | None) -> str | None:
    """SHA-256 of a file's bytes."""
    if path is None:
        return None
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as problem:
        raise FileError(f"Cannot read {path}: {problem.strerror or problem}.") from None


def _sealed(fields: dict[str, Any]) -> str:
    """JSON with a line for each field; the seal is SHA-256 of the text with an empty seal."""
    lines = [f'"{name}": {json.dumps(value)}' for name, value in fields.items()]
    text = '{\n"sha256": "",\n' + ",\n".join(lines) + "\n}\n"
    seal = hashlib.sha256(text.encode()).hexdigest()
    return text.replace('"sha256": ""', f'"sha256": "{seal}"', 1)
