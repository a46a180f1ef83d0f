r"""The minimiser of a linear model's objective, with an estimate of its accuracy.

The objective F is the risk plus the l2 penalty, which are smooth, plus l1 |w|_1, over |w| <= box.
On an orthant, where no penalised coefficient changes its sign, l1 |w|_1 is linear and F smooth. So
a Newton step from w stays in the orthant of the signs of w (of -g where w is 0), with the gradient
g and the Hessian H of the smooth part:

    w <- w + t d,    d = argmin <g + l1 sign, d> + d^T H d / 2    in the orthant and the box

This is a bounded least-squares problem, which `scipy.optimize.lsq_linear` solves by active sets; t
is halved until F decreases. Coefficients are in units of H_jj^(-1/2), which makes the method
independent of the scales of inputs. A step costs O(n d^2 + d^3), plus d^3 for each change of the
active set.

The distance of the result from the minimiser is estimated, not proved: from the remaining
subgradient, with its rounding error, and the Hessian at the result. The rounding error itself is
bounded: that of a sum of m terms is at most gamma(m) = m u / (1 - m u) times the sum of their
absolute values, u = 2^-53.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from icgd.problems import spectrum
from icgd.problems.data import Task
from icgd.problems.oracles import LinearOracle
from icgd.shapes import Parameters

MOST_STEPS = 300
"""The largest number of Newton steps; about a dozen are usual."""

PATIENCE = 3
"""The number of steps without progress beyond rounding after which the search stops."""

FLAT = 1e-8
"""The least eigenvalue in the least-squares problem, relative to the largest: a smaller one makes
the constant term so large that rounding hides the progress of the active set."""

UNIT_ROUNDOFF = 2.0**-53

FUNCTION_ROUNDING = 16
"""Bound on the rounding error of a link's functions, in units in the last place."""

ROOM = 1 + 1e-9
"""Safety factor that covers the rounding of the last few operations of a bound."""


def minimise(oracle: LinearOracle, task: Task) -> Parameters:
    """Return the point with the smallest subgradient that Newton steps reach.

    They start from the task's initial coefficients, or from 0 if the objective is lower there.
    """
    box = oracle.update.box or inf
    start = task.initial.double().clamp(-box, box)
    point = min((start, torch.zeros_like(start)), key=lambda w: float(oracle.objective(task, w)))
    best, least, n_idle = point, inf, 0
    for _ in range(MOST_STEPS):
        gradient, curvature = oracle.gradient(task, point), hessian(oracle, task, point)
        slope = float((steepness(oracle, point, gradient) / units(curvature)).norm())
        if slope < least:
            best, least, n_idle = point, slope, 0
        if slope == 0 or n_idle == PATIENCE:
            break
        before = float(oracle.objective(task, point))
        noise = objective_rounding(oracle, task, point)
        moved = _newton_step(oracle, task, point, gradient, curvature, before + noise)
        n_idle = 0 if before - float(oracle.objective(task, moved)) > noise else n_idle + 1
        point = moved
    return best


def _newton_step(
    oracle: LinearOracle,
    task: Task,
    point: Parameters,
    gradient: Parameters,
    curvature: Tensor,
    highest: float,
) -> Parameters:
    """Minimise the quadratic model in one orthant; halve the step until F decreases."""
    l1 = oracle.update.l1 * oracle.target.penalised(point)
    box = torch.full_like(point, oracle.update.box or inf)
    sign = torch.where(point != 0, point, -gradient).sign()
    sign = torch.where(sign == 0, 1.0, sign)
    lower = torch.where((l1 > 0) & (sign > 0), 0.0, -box)
    upper = torch.where((l1 > 0) & (sign < 0), 0.0, box)
    unit = units(curvature)
    matrix, slope = curvature / unit / unit[:, None], (gradient + l1 * sign) / unit
    low, high = (lower - point) * unit, (upper - point) * unit
    # Guess that the active bounds stay active: then one linear solve gives the free coefficients.
    side = ((point == upper) & (slope < 0)).int() - ((point == lower) & (slope > 0)).int()
    step = _with_active_bounds(matrix, slope, low, high, side)
    if step is None or ((slope + matrix @ step) * side > 0).any():
        # With H = V diag(e) V^T and root = e^(1/2) V^T, |root d + e^(-1/2) V^T slope|^2 / 2 is
        # the model up to a constant.
        values, vectors = torch.linalg.eigh(matrix)
        values = values.clamp(min=FLAT * float(values[-1])).sqrt()
        root, right = values[:, None] * vectors.mT, -(vectors.mT @ slope) / values
        bounds = low.numpy(), high.numpy()
        solution = scipy.optimize.lsq_linear(
            root.numpy(), right.numpy(), bounds, method="bvls", tol=1e-16
        )
        side = torch.from_numpy(solution.active_mask)
        # Solve for the free coefficients with H itself, whose eigenvalues are not clamped.
        step = _with_active_bounds(matrix, slope, low, high, side)
        step = torch.from_numpy(solution.x) if step is None else step
    target = (point + step / unit).clamp(lower, upper)
    target = torch.where(side < 0, lower, torch.where(side > 0, upper, target))
    gain = min(0.0, float((slope * unit) @ (target - point)))
    scale = 1.0
    while scale > 1e-15:
        moved = target if scale == 1 else point + scale * (target - point)
        # Armijo's rule, up to rounding.
        if float(oracle.objective(task, moved)) <= highest + 1e-4 * scale * gain:
            return moved
        scale /= 2
    return point


