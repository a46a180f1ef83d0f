"""The update of a linear model: a gradient step, then the soft threshold of an l1 penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from icgd.errors import SettingError
from icgd.problems.settings import finite, positive, settle


@dataclass(frozen=True)
class ProximalStep:
    """w <- clip(S(w - step_size * (grad L(w) + l2 * w)), -box, box), S the soft threshold.

    It descends L(w) + (l2 / 2) |w|_2^2 + l1 |w|_1 among the w in the box, or among all w without a
    box. The threshold of S is step_size * l1. Both penalties leave out the intercept. By default
    `step_size` is 1 / beta, where beta is the largest curvature of the data (`curvature.sized`).
    """

    step_size: float | None = None
    l2: float = 0.0
    l1: float = 0.0
    box: float | None = None
    state: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        settle(self, l2=_penalty("l2", self.l2), l1=_penalty("l1", self.l1))
        if self.step_size is not None:
            settle(self, step_size=positive("step_size", self.step_size))
        if self.box is not None:
            settle(self, box=positive("box", self.box))

    def in_words(self) -> str:
        """The step in a few words, such as "proximal steps of 0.3, l2 0.1, box 1"."""
        size = "1 / curvature" if self.step_size is None else f"{self.step_size:g}"
        parts = {"l2": self.l2, "l1": self.l1, "box": self.box}
        others = (f", {name} {value:g}" for name, value in parts.items() if value)
        return f"proximal steps of {size}{''.join(others)}"

    @property
    def penalises(self) -> bool:
        """Whether it draws coefficients towards 0."""
        return self.l2 > 0 or self.l1 > 0


def _penalty(name: str, value: object) -> float:
    number = finite(name, value)
    if number < 0:
        raise SettingError.negative_penalty(name, number)
    return number
