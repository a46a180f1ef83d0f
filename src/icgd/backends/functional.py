r"""The fused run of functional descent: the kernel once, then a product with it a step.

For T tokens, n of them examples, L steps cost O(T n (d + L)) and T n numbers of memory a task.
Only steps that move the inputs (GD++) need a new kernel matrix each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from icgd.backends.prompt import constants_of, known_labels
from icgd.backends.run import OnProgress, Run
from icgd.problems.kernel_machine import KernelHead, as_matrix, sum_of_heads
from icgd.problems.task import Task
from icgd.program.kernel_instructions import DescendFunction
from icgd.program.stack import StackProgram
from icgd.shapes import Labels, Points


@dataclass(frozen=True)
class State:
    """Between two layers: the inputs of all tokens, and what is left to learn at each."""

    points: Points
    residual: Labels


def run_function(
    program: StackProgram,
    task: Task,
    trace: tuple[str, ...],
    history: bool,
    on_progress: OnProgress | None,
) -> Run:
    """Run all steps; memory grows with the steps only by what is kept of each."""
    labels = known_labels(task)
    learnt = [task.initial]
    constants = constants_of(program, task)
    recorded: dict[str, list[Tensor]] = {name: [] for name in trace}
    for step, state in enumerate(states(program, task)):
        for name in trace:
            recorded[name].append(_slot(name, state, constants).expand(*task.batch, -1, -1))
        if step > 0 and (history or step == program.n_steps):
            learnt.append((labels - state.residual).flatten(-2))
        if step > 0 and on_progress:
            on_progress(step, program.n_steps)
    return Run(
        parameters=torch.stack(learnt, dim=-2),
        predictions=-state.residual[..., task.n_examples :, :],
        trace={name: torch.stack(layers, dim=-3) for name, layers in recorded.items()},
    )


def _slot(name: str, state: State, constants: dict[str, Tensor]) -> Tensor:
    return {"x": state.points, "y": state.residual, **constants}[name]


def states(program: StackProgram, task: Task) -> Iterator[State]:
    """The prompt, and the stream after every step."""
    state = State(torch.cat([task.x, task.queries], dim=-2), known_labels(task))
    yield state
    kernel = None
    for layer in program.unrolled():
        for step in layer.instructions:
            if not isinstance(step, DescendFunction):
                continue
            if kernel is None:
                examples = state.points[..., : task.n_examples, :]
                kernel = sum_of_heads(heads_of(step), state.points, examples)
            state = _after(step, state, kernel)
            if step.transform is not None:
                kernel = None
            yield state


def heads_of(step: DescendFunction) -> tuple[KernelHead, ...]:
    """The kernels of the step, as they are computed."""
    return tuple(KernelHead(**asdict(term)) for term in step.terms)


def _after(step: DescendFunction, state: State, kernel: Tensor) -> State:
    """One step, with the kernel of every token and example."""
    n_examples = kernel.shape[-1]
    left = state.residual[..., :n_examples, :]
    update = kernel @ left
    if step.noise:
        update[..., :n_examples, :] += step.noise * left
    points = state.points
    if step.transform is not None:
        moved = kernel @ points[..., :n_examples, :]
        points = points + moved @ as_matrix(step.transform, points).mT
    return State(points, state.residual - step.step_size * update)
