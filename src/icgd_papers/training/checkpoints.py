"""Checkpoints: safetensors files from which a killed training continues with the same bits.

A file holds the model, Adam's state and the log as tensors, and the step and the configuration as
JSON in its metadata, with a digest over everything. Nothing is pickled. The last two files are
kept. A new one appears whole before an older one is removed, so that a kill at any time leaves a
good one. The one of the smallest validation loss is kept beside them. Time and size grow with the
parameters and the rows of the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

from icgd.environment import warn
from icgd.errors import CheckpointError, brief
from icgd.weights.files import checksum, read_tensors, write_tensors
from icgd_papers.checksummed_json import damaged as damaged
from icgd_papers.training.logs import Log

FORMAT = 1
"""The version of the file format; it rises when older readers could misread a file."""

HEADER = "icgd_checkpoint"
"""The only entry of the metadata."""

KEPT = 2
"""How many files are kept: the newest, and one to fall back on if it is damaged."""

BEST = "best.safetensors"
"""The checkpoint of the smallest validation loss."""

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What Adam remembers of a parameter."""

Configuration = dict[str, Any]
"""Plain JSON data that identify a training: its settings, its task, its model."""


LATER_SETTINGS = {
    "settings.warmup_steps": 0,
    "settings.optimizer": "adam",
    "settings.accumulate": 1,
    "settings.n_validation": 0,
    "settings.autocast": False,
}
"""Settings that early checkpoints do not name, and what they were."""


@dataclass(frozen=True)
class State:
    """Everything that a training needs to continue after `step` updates."""

    step: int
    tensors: Mapping[str, Tensor]
    log: Log


class Checkpoints:
    """The checkpoints of one training in its folder."""

    def __init__(self, folder: Path, configuration: Configuration) -> None:
        self.folder = folder
        self.configuration: Configuration = json.loads(json.dumps(configuration))
        self._good: list[Path] = []

    def save(self, state: State) -> None:
        """Write a checkpoint; then remove the earlier ones except one."""
        path = self.folder / f"checkpoint-{state.step:09d}.safetensors"
        _write(path, state, self.configuration)
        if path not in self._good:
            self._good = [*self._good, path][-KEPT:]
        self.tidy()

    def save_best(self, state: State) -> None:
        """Write the state of the smallest validation loss so far, in place of the one before."""
        _write(self.folder / BEST, state, self.configuration)

    def best_log(self) -> Log:
        """The log up to the best state that is kept; empty if there is none to read."""
        try:
            return read_checkpoint(self.folder / BEST)[0].log
        except CheckpointError:
            return Log()

    def require_own_best(self) -> None:
        """Raise `CheckpointError` if the file of the best state is something else."""
        if (self.folder / BEST).exists():
            read_checkpoint(self.folder / BEST)

    def tidy(self) -> None:
        """Remove earlier checkpoints that are not kept, and what killed processes left unfinished.

        Later checkpoints are damaged, or they would have been loaded; they stay until training
        reaches their step and replaces them.
        """
        newest = self._good[-1:]
        old = [path for path in self._paths() if [path] < newest and path not in self._good]
        # The folder is locked, so nobody is writing the unfinished files that are there.
        for path in (*old, *self.folder.glob(".*.icgd-partial")):
            with suppress(OSError):  # a file that stays does no harm
                path.unlink()

    def load(self) -> State | None:
        """The newest state that can be read; None if the training has not begun.

        Raises `CheckpointError` if no file can be read, or if it has another configuration. This
        never changes a file.
        """
        damages: list[CheckpointError] = []
        paths = self._paths()
        while paths:
            try:
                state, stored = read_checkpoint(paths[-1])
            except CheckpointError as problem:
                damages.append(problem)
                paths.pop()
                continue
            before, now = (LATER_SETTINGS | flat(each) for each in (stored, self.configuration))
            free = ("settings.checkpoint_every", *["settings.n_steps"] * _may_train_on(before, now))
            require_equal(paths[-1], before, now, free)
            for damage in damages:
                warn(UserWarning(f"{damage} Going on from {paths[-1]}."))
            self._good = paths[-KEPT:]
            return state
        if damages:
            raise damages[0]
        return None

    def _paths(self) -> list[Path]:
        """All checkpoints, the oldest first."""
        return sorted(self.folder.glob("checkpoint-*.safetensors"))


