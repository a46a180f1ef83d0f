"""What every optimiser of a network's weights says of itself; and plain gradient descent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, final

from icgd.errors import SettingError
from icgd.problems.momentum import span_in_words
from icgd.problems.optimisers.rule import GRADIENT, WEIGHTS, Rule
from icgd.problems.settings import (
    below_one,
    count,
    entries,
    is_row,
    not_negative,
    positive,
    settle,
)

AVERAGE = "average"


@dataclass(frozen=True)
class AbstractGradientStep(ABC):
    """A step from the gradient of the loss on all examples, or on `batch_size` of them.

    `step_size` is one number for all steps or one for each step. With a batch size b, step
    l = 0, 1, ... takes b of the n examples: l b, l b + 1, ..., modulo n.

    With an `average` rho, an exponential moving average of the weights is kept beside them, and
    predicts: average <- rho * average + (1 - rho) * weights after every step, clipped ones, and
    after the first step average <- weights.
    """

    step_size: float | tuple[float, ...]
    box: float
    batch_size: int | None = None
    average: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        settle(self, step_size=_sizes_of_steps(self.step_size), box=positive("box", self.box))
        if self.batch_size is not None:
            settle(self, batch_size=count("batch_size", self.batch_size))
        if self.average is not None:
            settle(self, average=below_one("average", self.average))

    @abstractmethod
    def rule(self, step: int) -> Rule:
        """What a step does to weights, gradient and state, entry by entry.

        Args:
            step: the number of the step, counted from 0.

        Returns:
            The rule.

        Example:
            >>> import icgd
            >>> dict(icgd.GradientStep(0.1, box=2.0).rule(0).weights)
            {'weights': 1.0, 'gradient': -0.1}
        """

    @abstractmethod
    def name_in_words(self) -> str:
        """What kind of steps they are.

        Returns:
            The words.

        Example:
            >>> import icgd
            >>> icgd.MomentumStep(0.1, box=2.0).name_in_words()
            'momentum steps (0.9)'
        """

    @property
    def state(self) -> tuple[str, ...]:
        """What the rule remembers beside every weight from step to step; it starts at 0."""
        return ()

    @property
    def has_root(self) -> bool:
        """Whether a step divides by a root, as Adam does."""
        return self.rule(0).root is not None

    @property
    def remembered(self) -> tuple[str, ...]:
        """The state, and the average of the weights if there is one."""
        return self.state if self.average is None else (*self.state, AVERAGE)

    def kept_of_average(self, step: int) -> float:
        """How much of the average a step keeps; the first one begins it anew.

        Args:
            step: the number of the step, counted from 0.

        Returns:
            A share from 0 to 1.

        Example:
            >>> import icgd
            >>> update = icgd.GradientStep(0.1, box=2.0, average=0.9)
            >>> [update.kept_of_average(step) for step in range(3)]
            [0.0, 0.9, 0.9]
        """
        return (self.average or 0.0) if step else 0.0

    @property
    def gradient_factor(self) -> float:
        """What the gradient of half the mean loss is multiplied by before the rule."""
        return 1.0

    @property
    def is_constant(self) -> bool:
        """Whether all steps do the same to weights, gradient, state and average."""
        return not isinstance(self.step_size, tuple) and not self.average

    @property
    def is_plain(self) -> bool:
        """Whether every step is w - step_size * gradient, with one step size and no average."""
        return False

    def in_words(self) -> str:
        """The step in a few words, such as "gradient steps of 0.1, box 2, batches of 4".

        Returns:
            The words.

        Example:
            >>> import icgd
            >>> icgd.GradientStep((0.2, 0.1), box=2.0).in_words()
            'gradient steps of 0.1 to 0.2, box 2'
        """
        span = span_in_words(self.step_size)
        batches = "" if self.batch_size is None else f", batches of {self.batch_size:,}"
        averages = "" if self.average is None else f", averages of weights ({self.average:g})"
        return f"{self.name_in_words()} of {span}, box {self.box:g}{batches}{averages}"

    def size_of(self, step: int) -> float:
        """The step size of a step.

        Args:
            step: the number of the step, counted from 0.

        Returns:
            The step size.

        Example:
            >>> import icgd
            >>> icgd.GradientStep((0.2, 0.1), box=2.0).size_of(1)
            0.1
        """
        sizes = self.step_size
        return sizes[step] if isinstance(sizes, tuple) else sizes

    def require_steps(self, n_steps: int) -> None:
        """Check that a schedule has one entry a step.

        Args:
            n_steps: the number of steps.

        Raises:
            SettingError: if it has more or fewer.

        Example:
            >>> import icgd
            >>> icgd.GradientStep((0.2, 0.1), box=2.0).require_steps(2)
        """
        if isinstance(self.step_size, tuple) and len(self.step_size) != n_steps:
            raise SettingError(
                f"step_size has {len(self.step_size)} entries; expected {n_steps}, one for each "
                "step."
            )

    def examples_of(self, step: int, n_examples: int) -> tuple[int, ...]:
        """The examples of a step, counted from 0.

        Args:
            step: the number of the step, counted from 0.
            n_examples: the number of all examples.

        Returns:
            The numbers of its examples.

        Example:
            >>> import icgd
            >>> icgd.GradientStep(0.1, box=2.0, batch_size=2).examples_of(step=1, n_examples=3)
            (2, 0)
        """
        if self.batch_size is None:
            return tuple(range(n_examples))
        first = step * self.batch_size
        return tuple(number % n_examples for number in range(first, first + self.batch_size))


@final
@dataclass(frozen=True)
class GradientStep(AbstractGradientStep):
    """w <- clip(w - step_size * grad L(w), -box, box), on all examples or `batch_size` of them.

    Args:
        step_size: the step size, or one for each step.
        box: the largest size of a weight.
        batch_size: with a batch size b, step l = 0, 1, ... takes b of the n examples: l b, l b + 1,
            ..., modulo n.
        average: how much a step keeps of the average of the weights, which then predicts; by
            default there is none.

    Raises:
        SettingError: if a number is not positive, or the batch size is not whole.

    Example:
        >>> import icgd
        >>> icgd.GradientStep(0.1, box=2.0, batch_size=4).in_words()
        'gradient steps of 0.1, box 2, batches of 4'
    """

    def rule(self, step: int) -> Rule:
        return Rule({WEIGHTS: 1.0, GRADIENT: -self.size_of(step)})

    @property
    def is_plain(self) -> bool:
        return self.is_constant and self.average is None

    def name_in_words(self) -> str:
        return "gradient steps"


def _sizes_of_steps(value: Any) -> float | tuple[float, ...]:
    """One positive step size, or one for each step; a warm-up may begin with 0, and a decay end."""
    if not is_row(value):
        return positive("step_size", value)
    sizes = tuple(not_negative("step_size", size) for size in entries(value))
    if not sizes:
        raise SettingError("step_size is empty; give one number for each step.")
    return sizes


def step_sizes(value: Any) -> float | tuple[float, ...]:
    """One step size, or one for each step, all of them positive."""
    if not is_row(value):
        return positive("step_size", value)
    sizes = tuple(positive("step_size", size) for size in entries(value))
    if not sizes:
        raise SettingError("step_size is empty; give one number for each step.")
    return sizes
