"""The baseline: the same training by plain torch.autograd."""

from collections.abc import Callable

import torch
from torch import Tensor

from icgd.problems.problem import Problem
from icgd.problems.task import Task


def autograd_training(problem: Problem, task: Task, n_steps: int) -> Tensor:
    """Gradient descent as anyone would write it; weights with a task axis if there are many."""
    activation: Callable[[Tensor], Tensor] = getattr(torch, problem.target.activation)
    matrices = [matrix.clone().requires_grad_() for matrix in problem.target.matrices(task.initial)]
    step_size, box = problem.update.step_size, problem.update.box
    for _ in range(n_steps):
        outputs = task.x
        for number, matrix in enumerate(matrices, start=1):
            outputs = outputs @ matrix.mT
            if number < len(matrices):
                outputs = activation(outputs)
        risk = ((outputs - task.y) ** 2).sum() / (2 * task.n_examples)
        gradients = torch.autograd.grad(risk, matrices)
        with torch.no_grad():
            for matrix, gradient in zip(matrices, gradients, strict=True):
                matrix.sub_(gradient, alpha=step_size).clamp_(-box, box)
    return torch.cat([matrix.detach().flatten(-2) for matrix in matrices], dim=-1)
