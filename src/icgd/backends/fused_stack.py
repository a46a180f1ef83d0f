"""The fused run of a stack keeps weights once, in buffers that are used again."""

from __future__ import annotations

from itertools import cycle
from typing import final

import torch

from icgd.backends.executor import AbstractExecutor
from icgd.backends.rules import Machine
from icgd.problems.task import Task
from icgd.program.instructions import RATES
from icgd.program.stack import StackProgram
from icgd.shapes import Parameters, Predictions


@final
class FusedStack(AbstractExecutor[Parameters]):
    """A stack that trains on the examples alone; the queries see the weights that were reached."""

    def __init__(self, program: StackProgram, task: Task) -> None:
        self._program, self._task, self.start = program, task, task.initial
        size, n_examples = program.batch_size, task.n_examples
        rows = range(n_examples if size is None else size)
        data = {"x": task.x, "y": task.y} | ({} if task.rates is None else {RATES: task.rates})
        used = {name: column[..., : rows.stop, :] for name, column in data.items()}
        x, y, none = used["x"], used["y"], task.queries[..., :0, :]
        self._machine = Machine(program, task.initial, x, y, none, rates=used.get(RATES))
        steps = [self._machine.operations(layers) for layers in program.steps_of_block()]
        self._steps = cycle(steps)
        if size is not None:
            # Batches go round: a batch that goes over the end is a slice of this all the same.
            self._data = {n: torch.cat([d, d[..., :size, :]], -2) for n, d in data.items()}

    def step(self, write: Parameters) -> Parameters:
        machine = self._machine
        if self._program.batch_size is not None:
            self._load_batch(machine.step * self._program.batch_size % self._task.n_examples)
        for operation in next(self._steps):
            operation()
        machine.step += 1
        machine.read_parameters(write)
        return write

    def _load_batch(self, first: int) -> None:
        """Put the examples of a batch into the machine, which has no others."""
        for name, data in self._data.items():
            slot = self._machine.slots[name]
            slot.copy_(data[..., first : first + slot.shape[-2], :])

    def predictions(self, reached: Parameters) -> Predictions:
        program, task = self._program, self._task
        none = task.y[..., :0, :]
        if task.n_queries == 0:
            return none.clone()
        machine = Machine(program, reached, task.x[..., :0, :], none, task.queries)
        for operation in machine.operations(program.prediction):
            operation()
        return machine.slots["y"]
