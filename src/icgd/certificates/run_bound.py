"""Bound (b): for one run, from the data and the weights that occurred."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from icgd.backends.prompt import split_parameters
from icgd.backends.run import OnProgress
from icgd.certificates.bounds import State, apart_by, drift_of
from icgd.certificates.enclosures import Arithmetic, Enclosure
from icgd.certificates.intervals import Interval
from icgd.certificates.rules import propagate
from icgd.certificates.unit_bounds import left_over
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.program.layout import Role
from icgd.program.stack import StackProgram
from icgd.shapes import History, Inputs, Labels, Parameters

NUMBERS_AT_ONCE = 2**22
"""Numbers in the largest slot over the steps that are bounded together."""


def stepwise_bounds(program: StackProgram, task: Task, history: History, how: Arithmetic) -> Tensor:
    """For each step, a bound on the error it adds to any weight.

    The steps are independent of each other, so they are bounded many at a time; unless the
    weights have copies, which drift apart from step to step.
    """
    before = history[..., :-1, :].double()
    if before.numel() == 0:
        return before.new_zeros(*task.batch, 0)
    if how.sums_terms and program.n_registers:
        return _with_drift(program, task, before, how)
    numbers = task.x.shape[-2] * max(slot.width for slot in program.layout.slots)
    group = max(1, NUMBERS_AT_ONCE // (numbers * max(1, *task.batch, 1)))
    errors = [
        _after_block(
            program,
            _for_each_step(task.x, part),
            _for_each_step(task.y, part),
            part,
            torch.zeros_like(part),
            torch.zeros_like(part),
            inf,
            how,
        ).error.amax(-1)
        for part in before.split(group, dim=-2)
    ]
    return torch.cat(errors, dim=-1)


def _with_drift(program: StackProgram, task: Task, before: History, how: Arithmetic) -> Tensor:
    """Step by step, with what the steps before may have moved the weights' copies apart."""
    x, y = task.x.double(), task.y.double()
    nothing = drift = torch.zeros_like(before[..., 0, :])
    errors = []
    for parameters in before.unbind(-2):
        weights = _after_block(program, x, y, parameters, nothing, drift, inf, how)
        errors.append(weights.error.amax(-1))
        drift = weights.drift
    return torch.stack(errors, dim=-1)


def _for_each_step(data: Tensor, history: History) -> Tensor:
    """The same examples beside every step of the history."""
    return data.double().unsqueeze(-3).expand(*history.shape[:-1], *data.shape[-2:])


def trajectory_bounds(
    program: StackProgram,
    problem: Problem,
    task: Task,
    real: History,
    how: Arithmetic,
    on_progress: OnProgress | None = None,
) -> Tensor:
    """For each step, a bound on the distance of any weight from real gradient descent.

    `real` is the exact run. The weights' error is carried from step to step, so the bound grows
    with the step's own expansion, as the theory's (1 + step_size L)^l does.
    """
    x, y = task.x.double(), task.y.double()
    error = drift = torch.zeros_like(real[..., 0, :])
    reach = max(problem.gradient_step.box, float(real[..., 0, :].abs().max()))
    bounds, n_steps = [], real.shape[-2] - 1
    for step in range(n_steps):
        before = real[..., step, :]
        if bool((error >= reach + before.abs()).all()):  # nothing is known but the box
            error = reach + real[..., step + 1, :].abs()
        else:
            weights = _after_block(program, x, y, before, error, drift, reach, how)
            error, drift, reach = weights.error, weights.drift, max(reach, weights.size)
        bounds.append(error.amax(-1))
        if on_progress:
            on_progress(step + 1, n_steps)
    return torch.stack(bounds, dim=-1) if bounds else real.new_zeros(*task.batch, 0)


@dataclass(frozen=True)
class _Weights:
    """After a block: a bound on every weight's error and on how far its copies in the registers
    may lie from it, and the largest transformer's weight.
    """

    error: Parameters
    drift: Parameters
    size: float


def _after_block(
    program: StackProgram,
    x: Inputs,
    y: Labels,
    parameters: Parameters,
    error: Parameters,
    drift: Parameters,
    reach: float,
    how: Arithmetic,
) -> _Weights:
    """What a block leaves that starts from `parameters`, off by `error` and at most `reach`.

    Their copies in the registers, if it has any, may lie `drift` apart.
    """
    layout = program.layout
    state: State = {}
    errors = split_parameters(layout, error)
    if how.sums_terms and program.n_registers:
        drifts = split_parameters(layout, drift)
        state |= {drift_of(name): apart_by(distance) for name, distance in drifts.items()}
    known = Interval.symmetric(reach, 1, 1)
    for name, matrix in split_parameters(layout, parameters).items():
        state[name] = Enclosure.around(Interval.point(matrix), errors[name], known)
    state["x"] = Enclosure.common(Interval.point(x))
    state["y"] = Enclosure.common(Interval.point(y))
    left = left_over(program, how)
    for slot in layout.having(Role.SCRATCH):
        zeros = x.new_zeros(*x.shape[:-1], slot.width)
        state[slot.name] = Enclosure.around(Interval.point(zeros), zeros + left[slot.name])
    state = propagate(program, program.block, state, how)
    names = [slot.name for slot in layout.having(Role.PARAMETER)]
    weights = [state[name] for name in names]
    apart = [state[drift_of(name)] for name in names if drift_of(name) in state]
    return _Weights(
        error=torch.cat([slot.error.flatten(-2) for slot in weights], dim=-1),
        drift=torch.cat([slot.error.flatten(-2) for slot in apart] or [drift], dim=-1),
        size=max(float(slot.actual.size.max()) for slot in weights),
    )
