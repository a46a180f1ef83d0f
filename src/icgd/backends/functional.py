r"""The fused run of functional descent computes the kernel once, then a product with it a step.

For T tokens, n of them examples, L steps cost O(T n (d + L)) and T n numbers of memory a task.
Only steps that move the inputs (GD++), or that have a kernel each, need a new kernel matrix each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import cycle, islice, repeat
from typing import NamedTuple, final

import torch
from torch import Tensor

from icgd.backends.prompt import constants_of, known_labels
from icgd.backends.run import AbstractExecutor, RunOptions
from icgd.problems.data import Task
from icgd.problems.kernel_machine import KernelHead, as_matrix, sum_of_heads
from icgd.program.kernel_instructions import VELOCITY, DescendFunction, KernelTerm
from icgd.program.stack import StackProgram
from icgd.shapes import Labels, Parameters, Points, Predictions


class State(NamedTuple):
    """The stream between two layers: all inputs, what is left to learn at each token, and what of
    that the last step changed, which is kept only where there is momentum.
    """

    points: Points
    residual: Labels
    velocity: Labels


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

    def step(self) -> State:
        state = next(self._states)
        if self.recorded:
            self._record(state)
        return state

    def _record(self, state: State) -> None:
        for name, layers in self.recorded.items():
            known = {"x": state.points, "y": state.residual, VELOCITY: state.velocity}
            slot = (known | self._constants)[name]
            layers.append(slot.expand(*self._task.batch, -1, -1))

    def read(self, reached: State, write: Parameters) -> None:
        torch.sub(self._labels, reached.residual.flatten(-2), out=write)

    def predictions(self, reached: State) -> Predictions:
        return -reached.residual[..., self._task.n_examples :, :]


def states(program: StackProgram, task: Task) -> Iterator[State]:
    """The prompt, and the stream after every step.

    Examples and queries have products of their own, so that no bit of what is learnt at the
    examples depends on the queries.
    """
    examples, queries = State(task.x, task.y, torch.zeros_like(task.y)), _at_queries(task)
    has_velocity = VELOCITY in program.layout.names
    yield _joined(examples, queries, has_velocity)
    kernel_of_examples, kernel_of_queries = Kernel(), Kernel()
    for step, size in steps_of(program, task):
        after = _after(step, size, queries, examples, kernel_of_queries)
        learnt = _after(step, size, examples, examples, kernel_of_examples, step.noise)
        examples, queries = learnt, after
        yield _joined(examples, queries, has_velocity)


def recalled(program: StackProgram, task: Task, trace: Mapping[str, Tensor]) -> Predictions:
    """The predictions of a run on this task, without what it computes at its examples.

    `trace` holds what was left to learn at the examples before every step: slot `y` of a traced run
    on the same examples, and slot `velocity` if there is one. Not a bit differs from the
    predictions of a whole run. Steps must not move the inputs.
    """
    queries, kernel = _at_queries(task), Kernel()
    has_velocity = VELOCITY in program.layout.names
    kept = trace[VELOCITY] if has_velocity else repeat(torch.zeros_like(task.y))
    traced = zip(steps_of(program, task), trace["y"], kept, strict=False)
    for (step, size), left, velocity in traced:
        queries = _after(step, size, queries, State(task.x, left, velocity), kernel)
    return -queries.residual


def _at_queries(task: Task) -> State:
    labels = known_labels(task)[..., task.n_examples :, :]
    return State(task.queries, labels, torch.zeros_like(labels))


def steps_of(program: StackProgram, task: Task) -> Iterator[tuple[DescendFunction, Tensor]]:
    """The instruction and the step size of every step."""
    parts = [part for layer in program.block for part in layer.instructions]
    steps = [part for part in parts if isinstance(part, DescendFunction)]
    sizes = [task.x.new_tensor(step.step_size) for step in steps]  # a float takes longer
    return islice(cycle(zip(steps, sizes, strict=True)), program.n_steps)


def _joined(examples: State, queries: State, has_velocity: bool) -> State:
    points = torch.cat([examples.points, queries.points], dim=-2)
    residual = torch.cat([examples.residual, queries.residual], dim=-2)
    if not has_velocity:
        return State(points, residual, examples.velocity)
    return State(points, residual, torch.cat([examples.velocity, queries.velocity], dim=-2))


class Kernel:
    """The kernel of some tokens and the examples, computed again only if a step has another."""

    def __init__(self) -> None:
        self._known: tuple[KernelTerm, ...] | None = None
        self._matrix = torch.empty(0)

    def at(self, step: DescendFunction, tokens: State, examples: State) -> Tensor:
        """The kernel of this step."""
        if self._known is None or step.terms != self._known:
            self._matrix = sum_of_heads(heads_of(step), tokens.points, examples.points)
        self._known = None if step.transform is not None else step.terms
        return self._matrix


def heads_of(step: DescendFunction) -> tuple[KernelHead, ...]:
    """The kernels of a step, in the form that computes them."""
    return tuple(KernelHead(**asdict(term)) for term in step.terms)


def _after(
    step: DescendFunction,
    size: Tensor,
    tokens: State,
    examples: State,
    kernel: Kernel,
    noise: float = 0.0,
) -> State:
    """The stream of some tokens after one step, in which they read the examples."""
    if not tokens.points.numel():
        return tokens
    matrix = kernel.at(step, tokens, examples)
    left = examples.residual
    if step.ahead:
        left = left + step.ahead * examples.velocity
    update = matrix @ left
    if noise:
        update += noise * left
    update.mul_(size)
    points = tokens.points
    if step.transform is not None:
        moved = matrix @ examples.points
        points = points + moved @ as_matrix(step.transform, points).mT
    if step.velocity is None:
        return State(points, tokens.residual - update, tokens.velocity)
    change = step.momentum * tokens.velocity - update
    return State(points, tokens.residual + change, change)
