"""What every optimiser of a network's weights says of itself; and plain gradient descent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from icgd.errors import SettingError
from icgd.problems.optimisers.rule import GRADIENT, WEIGHTS, Rule
from icgd.problems.settings import count, is_sequence, not_negative, positive, settle


@dataclass(frozen=True)
class AbstractGradientStep(ABC):
    """A step from the gradient of the loss on all examples, or on `batch_size` of them.

    `step_size` is one number for all steps or one for each step. With a batch size b, step
    l = 0, 1, ... takes b of the n examples: l b, l b + 1, ..., modulo n.
    """

    step_size: float | tuple[float, ...]
    box: float
    batch_size: int | None = None

    def __post_init__(self) -> None:
        settle(self, step_size=_sizes_of_steps(self.step_size), box=positive("box", self.box))
        if self.batch_size is not None:
            settle(self, batch_size=count("batch_size", self.batch_size))

    @abstractmethod
    def rule(self, step: int) -> Rule:
        """What a step, counted from 0, does entry by entry."""

    @abstractmethod
    def name_in_words(self) -> str:
        """What kind of steps they are."""

    @property
    def state(self) -> tuple[str, ...]:
        """What is remembered beside every weight from step to step; it starts at 0."""
        return ()

    @property
    def gradient_factor(self) -> float:
        """What the gradient of half the mean loss is multiplied by before the rule."""
        return 1.0

    @property
    def is_constant(self) -> bool:
        """Whether all steps do the same to weights, gradient and state."""
        return not isinstance(self.step_size, tuple)

    @property
    def is_plain(self) -> bool:
        """Whether every step is w - step_size * gradient, with one step size for all."""
        return False

    def in_words(self) -> str:
        """The step in a few words, such as "gradient steps of 0.1, box 2, batches of 4"."""
        sizes = self.step_size if isinstance(self.step_size, tuple) else (self.step_size,)
        span = f"{min(sizes):g} to {max(sizes):g}" if len(set(sizes)) > 1 else f"{sizes[0]:g}"
        batches = "" if self.batch_size is None else f", batches of {self.batch_size:,}"
        return f"{self.name_in_words()} of {span}, box {self.box:g}{batches}"

    def size_of(self, step: int) -> float:
        """The step size of a step, counted from 0."""
        return self.step_size[step] if isinstance(self.step_size, tuple) else self.step_size

    @property
    def largest_step_size(self) -> float:
        return max(self.step_size) if isinstance(self.step_size, tuple) else self.step_size

    def require_steps(self, n_steps: int) -> None:
        """Raise `SettingError` unless a schedule has one entry a step."""
        if isinstance(self.step_size, tuple) and len(self.step_size) != n_steps:
            expected = f"{n_steps}, one for each step"
            raise SettingError.wrong_length("step_size", len(self.step_size), expected)

    def examples_of(self, step: int, n_examples: int) -> tuple[int, ...]:
        """The examples of a step, counted from 0."""
        if self.batch_size is None:
            return tuple(range(n_examples))
        first = step * self.batch_size
        return tuple(number % n_examples for number in range(first, first + self.batch_size))


@final
@dataclass(frozen=True)
class GradientStep(AbstractGradientStep):
    """w <- clip(w - step_size * grad L(w), -box, box), on all examples or `batch_size` of them.

    `step_size` is one number for all steps or one for each step. With a batch size b, step
    l = 0, 1, ... takes b of the n examples: l b, l b + 1, ..., modulo n.
    """

    def rule(self, step: int) -> Rule:
        return Rule({WEIGHTS: 1.0, GRADIENT: -self.size_of(step)})

    @property
    def is_plain(self) -> bool:
        return self.is_constant

    def name_in_words(self) -> str:
        return "gradient steps"


def _sizes_of_steps(value: Any) -> float | tuple[float, ...]:
    """One positive step size, or one for each step; a warm-up may begin with 0, and a decay end."""
    if not is_sequence(value):
        return positive("step_size", value)
    sizes = tuple(not_negative("step_size", size) for size in listed(value))
    if not sizes:
        raise SettingError.wrong_length("step_size", 0, "one a step")
    return sizes


def step_sizes(value: Any) -> float | tuple[float, ...]:
    """One step size, or one for each step, all of them positive."""
    if not is_sequence(value):
        return positive("step_size", value)
    sizes = tuple(positive("step_size", size) for size in listed(value))
    if not sizes:
        raise SettingError.wrong_length("step_size", 0, "one a step")
    return sizes


def listed(values: Iterable[object]) -> list[Any]:
    """A list, of plain numbers if it was an array."""
    found = getattr(values, "tolist", lambda: values)()
    return list(found)
