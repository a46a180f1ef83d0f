"""How a model is trained: steps, batches, learning rates, precision, device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import cos, pi

import torch
from torch.nn import Parameter
from torch.optim import Adam, AdamW

from icgd.errors import SettingError, UnknownNameError, brief
from icgd.problems.data import dtype_named
from icgd.problems.settings import count, named, positive, settle
from icgd_papers.training.tasks import LARGEST_SEED

OPTIMIZERS: dict[str, type[Adam]] = {"adam": Adam, "adamw": AdamW}

DEVICES = ("cpu", "cuda", "cuda:1", "mps", "auto")
"""Examples of devices; any number may follow "cuda:"."""

COUNTS = ("n_steps", "batch_size", "resample_every", "log_every", "checkpoint_every", "accumulate")

DEFAULT_DECAY = 0.01
"""The weight decay of AdamW (default 0.01, as in torch)."""


@dataclass(frozen=True)
class Settings:
    """How a model is trained.

    A new batch of `batch_size` tasks, in all processes together, is drawn every `resample_every`
    steps. Its gradient is gathered in `accumulate` parts, one after another, which saves memory.
    The learning rate rises linearly for `warmup_steps` steps. Then it falls along a half cosine to
    `final_learning_rate`; without one it stays constant. Gradients longer than `clip_norm` are
    shortened to it. `optimizer` is "adam" or "adamw"; only the latter has a `weight_decay`
    (default 0.01).

    The log has a row every `log_every` steps and one for the last step. If `n_validation` is
    positive, a row has the loss on so many tasks that training never sees, and the state of the
    smallest one is kept as `best.safetensors`. Training stops after `patience` rows without a
    smaller validation loss, or without a smaller loss if nothing is validated.

    With `autocast` the model computes in bfloat16 where torch deems it safe.
    """

    n_steps: int
    batch_size: int
    learning_rate: float
    clip_norm: float | None = None
    resample_every: int = 1
    seed: int = 0
    final_learning_rate: float | None = None
    log_every: int = 100
    checkpoint_every: int = 1000
    patience: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    warmup_steps: int = 0
    optimizer: str = "adam"
    weight_decay: float | None = None
    accumulate: int = 1
    n_validation: int = 0
    autocast: bool = False

    def __post_init__(self) -> None:
        settle(self, **{name: count(name, getattr(self, name)) for name in COUNTS})
        most = self.n_steps - 1
        settle(self, warmup_steps=count("warmup_steps", self.warmup_steps, least=0, most=most))
        settle(self, seed=count("seed", self.seed, least=0, most=LARGEST_SEED))
        settle(self, n_validation=count("n_validation", self.n_validation, least=0))
        settle(self, learning_rate=positive("learning_rate", self.learning_rate))
        for name in ("clip_norm", "final_learning_rate", "weight_decay"):
            if getattr(self, name) is not None:
                settle(self, **{name: positive(name, getattr(self, name))})
        if self.patience is not None:
            settle(self, patience=count("patience", self.patience))
        self._require_names()

    def _require_names(self) -> None:
        named("optimizer", self.optimizer, OPTIMIZERS)
        if self.weight_decay is not None and self.optimizer != "adamw":
            raise SettingError(
                'weight_decay has no effect without optimizer="adamw"; give both or neither.'
            )
        if not isinstance(self.autocast, bool):
            raise SettingError(
                f"autocast must be a truth value (true or false), got {brief(self.autocast)}."
            )
        if not is_device(self.device):
            raise UnknownNameError.of("device", self.device, known=DEVICES)
        is_double = dtype_named(self.dtype) == torch.float64
        if self.autocast and is_double:  # autocast leaves float64 as it is
            raise SettingError(
                "autocast has no effect without dtype='float32'; give both or neither."
            )

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of the update that follows `step` updates."""
        if count("step", step, least=0) < self.warmup_steps:
            return self.learning_rate * ((step + 1) / self.warmup_steps)
        if self.final_learning_rate is None:
            return self.learning_rate
        above, warm = self.learning_rate - self.final_learning_rate, self.warmup_steps
        turned = pi * (step - warm) / (self.n_steps - warm)
        return self.final_learning_rate + above * (1 + cos(turned)) / 2

    def new_optimizer(self, parameters: list[Parameter]) -> Adam:
        """Adam or AdamW, before its first step."""
        if not parameters:
            raise SettingError("parameters is empty; give at least one.")
        usual = DEFAULT_DECAY if self.optimizer == "adamw" else 0.0
        decay = usual if self.weight_decay is None else self.weight_decay
        return OPTIMIZERS[self.optimizer](parameters, lr=self.learning_rate, weight_decay=decay)


def is_device(name: object) -> bool:
    """Whether this is the name of a device that icgd knows how to use."""
    return isinstance(name, str) and bool(re.fullmatch(r"cpu|auto|mps|cuda(:\d+)?", name))
