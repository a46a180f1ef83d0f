r"""Momentum, Nesterov's momentum and weight decay, as torch.optim.SGD has them.

g <- gradient + weight_decay * w
m <- momentum * m + (1 - dampening) * g        in the first step m <- g
w <- w - step_size * m                         nesterov: w - step_size * (g + momentum * m)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from icgd.errors import SettingError
from icgd.problems.optimisers.gradient_step import AbstractGradientStep
from icgd.problems.optimisers.rule import GRADIENT, WEIGHTS, Rule
from icgd.problems.settings import finite, not_negative, positive, settle

MOMENTUM = "momentum"


@final
@dataclass(frozen=True)
class MomentumStep(AbstractGradientStep):
    """Descent with momentum and weight decay, with the conventions of `torch.optim.SGD`.

    Args:
        step_size: the step size, or one for each step.
        box: the largest size of a weight.
        batch_size: how many examples a step takes, one batch after the other; by default all.
        momentum: how much of the last direction is kept.
        dampening: how much of the gradient is left out of the direction, after the first step.
        nesterov: whether the direction looks ahead.
        weight_decay: what is added to the gradient, times the weights.
        gradient_scale: what the gradient of half the mean loss is multiplied by; 2 stands for the
            mean loss.
        average: how much a step keeps of the average of the weights, which then predicts; by
            default there is none.

    Raises:
        SettingError: if a number is out of its range, or nesterov has no momentum.

    Example:
        >>> import icgd
        >>> icgd.MomentumStep(0.1, box=2.0, nesterov=True).in_words()
        'Nesterov steps (0.9) of 0.1, box 2'
    """

    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    gradient_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, momentum=not_negative("momentum", self.momentum))
        settle(self, weight_decay=not_negative("weight_decay", self.weight_decay))
        settle(self, dampening=finite("dampening", self.dampening))
        settle(self, gradient_scale=positive("gradient_scale", self.gradient_scale))
        settle(self, nesterov=bool(self.nesterov))
        if self.nesterov and (self.momentum == 0.0 or self.dampening != 0.0):
            raise SettingError(
                "nesterov=True needs a momentum above 0 and no dampening, got "
                f"momentum={self.momentum:g} and dampening={self.dampening:g}."
            )

    @property
    def state(self) -> tuple[str, ...]:
        return (MOMENTUM,) if self.momentum else ()

    def rule(self, step: int) -> Rule:
        if not self.momentum:
            return Rule({WEIGHTS: 1.0, GRADIENT: -self.size_of(step)}, decay=self.weight_decay)
        fresh = 1.0 if step == 0 else 1.0 - self.dampening
        kept = {MOMENTUM: {MOMENTUM: self.momentum, GRADIENT: fresh}}
        size = self.size_of(step)
        moved = {GRADIENT: -size, MOMENTUM: -size * self.momentum}
        moved = moved if self.nesterov else {MOMENTUM: -size}
        return Rule({WEIGHTS: 1.0, **moved}, kept, decay=self.weight_decay)

    @property
    def gradient_factor(self) -> float:
        return self.gradient_scale

    @property
    def is_constant(self) -> bool:
        return super().is_constant and (self.dampening == 0.0 or self.momentum == 0.0)

    def name_in_words(self) -> str:
        kind = "Nesterov steps" if self.nesterov else "momentum steps"
        decay = f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
        return f"{kind} ({self.momentum:g}{decay})"
