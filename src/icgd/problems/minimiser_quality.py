r"""How far a point is from a linear model's minimiser, and its objective from the minimum: proofs.

Let s be a subgradient of the objective F at w, box included. By convexity

    F(w) - F*  <=  <s, w - w*>  <=  sum_j |s_j| |w_j - w*_j|,

which the box or the penalty makes finite: l1 |w*|_1 <= F(w) - (the least losses) and likewise l2.
If F curves by at least alpha on the ball of radius r around w, and r >= 2 |s| / alpha, then F is
above F(w) on its edge, so that all minimisers are inside, and

    |w - w*| <= |s| / alpha.

The ball is taken in units that suit the Hessian, and within the box. A coefficient that l1 keeps
at 0 for certain does not count: if F(w) - F* <= G, and no slope of the means exceeds M, then the
means at w and w* have sum_i (mu_i - mu*_i)^2 <= 2 M G / scale, so that the gradient's entry j is
off by at most |x_j| (2 M G scale)^(1/2); where |g_j| and this stay below l1, w*_j = 0.

All is computed in float64, and every sum of m terms has its allowance m u / (1 - m u), u = 2^-53.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf, sqrt

import torch
from torch import Tensor

from icgd.problems.curvature import Scores
from icgd.problems.minimiser import hessian, minimise, steepness, units
from icgd.problems.objective_rounding import (
    FEW_STEPS,
    gradient_rounding,
    objective_rounding,
    score_rounding,
    sum_rounding,
)
from icgd.problems.oracles.linear import LinearOracle
from icgd.problems.task import Task
from icgd.shapes import Parameters

MOST_BALLS = 40
"""The most radii that are tried for a ball which holds the minimisers."""


@dataclass(frozen=True)
class Minimiser:
    """A point at most `distance` from the only minimiser, with F at most `excess` above F*.

    Either is infinite if it is not known. The objective has a subgradient of length at most
    `slope` there.
    """

    parameters: Parameters
    distance: float
    excess: float
    slope: float


def find_minimiser(oracle: LinearOracle, task: Task) -> Minimiser:
    """The minimiser of one task, looked for from its initial coefficients, and its quality."""
    oracle.require_end(task)
    return quality(oracle, task, minimise(oracle, task))


def quality(oracle: LinearOracle, task: Task, point: Parameters) -> Minimiser:
    """What is proved of a point in the box: how far it is from the minimiser."""
    proof = _Proof(oracle, task, point)
    excess = proof.excess()
    distance = proof.distance(proof.counts(excess))
    slope = float(proof.slope.norm())
    near = slope * distance if distance < inf else inf
    return Minimiser(point, distance * FEW_STEPS, min(excess, near) * FEW_STEPS, slope * FEW_STEPS)


class _Proof:
    """What the proofs of one point share."""

    def __init__(self, oracle: LinearOracle, task: Task, point: Parameters) -> None:
        self._oracle, self._task, self._point = oracle, task, point
        self._model, self._update = oracle.target, oracle.update
        self._design = oracle.target.design(task.x)
        self._penalised = oracle.target.penalised(point)
        self._gradient = oracle.gradient(task, point)
        self._off = gradient_rounding(oracle, task, point)
        self.slope = steepness(oracle, point, self._gradient) + self._off
        self._units = units(hessian(oracle, task, point))

    @property
    def _allowed(self) -> Scores:
        """The scores of all points between this one and a minimiser."""
        farthest = torch.maximum(self._farthest, self._point.abs())
        terms = torch.where(self._design == 0, 0.0, self._design.abs() * farthest)
        reach = terms.sum(-1, keepdim=True) * FEW_STEPS
        return -reach, reach

    def excess(self) -> float:
        """sum_j |s_j| |w_j - w*_j|, from what is known of w* before any curvature."""
        reach = self._point.abs() + self._farthest
        products = torch.where(self.slope == 0, 0.0, self.slope * reach)
        return float(products.sum())

    @cached_property
    def _farthest(self) -> Parameters:
        """The largest size of every coefficient of a minimiser."""
        value = float(self._oracle.objective(self._task, self._point))
        value += objective_rounding(self._oracle, self._task, self._point)
        least = self._model.link_function.least_loss(self._task.y.double())
        lowest = self._model.loss_scale(self._task.n_examples) * float(least.sum())
        room = max(0.0, value - lowest) * FEW_STEPS + sum_rounding(99) * abs(lowest)
        l1, l2 = self._update.l1, self._update.l2
        by_penalty = min(room / l1 if l1 else inf, sqrt(2 * room / l2) if l2 else inf)
        box = inf if self._update.box is None else self._update.box
        sizes = torch.where(self._penalised > 0, by_penalty, torch.full_like(self._point, inf))
        return sizes.clamp(max=box)

    def counts(self, excess: float) -> Tensor:
        """Which coefficients may differ from the minimiser's: not those that l1 keeps at 0."""
        scale = self._model.loss_scale(self._task.n_examples)
        steepest = float(self._model.link_function.slopes(*self._allowed)[1].max())
        apart = sqrt(2 * steepest * excess * scale) if steepest * excess < inf else inf
        off = self._off + apart * self._design.norm(dim=0) * FEW_STEPS
        held = self._gradient.abs() + off < self._update.l1 * self._penalised
        is_held: Tensor = held & (self._point == 0)
        return ~is_held

    def distance(self, counts: Tensor) -> float:
        """|s| / alpha in the first ball around the point that is known to hold all minimisers."""
        if not counts.any():
            return 0.0
        slope, radius = float((self.slope / self._units)[counts].norm()), 0.0
        for _ in range(MOST_BALLS):
            alpha = self._smallest_curvature(counts, radius)
            if not alpha > 0:
                return inf
            needed = 2 * slope / alpha * FEW_STEPS
            if needed <= radius:
                return slope / alpha / float(self._units[counts].min())
            radius = 1.25 * needed
        return inf

    def _smallest_curvature(self, counts: Tensor, radius: float) -> float:
        """The least eigenvalue of all Hessians in the ball and the box, less what is rounded."""
        n, p = self._task.n_examples, int(counts.sum())
        design = self._design[:, counts] / self._units[counts]
        least = self._model.link_function.slopes(*self._scores(design, radius))[0]
        scale, ridge = self._model.loss_scale(n), self._update.l2 * self._penalised
        weighted = scale * design.mT @ (least * design)
        curved = weighted + (ridge / self._units.square())[counts].diag()
        room = sum_rounding(n + 16 * p + 64) * float(curved.trace())
        return float(torch.linalg.eigvalsh(curved)[0]) - room

    def _scores(self, design: Tensor, radius: float) -> Scores:
        """The scores in the ball and in the box."""
        middle = self._oracle.scores(self._point, self._task.x)
        reach = radius * design.norm(dim=-1, keepdim=True) * FEW_STEPS
        reach = reach + score_rounding(self._oracle, self._task, self._point)
        low, high = self._allowed
        low, high = torch.maximum(low, middle - reach), torch.minimum(high, middle + reach)
        return torch.minimum(low, middle), torch.maximum(high, middle)
