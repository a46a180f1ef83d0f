r"""By how much float64 may get a linear model's objective and gradient wrong.

A sum of m terms is off by at most gamma(m) = m u / (1 - m u) times the sum of their sizes, in any
order, with u = 2^-53. A mean mu(z) is off by what the rounding of its score z moves, and by its
own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.problems.oracles.linear import LinearOracle
from icgd.problems.task import Task
from icgd.shapes import Parameters

UNIT_ROUNDOFF = 2.0**-53

FUNCTION_ROUNDING = 16
"""How many units in the last place a function of the library may be off."""

FEW_STEPS = 1 + 1e-9
"""Room for the rounding of the few last operations of a proof."""


def sum_rounding(n_terms: int) -> float:
    """How far a sum of `n_terms` products may be off, relative to the sum of their sizes."""
    product = n_terms * UNIT_ROUNDOFF
    return product / (1 - product)


def objective_rounding(oracle: LinearOracle, task: Task, weights: Parameters) -> float:
    """How far the computed objective of one task may be off."""
    model, update, link = oracle.target, oracle.update, oracle.target.link_function
    n, p = task.n_examples, model.n_parameters
    scores, y, weights = oracle.scores(weights, task.x), task.y.double(), weights.double()
    terms = model.design(task.x).abs() @ weights.abs().unsqueeze(-1)
    off = sum_rounding(p + 2) * terms
    moved = (_largest_mean(oracle, scores, off) + y.abs()) * off
    sizes = link.potential(scores.abs() + off).abs() + (y * terms).abs()
    penalised = weights * model.penalised(weights)
    penalties = update.l2 * penalised.square().sum() + update.l1 * penalised.abs().sum()
    rounding = sum_rounding(n + p + FUNCTION_ROUNDING + 16)
    summed = model.loss_scale(n) * (moved + rounding * sizes).sum()
    return float(summed + rounding * penalties) * FEW_STEPS


def gradient_rounding(oracle: LinearOracle, task: Task, weights: Parameters) -> Parameters:
    """How far each entry of the computed gradient of the smooth part may be off."""
    model, weights, y = oracle.target, weights.double(), task.y.double()
    n, design, scores = task.n_examples, model.design(task.x).abs(), oracle.scores(weights, task.x)
    off = score_rounding(oracle, task, weights)
    steepest = model.link_function.slopes(scores - off, scores + off)[1]
    mean = _largest_mean(oracle, scores, off)
    wrong = steepest * off + FUNCTION_ROUNDING * UNIT_ROUNDOFF * mean
    sizes = mean + y.abs() + wrong
    total = design.mT @ (wrong + sum_rounding(n + 8) * sizes)
    ridge = oracle.update.l2 * model.penalised(weights) * weights.abs()
    return (model.loss_scale(n) * total.squeeze(-1) + sum_rounding(8) * ridge) * FEW_STEPS


def score_rounding(oracle: LinearOracle, task: Task, weights: Parameters) -> Tensor:
    """How far each computed score may be off."""
    terms = oracle.target.design(task.x).abs() @ weights.double().abs().unsqueeze(-1)
    return sum_rounding(oracle.target.n_parameters + 2) * terms


def _largest_mean(oracle: LinearOracle, scores: Tensor, off: Tensor) -> Tensor:
    """The largest size of an expected label near a score."""
    mean = oracle.target.link_function.mean
    return torch.maximum(mean(scores - off).abs(), mean(scores + off).abs())
