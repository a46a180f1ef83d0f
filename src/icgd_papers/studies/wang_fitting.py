r"""Least squares over all weights of a network, by the method of Levenberg and Marquardt.

With J the derivatives of the network's outputs by its weights and r what is left at the points, a
step s solves (A + damping I) s = -mean(J r), where A is the mean of J^T J. Less damping follows a
step that lowers the error about as much as A predicts; after one that does not, the step is tried
again with more. This ends near a minimum after tens of steps, where methods that know gradients
alone take thousands. A is taken from a part of the points, another one in each step: it only shapes
the step. Errors and gradients are those of all points.

Numbers are float32, their sums and the linear equations float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.problems.mlp import MLP
from icgd.problems.oracles import forward
from icgd.shapes import Matrix, Parameters
from icgd_papers.studies.ball import BallSample

AT_ONCE = 2000
"""Points are taken in groups of this size, whose numbers stay in the cache."""

WINDOW = 10
"""The number of iterations over which the decrease of the error is looked at."""

FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-2, 1e-7, 1e8
LEAST_GAIN = 1e-4
"""A step is taken if the error falls by at least this share of what A predicts."""

CONVERGED, LOW_ENOUGH, OUT_OF_BUDGET = "converged", "low enough", "budget"


@dataclass(frozen=True)
class Budget:
    """How long and on how much every network is trained, whatever its depth and width.

    Training has converged when `WINDOW` iterations lower the error by less than `least_decrease` of
    itself, or when no step lowers it. It also ends at an error of `low_enough`. `n_starts` counts
    the first weights that are tried for each network.
    """

    n_train: int
    n_curvature: int
    n_test: int
    n_starts: int
    n_iterations: int
    least_decrease: float = 0.005
    low_enough: float = 0.015


@dataclass(frozen=True)
class Point:
    """Weights, the mean squared error with them, and the half of its gradient."""

    weights: Parameters
    error: float
    slope: Parameters


@dataclass(frozen=True)
class Fitted:
    """Where training ended, after how many iterations, and why."""

    point: Point
    n_iterations: int
    ended: str


@dataclass(frozen=True)
class Fit:
    """A network and the points to which it is fitted."""

    target: MLP
    sample: BallSample
    budget: Budget

    def from_start(self, weights: Parameters) -> Fitted:
        """Train from these first weights until one of the endings."""
        point, damping = self.at(weights), FIRST_DAMPING
        errors = [point.error]
        while (ended := self._ending(errors)) is None:
            moved = self._moved(point, self._curvature(point.weights, len(errors)), damping)
            if moved is None:
                return Fitted(point, len(errors) - 1, CONVERGED)
            point, damping = moved
            errors.append(point.error)
        return Fitted(point, len(errors) - 1, ended)

    def at(self, weights: Parameters) -> Point:
        """The error and its slope at some weights, over all points."""
        total, slope = 0.0, torch.zeros_like(weights)
        x, y = self.sample.x.float(), self.sample.y.float()
        for part_x, part_y in zip(x.split(AT_ONCE), y.split(AT_ONCE), strict=True):
            outputs, deltas = derivatives(self.target, weights.float(), part_x)
            left = outputs[-1] - part_y[:, None]
            total += float(left.square().sum())
            slope += torch.cat(
                [((left * d).mT @ p).flatten() for d, p in zip(deltas, outputs[:-1], strict=True)]
            )
        return Point(weights, total / len(y), slope / len(y))

    def _ending(self, errors: list[float]) -> str | None:
        """Why training ends after these errors; None if it goes on."""
        if errors[-1] <= self.budget.low_enough:
            return LOW_ENOUGH
        least = 1 - self.budget.least_decrease
        if len(errors) > WINDOW and errors[-1] > least * errors[-1 - WINDOW]:
            return CONVERGED
        return OUT_OF_BUDGET if len(errors) > self.budget.n_iterations else None

    def _curvature(self, weights: Parameters, number: int) -> Matrix:
        """A at some weights, from the points of iteration `number`."""
        n, size = len(self.sample.y), self.budget.n_curvature
        rows = torch.arange(number * size, (number + 1) * size) % n
        total = torch.zeros(len(weights), len(weights))
        for part in self.sample.x[rows].float().split(AT_ONCE):
            outputs, deltas = derivatives(self.target, weights.float(), part)
            pairs = zip(deltas, outputs[:-1], strict=True)
            jacobian = torch.cat([(d[:, :, None] * p[:, None, :]).flatten(1) for d, p in pairs], 1)
            total += jacobian.mT @ jacobian
        return total.double() / size

    def _moved(self, point: Point, curvature: Matrix, damping: float) -> tuple[Point, float] | None:
        """The next point and damping; None if no step lowers the error."""
        growth = 2.0
        while damping < MOST_DAMPING:
            step = damped_step(curvature, point.slope, damping)
            trial = self.at(point.weights + step)
            predicted = -float(step @ (2 * point.slope + curvature @ step))
            gain = (point.error - trial.error) / predicted if predicted > 0 else 0.0
            if gain > LEAST_GAIN:
                return trial, max(damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), LEAST_DAMPING)
            damping, growth = damping * growth, 2 * growth
        return None


def damped_step(curvature: Matrix, slope: Parameters, damping: float) -> Parameters:
    """The solution s of (curvature + damping I) s = -slope; 0 if rounding made that indefinite."""
    identity = torch.eye(len(slope), dtype=slope.dtype)
    factor, failed = torch.linalg.cholesky_ex(curvature + damping * identity)
    if failed:
        return torch.zeros_like(slope)
    return -torch.cholesky_solve(slope[:, None], factor)[:, 0]


def derivatives(
    target: MLP, weights: Parameters, x: Float[Tensor, "point input_width"]
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs p_0 .. p_N of every layer, and d p_N / d z_j for j = 1 .. N; p_N has width 1."""
    states, matrices = forward(target, weights, x), target.matrices(weights)
    pulled_back, deltas = torch.ones_like(states.outputs[-1]), []
    for layer in range(target.depth, 0, -1):
        slope = target.layer_activation(layer).derivative(states.preactivations[layer - 1])
        deltas.append(slope * pulled_back)
        pulled_back = deltas[-1] @ matrices[layer - 1]
    return states.outputs, deltas[::-1]
