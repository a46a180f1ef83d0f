r"""How far predictions at the queries may be from those of real training.

The weights at the end of a run are off by at most `error`, each by its own or all by the largest.
Enclosures of them are carried forward through the layers that predict, with the queries for inputs:
where real training's prediction lies, where the transformer's lies, and how far apart they are. A
function needs nothing more, because its values at the queries are part of what is learnt.

Copies of the weights in registers are rounded on their own, and drift apart in every step. How far
is known from the run's own weights.
"""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from icgd.certificates.enclosures import Arithmetic, Enclosure
from icgd.certificates.intervals import Interval
from icgd.certificates.streams import Streams
from icgd.errors import ProgramError
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.program.instructions import MapSlots
from icgd.program.stack import StackProgram
from icgd.shapes import History, Parameters, Predictions


def of_stack(streams: Streams, task: Task, near: Enclosure, drift: Parameters) -> Predictions:
    """The bounds for a stack that trains a network, whose weights end in the vector `near`.

    Their copies in the registers, if there are any, may lie `drift` apart.
    """
    queries = task.queries.double()
    labels = torch.zeros_like(queries[..., :1].expand(*queries.shape[:-1], task.y.shape[-1]))
    data = {"x": Interval.point(queries), "y": Interval.point(labels)}
    after = streams.after(streams.program.prediction, data, near, drift)
    return after["y"].error.nan_to_num(nan=inf, posinf=inf).expand_as(labels)


def of_table(program: StackProgram, how: Arithmetic, real: Predictions) -> Predictions:
    """A prediction that is looked up is between the least and the largest in the table.

    A weight between two levels may be looked up anywhere, so that no more is known.
    """
    parts = (part for part in program.prediction[-1].instructions if isinstance(part, MapSlots))
    tables = [program.relu_sum(term.function) for part in parts for term in part.summands]
    if len(tables) != 1:
        raise ProgramError.broken("prediction", f"looks up {len(tables)} tables, expected one")
    table = tables[0]
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
