r"""The fused run of functional descent computes the kernel once, then a product with it a step.

For T tokens, n of them examples, L steps cost O(T n (d + L)) and T n numbers of memory a task.
Only steps that move the inputs (GD++), or that have a kernel each, need a new kernel matrix each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import cycle, islice
from typing import NamedTuple, final

import torch
from torch import Tensor

from icgd.backends.executor import AbstractExecutor
from icgd.backends.prompt import constants_of, known_labels
from icgd.backends.run import RunOptions
from icgd.problems.kernel_machine import KernelHead, as_matrix, sum_of_heads
from icgd.problems.task import Task
from icgd.program.kernel_instructions import DescendFunction, KernelTerm
from icgd.program.stack import StackProgram
from icgd.shapes import Labels, Parameters, Points, Predictions


class State(NamedTuple):
    """The stream between two layers: all inputs, and what is left to learn at each token."""

    points: Points
    residual: Labels


@final
class FunctionDescent(AbstractExecutor[State]):
    """Functional descent; memory grows with the steps only by what is recorded of each."""

    def __init__(self, program: StackProgram, task: Task, options: RunOptions) -> None:
        self._task, self._labels = task, known_labels(task).flatten(-2)
        self._constants = constants_of(program, task)
        self.recorded: dict[str, list[Tensor]] = {
            program.layout.slot(name).name: [] for name in options.trace
        }
        self._states = states(program, task)
        self.start = next(self._states)
        self._record(self.start)

    def step(self, write: Parameters) -> State:
        state = next(self._states)
        if self.recorded:
            self._record(state)
        return state

    def _record(self, state: State) -> None:
        for name, layers in self.recorded.items():
            slot = {"x": state.points, "y": state.residual, **self._constants}[name]
            layers.append(slot.expand(*self._task.batch, -1, -1))

    def read(self, reached: State, write: Parameters) -> None:
        torch.sub(self._labels, reached.residual.flatten(-2), out=write)

    def predictions(self, reached: State) -> Predictions:
        return -reached.residual[..., self._task.n_examples :, :]


def states(program: StackProgram, task: Task) -> Iterator[State]:
    """The prompt, and the stream after every step."""
    state = State(torch.cat([task.x, task.queries], dim=-2), known_labels(task))
    yield state
    parts = [part for layer in program.block for part in layer.instructions]
    steps = [part for part in parts if isinstance(part, DescendFunction)]
    sizes = [task.x.new_tensor(step.step_size) for step in steps]  # a float takes longer
    known: tuple[KernelTerm, ...] | None = None
    for step, size in islice(cycle(zip(steps, sizes, strict=True)), program.n_steps):
        if known is None or step.terms != known:
            examples = state.points[..., : task.n_examples, :]
            kernel = sum_of_heads(heads_of(step), state.points, examples)
        state = _after(step, size, state, kernel)
        known = None if step.transform is not None else step.terms
        yield state


def heads_of(step: DescendFunction) -> tuple[KernelHead, ...]:
    """The kernels of a step, in the form that computes them."""
    return tuple(KernelHead(**asdict(term)) for term in step.terms)


def _after(step: DescendFunction, size: Tensor, state: State, kernel: Tensor) -> State:
    """The stream after one step, with the kernel of every token and example."""
    n_examples = kernel.shape[-1]
    left = state.residual.narrow(-2, 0, n_examples)  # faster than an index
    update = kernel @ left
    if step.noise:
        update[..., :n_examples, :] += step.noise * left
    points = state.points
    if step.transform is not None:
        moved = kernel @ points[..., :n_examples, :]
        points = points + moved @ as_matrix(step.transform, points).mT
    return State(points, state.residual - update.mul_(size))
