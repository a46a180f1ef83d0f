r"""The minimiser of a linear model's objective, and an estimate of how accurate it is.

The objective F is the risk and l2, which are smooth, plus l1 |w|_1, over |w| <= box. Where no
penalised coefficient changes its sign, l1 |w|_1 is linear and F smooth. So a Newton step from w
stays among coefficients with the signs of w, and of -g where w is 0, with the gradient g and the
Hessian H of the smooth part:

    w <- w + t d,    d = argmin <g + l1 sign, d> + d^T H d / 2    within those signs and the box

That is a least-squares problem with bounds, which `scipy.optimize.lsq_linear` solves by active
sets; t is halved until F falls. Coefficients are in units of H_jj^(-1/2), so that scales of inputs
do not matter. A step costs O(n d^2 + d^3), and d^3 for each change of the active set.

How far the result is from the minimiser is estimated, not proved: by the subgradient that is left,
with the rounding of it, and the Hessian at the result. The rounding itself is bounded: a sum of m
terms is off by at most gamma(m) = m u / (1 - m u) times the sum of their sizes, u = 2^-53.
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
"""The most Newton steps; a dozen are usual."""

PATIENCE = 3
"""Stop after this many steps without progress: the rest is rounding."""

FLAT = 1e-8
"""Least eigenvalue, relative to the largest, in the least-squares problem: a smaller one would
let its constant part drown what the active set can gain."""

UNIT_ROUNDOFF = 2.0**-53

FUNCTION_ROUNDING = 16
"""Units in the last place by which a link's functions may be off."""

ROOM = 1 + 1e-9
"""Room for the rounding of the last few operations of a bound."""


def minimise(oracle: LinearOracle, task: Task) -> Parameters:
    """Return the most stationary point that Newton steps reach.

    They start from the task's initial coefficients, or from 0 if the objective is lower there.
    """
    box = oracle.update.box or inf
    given = task.initial.double().clamp(-box, box)
    point = min((given, torch.zeros_like(given)), key=lambda w: float(oracle.objective(task, w)))
    best, least, idle = point, inf, 0
    for _ in range(MOST_STEPS):
        gradient, curved = oracle.gradient(task, point), hessian(oracle, task, point)
        off = float((steepness(oracle, point, gradient) / units(curved)).norm())
        if off < least:
            best, least, idle = point, off, 0
        if off == 0 or idle == PATIENCE:
            break
        before = float(oracle.objective(task, point))
        noise = objective_rounding(oracle, task, point)
        moved = _newton_step(oracle, task, point, gradient, curved, before + noise)
        idle = 0 if before - float(oracle.objective(task, moved)) > noise else idle + 1
        point = moved
    return best


def _newton_step(
    oracle: LinearOracle,
    task: Task,
    point: Parameters,
    gradient: Parameters,
    curved: Tensor,
    highest: float,
) -> Parameters:
    """Minimise the quadratic model among one choice of signs; halve the step until F falls."""
    l1 = oracle.update.l1 * oracle.target.penalised(point)
    box = torch.full_like(point, oracle.update.box or inf)
    sign = torch.where(point != 0, point, -gradient).sign()
    sign = torch.where(sign == 0, 1.0, sign)
    lower = torch.where((l1 > 0) & (sign > 0), 0.0, -box)
    upper = torch.where((l1 > 0) & (sign < 0), 0.0, box)
    unit = units(curved)
    matrix, slope = curved / unit / unit[:, None], (gradient + l1 * sign) / unit
    low, high = (lower - point) * unit, (upper - point) * unit
    # Guess that the bounds which hold a coefficient now still do: then the rest is one solve.
    side = ((point == upper) & (slope < 0)).int() - ((point == lower) & (slope > 0)).int()
    step = _with_held(matrix, slope, low, high, side)
    if step is None or ((slope + matrix @ step) * side > 0).any():
        # With H = V diag(e) V^T and root = e^(1/2) V^T, |root d + e^(-1/2) V^T slope|^2 / 2 is
        # the model up to a constant.
        values, vectors = torch.linalg.eigh(matrix)
        values = values.clamp(min=FLAT * float(values[-1])).sqrt()
        root, goal = values[:, None] * vectors.mT, -(vectors.mT @ slope) / values
        bounds = low.numpy(), high.numpy()
        found = scipy.optimize.lsq_linear(
            root.numpy(), goal.numpy(), bounds, method="bvls", tol=1e-16
        )
        side = torch.from_numpy(found.active_mask)
        # Solve for the free coefficients by H itself, whose eigenvalues were not raised.
        step = _with_held(matrix, slope, low, high, side)
        step = torch.from_numpy(found.x) if step is None else step
    target = (point + step / unit).clamp(lower, upper)
    target = torch.where(side < 0, lower, torch.where(side > 0, upper, target))
    gain = min(0.0, float((slope * unit) @ (target - point)))
    share = 1.0
    while share > 1e-15:
        moved = target if share == 1 else point + share * (target - point)
        # Armijo's rule, up to rounding.
        if float(oracle.objective(task, moved)) <= highest + 1e-4 * share * gain:
            return moved
        share /= 2
    return point


def _with_held(
    matrix: Tensor, slope: Tensor, low: Tensor, high: Tensor, side: Tensor
) -> Tensor | None:
    """Minimise <slope, d> + d^T matrix d / 2 with d at `low` (side -1), at `high` (1), or free.

    Returns None if a free entry leaves its bounds, or if there is no minimum.
    """
    step = torch.where(side < 0, low, torch.where(side > 0, high, 0.0))
    free = side == 0
    pull, within = -(slope + matrix @ step)[free], matrix[free][:, free]
    solved = torch.linalg.lstsq(within, pull[:, None], driver="gelsd").solution[:, 0]
    step[free] = solved
    is_solved = (within @ solved - pull).norm() <= 1e-9 * pull.norm()
    return step if is_solved and ((low <= step) & (step <= high)).all() else None


