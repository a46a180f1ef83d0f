r"""Fused gradient descent in function space.

The kernel matrix is computed once, and each step multiplies by it: for T tokens, n of them
examples, L steps take O(T n (d + L)) operations and T n numbers of memory per task. Only steps that
move the inputs (GD++) or that have different kernels compute a kernel matrix each.

Examples and queries are recorded as separate products, so that training results do not depend on
the queries, not even in the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, final

import torch
from torch import Tensor

from icgd.backends.engine import BoundRecording, Buffers
from icgd.backends.prompt import constants_of, known_labels
from icgd.backends.recorder import Op, Recorder, Recording, Tokens, cached_with, in_order
from icgd.backends.run import AbstractExecutor, RunOptions
from icgd.problems.data import Task
from icgd.program.kernel_instructions import VELOCITY, DescendFunction, KernelTerm
from icgd.program.layout import IS_EXAMPLE
from icgd.program.meaning import FunctionDomain, scheduled
from icgd.program.stack import StackProgram
from icgd.shapes import Labels, Parameters, Predictions

SLOTS = ("x", "y", VELOCITY)
"""The slots that differ from token to token; each is one input at examples and one at queries."""


def at_queries(slot: str) -> str:
    """Return the name of the input that holds a slot at the queries."""
    return f"{slot} at queries"


class Pair(NamedTuple):
    """A value at the examples and at the queries."""

    examples: Op
    queries: Op


class Groups(FunctionDomain[Pair]):
    """The primitives of a functional step, recorded separately for examples and queries."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def combine(self, terms: Sequence[tuple[float, Pair]]) -> Pair:
        examples = [(factor, pair.examples) for factor, pair in terms]
        queries = [(factor, pair.queries) for factor, pair in terms]
        return Pair(self.recorder.combine(examples), self.recorder.combine(queries))

    def add(self, *values: Pair) -> Pair:
        return self.combine([(1.0, value) for value in values])

    def zero(self, value: Pair) -> Pair:
        return Pair(*map(self.recorder.zero, value))

    def where(self, flag: str, closed_by: Sequence[str], value: Pair, otherwise: Pair) -> Pair:
        if flag == IS_EXAMPLE:
            return Pair(value.examples, otherwise.queries)
        return Pair(otherwise.examples, value.queries)

    def constant_map(self, rows: Sequence[Sequence[float]], value: Pair) -> Pair:
        return Pair(*(self.recorder.constant_map(rows, op) for op in value))

    def kernel(self, terms: Sequence[KernelTerm], points: Pair) -> Pair:
        return Pair(*(self.recorder.kernel_of(terms, op, points.examples) for op in points))

    def multiply(self, left: Pair, right: Pair) -> Pair:
        return Pair(*map(self.recorder.multiply, left, right))

    def read_examples(self, kernel: Pair, value: Pair) -> Pair:
        return Pair(*(self.recorder.times(op, value.examples) for op in kernel))


def recorded_function(
    program: StackProgram, n_examples: int, n_queries: int, *, recalls: bool = False
) -> tuple[Recording, ...]:
    """Record each step of the block; with `recalls`, only its outputs at queries."""

    def record() -> tuple[Recording, ...]:
        recorder, layout = Recorder(program, Tokens(examples=n_examples)), program.layout
        start: dict[str, Pair] = {}
        for name in (name for name in SLOTS if name in layout.names):
            width = layout.width_of(name)
            start[name] = Pair(
                recorder.op("input", options=(name,), shape=(n_examples, width)),
                recorder.op("input", options=(at_queries(name),), shape=(n_queries, width)),
            )
        inputs = {op.options[0]: op for pair in start.values() for op in pair}
        steps = [
            instruction
            for layer in program.block
            for instruction in layer.instructions
            if isinstance(instruction, DescendFunction)
        ]
        if len({(step.terms, step.transform) for step in steps}) == 1:
            steps = [scheduled(steps)]  # the steps differ only in their numbers
        recordings = []
        for step in steps:
            slots = start | step.meaning(start, Groups(recorder))
            outputs = {at_queries(name): pair.queries for name, pair in slots.items() if n_queries}
            if not recalls:
                outputs |= {name: pair.examples for name, pair in slots.items()}
            recordings.append(Recording(inputs, tuple(in_order(outputs.values())), outputs))
        return tuple(recordings)

    return cached_with(program, ("function", n_examples, n_queries, recalls), record)


