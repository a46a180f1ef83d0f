r"""Three ways to train the network of wu-score, in legs that an interruption can end.

- in context: the network is trained by the forward pass of a compiled transformer (softmax-stack).
  A leg is a forward pass of so many steps. The next one starts from the weights that it left, as
  the following layers of one long transformer would.
- direct: the same steps on the same prompt, by automatic differentiation.
- adam: Adam with fresh examples in every step, to see what the network can do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import cos, pi
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from icgd.compiled import Compiled
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.pipeline import compile
from icgd.problems.data import Domain, Task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.oracles import predict
from icgd.problems.problem import Problem
from icgd.problems.settings import count
from icgd.shapes import Inputs, Labels, Parameters
from icgd_papers.studies.wu_score_diffusion import Prompt, Span, inputs, score_of
from icgd_papers.studies.wu_score_laws import Points, Times
from icgd_papers.training.checkpoints import Checkpoints, State
from icgd_papers.training.covariates import normal
from icgd_papers.training.logs import Log
from icgd_papers.training.tasks import generator_of

BOX = 8.0
"""Weights are projected onto this box; the largest ones that were met are below 3."""

REACH = 16.0
"""Inputs and labels are at most so large; x / 4s is the largest of them."""

DEPTH = 3

POWER_STEPS = 40
"""Steps of the power iteration for the curvature."""

FIRST_MOMENT, SECOND_MOMENT, TINY = 0.9, 0.999, 1e-8
"""Adam's usual constants."""


def problem_of(dimension: int, width: int, step_size: float = 1.0) -> Problem:
    """A tanh network of three layers, from the inputs of `inputs` to a velocity."""
    target = MLP((3 * dimension + 2, *[width] * (DEPTH - 1), dimension), "tanh")
    return Problem(target, "squared", GradientStep(step_size, BOX), Domain(REACH, REACH))


def asked(x: Points, times: Times, span: Span) -> Tensor:
    """What the network reads at any point; beyond the domain it is asked at its edge."""
    return inputs(x, times, span).clamp(-REACH, REACH)


def largest_curvature(problem: Problem, task: Task, seed: int) -> float:
    """The largest eigenvalue, in absolute value, of the risk's Hessian at the first weights."""
    weights = task.initial.clone().requires_grad_()
    (slope,) = torch.autograd.grad(problem.oracle.risk(task, weights), weights, create_graph=True)
    direction, size = normal(generator_of(seed, 0), len(weights)), 0.0
    for _ in range(POWER_STEPS):
        direction = direction / direction.norm()
        (curved,) = torch.autograd.grad(slope @ direction, weights, retain_graph=True)
        direction, size = curved, float(curved.norm())
    return size


class AbstractTrainer(ABC):
    """A way to train. Its state is a tensor whose first row holds the weights."""

    @property
    @abstractmethod
    def first(self) -> Tensor:
        """The state before training."""

    @abstractmethod
    def leg(self, state: Tensor, step: int, n_steps: int) -> Tensor:
        """The state `n_steps` after `step`."""


@final
@dataclass(frozen=True, eq=False)
class InContext(AbstractTrainer):
    """A leg is one forward pass of the compiled transformer over the prompt."""

    problem: Problem
    task: Task

    @property
    def first(self) -> Tensor:
        return self.task.initial[None]

    def leg(self, state: Tensor, step: int, n_steps: int) -> Tensor:
        task = replace(self.task, initial=state[0])
        return self._compiled(n_steps).run_task(task, history=False).parameters[-1:].clone()

    @cached_property
    def _program(self) -> Compiled:
        return compile(self.problem, SoftmaxStack(), n_steps=0)

    def _compiled(self, n_steps: int) -> Compiled:
        """All steps are alike, so another number of them needs no new weights."""
        program = replace(self._program.stack, n_steps=n_steps)
        return Compiled(self.problem, program)

    def score(self, weights: Parameters, span: Span) -> Callable[[Points, Times], Points]:
        """The score that the transformer predicts: queries are the points, and no step is taken."""
        task = replace(self.task, x=self.task.x[:1], y=self.task.y[:1], initial=weights)

        def score(x: Points, times: Times) -> Points:
            prompt = replace(task, queries=asked(x, times, span))
            return score_of(self._program.run_task(prompt).predictions, x, times)

        return score


