"""Bound (a): for every task in the domain, before any run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf

import torch

from icgd.certificates.abstract_bounds import DomainBound
from icgd.certificates.bounds import State, apart_by, drift_of
from icgd.certificates.enclosures import Arithmetic, Enclosure
from icgd.certificates.intervals import Interval
from icgd.certificates.rules import propagate
from icgd.certificates.unit_bounds import left_over
from icgd.problems.arrays import FLOAT32_ROUNDING
from icgd.problems.problem import Problem
from icgd.program.layout import Role
from icgd.program.stack import StackProgram


def domain_bound(program: StackProgram, problem: Problem, how: Arithmetic) -> DomainBound:
    """Propagate the domain and the box through the block.

    One token stands for all, since a mean over examples is no larger than the largest. The
    trajectory bound repeats the block with the error that it left in the weights, and is never
    worse than the distance between two points of the box. Costs O(|w|) a propagation, and at
    most a few hundred of them however many steps there are.
    """

    @cache
    def after_block(reach: float, error: float, drift: float) -> _Weights:
        return _propagated(program, problem, how, reach, error, drift)

    reach, drift = _reach_and_drift(after_block, problem.gradient_step.box, program.n_steps)
    if reach == inf:
        return DomainBound(inf, inf)

    def increase(error: float) -> float:
        return max(after_block(reach, error, drift).error - error, 0.0)

    widest = problem.gradient_step.box + reach
    trajectory = _after_steps(increase, program.n_steps, widest)
    return DomainBound(after_block(reach, 0.0, drift).error, min(trajectory, widest))


@dataclass(frozen=True)
class _Weights:
    """After a block: the largest error of a weight, how far its copies in the registers may lie
    from it, and the largest weight of the transformer.
    """

    error: float
    drift: float
    size: float


AfterBlock = Callable[[float, float, float], _Weights]
"""The weights after a block, from their reach, error and drift before it."""


def _reach_and_drift(after_block: AfterBlock, box: float, n_steps: int) -> tuple[float, float]:
    """How large the transformer's weights can be, and how far their copies may lie from them.

    Weights stay in the box, but for what rounding adds to a clip. A clip of w is off by the
    rounding of w, which is the larger the farther w has moved.
    """
    reach = box * (1 + FLOAT32_ROUNDING)
    for _ in range(8):
        drift = _largest_drift(after_block, reach, n_steps)
        size = after_block(reach, 0.0, drift).size
        if size <= reach:
            return reach, drift
        # A little farther than needed, or else it takes many rounds to arrive.
        reach = size * (1 + 2.0**-40) + (size - reach) / 16
    return inf, inf


def _largest_drift(after_block: AfterBlock, reach: float, n_steps: int) -> float:
    """How far copies of the weights drift apart before the last step; they all lie in the box.

    A step adds the more the farther apart they are, but hardly so: what a step adds at the end
    is assumed of all steps, and then checked.
    """
    step, most = after_block(reach, 0.0, 0.0).drift, 2 * reach
    for _ in range(4):
        drift = min(max(n_steps - 1, 0) * step, most)
        added = after_block(reach, 0.0, drift).drift - drift
        if added <= step or drift == most:
            return drift
        step = added * (1 + 2.0**-10)
    return most


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
    program: StackProgram,
    problem: Problem,
    how: Arithmetic,
    reach: float,
    error: float,
    drift: float,
) -> _Weights:
    """The weights after one block, if they were off by `error`, and their copies by `drift`."""
    state = _domain(program, problem, how, reach, error)
    if how.sums_terms and program.n_registers:
        for slot in program.layout.having(Role.PARAMETER):
            distance = torch.full(slot.shape, drift, dtype=torch.float64)
            state[drift_of(slot.name)] = apart_by(distance)
    state = propagate(program, program.block, state, how)
    names = [slot.name for slot in program.layout.having(Role.PARAMETER)]
    weights = [state[name] for name in names]
    drifts = [state[drift_of(name)] for name in names if drift_of(name) in state]
    return _Weights(
        error=max(float(slot.error.max()) for slot in weights),
        drift=max((float(slot.error.max()) for slot in drifts), default=0.0),
        size=max(float(slot.actual.size.max()) for slot in weights),
    )


def _domain(
    program: StackProgram, problem: Problem, how: Arithmetic, reach: float, error: float
) -> State:
    """Any token and any weights of the domain; the transformer's weights are off by `error`."""
    state: State = {}
    left = left_over(program, how)
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
            empty = torch.zeros(1, slot.width, dtype=torch.float64)
            state[slot.name] = Enclosure.around(Interval.point(empty), empty + left[slot.name])
    return state
