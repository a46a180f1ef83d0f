r"""Functional gradient descent itself, in float64: the oracle of kernel attention.

The function is held as what it is, f = sum_j a_j K(., x_j), and is evaluated where it is needed:

    a <- a + step_size * (y - f(x) - noise * a)

Its values at an example count noise * a as learnt, because that is what is no longer left. Steps
that move the inputs (GD++) change the kernel from step to step, so f is then the sum of what each
step added. Everything takes one task or a batch of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from icgd.problems.kernel_machine import KernelMachine, as_matrix
from icgd.problems.problem import Problem
from icgd.problems.task import Task
from icgd.shapes import History, KernelMatrix, Labels, Parameters, Points


def kernels(problem: Problem, task: Task, n_steps: int) -> list[KernelMatrix]:
    """The kernel of every token (row) and example that each step uses; one if all are equal."""
    update, machine = problem.functional_step, problem.machine
    points = all_points(task)
    if not update.transforms:
        return [machine.matrix(points, points[..., : task.n_examples, :])] * n_steps
    matrices = []
    for step in range(n_steps):
        examples = points[..., : task.n_examples, :]
        matrices.append(machine.matrix(points, examples))
        transform = update.transform_of(step, machine.input_width)
        if transform is not None:
            points = points + matrices[-1] @ examples @ as_matrix(transform, points).mT
    return matrices


def noisy_kernels(problem: Problem, task: Task, n_steps: int) -> list[KernelMatrix]:
    """The same with the noise added where an example meets itself."""
    matrices = kernels(problem, task, n_steps)
    noise = problem.functional_step.noise
    if not noise or not matrices:
        return matrices
    itself = noise * torch.eye(task.n_tokens, task.n_examples).to(matrices[0])
    if not problem.functional_step.transforms:
        return [matrices[0] + itself] * n_steps
    return [matrix + itself for matrix in matrices]


def all_points(task: Task) -> Points:
    """The inputs of examples and queries, in float64."""
    return torch.cat([task.x, task.queries], dim=-2).double()


def train(problem: Problem, task: Task, n_steps: int) -> History:
    """The function's values at all tokens before the first step and after every step."""
    update = problem.functional_step
    y = task.y.double()
    coefficients = torch.zeros_like(y)
    values = y.new_zeros(*task.batch, task.n_tokens, y.shape[-1])
    history = [values]
    for step, kernel in enumerate(noisy_kernels(problem, task, n_steps)):
        added = update.size_of(step) * (y - values[..., : task.n_examples, :])
        coefficients = coefficients + added
        values = values + kernel @ added if update.transforms else kernel @ coefficients
        history.append(values)
    return torch.stack(history, dim=-3).flatten(-2)


def stepped(problem: Problem, task: Task, history: History) -> Tensor:
    """One exact step from each entry of a run but its last."""
    update, y = problem.functional_step, task.y.double()
    values = history.double().unflatten(-1, (task.n_tokens, y.shape[-1]))
    after = []
    for step, kernel in enumerate(noisy_kernels(problem, task, history.shape[-2] - 1)):
        before = values[..., step, :, :]
        left = y - before[..., : task.n_examples, :]
        after.append((before + update.size_of(step) * kernel @ left).unsqueeze(-3))
    return torch.cat(after or [values[..., :0, :, :]], dim=-3).flatten(-2)


def limit(problem: Problem, task: Task) -> Labels:
    """What the function tends to at the queries: k_q (K + noise I)^-1 y, the kernel regression.

    The pseudo-inverse where the kernel matrix is singular: descent from 0 never leaves its range.
    """
    machine, noise = problem.machine, problem.functional_step.noise
    points, y = all_points(task), task.y.double()
    examples, queries = points[..., : task.n_examples, :], points[..., task.n_examples :, :]
    gram = machine.gram(examples) + noise * torch.eye(task.n_examples).to(points)
    return machine.matrix(queries, examples) @ _solved(gram, y, machine)


def _solved(gram: Tensor, y: Tensor, machine: KernelMachine) -> Tensor:
    inverse: Tensor = torch.linalg.pinv(gram, hermitian=machine.is_symmetric)
    solution = inverse @ y
    return solution + inverse @ (y - gram @ solution)  # once refined, against rounding


def predict(task: Task, parameters: Parameters) -> Labels:
    """The function's values at the queries, out of those at all tokens."""
    values: Tensor = parameters.unflatten(-1, (task.n_tokens, task.y.shape[-1]))
    return values[..., task.n_examples :, :]


def risk(task: Task, parameters: Parameters) -> float:
    """(1 / 2n) sum_i |f(x_i) - y_i|^2, from the values at all tokens."""
    values = parameters.double().unflatten(-1, (task.n_tokens, task.y.shape[-1]))
    left = values[..., : task.n_examples, :] - task.y.double()
    return float(left.square().sum(-1).mean(-1).mean()) / 2
