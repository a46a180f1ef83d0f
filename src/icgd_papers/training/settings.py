"""Training settings: steps, batches, learning rates, precision, device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import cos, pi
from typing import Any

import torch
from torch import optim
from torch.nn import Parameter
from torch.optim import Optimizer

from icgd.errors import SettingError, UnknownNameError
from icgd.problems.data import dtype_named
from icgd.problems.settings import count, flag, named, positive, set_fields
from icgd_papers.training.tasks import LARGEST_SEED

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
    "rmsprop": optim.RMSprop,
    "sgd": optim.SGD,
}

DEVICES = ("cpu", "cuda", "cuda:1", "mps", "auto")
"""Examples of devices; any number may follow "cuda:"."""


def option(default: Any, text: str, path: str = "") -> Any:
    """Return a dataclass field that a config file and the command line share.

    `text` explains it in a sentence. `path` is "file" if it names a file, and "code" if it names a
    Python file or module.
    """
    return field(default=default, metadata={"text": text, "path": path})


@dataclass(frozen=True)
class Settings:
    """How a model is trained.

    The learning rate rises linearly for `warmup_steps` steps. Then it falls along a half cosine to
    `final_learning_rate`; without one it stays constant.

    If `n_validation` is positive, each row of the log has the loss on that many tasks that training
    never sees, and the state with the smallest one is kept as `best.safetensors`. Training stops
    after `patience` rows without a smaller validation loss, or without a smaller training loss if
    there is no validation.
    """

    n_steps: int = option(1000, "Updates of the model.")
    batch_size: int = option(256, "Tasks in a batch, in all processes together.")
    learning_rate: float = option(0.01, "Learning rate.")
    clip_norm: float | None = option(None, "Largest norm of a gradient. Default: no limit.")
    resample_every: int = option(1, "Steps that use the same batch.")
    seed: int = option(0, "Seed of all batches.")
    final_learning_rate: float | None = option(None, "Rate after a cosine. Default: constant.")
    log_every: int = option(100, "Steps between rows of the log.")
    checkpoint_every: int = option(1000, "Steps between checkpoints.")
    patience: int | None = option(None, "Rows without a smaller loss to stop after.")
    device: str = option("cpu", "cpu, cuda, cuda:1, mps or auto.")
    dtype: str = option("float32", "float32 or float64.")
    warmup_steps: int = option(0, "Steps in which the learning rate rises from 0.")
    optimizer: str = option("adam", f"Optimizer of torch: {', '.join(OPTIMIZERS)}.")
    weight_decay: float | None = option(None, "Weight decay. Default: that of the optimizer.")
    accumulate: int = option(1, "Parts in which a batch is computed, to save memory.")
    n_validation: int = option(0, "Validation tasks at every row of the log.")
    autocast: bool = option(False, "Compute in bfloat16 where torch considers it safe.")

    def __post_init__(self) -> None:
        counts = ("n_steps", "batch_size", "resample_every", "log_every", "checkpoint_every")
        for name in (*counts, "accumulate"):
            set_fields(self, **{name: count(name, getattr(self, name))})
        most = self.n_steps - 1
        set_fields(
            self,
            warmup_steps=count("warmup_steps", self.warmup_steps, least=0, most=most),
            seed=count("seed", self.seed, least=0, most=LARGEST_SEED),
            n_validation=count("n_validation", self.n_validation, least=0),
            learning_rate=positive("learning_rate", self.learning_rate),
            autocast=flag("autocast", self.autocast),
        )
        for name in ("clip_norm", "final_learning_rate", "weight_decay"):
            if getattr(self, name) is not None:
                set_fields(self, **{name: positive(name, getattr(self, name))})
        if self.patience is not None:
            set_fields(self, patience=count("patience", self.patience))
        named("optimizer", self.optimizer, OPTIMIZERS)
        if not re.fullmatch(r"cpu|auto|mps|cuda(:\d+)?", str(self.device)):
            raise UnknownNameError.of("device", self.device, known=DEVICES)
        if dtype_named(self.dtype) == torch.float64 and self.autocast:
            raise SettingError(
                "autocast has no effect without dtype='float32'; give both or neither."
            )

    @property
    def precision(self) -> str:
        """The precision as Lightning Fabric names it."""
        if self.autocast:
            return "bf16-mixed"
        return "64-true" if dtype_named(self.dtype) == torch.float64 else "32-true"

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of the update that follows `step` updates."""
        if step < self.warmup_steps:
            return self.learning_rate * ((step + 1) / self.warmup_steps)
        if self.final_learning_rate is None:
            return self.learning_rate
        height, warmup = self.learning_rate - self.final_learning_rate, self.warmup_steps
        angle = pi * (step - warmup) / (self.n_steps - warmup)
        return self.final_learning_rate + height * (1 + cos(angle)) / 2

    def new_optimizer(self, parameters: Sequence[Parameter]) -> Optimizer:
        """Return the optimizer with learning rate 1, which a schedule multiplies."""
        options: dict[str, Any] = {"lr": 1.0}
        if self.weight_decay is not None:
            options["weight_decay"] = self.weight_decay
        return OPTIMIZERS[self.optimizer](parameters, **options)
