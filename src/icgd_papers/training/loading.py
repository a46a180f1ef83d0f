"""The trained module and the log in the folder of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from icgd.environment import warn
from icgd.errors import CheckpointError, FileError, IcgdError, UnknownNameError, brief
from icgd_papers.training.checkpoints import (
    BEST,
    Configuration,
    State,
    damaged,
    flat,
    read_checkpoint,
    require_equal,
)
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.logs import Log, Row, read_json
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.operators import PlainOperator, ProductOperator

CHECKPOINTS = {"last": "checkpoint-*.safetensors", "best": BEST}
"""The files that hold a model: the newest ones, and the one of the smallest validation loss."""

BUILDERS: dict[str, Callable[[Mapping[str, Any]], nn.Module]] = {
    "decoder": Decoder.of_description,
    "kernel transformer": KernelTransformer.of_description,
    PlainOperator.kind: PlainOperator.of_description,
    ProductOperator.kind: ProductOperator.of_description,
}
"""What builds a model again from its `description()`, by the kind that it names."""

BEFORE_TRAINING = ("seed", "init_scale", "value_scale")
"""What a description says of the first numbers only, which training has replaced."""


def load(
    folder: str | os.PathLike[str], *, which: str = "last", model: nn.Module | None = None
) -> nn.Module:
    """The trained module of a run that was written to `folder`, in the precision of the training.

    Args:
        folder: the folder that `train` was given.
        which: "last", the newest checkpoint that can be read, or "best", the one of the smallest
            validation loss.
        model: a model of your own cannot be built from its folder: give a module of the same shape,
            which is filled in place and returned.

    Returns:
        The module.

    Raises:
        UnknownNameError: if `which` is something else.
        CheckpointError: if there is no checkpoint, if it is damaged, or if it is one of another
            model.

    Example:
        >>> import torch
        >>> from tempfile import TemporaryDirectory
        >>> from icgd_papers.training import Gaussian, InContextTask
        >>> from icgd_papers.training import KernelTransformer, LinearFunctions
        >>> from icgd_papers.training import Settings, load, train
        >>> law = Gaussian(torch.eye(2, dtype=torch.float64))
        >>> task = InContextTask(law, LinearFunctions(), n_examples=8)
        >>> model = KernelTransformer(2, 1, ("linear",), transforms_covariates=False, seed=0)
        >>> with TemporaryDirectory() as folder:
        ...     settings = Settings(n_steps=1, batch_size=8, learning_rate=0.02)
        ...     log = train(model, task, settings, folder=folder)
        ...     bool((load(folder).B == model.B).all())
        True
    """
    if which not in CHECKPOINTS:
        raise UnknownNameError.of("checkpoint", which, known=list(CHECKPOINTS))
    path, state, configuration = _newest(Path(folder), which)
    tensors = {
        name.removeprefix("model."): tensor
        for name, tensor in state.tensors.items()
        if name.startswith("model.")
    }
    described = configuration.get("model")
    if model is None:
        return _rebuilt(path, described, tensors)
    _require_same(path, described, tensors, model)
    model.load_state_dict(tensors)
    return model


def read_log(folder: str | os.PathLike[str]) -> Log:
    """The log in a run's folder.

    It is read from log.json, and held against the log in the checkpoint, which has a checksum: a
    number that was changed is noticed.

    Args:
        folder: the folder that `train` was given.

    Returns:
        The log.

    Raises:
        DataError: if there is none, or if it is no log.
        CheckpointError: if it is not the log of the checkpoint.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from icgd_papers.training import read_log
        >>> with TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "log.json").write_text('[{"step": 0, "loss": 1.5}]')
        ...     read_log(folder).rows[0]["loss"]
        1.5
    """
    path = Path(folder) / "log.json"
    log = read_json(path)
    for row, kept in zip(log.rows, _kept_rows(Path(folder), log), strict=False):
        if not _is_same(row, kept):
            raise CheckpointError(
                f"{path} was changed: its row of step {int(kept['step'])} is not the one in the "
                "checkpoint beside it. `icgd train` on the same folder writes it again."
            )
    return log


def _kept_rows(folder: Path, log: Log) -> tuple[Row, ...]:
    """The rows in the newest checkpoint that can be read; none if there is no checkpoint.

    A longer training drops the last row of a shorter one where no row is due.
    """
    try:
        state = _newest(folder, "last")[1]
    except CheckpointError:
        return ()
    is_dropped = all(row["step"] != state.step for row in log.rows)
    return (state.log.before(state.step) if is_dropped else state.log).rows


def _is_same(row: Row, kept: Row) -> bool:
    """Whether two rows have the same numbers; JSON has none that are not finite."""
    return row.keys() == kept.keys() and all(
        row[name] == value or (isnan(row[name]) and not isfinite(value))
        for name, value in kept.items()
    )


def _newest(folder: Path, which: str) -> tuple[Path, State, Configuration]:
    """The newest file that can be read; a warning names those that cannot."""
    damages: list[CheckpointError] = []
    for path in sorted(folder.glob(CHECKPOINTS[which]), reverse=True):
        try:
            state, configuration = read_checkpoint(path)
        except CheckpointError as problem:
            damages.append(problem)
            continue
        for damage in damages:
            warn(UserWarning(f"{damage} {path} is loaded in its place."))
        return path, state, configuration
    if damages:
        raise damages[0]
    if which == "best":
        raise CheckpointError(
            f"{folder} has no best.safetensors, which a training with a validation split writes. "
            "Load its last checkpoint with which='last'."
        )
    raise CheckpointError(
        f"{folder} has no checkpoint. Give the folder that a model was trained in, which holds "
        "files such as checkpoint-000001000.safetensors."
    )


def _rebuilt(path: Path, described: object, tensors: Mapping[str, Tensor]) -> nn.Module:
    kind = described.get("kind") if isinstance(described, Mapping) else described
    if not isinstance(described, Mapping) or not isinstance(kind, str) or kind not in BUILDERS:
        raise CheckpointError(
            f"{path} holds a model of kind {brief(kind)}, and icgd can build "
            f"{', '.join(BUILDERS)} only. Make a module of the same shape, and give it as "
            "load(folder, model=module)."
        )
    try:
        model = BUILDERS[kind](described)
    except UnknownNameError as problem:
        raise FileError(
            f"{path} needs what is not known here: {problem} Register kernels of your own with "
            "icgd.register_kernel before loading."
        ) from None
    except IcgdError as problem:
        raise damaged(path, f"it does not describe a {kind}: {problem}") from None
    _require_same(path, described, tensors, model)
    model.to(_dtype_of(tensors)).load_state_dict(tensors)
    if isinstance(model, KernelTransformer):
        model.forget_units()
    return model


def _dtype_of(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The precision that the model was trained in."""
    found = (tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    return next(found, torch.float32)


def _require_same(
    path: Path, described: object, tensors: Mapping[str, Tensor], model: nn.Module
) -> None:
    """Raise `CheckpointError` unless the tensors are those of such a model."""
    own = model.state_dict()
    for name in {**tensors, **own}:
        stored, expected = (
            f"shape {list(of[name].shape)}" if name in of else "none" for of in (tensors, own)
        )
        if stored != expected:
            raise CheckpointError(
                f"{path} holds another model: for {brief(name)} it has {stored}, the module "
                f"{expected}. Give a module of the shape that was trained."
            )
    describe = getattr(model, "description", None)
    if describe is not None and isinstance(described, Mapping):
        require_equal(path, flat(dict(described)), flat(describe()), BEFORE_TRAINING)
