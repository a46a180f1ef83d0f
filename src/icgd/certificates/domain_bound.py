"""Bound (a): for every task in the domain, before any run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf

import torch

from icgd.certificates.bounds import Arithmetic, Enclosure, State, drift_of, propagate
from icgd.certificates.intervals import Interval
from icgd.problems.problem import Problem
from icgd.problems.task import FLOAT32_ROUNDING
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
    worse than the distance between two points of the box. Costs O(|w|) a propagation, and at
    most a few hundred of them however many steps there are.
    """

    @cache
    def after_block(reach: float, error: float) -> _Weights:
        return _propagated(program, problem, how, reach, error)

    reach = _reach_of_weights(after_block, problem.update.box)
    if reach == inf:
        return DomainBound(inf, inf)

    def increase(error: float) -> float:
        return max(after_block(reach, error).error - error, 0.0)

    widest = problem.update.box + reach
    trajectory = _after_steps(increase, program.n_steps, widest)
    drift = program.n_steps * after_block(reach, 0.0).drift
    return DomainBound(after_block(reach, drift).error, min(trajectory, widest))


@dataclass(frozen=True)
class _Weights:
    """After a block: the largest error of a weight, how far it moved copies of the weights apart,
    and the largest weight of the transformer.
    """

    error: float
    drift: float
    size: float


def _reach_of_weights(after_block: Callable[[float, float], _Weights], box: float) -> float:
    """How large the transformer's weights can be: the box, and what rounding adds to a clip.

    A clip of w is off by the rounding of w, which is the larger the farther w has moved.
    """
    reach = box * (1 + FLOAT32_ROUNDING)
    for _ in range(8):
        size = after_block(reach, 0.0).size
        if size <= reach:
            return reach
        reach = size * (1 + 2.0**-40)
    return inf


STEPS_ONE_BY_ONE = 100
"""The last steps of a trajectory, or all of a short one, are followed singly: it is tighter."""


def _after_steps(increase: Callable[[float], float], n_steps: int, enough: float) -> float:
    """The error after `n_steps` steps that each add `increase(error)`, from 0; up to `enough`.

    Since `increase` never falls, all steps up to a level 5% higher add at most what a step from
    that level adds, so slow growth is followed many steps at a time.
    """
    error, left = 0.0, n_steps
    while left > 0 and error < enough:
        level = 1.05 * error
        gain = increase(level) if left > STEPS_ONE_BY_ONE else inf
        jump = min(left, int((level - error) / gain)) if gain > 0.0 else left
        error += jump * gain if jump > 1 else increase(error)
        left -= max(jump, 1)
    return error


def _propagated(
    program: StackProgram, problem: Problem, how: Arithmetic, reach: float, error: float
) -> _Weights:
    """The weights after one block, if they were off by `error` before."""
    state = _domain(program, problem, reach, error)
    state = propagate(program, program.block, state, how)
    names = [slot.name for slot in program.layout.having(Role.PARAMETER)]
    weights = [state[name] for name in names]
    drifts = [state[drift_of(name)] for name in names if drift_of(name) in state]
    return _Weights(
        error=max(float(slot.error.max()) for slot in weights),
        drift=max((float(slot.error.max()) for slot in drifts), default=0.0),
        size=max(float(slot.actual.size.max()) for slot in weights),
    )


def _domain(program: StackProgram, problem: Problem, reach: float, error: float) -> State:
    """Any token and any weights of the domain; the transformer's weights are off by `error`."""
    state: State = {}
    for slot in program.layout.slots:
        if slot.role is Role.PARAMETER:
            exact = Interval.symmetric(reach, *slot.shape)
            off = torch.full(slot.shape, error, dtype=torch.float64)
            state[slot.name] = Enclosure.around(exact, off, exact)
        elif slot.role in (Role.INPUT, Role.LABEL):
            bound = problem.domain.x if slot.role is Role.INPUT else problem.domain.y
            entries = Interval.symmetric(bound * (1 + FLOAT32_ROUNDING), 1, slot.width)
            state[slot.name] = Enclosure.common(entries)
        elif slot.role is Role.SCRATCH:
            state[slot.name] = Enclosure.common(Interval.symmetric(0.0, 1, slot.width))
    return state
