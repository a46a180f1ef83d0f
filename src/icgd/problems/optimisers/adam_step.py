r"""Adam, AdamW and RMSprop, as torch.optim has them.

Adam, at step t = 1, 2, ...:

    g <- gradient + weight_decay * w             decoupled: w <- (1 - step_size * decay) w instead
    m <- beta_1 m + (1 - beta_1) g,   v <- beta_2 v + (1 - beta_2) g^2
    w <- w - step_size / (1 - beta_1^t) * m / (sqrt(v / (1 - beta_2^t)) + eps)

RMSprop:

    v <- alpha v + (1 - alpha) g^2,   w <- w - step_size * g / (sqrt(v) + eps)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from icgd.errors import SettingError
from icgd.problems.optimisers.gradient_step import AbstractGradientStep
from icgd.problems.optimisers.rule import GRADIENT, SCALED, SQUARE, WEIGHTS, Root, Rule
from icgd.problems.settings import (
    below_one,
    entries,
    is_row,
    not_negative,
    positive,
    settle,
    within,
)

FIRST, SECOND = "first_moment", "second_moment"

LEAST_EPS, LARGEST_EPS = 1e-30, 1e30
"""Beyond them a reciprocal root has slopes that leave the range of numbers."""


def _eps(value: object) -> float:
    eps = positive("eps", value)
    within("eps", eps, LEAST_EPS, LARGEST_EPS)
    return eps


@final
@dataclass(frozen=True)
class AdamStep(AbstractGradientStep):
    """Adam with the conventions of `torch.optim.Adam`; if `decoupled`, of `torch.optim.AdamW`.

    Args:
        step_size: the step size, or one for each step.
        box: the largest size of a weight.
        batch_size: how many examples a step takes, one batch after the other; by default all.
        betas: how much of the mean gradient and of its mean square is kept in a step.
        eps: what is added to the root; a smaller one costs more pieces, by its logarithm.
        weight_decay: what is added to the gradient, times the weights.
        decoupled: whether weights decay by themselves instead, as in AdamW.
        gradient_scale: what the gradient of half the mean loss is multiplied by; 2 stands for the
            mean loss.
        average: how much a step keeps of the average of the weights, which then predicts; by
            default there is none.

    Raises:
        SettingError: if a number is out of its range.

    Example:
        >>> import icgd
        >>> icgd.AdamStep(0.01, box=2.0).in_words()
        'Adam steps (0.9, 0.999, eps 0.001) of 0.01, box 2'
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    gradient_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        betas = entries(self.betas) if is_row(self.betas) else [self.betas]
        if len(betas) != 2:
            raise SettingError(f"betas has {len(betas)} entries; expected 2, one for each moment.")
        first, second = (below_one(f"betas[{place}]", beta) for place, beta in enumerate(betas))
        settle(self, betas=(first, second))
        settle(self, eps=_eps(self.eps))
        settle(self, weight_decay=not_negative("weight_decay", self.weight_decay))
        settle(self, gradient_scale=positive("gradient_scale", self.gradient_scale))
        settle(self, decoupled=bool(self.decoupled))

    @property
    def state(self) -> tuple[str, ...]:
        return (FIRST, SECOND)

    def rule(self, step: int) -> Rule:
        (first, second), size = self.betas, self.size_of(step)
        rest = 1.0 - second ** (step + 1)
        kept = {SECOND: second, SQUARE: 1.0 - second}
        root = Root(FIRST, {name: factor / rest for name, factor in kept.items()}, self.eps)
        decay = size * self.weight_decay if self.decoupled else 0.0
        return Rule(
            weights={WEIGHTS: 1.0 - decay, SCALED: -size / (1.0 - first ** (step + 1))},
            state={FIRST: {FIRST: first, GRADIENT: 1.0 - first}, SECOND: kept},
            decay=0.0 if self.decoupled else self.weight_decay,
            root=root,
        )

    @property
    def gradient_factor(self) -> float:
        return self.gradient_scale

    @property
    def is_constant(self) -> bool:
        return False  # its corrections change with every step

    def name_in_words(self) -> str:
        first, second = self.betas
        name = "AdamW" if self.decoupled else "Adam"
        decay = f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
        return f"{name} steps ({first:g}, {second:g}, eps {self.eps:g}{decay})"


@final
@dataclass(frozen=True)
class RmspropStep(AbstractGradientStep):
    """RMSprop with the conventions of `torch.optim.RMSprop`, not centred and without momentum.

    Args:
        step_size: the step size, or one for each step.
        box: the largest size of a weight.
        batch_size: how many examples a step takes, one batch after the other; by default all.
        alpha: how much of the mean square of the gradient is kept in a step.
        eps: what is added to the root; a smaller one costs more pieces, by its logarithm.
        weight_decay: what is added to the gradient, times the weights.
        gradient_scale: what the gradient of half the mean loss is multiplied by; 2 stands for the
            mean loss.
        average: how much a step keeps of the average of the weights, which then predicts; by
            default there is none.

    Raises:
        SettingError: if a number is out of its range.

    Example:
        >>> import icgd
        >>> icgd.RmspropStep(0.01, box=2.0).in_words()
        'RMSprop steps (0.99, eps 0.001) of 0.01, box 2'
    """

    alpha: float = 0.99
    eps: float = 1e-3
    weight_decay: float = 0.0
    gradient_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, alpha=below_one("alpha", self.alpha), eps=_eps(self.eps))
        settle(self, weight_decay=not_negative("weight_decay", self.weight_decay))
        settle(self, gradient_scale=positive("gradient_scale", self.gradient_scale))

    @property
    def state(self) -> tuple[str, ...]:
        return (SECOND,)

    def rule(self, step: int) -> Rule:
        kept = {SECOND: self.alpha, SQUARE: 1.0 - self.alpha}
        return Rule(
            weights={WEIGHTS: 1.0, SCALED: -self.size_of(step)},
            state={SECOND: kept},
            decay=self.weight_decay,
            root=Root(GRADIENT, kept, self.eps),
        )

    @property
    def gradient_factor(self) -> float:
        return self.gradient_scale

    def name_in_words(self) -> str:
        decay = f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
        return f"RMSprop steps ({self.alpha:g}, eps {self.eps:g}{decay})"
