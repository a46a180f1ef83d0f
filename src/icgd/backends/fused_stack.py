"""The fused run of a stack keeps weights once, in buffers that are used again."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor

from icgd.backends.executor import AbstractExecutor
from icgd.backends.rules import Machine
from icgd.problems.task import Task
from icgd.program.instructions import RATES
from icgd.program.stack import StackProgram
from icgd.shapes import Parameters, Predictions

STEPS_BETWEEN = 8
"""How many steps are taken until weights are set aside again: a copy takes a tenth of a step."""


class Aside(NamedTuple):
    """The number of a step, and what was set aside after it."""

    n_done: int
    weights: Parameters
    velocities: dict[str, Tensor]


@final
class FusedStack(AbstractExecutor[int]):
    """A stack that trains on the examples alone; the queries see the weights that were reached.

    A step changes weights in place, and is known by its number. What an earlier step reached is
    found by taking the steps again that follow the weights which were last set aside.
    """

    def __init__(self, program: StackProgram, task: Task) -> None:
        self._program, self._task, self.start = program, task, 0
        self.still_steps = program.steps_of_pass(task.n_examples)
        self._aside = Aside(0, task.initial, {})
        self._training = _Training(program, task, self._aside)

    def step(self) -> int:
        training = self._training
        if training.n_done >= self._aside.n_done + STEPS_BETWEEN:
            self._aside = training.aside()
        training.step()
        return training.n_done

    def read(self, reached: int, write: Parameters) -> None:
        self._brought_to(reached).machine.read_parameters(write)

    def at_hand(self, n_steps: int, reached: int) -> tuple[int, int]:
        return self._aside.n_done, self._aside.n_done

    def _brought_to(self, step: int) -> _Training:
        """The training after this step, all of whose operations were performed."""
        if not self._training.stands_at(step):
            training = _Training(self._program, self._task, self._aside)
            while training.n_done < step:
                training.step()
            self._training = training
        return self._training

    def predictions(self, reached: int) -> Predictions:
        program, task = self._program, self._task
        none = task.y[..., :0, :]
        if task.n_queries == 0:
            return none.clone()
        weights = self._brought_to(reached).aside().weights
        machine = Machine(program, weights, task.x[..., :0, :], none, task.queries)
        for operation in machine.operations(program.prediction):
            operation()
        return machine.slots["y"]


class _Training:
    """A machine that takes the steps after those that were set aside."""

    def __init__(self, program: StackProgram, task: Task, start: Aside) -> None:
        self._program, self._task = program, task
        size = program.batch_size
        data = {"x": task.x, "y": task.y} | ({} if task.rates is None else {RATES: task.rates})
        used = {name: column[..., :size, :] for name, column in data.items()}
        x, y, none = used["x"], used["y"], task.queries[..., :0, :]
        self.machine = Machine(program, start.weights, x, y, none, rates=used.get(RATES))
        self.machine.step = start.n_done
        for name, velocity in start.velocities.items():
            self.machine.slots[name].copy_(velocity)
        self._steps = [self.machine.operations(layers) for layers in program.steps_of_block()]
        self._is_whole = True
        if size is not None:
            # Batches go round: a batch that goes over the end is a slice of this all the same.
            self._data = {n: torch.cat([d, d[..., :size, :]], -2) for n, d in data.items()}

    def step(self) -> None:
        """Take the next step; until its end the weights are those of no step."""
        self._is_whole = False
        machine = self.machine
        if self._program.batch_size is not None:
            self._load_batch(machine.step * self._program.batch_size % self._task.n_examples)
        for operation in self._steps[machine.step % len(self._steps)]:
            operation()
        machine.step += 1
        self._is_whole = True

    @property
    def n_done(self) -> int:
        """The number of steps taken, those that were set aside included."""
        return self.machine.step

    def stands_at(self, step: int) -> bool:
        """Whether the weights are exactly those after this step."""
        return self._is_whole and self.n_done == step

    def aside(self) -> Aside:
        """A copy of all that further steps need."""
        weights = torch.empty_like(self._task.initial)
        self.machine.read_parameters(weights)
        velocities = self.machine.velocities().items()
        return Aside(self.n_done, weights, {name: held.clone() for name, held in velocities})

    def _load_batch(self, first: int) -> None:
        """Put the examples of a batch into the machine, which has no others."""
        for name, data in self._data.items():
            slot = self.machine.slots[name]
            slot.copy_(data[..., first : first + slot.shape[-2], :])
