r"""Whole runs: their distance from exact descent in real numbers, proved by ball arithmetic.

`icgd_check`, which checks certificates without icgd, encloses exact descent from the run's data and
initial weights; this module compares its balls with the run. Balls lose about the same number of
bits in every step. So the precision that a run needs is projected from its first steps: at the end
the balls must be small compared with the distance that they prove. If they are not, the run is
enclosed again with more bits. Where a ball contains a kink of an activation, both slopes are kept;
more bits help unless exact descent is at the kink itself, and then the distance must allow for both
slopes.

The bits that balls need grow linearly with the steps. Long runs of plain steps are enclosed in the
2-norm instead (`LONG_BITS`), whose bits hardly grow. Memory is O(steps). `python -m benchmarks
rigorous` measures the time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import ROUND_UP, Context, Decimal
from importlib import import_module
from math import ceil, inf, isfinite, log2, nextafter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from icgd.backends.run import OnProgress
from icgd.errors import DataError, FileError, ProofError
from icgd.problems.data import Task
from icgd.problems.problem import Problem
from icgd.reprs import number, with_repr
from icgd.shapes import History, Predictions
from icgd.weights.files import is_same_file, whole_file

FIRST_BITS = 128
"""The precision of the first attempt."""

SAFETY_BITS = 4
"""Bits added to the projected precision."""

PILOT_STEPS = 8
"""The number of steps from which the precision of a whole run is projected."""

LONG_BITS = 400
"""If balls need more bits, plain steps are enclosed in the 2-norm, whose bits hardly grow."""

BALLS, NORM = "balls", "norm"
"""The methods of `icgd_check.Descent`."""

SMALL = 2.0**-10
"""A ball is small if its radius is at most this share of the distance that it proves."""

NEGLIGIBLE = 2.0**-70
"""A ball is small also if its radius is at most this share of the largest number of the run."""

LEAST = 5e-324
"""The smallest positive double."""

HOPELESS_BITS = 4096
"""The precision beyond which a ball that is still infinite is given up."""

LARGEST_WORK = 10**9
"""Operations on balls, some 20 to 50 seconds, up to which runs are proved by default."""

MOST_KINKS = 20
"""The number of kinks inside balls that are listed; all are counted."""


class Straddle(NamedTuple):
    """A ball that contains a kink: the slope of this unit is unknown at this step and example.

    Steps and layers count from 1, tasks, examples and units from 0.
    """

    task: int
    step: int
    layer: int
    example: int
    unit: int


@dataclass(frozen=True)
class Trajectory:
    """Proved bounds on the distance of a run from exact descent after each step.

    Attributes:
        distances: upper bounds on the distance of any number of the run from exact descent, with an
            entry for each task and step; infinite where nothing is proved.
        least: lower bounds on the largest such distance.
        predictions: upper bounds on the distance of each prediction from that of exact descent.
        of_oracle: upper bounds on the distance of training in float64 from exact descent: runs are
            measured against that training.
        predictions_of_oracle: upper bounds on the distance of its predictions.
        bits: the precision used.
        method: how exact descent was enclosed: "balls", or "norm" for long runs of plain steps.
        n_kinks: the number of balls that contained a kink of an activation.
        kinks: the first of these balls.
    """

    distances: Tensor
    least: Tensor
    predictions: Predictions
    of_oracle: Tensor
    predictions_of_oracle: Predictions
    bits: int
    method: str = BALLS
    n_kinks: int = 0
    kinks: tuple[Straddle, ...] = ()

    @property
    def first_unproved(self) -> int | None:
        """The first step, counted from 1, after which nothing is proved, or None."""
        is_lost = ~self.distances.isfinite().unsqueeze(0).flatten(0, -2).all(0)
        return int(is_lost.nonzero()[0]) + 1 if is_lost.any() else None


def checker() -> Any:
    """Import and return `icgd_check`, which loads Arb: few commands need it."""
    return import_module("icgd_check")


def why_unproved(problem: Problem, task: Task, n_steps: int) -> str | None:
    """Return why a run is not proved by default, or None if it is."""
    work = problem.oracle.work(task, n_steps)
    if work > LARGEST_WORK:
        return (
            f"exact descent in balls takes {work:.1e} operations, more than {LARGEST_WORK:.0e}; "
            "ask for it with rigorous=True or --rigorous"
        )
    try:
        require_enclosable(problem, task, n_steps)
    except ProofError as reason:
        return str(reason).removesuffix(".")
    return None


def require_enclosable(problem: Problem, task: Task, n_steps: int) -> None:
    """Raise `ProofError` if exact descent on a task cannot be enclosed, before any step is run."""
    single = task.of_batch(0) if task.batch else task
    _descent(problem.oracle.described(single, n_steps), exact_data(single), n_steps, FIRST_BITS)


def _descent(
    described: dict[str, Any], data: dict[str, Any], n_steps: int, bits: int, method: str = BALLS
) -> Any:
    try:
        return checker().Descent(described, data, n_steps, bits, method)
    except checker().RefusedError as problem:
        raise ProofError(
            f"icgd-check would refuse a proof of this run: {problem}. Take fewer examples, or a "
            "narrower network."
        ) from None


def rigorous_trajectory(
    problem: Problem,
    task: Task,
    history: History,
    predictions: Predictions,
    real: History,
    on_progress: OnProgress | None = None,
) -> Trajectory:
    """Enclose exact descent on every task, and bound the distance of the run from it.

    `real` is training in float64, from which the expected distances are estimated.
    """
    n_steps, batch = history.shape[-2] - 1, task.batch
    tasks = [task.of_batch(place) for place in range(len(task.x))] if batch else [task]
    expected = problem.oracle.predict(task, real[..., -1, :])
    tensors = (history, real, predictions, expected)
    by_task = [tensor.double().reshape(len(tasks), *tensor.shape[-2:]) for tensor in tensors]
    attempts = []
    for place, single in enumerate(tasks):
        described, data = problem.oracle.described(single, n_steps), exact_data(single)
        progress = _Progress(on_progress, place, len(tasks))
        run, real_run, outputs, real_outputs = (tensor[place] for tensor in by_task)
        search = _Search(described, data, run, real_run, outputs, real_outputs, progress)
        attempts.append(search.result())

    def stacked(name: str, shape: Sequence[int]) -> Tensor:
        rows = [getattr(attempt, name) for attempt in attempts]
        return torch.tensor(rows, dtype=torch.float64).reshape(*batch, *shape)

    kinks = [
        Straddle(place, *kink) for place, attempt in enumerate(attempts) for kink in attempt.kinks
    ]
    kinks.sort(key=lambda kink: kink.step)
    return Trajectory(
        distances=stacked("distances", (n_steps,)),
        least=stacked("least", (n_steps,)),
        predictions=stacked("predictions", predictions.shape[-2:]),
        of_oracle=stacked("of_oracle", (n_steps,)),
        predictions_of_oracle=stacked("predictions_of_oracle", predictions.shape[-2:]),
        bits=max(attempt.bits for attempt in attempts),
        method=NORM if any(attempt.method == NORM for attempt in attempts) else BALLS,
        n_kinks=len(kinks),
        kinks=tuple(kinks[:MOST_KINKS]),
    )


def exact_data(task: Task) -> dict[str, Any]:
    """Return the data of one task as exact binary fractions, such as "0x1.8p+1"."""
    rows = {"x": task.x, "y": task.y, "queries": task.queries}
    texts = {name: [hexadecimal(row) for row in tensor.tolist()] for name, tensor in rows.items()}
    rates = None if task.rates is None else hexadecimal(task.rates.flatten().tolist())
    return {**texts, "rates": rates, "initial": hexadecimal(task.initial.tolist())}


def hexadecimal(numbers: Sequence[float]) -> list[str]:
    """Return numbers as exact binary fractions."""
    return [float(number).hex() for number in numbers]


@dataclass
class _Progress:
    """Progress over all tasks, which never decreases when a run is enclosed again."""

    on_progress: OnProgress | None
    task: int
    n_tasks: int
    furthest: int = 0

    def report(self, step: int, n_steps: int) -> None:
        """Report progress after a step."""
        if self.on_progress and step > self.furthest:
            self.furthest = step
            self.on_progress(self.task * n_steps + step, self.n_tasks * n_steps)


@dataclass
class _Attempt:
    """The bounds proved at one precision: an entry for each step so far.

    An attempt is `final` if the balls of all steps are small, or if more bits would not help.
    """

    bits: int
    method: str
    distances: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    of_oracle: list[float] = field(default_factory=list)
    radii: list[float] = field(default_factory=list)
    predictions: list[float] = field(default_factory=list)
    predictions_of_oracle: list[float] = field(default_factory=list)
    kinks: Sequence[tuple[int, int, int, int]] = ()
    final: bool = False


@dataclass(frozen=True)
class _Search:
    """The search for the precision that encloses one task's run tightly."""

    described: dict[str, Any]
    data: dict[str, Any]
    run: History
    real: History
    predictions: Predictions
    real_predictions: Predictions
    progress: _Progress

    @property
    def n_steps(self) -> int:
        return len(self.run) - 1

    def result(self) -> _Attempt:
        """Enclose in balls, or in the 2-norm if balls of a long run would need many bits."""
        attempt = self._attempt(FIRST_BITS, BALLS)
        is_long = not attempt.final and attempt.bits + self._missing_bits(attempt) > LONG_BITS
        if is_long and self.described["kind"] == "network":
            with suppress(checker().RefusedError):  # not plain steps, or near a kink: use balls
                bits = max(FIRST_BITS, 64 + self.n_steps // 12)  # measured on runs of many lengths
                return self._refined(self._attempt(bits, NORM))
        return self._refined(attempt)

    def _refined(self, attempt: _Attempt) -> _Attempt:
        """Return the first attempt with small balls, or the last that more bits improved."""
        most = int(checker().MOST_BITS)
        while not attempt.final:
            if attempt.bits == most:
                return self._attempt(most, attempt.method, patient=True)
            bits = min(attempt.bits + self._missing_bits(attempt), most)
            better = self._attempt(bits, attempt.method)
            # Stop unless more bits enclosed more steps, made the last ball much smaller, or may
            # still do so.
            may_improve = better.radii[-1] == inf and better.bits < HOPELESS_BITS
            is_longer = len(better.radii) > len(attempt.radii)
            last_common = min(len(better.radii), len(attempt.radii)) - 1
            is_smaller = better.radii[last_common] < attempt.radii[last_common] / 2
            if not (better.final or may_improve or is_longer or is_smaller):
                return self._attempt(better.bits, attempt.method, patient=True)
            attempt = better
        return attempt

    def _missing_bits(self, attempt: _Attempt) -> int:
        """Project the bits missing at the last step if every step loses as many as the last ones.

        The result is 0 if the bits suffice, and at least an eighth of them if not.
        """
        radii, n_done = attempt.radii, len(attempt.radii)
        if not isfinite(radii[-1]):
            return attempt.bits
        last_radii = (radii[-1], radii[-PILOT_STEPS:][0])
        now, before = (log2(radius) if radius else -float(attempt.bits) for radius in last_radii)
        lost_per_step = max(0.0, (now - before) / max(1, min(n_done, PILOT_STEPS) - 1))
        expected_distance = float((self.run[-1] - self.real[-1]).abs().max())
        size = float(self.run[-1].abs().max()) or 1.0
        wanted_radius = max(
            SMALL * expected_distance if isfinite(expected_distance) else 0.0,
            NEGLIGIBLE * size,
            LEAST,
        )
        missing = now - log2(wanted_radius) + lost_per_step * (self.n_steps - n_done)
        if missing <= 0:
            return 0
        if attempt.method == NORM:  # steps lose fewer bits as training goes on
            missing = min(missing, attempt.bits)
        return ceil(max(1.1 * missing + SAFETY_BITS, attempt.bits / 8))

    def _attempt(self, bits: int, method: str, *, patient: bool = False) -> _Attempt:
        """Enclose the run up to the first ball that is not small, or to the end if `patient`."""
        descent = _descent(self.described, self.data, self.n_steps, bits, method)
        attempt = _Attempt(bits, method)
        for step in range(1, self.n_steps + 1):
            numbers, balls = self.run[step].tolist(), descent.step()
            radius = _above(max(ball.rad() for ball in balls))
            distance = _above(checker().distance(balls, numbers))
            attempt.radii.append(radius)
            attempt.distances.append(distance)
            attempt.least.append(max(0.0, distance * (1 - 2.0**-50) - 2 * radius))
            attempt.of_oracle.append(_above(checker().distance(balls, self.real[step].tolist())))
            self.progress.report(step, self.n_steps)
            if not isfinite(radius):
                break
            is_small = radius <= max(SMALL * distance, NEGLIGIBLE * max(map(abs, numbers)))
            is_pilot = method == BALLS and step == PILOT_STEPS < self.n_steps
            if not patient and (not is_small or (is_pilot and self._missing_bits(attempt))):
                return attempt
        n_unproved = self.n_steps - len(attempt.radii)
        is_finite = all(map(isfinite, attempt.radii[-1:]))
        if not is_finite and not patient:
            return attempt
        attempt.distances += [inf] * n_unproved
        attempt.of_oracle += [inf] * n_unproved
        attempt.least += [0.0] * n_unproved
        attempt.kinks, attempt.final = descent.trained.kinks, True
        balls = descent.predictions() if is_finite else None
        attempt.predictions = _distances(balls, self.predictions)
        attempt.predictions_of_oracle = _distances(balls, self.real_predictions)
        return attempt


def _distances(balls: Sequence[Any] | None, predictions: Predictions) -> list[float]:
    """Bound the distance of each prediction from any number in its ball."""
    values = predictions.flatten().tolist()
    if balls is None:
        return [inf] * len(values)
    pairs = zip(balls, values, strict=True)
    return [_above(checker().distance([ball], [prediction])) for ball, prediction in pairs]


def _above(ball: Any) -> float:
    """Round an exact ball up to a float, infinite if the ball is not finite."""
    if ball.is_zero():
        return 0.0
    return nextafter(float(ball), inf) if ball.is_finite() else inf


# Certificates: files that hold a run and all data to check its distance from exact descent.
#
# `icgd-check` reads such a certificate, encloses exact descent from its data again, and accepts
# or refuses it, without icgd. docs/certificates.md lists its fields. Distances are rounded up to
# three digits, and a checksum of the whole text detects accidental changes.


DIGITS = 3
"""The number of decimal digits of a distance in a certificate."""


@dataclass(frozen=True)
class Sources:
    """The sources of a run: its transformer, and the files of transformer and data.

    `transformer` describes the construction in plain data. A file is None if there is none.
    """

    transformer: dict[str, Any]
    file: str | os.PathLike[str] | None = None
    data: str | os.PathLike[str] | None = None


@with_repr
@dataclass(frozen=True)
class Proof:
    """A certificate as text; `distances[l - 1]` bounds the distance of any number after step l."""

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
        """Write the certificate atomically."""
        with whole_file(Path(path)) as temporary:
            temporary.write_text(self.text)


def prove(
    problem: Problem,
    task: Task,
    history: History,
    predictions: Predictions,
    sources: Sources,
    on_progress: OnProgress | None = None,
) -> Proof:
    """Certify the run of one task that passes `require_provable`.

    Raises `ProofError` if exact descent has no finite enclosure.
    """
    n_steps = history.shape[-2] - 1
    real = problem.oracle.train(task, n_steps)
    enclosed = rigorous_trajectory(problem, task, history, predictions, real, on_progress)
    if enclosed.first_unproved is not None:
        raise ProofError(
            f"Nothing can be proved of step {enclosed.first_unproved}: exact descent has no finite "
            f"enclosure, even with {enclosed.bits} bits. Certify fewer steps, or take a smaller "
            "step size."
        )
    distances = tuple(rounded_up(distance) for distance in enclosed.distances.tolist())
    of_predictions = [rounded_up(bound) for bound in enclosed.predictions.flatten().tolist()]
    fields = {
        "version": checker().VERSION,
        "claim": "",
        "transformer": sources.transformer,
        "file_sha256": _hash_of(sources.file),
        "data_sha256": _hash_of(sources.data),
        "problem": problem.oracle.described(task, n_steps),
        "data": exact_data(task),
        "bits": enclosed.bits,
        "method": enclosed.method,
        "distances": hexadecimal(distances),
        "steps": [hexadecimal(numbers) for numbers in history[1:].double().tolist()],
        "prediction_distance": max(of_predictions).hex() if of_predictions else None,
        "predictions": [hexadecimal(row) for row in predictions.double().tolist()],
    }
    fields["claim"] = checker().claim_of(fields)
    text = _checksummed(fields)
    if len(text) > checker().MOST_BYTES:
        raise ProofError(
            f"The certificate would have {len(text):,} bytes, and icgd-check reads at most "
            f"{checker().MOST_BYTES:,}. Certify fewer steps, or a narrower network."
        )
    return Proof(fields["claim"], distances, enclosed.bits, text)


def require_provable(problem: Problem, task: Task, n_steps: int) -> None:
    """Raise an error if no run of this task can be certified, before a long computation."""
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
    """Raise `FileError` if a certificate at `path` would replace one of its source files."""
    files = [file for file in (sources.file, sources.data) if file is not None]
    if path is not None and any(is_same_file(path, file) for file in files):
        raise FileError(
            f"The certificate would replace {path}, which the run was read from. Give another path."
        )


def rounded_up(distance: float, digits: int = DIGITS) -> float:
    """Round a distance up to a few digits, to a double that is not below the distance."""
    if not isfinite(distance) or distance == 0.0:
        return distance
    short = float(Context(prec=digits, rounding=ROUND_UP).create_decimal(Decimal(distance)))
    return short if short >= distance else nextafter(distance, inf)


def _hash_of(path: str | os.PathLike[str] | None) -> str | None:
    """Return the SHA-256 of a file's bytes."""
    if path is None:
        return None
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as problem:
        raise FileError(f"Cannot read {path}: {problem.strerror or problem}.") from None


def _checksummed(fields: dict[str, Any]) -> str:
    """Return JSON with a line for each field, after the SHA-256 of the text with an empty hash."""
    lines = [f'"{name}": {json.dumps(value)}' for name, value in fields.items()]
    text = '{\n"sha256": "",\n' + ",\n".join(lines) + "\n}\n"
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return text.replace('"sha256": ""', f'"sha256": "{checksum}"', 1)