def _write(path: Path, state: State, configuration: Configuration) -> None:
    tensors = {**state.tensors, "log": _as_tensor(state.log)}
    header = {
        "format": FORMAT,
        "step": state.step,
        "columns": list(state.log.columns),
        "configuration": configuration,
    }
    with_digest = {**header, "digest": _digest(header, tensors)}
    write_tensors(path, tensors, {HEADER: json.dumps(with_digest)})


def read_checkpoint(path: Path) -> tuple[State, Configuration]:
    """The state and the configuration in a file whose checksum fits."""
    try:
        metadata, tensors = read_tensors(path)
        header = json.loads(metadata.get(HEADER, "{}"))
    except (OSError, ValueError) as problem:
        raise damaged(path, problem) from None
    if not isinstance(header, dict):
        raise damaged(path, "its header is no table")
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {brief(header.get('format'))}; this version of icgd "
            f"reads format {FORMAT}. It was left as it is; use the icgd that wrote it, or train in "
            "another folder."
        )
    if header.pop("digest", None) != _digest(header, tensors):
        raise damaged(path, "its checksum does not match")
    log = _as_log(tensors.pop("log"), header["columns"])
    return State(header["step"], tensors, log), header["configuration"]


def _digest(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> str:
    return checksum({HEADER: json.dumps(header)}, tensors)


def _as_tensor(log: Log) -> Tensor:
    """The rows of the log; float64 keeps every bit, also of NaN."""
    values = [list(row.values()) for row in log.rows]
    return torch.tensor(values, dtype=torch.float64).reshape(len(log.rows), len(log.columns))


def _as_log(values: Tensor, columns: list[str]) -> Log:
    """The log that `_as_tensor` wrote."""
    return Log(tuple(dict(zip(columns, row, strict=True)) for row in values.tolist()))


def require_equal(
    path: Path, stored: Mapping[str, Any], given: Mapping[str, Any], exempt: Sequence[str] = ()
) -> None:
    """Raise `CheckpointError` for the first entry of two flat tables that differs."""
    for name in {**given, **stored}:
        old, new = stored.get(name), given.get(name)
        if old != new and name not in exempt:
            raise CheckpointError(
                f"{path} belongs to another run: its {name} is {brief(old)}, here it is "
                f"{brief(new)}. It was left as it is; go on with the old value, or train in "
                "another folder."
            )


def _may_train_on(stored: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether only steps are added, and the learning rate is constant: a decay depends on them."""
    constant = stored.get("settings.final_learning_rate") is None
    return bool(constant and given.get("settings.n_steps", 0) > stored.get("settings.n_steps", 0))


def flat(data: Any, name: str = "") -> dict[str, Any]:
    """Nested data as a flat table, such as {"models.0.budget.n_steps": 4}."""
    if isinstance(data, list | tuple):
        data = dict(enumerate(data))
    if not isinstance(data, dict):
        return {name: data}
    inner = [flat(part, f"{name}.{key}" if name else key) for key, part in data.items()]
    return {key: value for table in inner for key, value in table.items()}


def tensors_of(model: nn.Module, optimizer: Adam) -> dict[str, Tensor]:
    """Copies of what training changes, called model.<name> and adam.<parameter>.<moment>."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, tensor in optimizer.state.get(parameter, {}).items():
            tensors[f"adam.{name}.{moment}"] = tensor
    # A clone, because safetensors refuses tensors that share memory, such as tied weights.
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def restore(tensors: Mapping[str, Tensor], model: nn.Module, optimizer: Adam) -> None:
    """Put the tensors of `tensors_of` back into the model and Adam, bit for bit."""
    parts = {name.removeprefix("model."): tensors[name] for name in tensors if name[:6] == "model."}
    model.load_state_dict(parts)
    optimizer.state.clear()
    for name, parameter in model.named_parameters():
        for moment in MOMENTS:
            stored = tensors.get(f"adam.{name}.{moment}")
            if stored is not None:
                # Adam counts its steps on the processor, wherever the parameter is.
                like = stored if moment == "step" else parameter
                optimizer.state[parameter][moment] = stored.to(like.device, like.dtype, copy=True)
