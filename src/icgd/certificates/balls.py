r"""Rigorous trajectories: how far a run is from exact descent in real numbers, proved by balls.

`icgd_check`, which checks certificates without icgd, encloses exact descent from the run's data and
initial weights. Balls grow from step to step, each by about as many bits, so that a run is enclosed
again with more bits until the balls are small beside the distance that they prove. Where a ball
holds a kink both sides are kept, and more bits help only if exact descent is not at the kink
itself; otherwise the distance is as large as both sides make it.

The cost is O(steps) times that of a step in balls; `python -m benchmarks rigorous` measures it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import ROUND_UP, Context, Decimal
from importlib import import_module
from importlib.util import find_spec
from math import ceil, inf, isfinite, log2, nextafter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from icgd.backends.run import OnProgress
from icgd.errors import DataError, FileError, MissingExtraError, ProofError
from icgd.facts import number, shown
from icgd.problems.data import Task
from icgd.problems.problem import Problem
from icgd.shapes import History
from icgd.weights.files import is_same_file, whole_file

FIRST_BITS = 128
"""The precision of the first attempt."""

SMALL = 1 / 64
"""A ball is small if its radius is at most this share of the distance that it proves."""

NEGLIGIBLE = 2.0**-70
"""A ball is small also if its radius is at most this share of the largest number of the run."""

SPARE_BITS = 96
"""Bits wanted beyond those that the steps lose."""

HOPELESS_BITS = 4096
"""With this many bits, a ball that stays infinite is given up."""


@dataclass(frozen=True)
class Trajectory:
    """After each step, bounds on the largest distance of a number of the run from exact descent.

    `distances` is above it and `least` below it, with an entry for each task and step. `bits` is
    the precision that it took.
    """

    distances: Tensor
    least: Tensor
    bits: int


def is_available() -> bool:
    """Whether python-flint is installed, which balls need."""
    return find_spec("flint") is not None


def checker() -> Any:
    """The module `icgd_check`; Arb is loaded only if it is needed."""
    if not is_available():
        raise MissingExtraError(
            "A rigorous proof of a run needs python-flint. Install it with: pip install "
            "'icgd[proofs]'"
        )
    return import_module("icgd_check")


def require_enclosable(problem: Problem, task: Task, n_steps: int) -> None:
    """Raise an error if no run of this task could be enclosed, before it takes its time."""
    checker()
    problem.oracle.described(task, n_steps)


def rigorous_trajectory(
    problem: Problem, task: Task, history: History, on_progress: OnProgress | None = None
) -> Trajectory:
    """Enclose exact descent on every task, and measure how far the run is from it."""
    n_steps = history.shape[-2] - 1
    described = problem.oracle.described(task, n_steps)
    tasks = [task.of_batch(place) for place in range(len(task.x))] if task.batch else [task]
    runs = history.double().reshape(-1, *history.shape[-2:])
    found = []
    for place, (single, run) in enumerate(zip(tasks, runs, strict=True)):
        follow = _Follow(on_progress, place, len(tasks))
        found.append(_Search(described, exact_data(single), run[1:].tolist(), follow).result())
    distances, least = (
        torch.tensor(rows, dtype=torch.float64).reshape(*task.batch, n_steps)
        for rows in ([each.distances for each in found], [each.least for each in found])
    )
    return Trajectory(distances, least, max(attempt.bits for attempt in found))


def exact_data(task: Task) -> dict[str, Any]:
    """The data of one task as exact binary fractions, such as "0x1.8p+1"."""
    rows = {"x": task.x, "y": task.y, "queries": task.queries}
    texts = {name: [hexadecimal(row) for row in part.tolist()] for name, part in rows.items()}
    return {**texts, "initial": hexadecimal(task.initial.tolist())}


def hexadecimal(numbers: Sequence[float]) -> list[str]:
    """Numbers as exact binary fractions."""
    return [float(number).hex() for number in numbers]


@dataclass
class _Follow:
    """Progress over all tasks, which never goes back when a run is enclosed again."""

    on_progress: OnProgress | None
    task: int
    n_tasks: int
    furthest: int = 0

    def reached(self, step: int, n_steps: int) -> None:
        """Tell that a step was enclosed."""
        if self.on_progress and step > self.furthest:
            self.furthest = step
            self.on_progress(self.task * n_steps + step, self.n_tasks * n_steps)


@dataclass(frozen=True)
class _Attempt:
    """The distances that one precision proves, and the largest radius of the last balls.

    It is `final` if the balls of all steps are small, or if more bits would not make them so.
    """

    bits: int
    distances: list[float]
    least: list[float]
    radius: float
    final: bool


@dataclass(frozen=True)
class _Search:
    """One task's run, enclosed with more and more bits."""

    described: dict[str, Any]
    data: dict[str, Any]
    run: list[list[float]]
    follow: _Follow

    def result(self) -> _Attempt:
        """The first attempt whose balls are all small, or the last that more bits improved."""
        attempt = self._attempt(FIRST_BITS, patient=False)
        most = checker().MOST_BITS
        while not attempt.final:
            bits = min(self._bits_for(attempt), most)
            better = self._attempt(bits, patient=bits == most)
            # Stop unless more bits brought the run further, made its last ball much smaller, or may
            # still do so.
            may_improve = better.radius == inf and better.bits < HOPELESS_BITS
            is_longer = len(better.distances) > len(attempt.distances)
            is_further = may_improve or is_longer or better.radius < attempt.radius / 2
            if not better.final and not is_further:
                return self._attempt(better.bits, patient=True)
            attempt = better
        return attempt

    def _bits_for(self, failed: _Attempt) -> int:
        """The bits that all steps need if each loses as many as those of the attempt did."""
        size = max(map(abs, self.run[len(failed.distances) - 1]), default=1.0) or 1.0
        left = log2(size) - log2(failed.radius) if isfinite(failed.radius) else 0.0
        lost = max(failed.bits - left, 1.0) / len(failed.distances)
        needed = SPARE_BITS + 1.1 * lost * len(self.run)
        return 64 * ceil(max(needed, 1.25 * failed.bits) / 64)

    def _attempt(self, bits: int, *, patient: bool) -> _Attempt:
        """Enclose the run, and leave the precision of flint as it was, however that ends."""
        balls_after = checker().enclosures(self.described, self.data, len(self.run), bits)
        try:
            with closing(balls_after) as balls:
                return self._compared(balls, bits, patient=patient)
        except checker().RefusedError as problem:
            raise ProofError(
                f"icgd-check would refuse a proof of this run: {problem}. Take fewer examples, or "
                "a narrower network."
            ) from None

    def _compared(self, balls_after: Iterable[Any], bits: int, *, patient: bool) -> _Attempt:
        """Compare up to the first ball that is not small, or to the run's end if `patient`."""
        distances, least, radius, n_steps = list[float](), list[float](), 0.0, len(self.run)
        for numbers, balls in zip(self.run, balls_after, strict=True):
            gaps = [ball - number for ball, number in zip(balls, numbers, strict=True)]
            radius = max((_above(ball.rad()) for ball in balls), default=0.0)
            distances.append(max((_above(gap.abs_upper()) for gap in gaps), default=0.0))
            least.append(max((_below(gap.abs_lower()) for gap in gaps), default=0.0))
            self.follow.reached(len(distances), n_steps)
            size = max(map(abs, numbers), default=0.0)
            is_small = radius <= max(SMALL * distances[-1], NEGLIGIBLE * size)
            if not isfinite(radius) or not (patient or is_small):
                # If this attempt is final, nothing is known of the rest.
                missing = (n_steps - len(distances)) * patient
                return _Attempt(
                    bits, distances + [inf] * missing, least + [0.0] * missing, radius, patient
                )
        return _Attempt(bits, distances, least, radius, final=True)


def _above(ball: Any) -> float:
    """A float that is not below an exact ball; infinite if the ball is not finite."""
    if ball.is_zero():
        return 0.0
    return nextafter(float(ball), inf) if ball.is_finite() else inf


def _below(ball: Any) -> float:
    """A float that is not above an exact ball; 0 if the ball is not finite."""
    return nextafter(float(ball), 0.0) if ball.is_finite() else 0.0


# Proof-carrying files: a run with all that is needed to check how close it is to exact descent.
#
# `icgd-check` reads such a certificate, encloses exact descent from its data again, and accepts
# or refuses it, without icgd. docs/certificates.md lists its fields. Distances are rounded up to
# three digits, and a seal over the whole text shows whether anything was altered by accident.


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
