"""The update of a linear model: a gradient step, then the soft threshold of an l1 penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from icgd.errors import SettingError, brief
from icgd.problems.momentum import Accelerated, as_momentum, momentum_in_words
from icgd.problems.settings import finite, positive, settle


@dataclass(frozen=True)
class ProximalStep(Accelerated):
    """w <- clip(S(w - step_size * (grad L(w) + l2 * w)), -box, box), S the soft threshold.

    It descends L(w) + (l2 / 2) |w|_2^2 + l1 |w|_1 among the w in the box, or among all w without a
    box. The threshold of S is step_size * l1. Both penalties leave out the intercept.

    Args:
        step_size: the step size; the default is 1 / beta, where beta is the largest curvature of
            the data (`icgd.sized_problem`).
        l2: the penalty of ridge.
        l1: the penalty of the lasso.
        box: the largest size of a coefficient.
        momentum: one number m, or one for each step: the first w is w + m (w - w_before).
        nesterov: whether the gradient is taken there too; with `fista_momenta` that is FISTA.

    Raises:
        SettingError: if a penalty is negative, or the step size or the box is not positive.

    Example:
        >>> import icgd
        >>> icgd.ProximalStep(0.3, l2=0.1, box=1.0).in_words()
        'proximal steps of 0.3, l2 0.1, box 1'
    """

    step_size: float | None = None
    l2: float = 0.0
    l1: float = 0.0
    box: float | None = None
    momentum: Any = None
    """It may be given as a number or as anything that has one for each step."""
    nesterov: bool = False
    has_root: ClassVar[bool] = False

    def __post_init__(self) -> None:
        settle(self, l2=_penalty("l2", self.l2), l1=_penalty("l1", self.l1))
        if self.step_size is not None:
            settle(self, step_size=positive("step_size", self.step_size))
        if self.box is not None:
            settle(self, box=positive("box", self.box))
        settle(self, momentum=as_momentum(self.momentum), nesterov=bool(self.nesterov))
        if self.nesterov and self.momentum is None:
            raise SettingError("nesterov has no effect without momentum; give both or neither.")

    def in_words(self) -> str:
        """The step in a few words, such as "proximal steps of 0.3, l2 0.1, box 1".

        Returns:
            The words.

        Example:
            >>> import icgd
            >>> icgd.ProximalStep(l1=0.2).in_words()
            'proximal steps of 1 / curvature, l1 0.2'
        """
        size = "1 / curvature" if self.step_size is None else f"{self.step_size:g}"
        parts = {"l2": self.l2, "l1": self.l1, "box": self.box}
        others = (f", {name} {value:g}" for name, value in parts.items() if value)
        kept = momentum_in_words(self.momentum, self.nesterov)
        return f"proximal steps of {size}{kept}{''.join(others)}"

    @property
    def is_constant(self) -> bool:
        """Whether all steps are alike."""
        return not isinstance(self.momentum, tuple)

    def require_steps(self, n_steps: int) -> None:
        """Check that momenta are as many as the steps.

        Args:
            n_steps: the number of steps.

        Raises:
            SettingError: if they are more or fewer.

        Example:
            >>> import icgd
            >>> icgd.ProximalStep(0.1, momentum=(0.0, 0.5)).require_steps(2)
        """
        if isinstance(self.momentum, tuple) and len(self.momentum) != n_steps:
            raise SettingError(
                f"momentum has {len(self.momentum)} entries; expected {n_steps}, one for each step."
            )

    @property
    def overshoot(self) -> float:
        """How many times as far as the box the gradient may be taken: w + m (w - w_before)."""
        momenta = self.momentum if isinstance(self.momentum, tuple) else (self.momentum or 0.0,)
        return 1 + 2 * max(momenta) if self.nesterov else 1.0

    @property
    def penalises(self) -> bool:
        """Whether it draws coefficients towards 0."""
        return self.l2 > 0 or self.l1 > 0


def _penalty(name: str, value: object) -> float:
    number = finite(name, value)
    if number < 0:
        raise SettingError(
            f"{name} must not be negative, got {brief(number)}: a penalty draws coefficients "
            "towards 0. Give 0 for none."
        )
    return number
