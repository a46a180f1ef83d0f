"""Near-kink events are where a ramp stood in for a step and gave neither of its levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from icgd.problems.functions import StepFunction
from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.program.program import AbstractProgram
from icgd.shapes import History

MOST_EVENTS = 20
"""The most events that are listed one by one; all are counted."""


@dataclass(frozen=True)
class NearKink:
    """Unit `unit` of `layer` had a preactivation inside the ramp, at this step and token."""

    task: int
    step: int
    layer: int
    token: int
    unit: int
    preactivation: float


@dataclass(frozen=True)
class NearKinks:
    """How often a run came that close to a kink, and the first events."""

    count: int
    events: tuple[NearKink, ...]


def near_kinks(
    program: AbstractProgram, problem: Problem, task: Task, history: History
) -> NearKinks:
    """Look at every preactivation of every step for those strictly inside a ramp."""
    count, oracle = 0, problem.oracle
    events: list[NearKink] = []
    if not program.has_kinks:
        return NearKinks(0, ())
    for step in range(history.shape[-2] - 1):
        tokens = oracle.examples_of(step, task.n_examples)
        preactivations = oracle.preactivations(task, history[..., step, :], step)
        for layer, preactivation in enumerate(preactivations, start=1):
            inside = _inside_ramps(program, problem.network, layer, preactivation)
            count += len(inside)
            events += [
                _event(step + 1, layer, place, preactivation, tokens)
                for place in inside[: MOST_EVENTS - len(events)].tolist()
            ]
    return NearKinks(count, tuple(events))


def _inside_ramps(program: AbstractProgram, target: MLP, layer: int, z: Tensor) -> Tensor:
    """The positions of the preactivations inside a ramp, one row each."""
    derivative = target.layer_activation(layer).derivative
    if not isinstance(derivative, StepFunction) or not derivative.knots:
        return z.new_empty(0, z.dim()).long()
    inside = z != z
    for start, end in program.ramps(derivative.name):
        inside = inside | ((start < z) & (z < end))
    return inside.nonzero()


def _event(
    step: int, layer: int, place: list[int], preactivation: Tensor, tokens: Sequence[int]
) -> NearKink:
    task = place[0] if len(place) == 3 else 0
    value = float(preactivation[tuple(place)])
    return NearKink(task, step, layer, tokens[place[-2]], place[-1], value)