def _with_active_bounds(
    matrix: Tensor, slope: Tensor, low: Tensor, high: Tensor, side: Tensor
) -> Tensor | None:
    """Minimise <slope, d> + d^T matrix d / 2 with d at `low` (side -1), at `high` (1), or free.

    Return None if a free entry leaves its bounds, or if there is no minimum.
    """
    step = torch.where(side < 0, low, torch.where(side > 0, high, 0.0))
    free = side == 0
    right, block = -(slope + matrix @ step)[free], matrix[free][:, free]
    solution = torch.linalg.lstsq(block, right[:, None], driver="gelsd").solution[:, 0]
    step[free] = solution
    is_solved = (block @ solution - right).norm() <= 1e-9 * right.norm()
    return step if is_solved and ((low <= step) & (step <= high)).all() else None


def steepness(oracle: LinearOracle, weights: Parameters, gradient: Parameters) -> Parameters:
    """Return the absolute entries of F's smallest subgradient, box included; 0 at a minimum."""
    l1 = oracle.update.l1 * oracle.target.penalised(weights)
    subgradient = gradient + l1 * weights.sign()
    at_zero = (gradient.abs() - l1).clamp(min=0.0)
    size = torch.where((weights == 0) & (l1 > 0), at_zero, subgradient.abs())
    at_box = weights.abs() >= (oracle.update.box or inf)
    points_outwards = at_box & (subgradient * weights.sign() <= 0)
    return torch.where(points_outwards, 0.0, size)


def hessian(oracle: LinearOracle, task: Task, weights: Parameters) -> Tensor:
    """Return the Hessian of the smooth part of the objective."""
    model, design = oracle.target, oracle.target.design(task.x)
    slopes = model.link_function.mean.derivative()(oracle.scores(weights, task.x))
    return spectrum.hessian(model, oracle.update, design, slopes)


def units(hessian: Tensor) -> Float[Tensor, "parameter"]:
    """Return H_jj^(1/2), or 1 where it is 0: scaling coefficients by it normalises H's diagonal."""
    diagonal = hessian.diagonal().clamp(min=0.0).sqrt()
    return torch.where(diagonal > 0, diagonal, 1.0)


@dataclass(frozen=True)
class Minimiser:
    """A point near the minimiser, with estimates of its distance from it and of F - min F.

    `distance` is infinite if the objective is (nearly) flat around the point, so that there may be
    other minimisers. `slope` bounds the norm of the objective's smallest subgradient.
    """

    parameters: Parameters
    distance: float
    excess: float
    slope: float


def find_minimiser(oracle: LinearOracle, task: Task) -> Minimiser:
    """Minimise one task's objective from its initial coefficients, and estimate the accuracy."""
    oracle.require_end(task)
    return accuracy(oracle, task, minimise(oracle, task))


