"""What the options of an optimiser mean: momentum, Nesterov, Adam, AdamW, RMSprop, averages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from icgd.errors import SettingError, brief
from icgd.problems.optimisers import (
    AbstractGradientStep,
    AdamStep,
    GradientStep,
    MomentumStep,
    RmspropStep,
)
from icgd.problems.sets import Sets

SGD = "sgd"
ADAMW_DECAY = 0.01
"""What `torch.optim.AdamW` takes if nothing is said."""


def _sgd(weight_decay: float = 0.0, **rest: Any) -> AbstractGradientStep:
    if not weight_decay:
        return GradientStep(**rest)
    return MomentumStep(momentum=0.0, weight_decay=weight_decay, **rest)


def _adam(beta1: float = 0.9, beta2: float = 0.999, **rest: Any) -> AbstractGradientStep:
    return AdamStep(betas=(beta1, beta2), **rest)


def _adamw(weight_decay: float = ADAMW_DECAY, **rest: Any) -> AbstractGradientStep:
    return _adam(weight_decay=weight_decay, decoupled=True, **rest)


OPTIMISERS: dict[str, Callable[..., AbstractGradientStep]] = {
    SGD: _sgd,
    "momentum": MomentumStep,
    "nesterov": partial(MomentumStep, nesterov=True),
    "adam": _adam,
    "adamw": _adamw,
    "rmsprop": RmspropStep,
}
"""What makes the update, from step size, box and batch size, and from its own coefficients."""

OWNERS = {
    "momentum": ("momentum", "nesterov"),
    "dampening": ("momentum",),
    "beta1": ("adam", "adamw"),
    "beta2": ("adam", "adamw"),
    "alpha": ("rmsprop",),
    "eps": ("adam", "adamw", "rmsprop"),
}
"""The optimisers that a coefficient belongs to; weight decay and averages belong to all."""


@dataclass(frozen=True)
class OptimiserOptions:
    """The options of an optimiser of a network; None if one was not given."""

    optimiser: str | None = None
    momentum: float | None = None
    dampening: float | None = None
    weight_decay: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    alpha: float | None = None
    eps: float | None = None
    average: float | None = None

    def given(self) -> dict[str, object]:
        """The options that were given, as a user writes them."""
        return {_option(name): value for name, value in vars(self).items() if value is not None}

    def update(self, step_size: float, box: Sets, batch_size: int | None) -> AbstractGradientStep:
        """The update; `SettingError` if the optimiser is unknown or an option belongs to others."""
        chosen = self.optimiser or SGD
        if chosen not in OPTIMISERS:
            raise SettingError(
                f"optimiser must be one of {', '.join(OPTIMISERS)}, got {brief(chosen)}."
            )
        own = {name: value for name, value in vars(self).items() if value is not None}
        own.pop("optimiser", None)
        for name in own:
            owners = OWNERS.get(name, (chosen,))
            if chosen not in owners:
                *others, last = owners
                listed = f"{', '.join(others)} or {last}" if others else last
                raise SettingError(
                    f"{_option(name)} has no effect without --optimiser {listed}; give both or "
                    "neither."
                )
        return OPTIMISERS[chosen](step_size=step_size, box=box, batch_size=batch_size, **own)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
