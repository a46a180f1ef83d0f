"""Checkpoints: safetensors files from which a killed training resumes with the same bits.

A file holds the model, the optimizer's state and the log as tensors; its metadata holds the step
and the configuration as JSON, with a checksum over everything. Nothing is pickled. The last two
files are kept: a new one appears whole before an older one is removed, so a kill at any moment
leaves a good one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn
from torch.optim import Optimizer

from icgd.environment import warn
from icgd.errors import CheckpointError, FileError, RunFolderError, quoted
from icgd.weights.files import checksum, read_tensors, write_tensors
from icgd_papers.checksummed_json import damaged as damaged
from icgd_papers.training.logs import Log

FORMAT = 2
"""The version of the file format; it rises when older readers could misread a file.

Format 1 called the state of the optimizer "adam".
"""

HEADER = "icgd_checkpoint"
"""The only entry of the metadata."""

BEST = "best.safetensors"
"""The checkpoint with the smallest validation loss."""

LOCK = ".lock"

Configuration = dict[str, Any]
"""Plain JSON data that identify a training: its settings, its task, its model."""


@dataclass(frozen=True)
class State:
    """Everything that a training needs to resume after `step` updates."""

    step: int
    tensors: Mapping[str, Tensor]
    log: Log


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make `folder`, and let no other process work there while the block runs.

    The operating system holds the lock and drops it when the process ends, however it ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(blocking=False)
    except Timeout:
        raise RunFolderError(
            f"{folder} is in use by another process. Nothing was changed; wait until it ends, or "
            "use another folder."
        ) from None
    except OSError as problem:
        raise FileError(f"Cannot write {folder}: {problem.strerror or problem}.") from None
    try:
        yield
    finally:
        lock.release()


class Checkpoints:
    """The checkpoints of one training in its folder."""

    def __init__(self, folder: Path, configuration: Configuration) -> None:
        self.folder = folder
        self.configuration: Configuration = json.loads(json.dumps(configuration))
        self._last: list[Path] = []  # good ones, of which two are kept

    def save(self, state: State) -> None:
        """Write a checkpoint, then remove all earlier ones but one."""
        path = self.folder / f"checkpoint-{state.step:09d}.safetensors"
        self._write(path, state)
        self._last = [*(other for other in self._last if other != path), path][-2:]
        self.tidy()

    def tidy(self) -> None:
        """Remove earlier checkpoints, and the unfinished files of killed processes.

        Later checkpoints are damaged, or they would have been loaded. They stay until training
        reaches their step.
        """
        newest = self._last[-1:]
        old = [path for path in self._paths() if [path] < newest and path not in self._last]
        for path in (*old, *self.folder.glob(".*.icgd-partial")):
            with suppress(OSError):  # a file that stays does no harm
                path.unlink()

    def save_best(self, state: State) -> None:
        """Write the state with the smallest validation loss so far, in place of the last one."""
        self._write(self.folder / BEST, state)

    def best_log(self) -> Log:
        """Return the log up to the best state; empty if there is none that can be read."""
        try:
            return read_checkpoint(self.folder / BEST)[0].log
        except CheckpointError:
            return Log()

    def load(self) -> State | None:
        """Return the newest state that can be read, or None if there is no checkpoint.

        Raises `CheckpointError` if every file is damaged, or if the configuration differs.
        """
        found = newest_checkpoint(self._paths())
        if found is None:
            return None
        path, state, configuration = found
        before, now = flat(configuration), flat(self.configuration)
        exempt = ["settings.checkpoint_every"]
        # A learning rate that falls depends on the number of steps; a constant one does not.
        if now.get("settings.final_learning_rate") is None:
            more = now.get("settings.n_steps", 0) > before.get("settings.n_steps", 0)
            exempt += ["settings.n_steps"] * more
        require_equal(path, before, now, exempt)
        self._last = [other for other in self._paths() if other <= path][-2:]
        return state

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint-*.safetensors"))

    def _write(self, path: Path, state: State) -> None:
        rows = [list(row.values()) for row in state.log.rows]
        log = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(state.log.columns))
        tensors = {**state.tensors, "log": log}
        header = {
            "format": FORMAT,
            "step": state.step,
            "columns": list(state.log.columns),
            "configuration": self.configuration,
        }
        digest = checksum({HEADER: json.dumps(header)}, tensors)
        write_tensors(path, tensors, {HEADER: json.dumps({**header, "digest": digest})})


def read_checkpoint(path: Path) -> tuple[State, Configuration]:
    """Read a checkpoint, and check its checksum."""
    try:
        metadata, tensors = read_tensors(path)
        header = json.loads(metadata.get(HEADER, "{}"))
    except (OSError, ValueError) as problem:
        raise damaged(path, problem) from None
    if not isinstance(header, dict):
        raise damaged(path, "its header is not a table")
    if header.get("format") not in (1, FORMAT):
        raise CheckpointError(
            f"{path} has checkpoint format {quoted(header.get('format'))}; this version of icgd "
            f"reads formats 1 and {FORMAT}. It was left as it is; use the icgd that wrote it, or "
            "train in another folder."
        )
    digest = header.pop("digest", None)
    if digest != checksum({HEADER: json.dumps(header)}, tensors):
        raise damaged(path, "its checksum does not match")
    rows = tensors.pop("log").tolist()
    log = Log(tuple(dict(zip(header["columns"], row, strict=True)) for row in rows))
    if header["format"] == 1:
        tensors = {re.sub(r"^adam\.", "optimizer.", name): t for name, t in tensors.items()}
    return State(header["step"], tensors, log), header["configuration"]


def newest_checkpoint(paths: Sequence[Path]) -> tuple[Path, State, Configuration] | None:
    """Read the last of these files that is not damaged, with a warning for each that is.

    Raises `CheckpointError` if all are damaged.
    """
    failures: list[CheckpointError] = []
    for path in reversed(paths):
        try:
            state, configuration = read_checkpoint(path)
        except CheckpointError as problem:
            failures.append(problem)
            continue
        for failure in failures:
            warn(UserWarning(f"{failure} {path} is used instead."))
        return path, state, configuration
    if failures:
        raise failures[0]
    return None


def require_equal(
    path: Path, stored: Mapping[str, Any], given: Mapping[str, Any], exempt: Sequence[str] = ()
) -> None:
    """Raise `CheckpointError` for the first entry of two flat tables that differs."""
    for name in {**given, **stored}:
        old, new = stored.get(name), given.get(name)
        if old != new and name not in exempt:
            raise CheckpointError(
                f"{path} belongs to another run: its {name} is {quoted(old)}, here it is "
                f"{quoted(new)}. It was left as it is; resume with the old value, or train in "
                "another folder."
            )


def flat(data: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested data into a table such as {"models.0.budget.n_steps": 4}."""
    if isinstance(data, list | tuple):
        data = dict(enumerate(data))
    if not isinstance(data, dict):
        return {name: data}
    inner = [flat(value, f"{name}.{key}" if name else key) for key, value in data.items()]
    return {key: value for table in inner for key, value in table.items()}


def tensors_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Copy what training changes, as model.<name> and optimizer.<parameter>.<name>."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, tensor in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = tensor
    # A clone, because safetensors refuses tensors that share memory, such as tied weights.
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def restore(tensors: Mapping[str, Tensor], model: nn.Module, optimizer: Optimizer) -> None:
    """Put the tensors of `tensors_of` back into the model and the optimizer, bit for bit."""
    model.load_state_dict(model_tensors(tensors))
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states: dict[int, dict[str, Tensor]] = {}
    for name, parameter in model.named_parameters():
        prefix = f"optimizer.{name}."
        state = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        if state:
            [number] = [i for i, other in enumerate(parameters) if other is parameter]
            states[number] = state
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def model_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the model alone, by the names that it gives them."""
    return {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