def _buffers(
    program: StackProgram,
    task: Task,
    recordings: Sequence[Recording],
    loaded: Mapping[str, Tensor] = MappingProxyType({}),
) -> Buffers:
    """Return buffers with the prompt; `loaded` are slots that the caller sets at every step."""
    labels = known_labels(task)
    slots = {"x": task.x, "y": task.y, VELOCITY: torch.zeros_like(task.y)}
    unknown = labels[..., task.n_examples :, :]
    queries = {"x": task.queries, "y": unknown, VELOCITY: torch.zeros_like(unknown)}
    slots |= {at_queries(name): value for name, value in queries.items()} | dict(loaded)
    written = {n for r in recordings for n, op in r.outputs.items() if op is not r.inputs[n]}
    shared = frozenset.intersection(*(frozenset(recording.ops) for recording in recordings))
    return Buffers(program, slots, [*written, *loaded], shared)


@final
class FunctionDescent(AbstractExecutor[Labels]):
    """Descend in function space, in constant memory except for the trace and the history."""

    def __init__(self, program: StackProgram, task: Task, options: RunOptions) -> None:
        self._task, self._labels = task, known_labels(task).flatten(-2)
        self._constants = constants_of(program, task)
        recordings = recorded_function(program, task.n_examples, task.n_queries)
        self._buffers = _buffers(program, task, recordings)
        self._steps = [BoundRecording(self._buffers, recording) for recording in recordings]
        self.traced: dict[str, list[Tensor]] = {
            program.layout.slot(name).name: [] for name in options.trace
        }
        self.start = self._reached()

    def step(self) -> Labels:
        self._steps[self._buffers.step % len(self._steps)]()
        self._buffers.step += 1
        return self._reached()

    def _reached(self) -> Labels:
        """Record the traced slots, and return the residuals at examples and queries."""
        slots = self._buffers.inputs
        for name, layers in self.traced.items():
            if name in SLOTS:
                layers.append(torch.cat([slots[name], slots[at_queries(name)]], dim=-2))
            else:
                layers.append(self._constants[name].expand(*self._task.batch, -1, -1))
        return torch.cat([slots["y"], slots[at_queries("y")]], dim=-2)

    def read(self, reached: Labels, write: Parameters) -> None:
        torch.sub(self._labels, reached.flatten(-2), out=write)

    def predictions(self, reached: Labels) -> Predictions:
        return -reached[..., self._task.n_examples :, :]


def recalled(program: StackProgram, task: Task, trace: Mapping[str, Tensor]) -> Predictions:
    """Return the predictions of a run on this task without repeating its training.

    `trace` holds the residuals at the examples before every step: slot `y` of a traced run on the
    same examples, and slot `velocity` if there is one. Predictions are bitwise equal to those of a
    whole run. Steps must not move the inputs.
    """
    recordings = recorded_function(program, task.n_examples, task.n_queries, recalls=True)
    histories = {name: trace[name] for name in ("y", VELOCITY) if name in program.layout.names}
    first = {name: history[..., 0, :, :] for name, history in histories.items()}
    buffers = _buffers(program, task, recordings, first)
    steps = [BoundRecording(buffers, recording) for recording in recordings]
    for number in range(program.n_steps):
        for name, history in histories.items():
            buffers.inputs[name].copy_(history[..., number, :, :])
        steps[number % len(steps)]()
        buffers.step += 1
    return -buffers.inputs[at_queries("y")]
