"""An executor takes the training steps of a program on a task; `driver.py` loops over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, TypeVar, final

import torch
from torch import Tensor

from icgd.memory import require_memory
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

    recorded: Mapping[str, list[Tensor]] = MappingProxyType({})
    """What was recorded of each name: of the prompt, of every step, then of the predictions."""

    n_of_prompt: int = 1
    n_per_step: int = 1
    """How many records the prompt has, and how many a step adds."""

    @abstractmethod
    def step(self) -> Reached:
        """Take the next step and say what was reached."""

    @abstractmethod
    def read(self, reached: Reached, write: Parameters) -> None:
        """Write to `write` what is learnt by then."""

    def at_hand(self, n_steps: int, reached: Reached) -> tuple[int, Reached]:
        """The last step, not after this one, that can be read without taking steps again."""
        return n_steps, reached

    @abstractmethod
    def predictions(self, reached: Reached) -> Predictions:
        """The predictions at the queries."""

    @final
    def trace(self, n_steps: int | None = None) -> dict[str, Tensor]:
        """What was recorded of the first `n_steps`; by default of all steps and the predictions."""
        end = None if n_steps is None else self.n_of_prompt + n_steps * self.n_per_step
        return {name: torch.stack(parts[:end], dim=-3) for name, parts in self.recorded.items()}

    @final
    def require_room(self, n_steps: int) -> None:
        """Raise `SizeError` if the records of all steps, and their stacks, take too much."""
        n_bytes = sum(part.nbytes for parts in self.recorded.values() for part in parts)
        n_records = self.n_of_prompt + n_steps * self.n_per_step
        needed = 2 * n_bytes * n_records // self.n_of_prompt
        remedy = "Name fewer slots, or take fewer steps or examples."
        require_memory(f"The trace of {n_steps:,} steps", needed, remedy)
