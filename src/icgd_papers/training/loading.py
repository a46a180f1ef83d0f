"""Load the trained module and the log from the folder of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from icgd.errors import CheckpointError, FileError, IcgdError, UnknownNameError, quoted
from icgd_papers.training.checkpoints import (
    BEST,
    damaged,
    flat,
    model_tensors,
    newest_checkpoint,
    require_equal,
)
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.logs import Log, read_json
from icgd_papers.training.models import KernelTransformer
from icgd_papers.training.operators import PlainOperator, ProductOperator

CHECKPOINTS = {"last": "checkpoint-*.safetensors", "best": BEST}

BUILDERS: dict[str, Callable[[Mapping[str, Any]], nn.Module]] = {
    "decoder": Decoder.of_description,
    "kernel transformer": KernelTransformer.of_description,
    PlainOperator.kind: PlainOperator.of_description,
    ProductOperator.kind: ProductOperator.of_description,
}
"""Functions that build a model from its `description()`, by the kind that it names."""

BEFORE_TRAINING = ("seed", "init_scale", "value_scale")
"""Entries of a description about the initial weights only, which training has replaced."""


def load(
    folder: str | os.PathLike[str], *, which: str = "last", model: nn.Module | None = None
) -> nn.Module:
    """Load the trained module of a run, in the precision of the training.

    Args:
        folder: the folder that `train` was given.
        which: "last", the newest checkpoint that can be read, or "best", the one with the smallest
            validation loss.
        model: a module of the same shape to be filled in place; needed for models of your own,
            which cannot be built from the folder.

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
    found = newest_checkpoint(sorted(Path(folder).glob(CHECKPOINTS[which])))
    if found is None and which == "best":
        raise CheckpointError(
            f"{folder} has no best.safetensors, which a training with n_validation writes. Load "
            "its last checkpoint with which='last'."
        )
    if found is None:
        raise CheckpointError(
            f"{folder} has no checkpoint. Give the folder that a model was trained in, which holds "
            "files such as checkpoint-000001000.safetensors."
        )
    path, state, configuration = found
    tensors, description = model_tensors(state.tensors), configuration.get("model")
    if model is not None:
        _require_same(path, description, tensors, model)
        model.load_state_dict(tensors)
        return model
    built = _built(path, description)
    _require_same(path, description, tensors, built)
    floats = (tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    built.to(next(floats, torch.float32)).load_state_dict(tensors)
    if isinstance(built, KernelTransformer):
        built.forget_units()
    return built


def read_log(folder: str | os.PathLike[str]) -> Log:
    """Read the log in a run's folder.

    Args:
        folder: the folder that `train` was given.

    Returns:
        The log.

    Raises:
        DataError: if there is none, or if it is not a log.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from icgd_papers.training import read_log
        >>> with TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "log.json").write_text('[{"step": 0, "loss": 1.5}]')
        ...     read_log(folder).rows[0]["loss"]
        1.5
    """
    return read_json(Path(folder) / "log.json")


def _built(path: Path, description: object) -> nn.Module:
    """Build the model of a description with its initial weights."""
    kind = description.get("kind") if isinstance(description, Mapping) else description
    if not isinstance(description, Mapping) or not isinstance(kind, str) or kind not in BUILDERS:
        raise CheckpointError(
            f"{path} holds a model of kind {quoted(kind)}, and icgd can build "
            f"{', '.join(BUILDERS)} only. Make a module of the same shape, and give it as "
            "load(folder, model=module)."
        )
    try:
        return BUILDERS[kind](description)
    except UnknownNameError as problem:
        raise FileError(
            f"{path} needs what is not known here: {problem} Register kernels of your own with "
            "icgd.register_kernel before loading."
        ) from None
    except IcgdError as problem:
        raise damaged(path, f"it does not describe a {kind}: {problem}") from None


def _require_same(
    path: Path, description: object, tensors: Mapping[str, Tensor], model: nn.Module
) -> None:
    """Raise `CheckpointError` unless the tensors and the description fit the model."""
    needed = model.state_dict()
    for name in {**tensors, **needed}:
        stored, expected = (
            f"shape {list(of[name].shape)}" if name in of else "none" for of in (tensors, needed)
        )
        if stored != expected:
            raise CheckpointError(
                f"{path} holds another model: for {quoted(name)} it has {stored}, the module "
                f"{expected}. Give a module of the shape that was trained."
            )
    describe = getattr(model, "description", None)
    if describe is not None and isinstance(description, Mapping):
        require_equal(path, flat(dict(description)), flat(describe()), BEFORE_TRAINING)
