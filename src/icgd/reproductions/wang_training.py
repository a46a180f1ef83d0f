r"""Networks that learn the indicator of the unit ball: their data, their training, their error.

Directions are uniform and radii are uniform on [0, 2]. So in every dimension half of the points lie
in the ball, the step across the sphere is seen equally often, and the best constant has the error
1/4. The error is the mean of (g(x) - 1(|x| <= 1))^2, as in Lemmas 1 and 2, on fresh points.

The networks are those that constructions take: g(x) = V_n r(V_{n-1} r(... r(V_1 [x; 1]))) with
r = tanh and no biases; the last input is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icgd.problems.mlp import MLP
from icgd.problems.oracles.network import predict
from icgd.problems.settings import count
from icgd.reproductions.reproduction import AbstractStudy
from icgd.shapes import Labels
from icgd.training.covariates import normal
from icgd.training.loop import Settings, train
from icgd.training.tasks import AbstractTask, Batch, generator_of

ACTIVATION = "tanh"
"""All constructions for networks take tanh: recursion needs a slope that does not jump."""

LARGEST_RADIUS = 2.0
"""Twice the radius of the ball, so that a point is inside or outside with equal chance."""

FIRST_BOX = 3.0
"""The first weights are normal with variance 1 / fan-in, clipped to this box."""

TEST_INDEX = 2**31
"""The number of the test's batch, which training never reaches."""


@dataclass(frozen=True)
class Budget:
    """How long and on how much all networks are trained, whatever their depth and width.

    A step takes `batch_size` fresh points. A study trains `n_seeds` networks; the best counts.
    """

    n_steps: int
    batch_size: int
    n_test: int
    n_seeds: int
    learning_rate: float = 0.04


@dataclass(frozen=True)
class Outcome:
    """The test error and the largest weight of every network of a study."""

    errors: tuple[float, ...]
    largest_weights: tuple[float, ...]
    seconds: float

    @property
    def best(self) -> int:
        """The number of the network with the least error."""
        return self.errors.index(min(self.errors))


@final
@dataclass(frozen=True)
class Study(AbstractStudy[Outcome]):
    """Networks of one shape in one dimension, which differ in their seed."""

    dimension: int
    depth: int
    width: int
    seed: int
    budget: Budget

    @property
    def target(self) -> MLP:
        """The network, which has `depth` - 1 hidden layers."""
        hidden = (self.width,) * (self.depth - 1)
        return MLP((self.dimension + 1, *hidden, 1), ACTIVATION)

    @property
    def settings(self) -> Settings:
        budget, rate = self.budget, self.budget.learning_rate
        settings = Settings(budget.n_steps, budget.batch_size, rate, seed=self.seed)
        return replace(settings, final_learning_rate=rate / 100, log_every=budget.n_steps)

    def train(self, folder: Path | None = None) -> Outcome:
        """Train all networks at once: their losses are added, and Adam treats weights apart."""
        start = perf_counter()
        networks = Networks(self.target, range(self.seed, self.seed + self.budget.n_seeds))
        task = BallTask(self.dimension)
        train(networks, task, self.settings, folder=folder)
        test = task.sample(self.budget.n_test, seed=self.seed, index=TEST_INDEX)
        with torch.no_grad():
            errors = squared_errors(networks.double(), test)
        return Outcome(
            errors=tuple(errors.tolist()),
            largest_weights=tuple(networks.weights.abs().amax(-1).tolist()),
            seconds=perf_counter() - start,
        )

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        return Outcome(tuple(data["errors"]), tuple(data["largest_weights"]), data["seconds"])


class Networks(nn.Module):
    """Networks of one shape side by side, a row of weights for each seed."""

    def __init__(self, target: MLP, seeds: range) -> None:
        super().__init__()
        first = [target.initial_parameters(seed, FIRST_BOX) for seed in seeds]
        self.target = target
        self.weights = nn.Parameter(torch.stack(first))

    def forward(self, x: Float[Tensor, "1 example input_width"]) -> Labels:
        """What each network predicts at the same points."""
        return predict(self.target, self.weights, x.expand(len(self.weights), -1, -1))


@final
@dataclass(frozen=True)
class BallTask(AbstractTask):
    """Learn whether points lie in the unit ball; a batch is one task with all its points."""

    dimension: int

    def __post_init__(self) -> None:
        count("dimension", self.dimension)

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> Batch:
        """`n_tasks` points; a normal point has a uniform direction."""
        generator = generator_of(seed, index, shard)
        points = normal(generator, n_tasks, self.dimension)
        radii = LARGEST_RADIUS * torch.from_numpy(generator.random((n_tasks, 1)))
        points = radii * points / points.norm(dim=1, keepdim=True)
        x = torch.cat((points, torch.ones_like(radii)), dim=1)
        return Batch(x[None], (radii <= 1).double().mT)

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The sum of the networks' errors."""
        return squared_errors(model, batch).sum()

    def description(self) -> dict[str, object]:
        return {"task": type(self).__name__, "dimension": self.dimension}


def squared_errors(networks: nn.Module, batch: Batch) -> Float[Tensor, " seed"]:
    """The mean squared error of every network."""
    predictions: Tensor = networks(batch.x)
    return (predictions[..., 0] - batch.y).square().mean(-1)