def steepness(oracle: LinearOracle, weights: Parameters, gradient: Parameters) -> Parameters:
    """Return the size of each entry of F's least subgradient, box included; 0 at a minimum."""
    l1 = oracle.update.l1 * oracle.target.penalised(weights)
    sided = gradient + l1 * weights.sign()
    at_zero = (gradient.abs() - l1).clamp(min=0.0)
    size = torch.where((weights == 0) & (l1 > 0), at_zero, sided.abs())
    pushes_out = (weights.abs() >= (oracle.update.box or inf)) & (sided * weights.sign() <= 0)
    return torch.where(pushes_out, 0.0, size)


def hessian(oracle: LinearOracle, task: Task, weights: Parameters) -> Tensor:
    """Return the second derivatives of the smooth part."""
    model, design = oracle.target, oracle.target.design(task.x)
    slopes = model.link_function.mean.derivative()(oracle.scores(weights, task.x))
    return spectrum.hessian(model, oracle.update, design, slopes)


def units(hessian: Tensor) -> Float[Tensor, "parameter"]:
    """Return H_jj^(1/2), and 1 where that is 0: coefficients times it suit H."""
    diagonal = hessian.diagonal().clamp(min=0.0).sqrt()
    return torch.where(diagonal > 0, diagonal, 1.0)


@dataclass(frozen=True)
class Minimiser:
    """A point, and estimates of how far it is from the minimiser and F from its minimum.

    `distance` is infinite if the objective is flat around the point, or nearly so: there may be
    other minimisers. `slope` bounds the length of the objective's least subgradient.
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
    """Estimate the distance of a point near the minimiser, to first order in the subgradient s.

    |w - w*| is about |H^-1 s|, and F - F* about <s, H^-1 s> / 2, among the coefficients that
    neither l1 nor the box holds where they are. Signs in s are taken as the worst, and both
    estimates doubled, because H changes on the way. The distance is infinite if H is singular, or
    if the curvature along a coefficient could halve on the way.
    """
    gradient, rounding = oracle.gradient(task, point), gradient_rounding(oracle, task, point)
    slope = steepness(oracle, point, gradient) + rounding
    l1 = oracle.update.l1 * oracle.target.penalised(point)
    at_box = point.abs() >= (oracle.update.box or inf)
    held = (point == 0) & (gradient.abs() + rounding < l1)
    held |= at_box & ((gradient + l1 * point.sign()) * point.sign() < -rounding)
    curved = hessian(oracle, task, point)
    unit = units(curved)[~held]
    curved, left = curved[~held][:, ~held] / unit / unit[:, None], slope[~held] / unit
    flat = sum_rounding(task.n_examples + 16 * len(unit) + 64) * float(curved.trace())
    inverse = torch.linalg.pinv(curved, atol=flat, rtol=0.0, hermitian=True).abs()
    move = torch.zeros_like(point)
    move[~held] = 2 * (inverse @ left) / unit
    scores, link = oracle.scores(point, task.x), oracle.target.link_function
    sizes = oracle.target.design(task.x).abs()
    least = link.slopes(scores - sizes @ move[:, None], scores + sizes @ move[:, None])[0]
    halves = sizes.square().mT @ (2 * least - link.mean.derivative()(scores)) < 0
    is_flat = bool((torch.linalg.eigvalsh(curved) <= flat).any() or halves.any())
    return Minimiser(
        parameters=point,
        distance=inf if is_flat else float(move.norm()),
        excess=float(left @ inverse @ left),
        slope=float(slope.norm()) * ROOM,
    )


def sum_rounding(n_terms: int) -> float:
    """Bound the error of a sum of `n_terms` products, relative to the sum of their sizes."""
    product = n_terms * UNIT_ROUNDOFF
    return product / (1 - product)


def objective_rounding(oracle: LinearOracle, task: Task, weights: Parameters) -> float:
    """Bound the rounding error of one task's computed objective."""
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
    return float(summed + rounding * penalties) * ROOM


def gradient_rounding(oracle: LinearOracle, task: Task, weights: Parameters) -> Parameters:
    """Bound the rounding error of each entry of the smooth part's computed gradient."""
    model, weights, y = oracle.target, weights.double(), task.y.double()
    n, design, scores = task.n_examples, model.design(task.x).abs(), oracle.scores(weights, task.x)
    off = sum_rounding(model.n_parameters + 2) * (design @ weights.abs().unsqueeze(-1))
    steepest = model.link_function.slopes(scores - off, scores + off)[1]
    mean = _largest_mean(oracle, scores, off)
    wrong = steepest * off + FUNCTION_ROUNDING * UNIT_ROUNDOFF * mean
    sizes = mean + y.abs() + wrong
    total = design.mT @ (wrong + sum_rounding(n + 8) * sizes)
    ridge = oracle.update.l2 * model.penalised(weights) * weights.abs()
    return (model.loss_scale(n) * total.squeeze(-1) + sum_rounding(8) * ridge) * ROOM


def _largest_mean(oracle: LinearOracle, scores: Tensor, off: Tensor) -> Tensor:
    """Return the largest size of an expected label near a score."""
    mean = oracle.target.link_function.mean
    return torch.maximum(mean(scores - off).abs(), mean(scores + off).abs())
