r"""Decide whether a linear model has a minimiser.

Without a penalty the risk may decrease for ever along a direction v of the coefficients. The loss
of an example decreases for ever with a growing score if its label is the largest that the link
allows, and with a falling score if it is the smallest; otherwise it eventually grows both ways. Let
A have a row +x_i, a row -x_i, or both, accordingly. There is no minimiser if and only if

    A v >= 0,  A v != 0    for some v.

By Stiemke's theorem the alternative is u > 0 with A^T u = 0 (at a minimiser, u are the residuals).
A least-squares problem decides: minimise |A^T u| over u >= 1. If the minimum is 0, u proves that a
minimiser exists; otherwise r = A^T u separates, since the optimality conditions are A r >= 0 and
<u, A r> = |r|^2 > 0. The separation is complete if A v > 0 for some v, which is decided in the same
way with sum(u) = 1 and u >= 0 (Gordan's theorem). `scipy.optimize.nnls` solves both in floating
point; a direction counts only if its computed margins exceed `TOLERANCE`.
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
"""The margin of a unit row of A below which it counts as orthogonal, to allow for rounding."""


@dataclass(frozen=True)
class Separation:
    """A direction along which the risk never grows; `is_complete` if every loss decreases."""

    direction: Tensor
    is_complete: bool


def require_minimiser(model: LinearModel, update: ProximalStep, x: Inputs, y: Labels) -> None:
    """Raise `SeparableDataError` if the objective of a task has no minimiser."""
    require_data(model, x, y)
    inputs, labels = x.reshape(-1, *x.shape[-2:]), y.reshape(-1, *y.shape[-2:])
    for task, (task_x, task_y) in enumerate(zip(inputs, labels, strict=True)):
        separating = separation(model, update, task_x, task_y)
        if separating is None:
            continue
        of_task = f" of task {task}" if x.ndim > 2 else ""
        if update.penalises:
            raise SeparableDataError(
                f"Every label{of_task} is {float(task_y[0]):g}, so no minimiser exists: the "
                f"intercept of the {model.link} link grows for ever, because penalties do not "
                "apply to it. Use intercept=False, or give examples with other labels."
            )
        extent = "completely" if separating.is_complete else "quasi-completely"
        where = "every example" if separating.is_complete else "some examples and grows at none"
        raise SeparableDataError(
            f"The data{of_task} are {extent} separable, so no minimiser exists: along a direction "
            f"(mainly coefficient {int(separating.direction.abs().argmax())}) the {model.link} "
            f"loss decreases for ever at {where}. Add an l2 penalty, such as l2=0.01."
        )


def separation(model: LinearModel, update: ProximalStep, x: Inputs, y: Labels) -> Separation | None:
    """Return a direction along which one task's objective has no minimum, or None.

    A penalty bounds every coefficient except the intercept. The cost is O(n d) per iteration of the
    least-squares solver.
    """
    link, design = model.link_function, model.design(x)
    if not ((y == link.least_label) | (y == link.largest_label)).any():
        return None  # every loss grows in both directions
    if update.penalises:
        design = design * (1 - model.penalised(design))
    widths = _lengths(design.mT)
    # The matrix A with unit rows: the directions in which each score may grow without limit.
    design, labels = design / widths, y.double().squeeze(-1)
    rows = torch.cat([design[labels > link.least_label], -design[labels < link.largest_label]])
    rows = rows / _lengths(rows)[:, None]
    if (direction := _weakly_separating(rows)) is None:
        return None
    strict = _strictly_separating(rows)
    chosen = direction if strict is None else strict
    return Separation(chosen / widths, is_complete=strict is not None)


def _lengths(rows: Tensor) -> Tensor:
    """Return the length of every row, or 1 for a zero row."""
    lengths = rows.norm(dim=-1)
    return torch.where(lengths > 0, lengths, torch.ones_like(lengths))


def _weakly_separating(rows: Rows) -> Tensor | None:
    """Return a unit v with A v >= 0, A v != 0, or None: the shortest A^T u with u >= 1."""
    start = rows.sum(0)  # u = 1 + excess
    excess, _ = scipy.optimize.nnls(rows.mT.numpy(), -start.numpy())
    direction = _normalised(start + rows.mT @ torch.from_numpy(excess))
    margins = rows @ direction
    separates = margins.min() >= -TOLERANCE and margins.max() > TOLERANCE
    return direction if separates else None


def _strictly_separating(rows: Rows) -> Tensor | None:
    """Return a unit v with A v > 0, or None: the shortest A^T u, u >= 0, sum(u) about 1."""
    lifted = torch.cat([rows.mT, torch.ones_like(rows[:, :1]).mT])
    target = torch.zeros_like(lifted[:, 0])
    target[-1] = 1.0
    weights, _ = scipy.optimize.nnls(lifted.numpy(), target.numpy())
    direction = _normalised(rows.mT @ torch.from_numpy(weights))
    return direction if (rows @ direction).min() > TOLERANCE else None


def _normalised(vector: Tensor) -> Tensor:
    length: Tensor = vector.norm()
    return vector / length.clamp(min=1e-300)
