"""Bound (b): for one run, from the data and the weights that occurred."""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.backends.prompt import split_parameters
from icgd.certificates.bounds import Arithmetic, Enclosure, State, propagate
from icgd.certificates.intervals import Interval
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.program.layout import Role
from icgd.program.program import StackProgram
from icgd.shapes import History, Inputs, Labels, Parameters

NUMBERS_AT_ONCE = 2**22
"""Numbers in the largest slot over the steps that are bounded together."""


def stepwise_bounds(
    program: StackProgram, problem: Problem, task: Task, history: History, how: Arithmetic
) -> Tensor:
    """For each step, a bound on the error it adds to any weight.

    The steps are independent of each other, so they are bounded many at a time.
    """
    before = history[..., :-1, :].double()
    numbers = task.x.shape[-2] * max(slot.width for slot in program.layout.slots)
    group = max(1, NUMBERS_AT_ONCE // (numbers * max(1, *task.batch, 1)))
    errors = [
        _error_after_block(
            program,
            problem,
            _for_each_step(task.x, part),
            _for_each_step(task.y, part),
            part,
            torch.zeros_like(part),
            how,
        ).amax(-1)
        for part in before.split(group, dim=-2)
    ]
    return torch.cat(errors, dim=-1) if errors else before.new_zeros(*task.batch, 0)


def _for_each_step(data: Tensor, history: History) -> Tensor:
    """The same examples beside every step of the history."""
    return data.double().unsqueeze(-3).expand(*history.shape[:-1], *data.shape[-2:])


def trajectory_bounds(
    program: StackProgram, problem: Problem, task: Task, real: History, how: Arithmetic
) -> Tensor:
    """For each step, a bound on the distance of any weight from real gradient descent.

    `real` is the exact run. The weights' error is carried from step to step, so the bound grows
    with the step's own expansion, as the theory's (1 + step_size L)^l does.
    """
    x, y = task.x.double(), task.y.double()
    error = torch.zeros_like(real[..., 0, :])
    bounds = []
    for step in range(real.shape[-2] - 1):
        error = _error_after_block(program, problem, x, y, real[..., step, :], error, how)
        bounds.append(error.amax(-1))
    return torch.stack(bounds, dim=-1) if bounds else real.new_zeros(*task.batch, 0)


def _error_after_block(
    program: StackProgram,
    problem: Problem,
    x: Inputs,
    y: Labels,
    parameters: Parameters,
    error: Parameters,
    how: Arithmetic,
) -> Parameters:
    """Bound on every weight's error after a block that starts from `parameters` with `error`.

    Both the real run and the transformer keep their weights in the box.
    """
    layout = program.layout
    state: State = {}
    errors = split_parameters(layout, error)
    for name, matrix in split_parameters(layout, parameters).items():
        in_box = Interval.symmetric(problem.update.box, 1, 1)
        state[name] = Enclosure.around(Interval.point(matrix), errors[name], in_box)
    state["x"] = Enclosure.common(Interval.point(x))
    state["y"] = Enclosure.common(Interval.point(y))
    for slot in layout.having(Role.SCRATCH):
        zeros = x.new_zeros(*x.shape[:-1], slot.width)
        state[slot.name] = Enclosure.common(Interval.point(zeros))
    state = propagate(program, program.block, state, how)
    parts = [state[slot.name].error.flatten(-2) for slot in layout.having(Role.PARAMETER)]
    return torch.cat(parts, dim=-1)
