r"""Whether a linear model has a minimiser at all.

Without a penalty the risk can fall for ever along a direction v of the coefficients. The loss at an
example falls for ever as its score grows if its label is the largest that the link allows, as its
score sinks if it is the least; otherwise it rises both ways in the end. With a row +x_i, a row
-x_i, or both rows for each example, there is no minimiser exactly if

    A v >= 0,  A v != 0    for some v.

By Stiemke's theorem the alternative is u > 0 with A^T u = 0 (at a minimiser, u are the residuals).
One problem of least squares decides: minimise |A^T u| over u >= 1. If that is 0, u is the proof
that a minimiser exists; otherwise r = A^T u separates, for the conditions of the minimum are
A r >= 0 and <u, A r> = |r|^2 > 0. The separation is complete if A v > 0 for some v, which is the
same with sum(u) = 1 and u >= 0 (Gordan's theorem). `scipy.optimize.nnls` solves both, in floating
point; a direction counts only if its margins are seen to exceed `TOLERANCE`.
"""

from __future__ import annotations

from dataclasses import dataclass

import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from icgd.errors import SeparableDataError
from icgd.problems.linear_model import LinearModel, require_data
from icgd.problems.steps import ProximalStep
from icgd.shapes import Inputs, Labels

Rows = Float[Tensor, "row parameter"]

TOLERANCE = 1e-9
"""Below it a row of A, of length 1, counts as orthogonal: margins this thin may be rounding."""


@dataclass(frozen=True)
class Separation:
    """A direction along which the risk never rises; `is_complete` if it falls at every example."""

    direction: Tensor
    is_complete: bool


def require_minimiser(model: LinearModel, update: ProximalStep, x: Inputs, y: Labels) -> None:
    """Raise `SeparableDataError` if the objective of a task has no minimiser."""
    require_data(model, x, y)
    inputs, labels = x.reshape(-1, *x.shape[-2:]), y.reshape(-1, *y.shape[-2:])
    for task, (task_x, task_y) in enumerate(zip(inputs, labels, strict=True)):
        found = separation(model, update, task_x, task_y)
        if found is None:
            continue
        of_task = f" of task {task}" if x.ndim > 2 else ""
        if update.penalises:
            raise SeparableDataError(
                f"Every label{of_task} is {float(task_y[0]):g}, so no minimiser exists: the "
                f"intercept of the {model.link} link grows for ever, and penalties leave it out. "
                "Use intercept=False, or give examples with other labels."
            )
        extent = "completely" if found.is_complete else "quasi-completely"
        falls = "every example" if found.is_complete else "some examples and rises at none"
        raise SeparableDataError(
            f"The data{of_task} are {extent} separable, so no minimiser exists: along a direction "
            f"(most of it coefficient {int(found.direction.abs().argmax())}) the {model.link} loss "
            f"falls for ever at {falls}. Add an l2 penalty, such as l2=0.01."
        )


def separation(model: LinearModel, update: ProximalStep, x: Inputs, y: Labels) -> Separation | None:
    """Return a direction in which one task's objective has no minimum, if there is one.

    A penalty holds every coefficient but the intercept. Costs O(n d) a turn of the least squares.
    """
    link, design = model.link_function, model.design(x)
    if not ((y == link.least_label) | (y == link.largest_label)).any():
        return None  # no score may go anywhere without limit
    if update.penalises:
        design = design * (1 - model.penalised(design))
    widths = _lengths(design.mT)
    # The matrix A, each row of length 1 (or 0): which way each score may go without limit.
    design, labels = design / widths, y.double().squeeze(-1)
    rows = torch.cat([design[labels > link.least_label], -design[labels < link.largest_label]])
    rows = rows / _lengths(rows)[:, None]
    if (direction := _weakly_separating(rows)) is None:
        return None
    strict = _strictly_separating(rows)
    chosen = direction if strict is None else strict
    return Separation(chosen / widths, is_complete=strict is not None)


def _lengths(rows: Tensor) -> Tensor:
    """Return the length of every row, 1 if it is 0."""
    lengths = rows.norm(dim=-1)
    return torch.where(lengths > 0, lengths, torch.ones_like(lengths))


def _weakly_separating(rows: Rows) -> Tensor | None:
    """Find v of length 1 with A v >= 0, A v != 0: the shortest A^T u with u >= 1."""
    start = rows.sum(0)
    above, _ = scipy.optimize.nnls(rows.mT.numpy(), -start.numpy())
    direction = _of_length_one(start + rows.mT @ torch.from_numpy(above))
    margins = rows @ direction
    separates = margins.min() >= -TOLERANCE and margins.max() > TOLERANCE
    return direction if separates else None


def _strictly_separating(rows: Rows) -> Tensor | None:
    """Find v of length 1 with A v > 0: the shortest A^T u, u >= 0 and, nearly, sum(u) = 1."""
    lifted = torch.cat([rows.mT, torch.ones_like(rows[:, :1]).mT])
    target = torch.zeros_like(lifted[:, 0])
    target[-1] = 1.0
    weights, _ = scipy.optimize.nnls(lifted.numpy(), target.numpy())
    direction = _of_length_one(rows.mT @ torch.from_numpy(weights))
    return direction if (rows @ direction).min() > TOLERANCE else None


def _of_length_one(vector: Tensor) -> Tensor:
    length: Tensor = vector.norm()
    return vector / length.clamp(min=1e-300)
