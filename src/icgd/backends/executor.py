"""What takes the training steps of a program on a task; `driver.py` has the loop over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from torch import Tensor

from icgd.shapes import Parameters, Predictions

Reached = TypeVar("Reached")
"""What an executor predicts from: the weights, or the stream in which they stand."""


class AbstractExecutor(ABC, Generic[Reached]):
    """A program at work on a task. Subclasses are final.

    A step may be interrupted at any moment. Therefore no step changes what an earlier step reached,
    and predictions can be made again. An executor takes no further step after an interruption.
    """

    start: Reached
    """What the prompt holds, before the first step."""

    still_steps: int = 1
    """How many steps in a row must move no weight until all further ones will not either."""

    @abstractmethod
    def step(self, write: Parameters) -> Reached:
        """Take the next step, write what is learnt by then to `write`, and say what was reached.

        The driver does not change `write` before the step after the next one.
        """

    @abstractmethod
    def predictions(self, reached: Reached) -> Predictions:
        """The predictions at the queries."""

    def trace(self, n_steps: int | None = None) -> dict[str, Tensor]:
        """What was recorded of the first `n_steps`; by default of all steps and the predictions."""
        return {}

    def next_example(self, n_steps: int) -> int | None:
        """The example with which the step after `n_steps` begins, if a step does not use all."""
        return None
