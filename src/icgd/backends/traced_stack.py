"""The fused run of a stack that records what every token sees after every layer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from typing import final

import torch

from icgd.backends.executor import AbstractExecutor
from icgd.backends.look_up import Operation
from icgd.backends.prompt import constants_of, weight_scales
from icgd.backends.rules import Machine
from icgd.problems.task import Task
from icgd.program.layout import Role
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.shapes import Parameters, Predictions, Stream


@final
class TracedStack(AbstractExecutor[Parameters]):
    """A stack that runs all tokens through all layers, and copies the traced slots after each."""

    def __init__(self, program: StackProgram, task: Task, trace: tuple[str, ...]) -> None:
        self._roles = {name: program.layout.slot(name).role for name in trace}
        self._program, self._task, self.start = program, task, task.initial
        self.still_steps = program.steps_of_pass(task.n_examples)
        self._constants = constants_of(program, task)
        self._scales = weight_scales(program, task)
        self._machine = self._machine_at(task.initial)
        self._steps = cycle(
            [_by_layer(self._machine, layers) for layers in program.steps_of_block()]
        )
        self._stands_at: Parameters | None = task.initial
        """The weights that the machine holds, between two steps."""
        self.recorded: dict[str, list[Stream]] = {name: [] for name in trace}
        self.n_per_step = program.layers_per_step
        self._record(self._machine)

    def _machine_at(self, weights: Parameters) -> Machine:
        task = self._task
        data = (task.x, task.y, task.queries)
        return Machine(self._program, weights, *data, rates=task.rates, traced=True)

    def step(self) -> Parameters:
        self._stands_at = None
        self._run(self._machine, next(self._steps))
        self._machine.step += 1
        reached = torch.empty_like(self.start)
        self._machine.read_parameters(reached)
        self._stands_at = reached
        return reached

    def read(self, reached: Parameters, write: Parameters) -> None:
        write.copy_(reached)

    def predictions(self, reached: Parameters) -> Predictions:
        stands_there = self._stands_at is reached
        machine = self._machine if stands_there else self._machine_at(reached)
        self._stands_at = None
        self._run(machine, _by_layer(machine, self._program.prediction))
        return machine.slots["y"][..., machine.queries, :].clone()

    def _run(self, machine: Machine, layers: Iterable[list[Operation]]) -> None:
        for operations in layers:
            for operation in operations:
                operation()
            self._record(machine)

    def _record(self, machine: Machine) -> None:
        for name, layers in self.recorded.items():
            layers.append(self._as_seen(machine, name))

    def _as_seen(self, machine: Machine, name: str) -> Stream:
        """A copy of a slot as every token sees it."""
        match self._roles[name]:
            case Role.CONSTANT:
                return self._constants[name].expand(*self._task.batch, -1, -1).clone()
            case Role.PARAMETER | Role.SHARED | Role.VELOCITY:
                return machine.slots[name].flatten(-2).unsqueeze(-2) * self._scales
        return machine.slots[name].clone()


def _by_layer(machine: Machine, layers: Iterable[Layer]) -> list[list[Operation]]:
    return [machine.operations((layer,)) for layer in layers]
