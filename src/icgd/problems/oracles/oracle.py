"""The interface of oracles: exact training in float64, which all runs are compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.errors import DataError, OverflowedRunError, SettingError
from icgd.facts import counted
from icgd.memory import require_memory
from icgd.problems.data import Domain, Task, checked_array, require_within
from icgd.problems.kernel_machine import KernelMachine
from icgd.problems.linear_model import LinearModel
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import AbstractGradientStep
from icgd.problems.steps import FunctionalStep, ProximalStep
from icgd.shapes import History, Inputs, Labels, Parameters, Predictions, Queries

Shapes = tuple[tuple[int, int], ...]
"""The shapes of matrices, one after the other."""

ExactStep = Callable[[Parameters, int], Parameters]
"""From the weights before a step and its number, counted from 0, to the weights after it."""

COPIES = 4
"""Copies of all weights that a run holds at least: before and after a step, gradient, its own."""


def overflowed(dtype: str, step_size: float | Sequence[float] | None = None) -> OverflowedRunError:
    """Return the error of a run that overflows; `step_size` if it is known."""
    largest = max(step_size) if isinstance(step_size, Sequence) else step_size
    blamed = "a step" if largest is None else f"step_size={largest:g}"
    return OverflowedRunError(
        f"The run leaves the range of {dtype}: {blamed} is too large for these data. Use a smaller "
        "step size."
    )


@dataclass(frozen=True)
class AbstractOracle(ABC):
    """How one kind of target is trained exactly. Subclasses are final and made by `Problem`.

    Everything takes one task, or a batch of tasks with a leading axis. Weights are one vector: the
    matrices of `weight_shapes` one after the other, or the values of a function at all tokens.
    """

    target: MLP | KernelMachine | LinearModel
    loss: str
    update: AbstractGradientStep | FunctionalStep | ProximalStep
    domain: Domain

    def started_from(self, initial: Sequence[float]) -> AbstractOracle:
        """Return an oracle that starts from these weights by default."""
        raise SettingError("initial has no effect without a network; leave it out.")

    @property
    @abstractmethod
    def weight_shapes(self) -> Shapes:
        """The shapes of the trained matrices; none if a function is trained."""

    def labelled(self, y: Tensor, expected: tuple[int, ...]) -> Tensor:
        """Labels in the shape that is expected, if they can be given in another one."""
        return y

    @abstractmethod
    def require_labels(self, y: Labels) -> None:
        """Raise `DataError` unless every label suits the loss."""

    def initial(
        self, x: Inputs, queries: Queries, *, given: Any = None, seed: int | None = None
    ) -> Parameters:
        """Return the weights that a run on these inputs starts from: those given, or its own."""
        n_weights = sum(rows * columns for rows, columns in self.weight_shapes)
        batch, shape = tuple(x.shape[:-2]), (*x.shape[:-2], n_weights)
        what = f"Training {n_weights:,} weights for {counted(prod(batch), 'task')}"
        require_memory(what, COPIES * 8 * prod(shape), "Take a narrower network, or fewer tasks.")
        if given is None:
            return self.own_start(batch, seed)
        if seed is not None:
            raise SettingError("Give either initial or seed, not both.")
        weights = self.with_state(checked_array("initial", given))
        if tuple(weights.shape) not in {(n_weights,), shape}:
            raise DataError(f"initial has shape {tuple(weights.shape)}; expected {shape}.")
        return weights.expand(shape)

    def with_state(self, weights: Tensor) -> Tensor:
        """Weights with what an optimiser remembers beside them, if these are weights alone."""
        return weights

    def require_start(self, trained: Tensor, n_examples: int, dtype: torch.dtype) -> None:
        """Raise an error unless a run of this precision can start from what is trained."""
        if self.update.box is not None:
            require_within("initial", trained, self.update.box, "box")

    def starts_fresh(self, trained: Tensor) -> bool:
        """Return whether the state of the optimiser is 0."""
        return True

    @abstractmethod
    def own_start(self, batch: tuple[int, ...], seed: int | None) -> Parameters:
        """Return the weights that a run starts from if none are given."""

    @abstractmethod
    def exact_step(self, task: Task) -> ExactStep:
        """Return an exact step for the task; what steps share is computed once."""

    def step(self, task: Task, weights: Parameters, number: int = 0) -> Parameters:
        """Return the weights after step `number`, counted from 0, which starts from `weights`."""
        return self.exact_step(task)(weights.double(), number)

    def train(self, task: Task, n_steps: int) -> History:
        """`n_steps` exact updates; the first entry of the history is the task's initial weights."""
        history, step = [task.initial.double()], self.exact_step(task)
        for number in range(n_steps):
            history.append(step(history[-1], number))
        return torch.stack(history, dim=-2)

    def stepped(self, task: Task, history: History) -> Tensor:
        """Take one exact step from each entry of a run but its last."""
        before, step = history[..., :-1, :].double(), self.exact_step(task)
        after = [step(weights, number) for number, weights in enumerate(before.unbind(-2))]
        return torch.stack(after, dim=-2) if after else before

    @abstractmethod
    def described(self, task: Task, n_steps: int) -> dict[str, Any]:
        """Describe the problem for a certificate, as docs/certificates.md defines.

        All numbers are exact binary fractions such as "0x1.8p+1". Raises `SettingError` if
        something about it is a function of the user's.
        """

    @abstractmethod
    def predict(self, task: Task, weights: Parameters) -> Predictions:
        """Predict the labels of the queries."""

    @abstractmethod
    def risk(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"]:
        """Return the training loss, one number a task."""

    @property
    @abstractmethod
    def loss_in_words(self) -> str:
        """Which loss `risk` is."""

    @abstractmethod
    def by_name(self, task: Task, weights: Parameters) -> dict[str, Tensor]:
        """Return what is trained as named matrices, with a leading axis for a batch of tasks."""

    def objective(self, task: Task, weights: Parameters) -> Float[Tensor, "*tasks"] | None:
        """Return the objective where it is more than the training loss: with penalties."""
        return None

    @property
    def unusual_loss(self) -> str | None:
        """The loss of an example as a formula, where it is not the one that its name suggests."""
        return None

    def examples_of(self, number: int, n_examples: int) -> Sequence[int]:
        """Return the examples that a step uses, both counted from 0."""
        return range(n_examples)

    def preactivations(self, task: Task, weights: Parameters, number: int) -> list[Tensor]:
        """Return the preactivations of every layer in a step; none without units."""
        return []

    def named(self, weights: Parameters, inputs: Sequence[str]) -> dict[str, float] | None:
        """Return the weights of one task by input name, if each weight belongs to one input."""
        return None

    def require_end(self, task: Task) -> None:
        """Raise an error if a run on this task must not wait until its weights move no more."""
        return None

    def overflow(self, dtype: str) -> OverflowedRunError:
        """Return the error of a run that leaves the range of its numbers."""
        return overflowed(dtype, self.update.step_size)

    def doubts(self, task: Task, n_steps: int) -> Iterator[Warning]:
        """What to warn of before a run."""
        return iter(())

    def afterthoughts(self, task: Task, weights: Parameters) -> Iterator[Warning]:
        """What to warn of after a run on a task that ended with these weights."""
        return iter(())


# Steps with momentum: they need where a run was one step earlier, besides where it is.


ResumedStep = Callable[[Parameters, Parameters, int], Parameters]
"""From what was learnt before a step, what was one step earlier, and its number to what is after.

A run begins at rest: before its first step both are the same.
"""


def trained(step: ResumedStep, start: Parameters, n_steps: int) -> History:
    """Train, and return what is learnt before the first step and after every step."""
    history = [start]
    for number in range(n_steps):
        history.append(step(history[-1], history[max(0, number - 1)], number))
    return torch.stack(history, dim=-2)


def stepped(step: ResumedStep, history: History) -> Tensor:
    """Take one step from each entry but the last, with the entry before it for the momentum."""
    now = history[..., :-1, :].double()
    earlier = torch.cat([now[..., :1, :], now[..., :-1, :]], dim=-2)
    pairs = enumerate(zip(now.unbind(-2), earlier.unbind(-2), strict=True))
    after = [step(here, before, number) for number, (here, before) in pairs]
    return torch.stack(after, dim=-2) if after else now
