r"""Momentum in the bounds of linear models: where gradients are taken, and how errors grow.

A step from w with the last change v = w - w_before takes the gradient at w + ahead * v. What is off
in w and v is taken along by the matrices of `momentum_bound.py`, with an eigenvalue of the
curvature for that of a kernel, as long as a step is affine: for least squares without l1, in a run
that the box does not touch. Else only norms are known: a soft threshold, a clip and a curvature
that varies have no common eigenvectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from icgd.certificates.intervals import ROOM
from icgd.certificates.momentum_bound import Pair, Responses
from icgd.problems.curvature import eigenvalues
from icgd.problems.problem import Problem
from icgd.problems.proximal_step import ProximalStep
from icgd.problems.task import Task
from icgd.shapes import History

SQUARED = 1 + 2.0**-48
"""Room for the rounding of a product of matrices of size 2 and of a sum with it."""


class Kept(NamedTuple):
    """The momenta of some steps (a row each), the size of the last changes, and how far the
    velocity in the stream may be from the change of the weights.
    """

    momentum: Tensor
    ahead: Tensor
    change: Tensor
    apart: Tensor

    @classmethod
    def of(cls, update: ProximalStep, before: Tensor) -> Kept:
        """Of the steps from these weights, a row each; `apart` is not known yet."""
        momentum, ahead = momenta(update, before.shape[-2])
        return cls(momentum, ahead, changes(before).abs(), torch.zeros_like(before))


def momenta(update: ProximalStep, n_steps: int) -> tuple[Tensor, Tensor]:
    """The momentum of every step and how far ahead it looks, a row each."""
    pairs = [(update.momentum_of(step), update.lookahead_of(step)) for step in range(n_steps)]
    both = torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2)
    return both[:, :1], both[:, 1:]


def changes(weights: Tensor) -> Tensor:
    """What every row differs by from the row before; the first row is at rest."""
    return weights - torch.cat([weights[..., :1, :], weights[..., :-1, :]], dim=-2)


def points_of(update: ProximalStep, history: History) -> Tensor:
    """Where the gradients of a run's steps are taken: a row for each step."""
    before = history[..., :-1, :].double()
    if update.momentum is None or not before.shape[-2]:
        return before
    return before + momenta(update, before.shape[-2])[1] * changes(before)


def is_affine(problem: Problem, histories: tuple[History, ...], errors: Tensor) -> bool:
    """Whether every step of these runs, and every exact step beside them, is an affine map."""
    update, most = problem.proximal_step, float(errors.max()) if errors.numel() else 0.0
    if problem.model.link != "identity" or update.l1:
        return False
    largest = max(float(history.abs().max()) for history in histories)
    return ROOM * (largest + most) < (problem.box or inf)


def affine_distances(problem: Problem, task: Task, added: Tensor) -> Iterator[Tensor]:
    """The distance after each step, where steps are affine; `added` has the norm of each error."""
    model, update = problem.model, problem.proximal_step
    design = model.design(task.x)
    responses = Responses(eigenvalues(model, update, design, torch.ones_like(design[..., :1])))
    now = Pair(*(torch.zeros_like(added[..., :1, None]),) * 2)
    for step, error in enumerate(added.unbind(-1)):
        kept = (update.momentum_of(step), update.lookahead_of(step))
        now = responses.after(update.step_size or 0.0, *kept, error[..., None, None], now)
        yield now.left[..., 0, 0]


def grown(now: Pair, factor: float, momentum: float, ahead: float) -> Pair:
    """Distances after a step whose gradient step multiplies distances by at most `factor`.

    Nesterov's looks as far ahead as its momentum goes, so that all of it is a gradient step.
    """
    looked = apart(now, ahead)
    left = torch.where(looked > 0, factor * looked, 0.0)  # the factor may be infinite
    if momentum and not ahead:
        left = left + momentum * now.change
    return Pair(ROOM * left, ROOM * (left + now.left))


def after_many(moved: Callable[[Pair], Pair], error: Tensor, now: Pair, n_steps: int) -> Pair:
    """Distances after so many steps more, each of which is `moved`, a linear map, and an error.

    No number is negative. Powers are made by squaring, with room for the rounding of each.
    """
    zero, one = torch.zeros_like(now.left), torch.ones_like(now.left)
    columns = [torch.stack(moved(unit)) for unit in (Pair(one, zero), Pair(zero, one))]
    matrix, shift = ROOM * torch.cat(columns, dim=-1), ROOM * torch.stack([error, error])
    found = torch.stack(now)
    while n_steps > 0:
        if n_steps % 2:
            found = SQUARED * (_product(matrix, found) + shift)
        shift = SQUARED * (_product(matrix, shift) + shift)
        matrix, n_steps = SQUARED * _product(matrix, matrix), n_steps // 2
    return Pair(*found)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """The product of matrices without negative entries, in which 0 times infinity is 0."""
    parts = left[:, :, None] * right[None, :, :]
    return torch.where((left[:, :, None] == 0) | (right[None, :, :] == 0), 0.0, parts).sum(1)


def apart(now: Pair, ahead: float) -> Tensor:
    """How far the points at which gradients are taken may be apart."""
    return now.left + ahead * now.change if ahead else now.left
