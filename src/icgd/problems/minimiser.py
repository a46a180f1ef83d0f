r"""The minimiser of a linear model's objective, by proximal Newton steps in float64.

    w <- w + t d,    w + d = argmin_v <g, v - w> + (v - w)^T H (v - w) / 2 + l1 |v|_1,  |v| <= box

with the gradient g and the Hessian H of the smooth part at w, and t halved until the objective
falls. Least squares have one H, so that the first step arrives. Without l1 and box d solves a
linear system. Otherwise coordinates are minimised over in turn, and after every turn those that
are neither 0 nor at the box are solved for at once, up to where the first of them gets there.
Coefficients are measured in units of H_jj^(-1/2), so that scales of inputs do not matter.

It costs O(n d^2 + d^3) a step. `minimiser_quality.py` proves how good the outcome is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.problems.objective_rounding import objective_rounding
from icgd.problems.oracles.linear import LinearOracle, soft_threshold
from icgd.problems.task import Task
from icgd.shapes import Parameters

MOST_STEPS = 300
"""The most Newton steps; a dozen are usual."""

MOST_TURNS = 200
"""The most turns over the coordinates in a Newton step."""

MOST_HALVINGS = 50
"""A step that does not lower the objective after so many halvings is lost in rounding."""

PATIENCE = 3
"""After so many steps that leave the point no more stationary, rounding is all that is left."""

DAMPING = 1e-14
"""What the Hessian's diagonal of ones gains, so that flat directions have a solution."""

SUFFICIENT = 1e-4
"""The share of the predicted decrease that a step must bring (Armijo's rule)."""

Vector = Float[Tensor, "parameter"]


def minimise(oracle: LinearOracle, task: Task) -> Parameters:
    """The most stationary point that Newton steps find.

    They start from the task's initial coefficients, or from 0 if the objective is lower there.
    """
    point = best = _start(oracle, task)
    idle = 0
    for _ in range(MOST_STEPS):
        moved = _newton_step(oracle, task, point)
        if moved is None or idle == PATIENCE:
            break
        is_better = moved.off < best.off
        idle = 0 if is_better or _is_lower(moved, point) else idle + 1
        point, best = moved, moved if is_better else best
    return best.weights


def _start(oracle: LinearOracle, task: Task) -> _State:
    given = _State.at(oracle, task, _inside(oracle, task.initial.double()))
    zero = _State.at(oracle, task, torch.zeros_like(given.weights))
    return given if given.value <= zero.value else zero


def _inside(oracle: LinearOracle, weights: Parameters) -> Parameters:
    box = oracle.update.box
    return weights if box is None else weights.clamp(-box, box)


def _is_lower(after: _State, before: _State) -> bool:
    """Whether the objective fell by more than it is rounded."""
    return before.value - after.value > before.noise


def steepness(oracle: LinearOracle, weights: Parameters, gradient: Parameters) -> Parameters:
    """The size of each entry of the least subgradient of penalties, box and risk; 0 if minimal."""
    l1 = oracle.update.l1 * oracle.target.penalised(weights)
    sided = gradient + l1 * weights.sign()
    at_zero = (gradient.abs() - l1).clamp(min=0.0)
    size = torch.where((weights == 0) & (l1 > 0), at_zero, sided.abs())
    if (box := oracle.update.box) is None:
        return size
    pushes_out = (weights.abs() >= box) & (sided * weights.sign() <= 0)
    return torch.where(pushes_out, torch.zeros_like(size), size)


def hessian(oracle: LinearOracle, task: Task, weights: Parameters) -> Tensor:
    """The second derivatives of the smooth part."""
    model, design = oracle.target, oracle.target.design(task.x)
    slopes = model.link_function.mean.derivative()(oracle.scores(weights, task.x))
    scale = model.loss_scale(task.n_examples)
    ridge = oracle.update.l2 * model.penalised(design).diag()
    return scale * design.mT @ (slopes * design) + ridge


def units(hessian: Tensor) -> Vector:
    """H_jj^(1/2), and 1 where that is 0: coefficients times it are in units that suit H."""
    diagonal = hessian.diagonal().clamp(min=0.0).sqrt()
    return torch.where(diagonal > 0, diagonal, torch.ones_like(diagonal))


@dataclass(frozen=True)
class _State:
    """A point, its objective and the rounding of it, its gradient and Hessian.

    `off` says how far from stationary it is.
    """

    weights: Parameters
    value: float
    noise: float
    gradient: Parameters
    hessian: Tensor
    off: float

    @classmethod
    def at(cls, oracle: LinearOracle, task: Task, weights: Parameters) -> _State:
        value, gradient = float(oracle.objective(task, weights)), oracle.gradient(task, weights)
        noise, curved = objective_rounding(oracle, task, weights), hessian(oracle, task, weights)
        off = float((steepness(oracle, weights, gradient) / units(curved)).norm())
        return cls(weights, value, noise, gradient, curved, off)


