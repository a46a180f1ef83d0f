r"""The real algorithm in float64, by explicit formulas: the oracle of the whole library.

    z_j = V_j p_{j-1},  p_j = r(z_j)                              forward
    s_N = r'(z_N) * u,  s_j = r'(z_j) * (V_{j+1}^T s_{j+1})        backward
    grad of V_j = (1 / 2n) sum_i s_{i,j} p_{i,j-1}^T

With biases a constant 1 stands below every p_{j-1}, and nothing is passed back to it.
Everything takes one task (no leading axis) or a batch of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from icgd.problems.mlp import MLP
from icgd.problems.problem import Problem
from icgd.shapes import History, Inputs, Labels, Parameters


@dataclass(frozen=True)
class Forward:
    """Preactivations z_1 .. z_N and outputs p_0 .. p_N of every layer."""

    preactivations: list[Tensor]
    outputs: list[Tensor]


def forward(target: MLP, parameters: Parameters, x: Inputs) -> Forward:
    """Run the target network on every row of `x`."""
    preactivations: list[Tensor] = []
    outputs = [x]
    for layer, matrix in enumerate(target.matrices(parameters), start=1):
        preactivations.append(target.layer_inputs(outputs[-1]) @ matrix.mT)
        outputs.append(target.layer_activation(layer).value(preactivations[-1]))
    return Forward(preactivations, outputs)


def predict(target: MLP, parameters: Parameters, x: Inputs) -> Labels:
    """The network's output."""
    return forward(target, parameters, x).outputs[-1]


def risk(problem: Problem, parameters: Parameters, x: Inputs, y: Labels) -> Tensor:
    """L(w) = (1 / 2n) sum_i loss(p_i, y_i), one number a task."""
    prediction = predict(problem.network, parameters, x)
    return problem.loss_function.value(prediction, y).mean(-1) / 2


def gradient(problem: Problem, parameters: Parameters, x: Inputs, y: Labels) -> Parameters:
    """The gradient of the risk."""
    target = problem.network
    matrices = target.matrices(parameters)
    states = forward(target, parameters, x)
    pulled_back = problem.loss_function.slope(states.outputs[-1], y)
    blocks: list[Tensor] = []
    for layer in range(target.depth, 0, -1):
        slope = target.layer_activation(layer).derivative(states.preactivations[layer - 1])
        delta = slope * pulled_back
        inputs = states.outputs[layer - 1]
        blocks.append((delta.mT @ target.layer_inputs(inputs)).flatten(-2))
        pulled_back = delta @ matrices[layer - 1][..., : inputs.shape[-1]]
    return torch.cat(blocks[::-1], dim=-1) / (2 * x.shape[-2])


def step(problem: Problem, parameters: Parameters, x: Inputs, y: Labels) -> Parameters:
    """One exact update on these examples: w <- clip(w - step_size * grad L(w), -box, box)."""
    update = problem.gradient_step
    moved = parameters - update.step_size * gradient(problem, parameters, x, y)
    return moved.clamp(-update.box, update.box)


def train(problem: Problem, initial: Parameters, x: Inputs, y: Labels, n_steps: int) -> History:
    """`n_steps` exact updates from `initial`, which is the first entry of the history."""
    history = [initial.double()]
    for number in range(n_steps):
        examples = examples_of(problem, number, x.double(), y.double())
        history.append(step(problem, history[-1], *examples))
    return torch.stack(history, dim=-2)


def examples_of(problem: Problem, number: int, x: Inputs, y: Labels) -> tuple[Tensor, Tensor]:
    """The examples that a step uses, counted from 0: all of them, or its batch."""
    if problem.gradient_step.batch_size is None:
        return x, y
    rows = list(problem.gradient_step.examples_of(number, x.shape[-2]))
    return x[..., rows, :], y[..., rows, :]
