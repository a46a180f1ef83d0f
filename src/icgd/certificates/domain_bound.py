"""Bound (a): for every task in the domain, before any run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from icgd.certificates.bounds import Arithmetic, Enclosure, State, propagate
from icgd.certificates.intervals import Interval
from icgd.problems.problem import Problem
from icgd.program.layout import Role
from icgd.program.program import StackProgram


@dataclass(frozen=True)
class DomainBound:
    """Largest error of any weight: of one step, and of the whole run after its last step."""

    step: float
    trajectory: float


def domain_bound(program: StackProgram, problem: Problem, how: Arithmetic) -> DomainBound:
    """Propagate the domain and the box through the block.

    One token stands for all, since a mean over examples is no larger than the largest. The
    trajectory bound repeats the block with the error that it left in the weights, and is never
    worse than the width of the box. Costs O(|w|) a step.
    """
    box = problem.update.box
    step = _after_block(program, problem, how, error=0.0)
    error = 0.0
    for _ in range(program.n_steps):
        if error >= 2 * box:
            break
        error = _after_block(program, problem, how, error)
    return DomainBound(step, min(error, 2 * box))


def _after_block(program: StackProgram, problem: Problem, how: Arithmetic, error: float) -> float:
    """Largest error of a weight after one block, if it was `error` before."""
    state = _domain(program, problem, error)
    state = propagate(program, program.block, state, how)
    parameters = program.layout.having(Role.PARAMETER)
    return max(float(state[slot.name].error.max()) for slot in parameters)


def _domain(program: StackProgram, problem: Problem, error: float) -> State:
    """Any token and any weights of the domain; the transformer's weights are off by `error`."""
    state: State = {}
    for slot in program.layout.slots:
        if slot.role is Role.PARAMETER:
            exact = Interval.symmetric(problem.update.box, *slot.shape)
            state[slot.name] = Enclosure.around(
                exact, torch.full(slot.shape, error).double(), exact
            )
        elif slot.role in (Role.INPUT, Role.LABEL):
            bound = problem.domain.x if slot.role is Role.INPUT else problem.domain.y
            state[slot.name] = Enclosure.common(Interval.symmetric(bound, 1, slot.width))
        elif slot.role is Role.SCRATCH:
            state[slot.name] = Enclosure.common(Interval.symmetric(0.0, 1, slot.width))
    return state
