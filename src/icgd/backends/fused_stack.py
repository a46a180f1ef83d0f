"""The fused run of a stack keeps weights once, in buffers that are used again."""

from __future__ import annotations

from itertools import cycle
from typing import final

from icgd.backends.executor import AbstractExecutor
from icgd.backends.rules import Machine
from icgd.problems.task import Task
from icgd.program.stack import StackProgram
from icgd.shapes import Parameters, Predictions


@final
class FusedStack(AbstractExecutor[Parameters]):
    """A stack that trains on the examples alone; the queries see the weights that were reached."""

    def __init__(self, program: StackProgram, task: Task) -> None:
        self._program, self._task, self.start = program, task, task.initial
        self._machine = Machine(program, task.initial, task.x, task.y, task.queries[..., :0, :])
        steps = [self._machine.operations(layers) for layers in program.steps_of_block()]
        self._steps = cycle(steps)

    def step(self, write: Parameters) -> Parameters:
        for operation in next(self._steps):
            operation()
        self._machine.read_parameters(write)
        return write

    def predictions(self, reached: Parameters) -> Predictions:
        program, task = self._program, self._task
        none = task.y[..., :0, :]
        if task.n_queries == 0:
            return none.clone()
        machine = Machine(program, reached, task.x[..., :0, :], none, task.queries)
        for operation in machine.operations(program.prediction):
            operation()
        return machine.slots["y"]
