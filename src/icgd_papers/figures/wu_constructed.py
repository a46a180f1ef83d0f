r"""The constructed transformer on prompts: relu-stack, compiled for the teacher's architecture.

Its forward pass trains a network on the examples of each prompt by gradient descent, from random
weights that stand in the prompt, and predicts the query. Labels are divided by their root mean
square in the prompt, so that they lie in the domain for certain: none of k labels is beyond
sqrt(k). Inputs are normal around -2 and 2, and none is 8 deviations off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch

from icgd.compiled import Compiled
from icgd.constructions.relu_stack import ReluStack
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.figures.wu_references import Inputs, Predictions, TokenLabels, label_size

LARGEST_BOX = 4.0
"""Weights are projected onto a box; the first ones are normal with variance 1 / fan-in."""

LARGEST_OUTPUT = 5e11
"""The network's outputs stay below this for all weights in the box: float64 needs its digits."""

LARGEST_INPUT = 10.0


@dataclass(frozen=True)
class Constructed:
    """A transformer for networks of this architecture, with a step size."""

    n_layers: int
    hidden_width: int
    step_size: float
    seed: int = 0

    def box(self, input_width: int) -> float:
        """The largest box in which outputs stay moderate: small for deep and wide networks."""
        ones = LARGEST_INPUT * input_width * self.hidden_width ** (self.n_layers - 1)
        return min(LARGEST_BOX, float((LARGEST_OUTPUT / ones) ** (1 / self.n_layers)))

    def compiled(self, input_width: int, n_examples: int, n_steps: int) -> Compiled:
        """The transformer itself."""
        widths = (input_width, *[self.hidden_width] * (self.n_layers - 1), 1)
        domain = Domain(LARGEST_INPUT, 1.01 * sqrt(n_examples))
        step = GradientStep(self.step_size, self.box(input_width))
        return compile(
            Problem(MLP(widths, "relu"), "squared", step, domain), ReluStack(), n_steps=n_steps
        )

    def predictions(self, x: Inputs, y: TokenLabels, n_steps: int) -> Predictions:
        """What the transformer of `n_steps` steps predicts at the queries."""
        [last] = self.path(x, y, [n_steps])
        return last

    def path(self, x: Inputs, y: TokenLabels, steps: Sequence[int]) -> list[Predictions]:
        """The predictions after each of these numbers of steps, which must rise.

        All blocks are the same, so a transformer goes on where a shorter one ended.
        """
        x, size, n = x.double(), label_size(y), x.shape[1] - 1
        known = (y[:, :-1].double() / size)[..., None]
        target, box = self.compiled(x.shape[-1], n, 0).problem.network, self.box(x.shape[-1])
        weights, done, found = target.initial_parameters(self.seed, box, (len(x),)), 0, []
        for step in steps:
            compiled = self.compiled(x.shape[-1], n, step - done)
            run = compiled.run(x[:, :-1], known, queries=x[:, -1:], initial=weights, history=False)
            weights, done = run.parameters[..., -1, :], step
            found.append(torch.as_tensor(run.predictions)[:, 0, 0] * size[:, 0])
        return found