@final
@dataclass(frozen=True, eq=False)
class Direct(AbstractTrainer):
    """The same steps, by automatic differentiation in float64."""

    problem: Problem
    task: Task

    @property
    def first(self) -> Tensor:
        return self.task.initial[None]

    def leg(self, state: Tensor, step: int, n_steps: int) -> Tensor:
        weights, x, y = state[0], self.task.x, self.task.y
        for _ in range(n_steps):
            slope = slope_of(self.problem.network, weights, x, y)
            weights = (weights - self.problem.gradient_step.size_of(0) * slope).clamp(-BOX, BOX)
        return weights[None]


def slope_of(target: MLP, weights: Parameters, x: Inputs, y: Labels) -> Parameters:
    """The gradient of half the mean of |f - y|^2, by automatic differentiation."""
    weights = weights.detach().requires_grad_()
    errors = predict(target, weights, x) - y
    (slope,) = torch.autograd.grad(errors.square().sum(-1).mean() / 2, weights)
    return slope


@final
@dataclass(frozen=True, eq=False)
class Adam(AbstractTrainer):
    """Adam, whose learning rate falls to 0 like a cosine. Its state has rows for both moments."""

    problem: Problem
    initial: Parameters
    examples: Callable[[int], Prompt]
    """The examples of each step."""
    learning_rate: float
    total: int

    @property
    def first(self) -> Tensor:
        return torch.stack((self.initial, *[torch.zeros_like(self.initial)] * 2))

    def leg(self, state: Tensor, step: int, n_steps: int) -> Tensor:
        weights, mean, square = state
        for number in range(step, step + n_steps):
            drawn = self.examples(number)
            slope = slope_of(self.problem.network, weights, drawn.x, drawn.y)
            mean = FIRST_MOMENT * mean + (1 - FIRST_MOMENT) * slope
            square = SECOND_MOMENT * square + (1 - SECOND_MOMENT) * slope.square()
            rate = self.learning_rate * (1 + cos(pi * number / self.total)) / 2
            size = (square / (1 - SECOND_MOMENT ** (number + 1))).sqrt() + TINY
            weights = weights - rate * mean / (1 - FIRST_MOMENT ** (number + 1)) / size
        return torch.stack((weights, mean, square))


@dataclass(frozen=True)
class Legs:
    """A training of `n_legs` legs of `n_steps` steps."""

    n_legs: int
    n_steps: int

    def __post_init__(self) -> None:
        count("n_legs", self.n_legs)
        count("n_steps", self.n_steps)

    @property
    def total(self) -> int:
        return self.n_legs * self.n_steps


OnLeg = Callable[[int, float], None]
"""Is told the steps that are done, and the loss."""


def trained(
    trainer: AbstractTrainer,
    legs: Legs,
    loss: Callable[[Parameters], float],
    *,
    folder: Path | None = None,
    identity: Mapping[str, Any] | None = None,
    on_leg: OnLeg | None = None,
) -> tuple[Parameters, Log]:
    """The weights after all legs, and the loss before the first leg and after each.

    With a `folder` each leg is kept there, and training continues after the last one. The folder
    may hold no training but that of `identity`.
    """
    kept = folder and Checkpoints(folder, {**(identity or {})})
    found = kept.load() if kept else None
    state = found or State(0, {"state": trainer.first}, _row(Log(), 0, loss, trainer.first))
    while state.step < legs.total:
        reached = trainer.leg(state.tensors["state"], state.step, legs.n_steps)
        step = state.step + legs.n_steps
        state = State(step, {"state": reached}, _row(state.log, step, loss, reached))
        if folder and kept:
            folder.mkdir(parents=True, exist_ok=True)
            kept.save(state)
        if on_leg:
            on_leg(step, state.log.rows[-1]["loss"])
    return state.tensors["state"][0], state.log


def _row(log: Log, step: int, loss: Callable[[Parameters], float], state: Tensor) -> Log:
    return log.with_row({"step": float(step), "loss": loss(state[0])})