def accuracy(oracle: LinearOracle, task: Task, point: Parameters) -> Minimiser:
    """Estimate the distance of a point from the minimiser, to first order in the subgradient s.

    |w - w*| is about |H^-1 s|, and F - F* about <s, H^-1 s> / 2, over the coefficients that neither
    l1 nor the box holds fixed. The worst signs of s are assumed, and both estimates are doubled,
    because H changes between the points. The distance is infinite if H is singular, or if the
    curvature along a coefficient may halve in between.
    """
    gradient, rounding = oracle.gradient(task, point), gradient_rounding(oracle, task, point)
    slope = steepness(oracle, point, gradient) + rounding
    l1 = oracle.update.l1 * oracle.target.penalised(point)
    at_box = point.abs() >= (oracle.update.box or inf)
    is_fixed = (point == 0) & (gradient.abs() + rounding < l1)
    is_fixed |= at_box & ((gradient + l1 * point.sign()) * point.sign() < -rounding)
    curvature, is_free = hessian(oracle, task, point), ~is_fixed
    unit = units(curvature)[is_free]
    curvature = curvature[is_free][:, is_free] / unit / unit[:, None]
    free_slope = slope[is_free] / unit
    flat = sum_rounding(task.n_examples + 16 * len(unit) + 64) * float(curvature.trace())
    inverse = torch.linalg.pinv(curvature, atol=flat, rtol=0.0, hermitian=True).abs()
    move = torch.zeros_like(point)
    move[is_free] = 2 * (inverse @ free_slope) / unit
    scores, link = oracle.scores(point, task.x), oracle.target.link_function
    sizes = oracle.target.design(task.x).abs()
    least = link.slopes(scores - sizes @ move[:, None], scores + sizes @ move[:, None])[0]
    halves = sizes.square().mT @ (2 * least - link.mean.derivative()(scores)) < 0
    is_flat = bool((torch.linalg.eigvalsh(curvature) <= flat).any() or halves.any())
    return Minimiser(
        parameters=point,
        distance=inf if is_flat else float(move.norm()),
        excess=float(free_slope @ inverse @ free_slope),
        slope=float(slope.norm()) * ROOM,
    )


def sum_rounding(n_terms: int) -> float:
    """Return gamma(n_terms): bounds the error of a sum relative to that of absolute values."""
    product = n_terms * UNIT_ROUNDOFF
    return product / (1 - product)


def objective_rounding(oracle: LinearOracle, task: Task, weights: Parameters) -> float:
    """Bound the rounding error of one task's computed objective."""
    model, update, link = oracle.target, oracle.update, oracle.target.link_function
    n, p = task.n_examples, model.n_parameters
    scores, y, weights = oracle.scores(weights, task.x), task.y.double(), weights.double()
    terms = model.design(task.x).abs() @ weights.abs().unsqueeze(-1)
    score_error = sum_rounding(p + 2) * terms
    loss_error = (_largest_mean(oracle, scores, score_error) + y.abs()) * score_error
    sizes = link.potential(scores.abs() + score_error).abs() + (y * terms).abs()
    penalised = weights * model.penalised(weights)
    penalties = update.l2 * penalised.square().sum() + update.l1 * penalised.abs().sum()
    rounding = sum_rounding(n + p + FUNCTION_ROUNDING + 16)
    of_losses = model.loss_scale(n) * (loss_error + rounding * sizes).sum()
    return float(of_losses + rounding * penalties) * ROOM


def gradient_rounding(oracle: LinearOracle, task: Task, weights: Parameters) -> Parameters:
    """Bound the rounding error of each entry of the smooth part's computed gradient."""
    model, weights, y = oracle.target, weights.double(), task.y.double()
    n, design, scores = task.n_examples, model.design(task.x).abs(), oracle.scores(weights, task.x)
    score_error = sum_rounding(model.n_parameters + 2) * (design @ weights.abs().unsqueeze(-1))
    steepest = model.link_function.slopes(scores - score_error, scores + score_error)[1]
    mean = _largest_mean(oracle, scores, score_error)
    mean_error = steepest * score_error + FUNCTION_ROUNDING * UNIT_ROUNDOFF * mean
    sizes = mean + y.abs() + mean_error
    total = design.mT @ (mean_error + sum_rounding(n + 8) * sizes)
    ridge = oracle.update.l2 * model.penalised(weights) * weights.abs()
    return (model.loss_scale(n) * total.squeeze(-1) + sum_rounding(8) * ridge) * ROOM


def _largest_mean(oracle: LinearOracle, scores: Tensor, error: Tensor) -> Tensor:
    """Return the largest |mu| within `error` of each score."""
    mean = oracle.target.link_function.mean
    return torch.maximum(mean(scores - error).abs(), mean(scores + error).abs())