def _newton_step(oracle: LinearOracle, task: Task, start: _State) -> _State | None:
    """The point after one step, or None where none is better."""
    target = _model_minimiser(oracle, start)
    direction = target - start.weights
    gain = float(start.gradient @ direction) + _penalty(oracle, target, start.weights)
    if not bool(direction.isfinite().all()) or not direction.any():
        return None
    for halvings in range(MOST_HALVINGS):
        share = 0.5**halvings
        point = target if share == 1 else start.weights + share * direction
        value = float(oracle.objective(task, point))
        if value <= start.value + SUFFICIENT * share * min(gain, 0.0) + start.noise:
            return _State.at(oracle, task, point)
    return None


def _penalty(oracle: LinearOracle, after: Parameters, before: Parameters) -> float:
    """How much l1 |w|_1 grows."""
    grown = after.abs() - before.abs()
    return float((oracle.update.l1 * oracle.target.penalised(grown) * grown).sum())


def _model_minimiser(oracle: LinearOracle, at: _State) -> Parameters:
    """The minimiser of the quadratic model, with penalty and box, in units that suit it."""
    update, unit = oracle.update, units(at.hessian)
    matrix = at.hessian / unit / unit.unsqueeze(-1) + DAMPING * torch.eye(len(unit)).to(unit)
    l1 = update.l1 * oracle.target.penalised(unit) / unit
    box = unit * (inf if update.box is None else update.box)
    model = _Quadratic(matrix, at.gradient / unit, at.weights * unit, l1, box)
    found = model.by_coordinates() if update.l1 or update.box else model.unconstrained()
    if update.box is None:
        return found / unit
    # Not found / unit at the edge, for a coefficient is at the box or it is not.
    edge = update.box * found.sign()
    return _inside(oracle, torch.where(found.abs() >= box, edge, found / unit))


@dataclass(frozen=True)
class _Quadratic:
    """<gradient, v - start> + (v - start)^T matrix (v - start) / 2 + sum_j l1_j |v_j|, |v| <= box.

    The diagonal of `matrix` is about 1, or 0 where the objective does not curve at all.
    """

    matrix: Tensor
    gradient: Vector
    start: Vector
    l1: Vector
    box: Vector

    def unconstrained(self) -> Vector:
        """Without l1 and box: the solution of a linear system."""
        solved: Tensor = torch.linalg.solve(self.matrix, self.gradient)
        return self.start - solved

    def slope(self, point: Vector) -> Vector:
        """The gradient of the quadratic part."""
        return self.gradient + self.matrix @ (point - self.start)

    def by_coordinates(self) -> Vector:
        """Turns over the coordinates, each followed by a solution for the free ones.

        It has arrived if two turns in a row leave every coordinate as free as it was.
        """
        point, n_alike = self.start, 0
        for _ in range(MOST_TURNS):
            turned = self._turned(point)
            after = self._solved(turned)
            is_alike = self._places(turned).equal(self._places(after))
            n_alike = (
                n_alike + 1 if is_alike and self._places(point).equal(self._places(after)) else 0
            )
            point = after
            if n_alike == 2:
                break
        return point

    def _places(self, point: Vector) -> Vector:
        """Where each coordinate is: at 0, at an end of the box, or on which side of 0."""
        return point.sign() * (1 + (point.abs() >= self.box).double())

    def _turned(self, point: Vector) -> Vector:
        """Every coordinate in turn put where the objective is least along it."""
        point, slope = point.clone(), self.slope(point)
        for place, (row, own) in enumerate(zip(self.matrix, self.matrix.diagonal(), strict=True)):
            before = point[place].clone()
            goal = soft_threshold(before - slope[place] / own, self.l1[place] / own)
            point[place] = goal.clamp(-self.box[place], self.box[place])
            slope += (point[place] - before) * row
        return point

    def _solved(self, point: Vector) -> Vector:
        """The free coordinates on the way to their common minimum, till one is no longer free."""
        free = (point.abs() < self.box) & ((point != 0) | (self.l1 == 0))
        if not free.any():
            return point
        sides = self.l1 * point.sign()
        slope, within = (self.slope(point) + sides)[free], self.matrix[free][:, free]
        step = torch.zeros_like(point)
        step[free] = -torch.linalg.solve(within, slope)
        moved = point + _length(point, step, self.l1 > 0, self.box) * step
        return torch.where((self.l1 > 0) & (moved * point < 0), 0.0, moved).clamp(
            -self.box, self.box
        )


def _length(point: Vector, step: Vector, has_kink: Tensor, box: Vector) -> float:
    """The share of a step, at most 1, after which the first coordinate is at 0 or at the box."""
    none = torch.full_like(point, inf)
    to_kink = torch.where(has_kink & (point * step < 0), -point / step, none)
    to_box = torch.where(step != 0, (box - point * step.sign()) / step.abs(), none)
    return min(1.0, float(torch.minimum(to_kink, to_box).min()))
