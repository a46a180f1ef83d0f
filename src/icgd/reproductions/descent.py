"""Real gradient descent as it is usually written, with torch.autograd: what runs are timed by."""

from __future__ import annotations

import torch

from icgd.problems.problem import Problem
from icgd.problems.reference import examples_of
from icgd.problems.task import Task
from icgd.shapes import Parameters


def descend(problem: Problem, task: Task, n_steps: int) -> Parameters:
    """The weights after `n_steps` steps; for a batch, all tasks are trained at once."""
    target, update = problem.network, problem.gradient_step
    activations = [target.layer_activation(layer).value for layer in range(1, target.depth + 1)]
    matrices = [matrix.clone().requires_grad_() for matrix in target.matrices(task.initial)]
    for number in range(n_steps):
        outputs, labels = examples_of(problem, number, task.x, task.y)
        n_examples = outputs.shape[-2]
        for matrix, activation in zip(matrices, activations, strict=True):
            outputs = activation(target.layer_inputs(outputs) @ matrix.mT)
        risk = problem.loss_function.value(outputs, labels).sum() / (2 * n_examples)
        gradients = torch.autograd.grad(risk, matrices)
        with torch.no_grad():
            for matrix, gradient in zip(matrices, gradients, strict=True):
                matrix.sub_(gradient, alpha=update.step_size).clamp_(-update.box, update.box)
    return torch.cat([matrix.detach().flatten(-2) for matrix in matrices], dim=-1)
