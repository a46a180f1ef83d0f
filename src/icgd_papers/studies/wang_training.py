r"""Networks that learn the indicator of the unit ball: what they are, and how well they end.

The networks are those that constructions take: g(x) = V_n r(V_{n-1} r(... r(V_1 [x; 1]))) with
r = tanh and no biases; the last input is 1. The error is the mean of (g(x) - 1(|x| <= 1))^2, as in
Lemmas 1 and 2, on fresh points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, final

from icgd.problems.mlp import MLP
from icgd.problems.oracles import predict
from icgd.shapes import Parameters
from icgd_papers.reproduction import AbstractStudy
from icgd_papers.studies.ball import BallSample, ball_sample
from icgd_papers.studies.wang_fitting import AT_ONCE, Budget, Fit

ACTIVATION = "tanh"
"""All constructions for networks take tanh: recursion needs a slope that does not jump."""

FIRST_BOX = 3.0
"""The first weights are normal with variance 1 / fan-in, clipped to this box."""

TRAINING_INDEX, TEST_INDEX = 0, 1
"""The numbers of the two samples."""


@dataclass(frozen=True)
class Outcome:
    """How training ended: the errors on its own and on fresh points, and what decides them."""

    training_error: float
    error: float
    ended: str
    n_iterations: int
    largest_slope: float
    """The largest entry of the gradient of the training error."""
    largest_weight: float
    seconds: float


@final
@dataclass(frozen=True)
class Study(AbstractStudy[Outcome]):
    """One network in one dimension, from one start."""

    dimension: int
    depth: int
    width: int
    start: int
    seed: int
    budget: Budget

    @property
    def target(self) -> MLP:
        """The network, which has `depth` - 1 hidden layers."""
        hidden = (self.width,) * (self.depth - 1)
        return MLP((self.dimension + 1, *hidden, 1), ACTIVATION)

    def train(self, folder: Path | None = None) -> Outcome:
        """Train the network; all networks of a dimension see the same points."""
        del folder  # it takes seconds, a wide network a minute, and begins again if interrupted
        began, budget, target = perf_counter(), self.budget, self.target
        first = target.initial_parameters(self.seed + self.start, FIRST_BOX)
        sample = self._sample(budget.n_train, TRAINING_INDEX)
        fitted = Fit(target, sample, budget).from_start(first)
        weights = fitted.point.weights
        return Outcome(
            training_error=mean_square(target, weights, sample),
            error=mean_square(target, weights, self._sample(budget.n_test, TEST_INDEX)),
            ended=fitted.ended,
            n_iterations=fitted.n_iterations,
            largest_slope=2 * float(fitted.point.slope.abs().max()),
            largest_weight=float(weights.abs().max()),
            seconds=perf_counter() - began,
        )

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        return Outcome(**data)

    def _sample(self, n_points: int, index: int) -> BallSample:
        return ball_sample(self.dimension, n_points, seed=self.seed, index=index)


def mean_square(target: MLP, weights: Parameters, sample: BallSample) -> float:
    """The mean squared error of a network on a sample."""
    pairs = zip(sample.x.split(AT_ONCE), sample.y.split(AT_ONCE), strict=True)
    squares = [(predict(target, weights, x)[:, 0] - y).square().sum() for x, y in pairs]
    return float(sum(squares)) / len(sample.y)
