"""What a checkpoint may say: rules that its header, its log and its tensors obey.

A checksum tells of accidents. A file that was altered and sealed again has one that fits; these
rules see to it that it is refused where it cannot be the state of a training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor

from icgd.errors import CheckpointError

DEEPEST = 64
"""How deep the tables of a header may lie in each other."""

OWN_COLUMNS = ("step", "loss")
"""The columns that every log has."""

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What Adam remembers of a parameter."""


def damaged(path: object, problem: object) -> CheckpointError:
    """The error of a checkpoint that cannot be read."""
    return CheckpointError(
        f"{path} is damaged or not a checkpoint ({problem}). It was left as it is; remove it to "
        "train without it."
    )


def header_problem(header: Mapping[str, Any]) -> str | None:
    """What is wrong with a header; None if nothing is."""
    if not is_count(header.get("step")):
        return f"its step is {header.get('step')!r:.40}, expected a whole number from 0 on"
    columns = header.get("columns")
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        return f"its columns are {columns!r:.40}, expected a list of names"
    if len(set(columns)) != len(columns):
        return "two columns of its log have the same name"
    if not isinstance(header.get("configuration"), dict):
        return "its configuration is no table"
    if _depth(header) > DEEPEST:
        return f"its configuration is deeper than {DEEPEST} tables"
    return _step_problem(header["step"], header["configuration"].get("settings"))


def _step_problem(step: int, settings: object) -> str | None:
    """What is wrong with a step of a training with these settings, as far as they are told."""
    if settings is None or settings == {}:
        return None
    n_steps = settings.get("n_steps") if isinstance(settings, dict) else None
    if not is_count(n_steps):
        return f"its n_steps is {n_steps!r:.40}, expected a whole number"
    return f"it is at step {step} of {n_steps}" if step > n_steps else None


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value of a file is a whole number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def log_problem(values: Tensor, columns: Sequence[str], step: int) -> str | None:
    """What is wrong with the rows of a log at `step`; None if nothing is."""
    if values.dtype != torch.float64 or values.ndim != 2:
        return "its log is no table of float64"
    if values.shape[1] != len(columns):
        return f"its log has {values.shape[1]} columns, and names {len(columns)}"
    if not len(values):
        return None
    if missing := [name for name in OWN_COLUMNS if name not in columns]:
        return f"its log has no column {missing[0]!r}"
    steps = values[:, columns.index("step")]
    rises = bool((steps.diff() > 0).all()) and bool((steps == steps.round()).all())
    if not rises or not (steps[0] >= 0 and steps[-1] <= step):
        return f"the steps of its log do not rise from 0 to {step}"
    return None


def tensor_problem(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]], step: int
) -> str | None:
    """What is wrong with the tensors of a model whose own have these shapes; None if nothing is."""
    wanted = {f"model.{name}": list(shape) for name, shape in shapes.items()}
    begun = {name.rpartition(".")[0] for name in tensors if name.startswith("adam.")}
    remembered = {f"{parameter}.{moment}" for parameter in begun for moment in MOMENTS}
    if missing := (wanted.keys() | remembered) - tensors.keys():
        return f"it has no {min(missing)!r}"
    for name, tensor in tensors.items():
        expected = wanted.get(name, _moment_shape(name, shapes))
        if expected is None:
            return f"it has {name!r}, which the model has not"
        if list(tensor.shape) != expected:
            return f"{name!r} has shape {list(tensor.shape)}, expected {expected}"
        if _is_clock(name) and not (tensor.is_floating_point() and 0 <= tensor.item() <= step):
            return f"{name!r} is {tensor.item()}, expected a float from 0 to {step}"
    return None


def _moment_shape(name: str, shapes: Mapping[str, Sequence[int]]) -> list[int] | None:
    """The shape of what Adam remembers; None if a model has no such parameter."""
    kind, _, rest = name.partition(".")
    parameter, _, moment = rest.rpartition(".")
    if kind != "adam" or moment not in MOMENTS or parameter not in shapes:
        return None
    return [] if moment == "step" else list(shapes[parameter])


def _is_clock(name: str) -> bool:
    return name.startswith("adam.") and name.endswith(".step")


def size_problem(described: object, tensors: Mapping[str, Tensor]) -> str | None:
    """Say which size of a description exceeds all that is stored; None if none does.

    Such a model would take long to build, only to be refused.
    """
    stored = sum(tensor.numel() for tensor in tensors.values())
    for name, value in _leaves(described):
        if isinstance(value, int) and abs(value) > stored and name != "seed":
            return f"its {name} is {value}, and it holds {stored} numbers"
    return None


def _leaves(data: object, name: str = "") -> Iterator[tuple[str, object]]:
    """The entries of nested data that have no entries, with the name of the nearest key."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(value, str(key))
    elif isinstance(data, list):
        for value in data:
            yield from _leaves(value, name)
    else:
        yield name, data


def _depth(data: object) -> int:
    """How deep tables and lists lie in each other, level by level."""
    depth, level = 0, [data]
    while level and depth <= DEEPEST:
        level = [part for each in level for part in _parts(each)]
        depth += 1
    return depth


def _parts(data: object) -> list[object]:
    if isinstance(data, dict):
        return list(data.values())
    return data if isinstance(data, list) else []
