r"""How far predictions at the queries may be from those of real training.

The weights at the end of a run are off by at most `error`, each by its own or all by the largest.
Enclosures of them are carried forward through the layers that predict, with the queries for inputs:
where real training's prediction lies, where the transformer's lies, and how far apart they are. A
function needs nothing more, because its values at the queries are part of what is learnt.

Copies of the weights in registers are rounded on their own, and drift apart in every step. How far
is known from the run's own weights.
"""

from __future__ import annotations

from functools import partial
from math import inf

import torch
from torch import Tensor

from icgd.backends.prompt import split_parameters
from icgd.certificates.bounds import Moment, State, apart_by, drift_of
from icgd.certificates.enclosures import Arithmetic, Enclosure
from icgd.certificates.intervals import Interval
from icgd.certificates.rules import propagate
from icgd.certificates.unit_bounds import left_over
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.program.instructions import MapSlots
from icgd.program.layout import Layout, Role
from icgd.program.stack import StackProgram
from icgd.shapes import History, Parameters, Predictions


def of_stack(
    problem: Problem,
    program: StackProgram,
    how: Arithmetic,
    task: Task,
    history: History,
    near: Enclosure,
) -> Predictions:
    """The bounds for a stack that trains a network, whose weights end in the vector `near`."""
    if program.step_table is not None:
        return _of_table(program, how, problem.oracle.predict(task, near.exact.low))
    queries = task.queries.double()
    labels = torch.zeros_like(queries[..., :1].expand(*queries.shape[:-1], task.y.shape[-1]))
    drift = _drift(program, how, task, history) if _has_copies(program, how) else None
    slots = _slots(program, how, (queries, labels), near, drift)
    after = propagate(Moment(program, slots, how), program.prediction)
    return after["y"].error.nan_to_num(nan=inf, posinf=inf).expand_as(labels)


def _of_table(program: StackProgram, how: Arithmetic, real: Predictions) -> Predictions:
    """A prediction that is looked up is between the least and the largest in the table.

    A weight between two levels may be looked up anywhere, so that no more is known.
    """
    parts = (part for part in program.prediction[-1].instructions if isinstance(part, MapSlots))
    (table,) = (program.relu_sum(term.function) for part in parts for term in part.summands)
    answers, reach = table.intercepts()[::2], max(abs(table.low), abs(table.high))
    rounding = how.function(table, 1, torch.full_like(real, reach), n_copies=1)
    return torch.maximum(real - min(answers), max(answers) - real) + rounding


def near_weights(weights: Parameters, error: Tensor) -> Enclosure:
    """The weights of real training, and those of a run that are off by at most `error`."""
    exact = weights.double()
    return Enclosure.around(Interval.point(exact), error.double().expand_as(exact).contiguous())


def at_end(bounds: Tensor) -> Tensor:
    """The bound after the last step, 0 if there is none, for every weight of a task."""
    return bounds[..., -1:] if bounds.shape[-1] else torch.zeros_like(bounds.sum(-1, keepdim=True))


def prediction_errors(
    problem: Problem, task: Task, predictions: Predictions, real: History
) -> Predictions:
    """How far a run's predictions are from those of real training."""
    return (predictions.double() - problem.oracle.predict(task, real[..., -1, :])).abs()


def _has_copies(program: StackProgram, how: Arithmetic) -> bool:
    return how.sums_terms and program.n_registers > 0


def _slots(
    program: StackProgram,
    how: Arithmetic,
    data: tuple[Tensor, Tensor],
    weights: Enclosure,
    drift: Parameters | None,
) -> State:
    """The stream before a layer reads it: inputs, labels, weights, and what wipes left."""
    layout, (x, y) = program.layout, data
    slots: State = {"x": _exactly(x), "y": _exactly(y)}
    for name in split_parameters(layout, weights.error):
        slots[name] = weights.mapped(partial(_matrix, layout, name))
    if drift is not None:
        apart = split_parameters(layout, drift)
        slots |= {drift_of(name): apart_by(matrix) for name, matrix in apart.items()}
    left = left_over(program, how)
    for slot in layout.having(Role.SCRATCH):
        slots[slot.name] = apart_by(x.new_zeros(*x.shape[:-1], slot.width) + left[slot.name])
    return slots


def _matrix(layout: Layout, name: str, weights: Parameters) -> Tensor:
    """One matrix out of the vector of all weights."""
    return split_parameters(layout, weights)[name]


def _exactly(values: Tensor) -> Enclosure:
    return Enclosure.common(Interval.point(values))


def _drift(program: StackProgram, how: Arithmetic, task: Task, history: History) -> Parameters:
    """How far the copies of each weight may lie apart after the last step."""
    data = (task.x.double(), task.y.double())
    drift = torch.zeros_like(history[..., 0, :]).double()
    for weights in history[..., :-1, :].double().unbind(-2):
        slots = _slots(program, how, data, _exactly(weights), drift)
        after = propagate(Moment(program, slots, how), program.block)
        names = split_parameters(program.layout, drift)
        drift = torch.cat([after[drift_of(name)].error.flatten(-2) for name in names], dim=-1)
    return drift
