r"""Least squares over all weights of a network, by the method of Levenberg and Marquardt.

With J the derivatives of the network's outputs by its weights and r the residuals at the points, a
step s solves (A + damping I) s = -mean(J r), where A is the mean of J^T J. A step that lowers the
error about as much as A predicts is followed by less damping; one that does not is repeated with
more. This converges in tens of steps where first-order methods take thousands. A is estimated from
some of the points, others in each step: it only shapes the step. Errors and gradients are those of
all points.

Numbers are float32, their sums and the linear equations float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from icgd.problems.mlp import MLP
from icgd.problems.oracles import forward, predict
from icgd.shapes import Matrix, Parameters
from icgd_papers.studies.ball import Points

AT_ONCE = 2000
"""Points are processed in chunks of this size, whose numbers stay in the cache."""

WINDOW = 10
"""The number of iterations over which the decrease of the error is judged."""

FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-2, 1e-7, 1e8

LEAST_GAIN = 1e-4
"""A step is taken if the error falls by at least this share of what A predicts."""


@dataclass(frozen=True)
class Budget:
    """How long and on how much data every network is trained, whatever its depth and width.

    Training has converged when `WINDOW` iterations lower the error by less than the share
    `least_decrease`, or when no step lowers it. It also ends at an error of `low_enough`. Every
    network is trained from `n_starts` initial weights.
    """

    n_train: int
    n_curvature: int
    n_test: int
    n_starts: int
    n_iterations: int
    least_decrease: float = 0.005
    low_enough: float = 0.015


@dataclass(frozen=True)
class Fit:
    """Weights, their mean squared error, half of its gradient, and how training ended."""

    weights: Parameters
    error: float
    slope: Parameters
    n_iterations: int = 0
    ended: str = ""


def fit(network: MLP, sample: Points, first: Parameters, budget: Budget) -> Fit:
    """Train a network from the weights `first` until it converges, is good enough, or gives up."""
    now, damping = evaluate(network, sample, first), FIRST_DAMPING
    errors = [now.error]

    def ended(reason: str) -> Fit:
        return Fit(now.weights, now.error, now.slope, len(errors) - 1, reason)

    while True:
        if now.error <= budget.low_enough:
            return ended("low enough")
        if len(errors) > WINDOW and now.error > (1 - budget.least_decrease) * errors[-1 - WINDOW]:
            return ended("converged")
        if len(errors) > budget.n_iterations:
            return ended("budget")
        places = torch.arange(
            len(errors) * budget.n_curvature, (len(errors) + 1) * budget.n_curvature
        )
        curvature = mean_curvature(network, sample[0][places % len(sample[1])], now.weights)
        growth = 2.0
        while damping < MOST_DAMPING:
            step = damped_step(curvature, now.slope, damping)
            trial = evaluate(network, sample, now.weights + step)
            predicted = -float(step @ (2 * now.slope + curvature @ step))
            gain = (now.error - trial.error) / predicted if predicted > 0 else 0.0
            if gain > LEAST_GAIN:
                break
            damping, growth = damping * growth, 2 * growth
        else:
            return ended("converged")
        now = trial
        damping = max(damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), LEAST_DAMPING)
        errors.append(now.error)


def evaluate(network: MLP, sample: Points, weights: Parameters) -> Fit:
    """Return the error and its slope at some weights, over all points."""
    total, slope = 0.0, torch.zeros_like(weights)
    x, y = (tensor.float() for tensor in sample)
    for some_x, some_y in zip(x.split(AT_ONCE), y.split(AT_ONCE), strict=True):
        outputs, deltas = derivatives(network, weights.float(), some_x)
        residuals = outputs[-1] - some_y[:, None]
        total += float(residuals.square().sum())
        pairs = zip(deltas, outputs[:-1], strict=True)
        slope += torch.cat([((residuals * d).mT @ p).flatten() for d, p in pairs])
    return Fit(weights, total / len(y), slope / len(y))


def mean_curvature(network: MLP, x: Tensor, weights: Parameters) -> Matrix:
    """Return A, the mean of J^T J over some points."""
    total = torch.zeros(len(weights), len(weights))
    for some_x in x.float().split(AT_ONCE):
        outputs, deltas = derivatives(network, weights.float(), some_x)
        pairs = zip(deltas, outputs[:-1], strict=True)
        jacobian = torch.cat([(d[:, :, None] * p[:, None, :]).flatten(1) for d, p in pairs], 1)
        total += jacobian.mT @ jacobian
    return total.double() / len(x)


def damped_step(curvature: Matrix, slope: Parameters, damping: float) -> Parameters:
    """Solve (curvature + damping I) s = -slope; return 0 if rounding made that indefinite."""
    identity = torch.eye(len(slope), dtype=slope.dtype)
    factor, failed = torch.linalg.cholesky_ex(curvature + damping * identity)
    if failed:
        return torch.zeros_like(slope)
    return -torch.cholesky_solve(slope[:, None], factor)[:, 0]


def derivatives(network: MLP, weights: Parameters, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs p_0 .. p_N of all layers, and d p_N / d z_j; p_N has width 1.

    With them d p_N / d V_j is the outer product of d p_N / d z_j and p_{j-1} at every point. All
    points share one pass, which autograd cannot do for gradients of single points.
    """
    states, matrices = forward(network, weights, x), network.matrices(weights)
    pulled_back, deltas = torch.ones_like(states.outputs[-1]), []
    for layer in range(network.depth, 0, -1):
        slope = network.layer_activation(layer).derivative(states.preactivations[layer - 1])
        deltas.append(slope * pulled_back)
        pulled_back = deltas[-1] @ matrices[layer - 1]
    return states.outputs, deltas[::-1]


def mean_square(network: MLP, weights: Parameters, sample: Points) -> float:
    """Return the mean squared error of a network on a sample."""
    pairs = zip(*(tensor.split(AT_ONCE) for tensor in sample), strict=True)
    squares = [(predict(network, weights, x)[:, 0] - y).square().sum() for x, y in pairs]
    return float(sum(squares)) / len(sample[1])
