"""Problems of the tests of chains, with data."""

import torch

from icgd.constructions.cot_network import CotNetwork
from icgd.problems.data import Domain, Task, as_task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.program.chain import ChainProgram

COT_NETWORK = CotNetwork()


def problem_of(
    target: MLP,
    batch_size: int | None = 1,
    *,
    loss: str = "squared",
    step_size: float = 0.1,
    box: float = 3.0,
) -> Problem:
    return Problem(target, loss, GradientStep(step_size, box, batch_size), Domain(x=2.0, y=2.0))


def task_of(problem: Problem, *, n_examples: int = 5, tasks: tuple[int, ...] = ()) -> Task:
    """Normal inputs, uniform labels, three queries; labels of classes add up to 1."""
    target = problem.network
    float64 = {"generator": torch.Generator().manual_seed(4), "dtype": torch.float64}
    x = torch.randn(*tasks, n_examples, target.input_width, **float64).clamp(-2, 2)
    y = torch.rand(*tasks, n_examples, target.output_width, **float64)
    if problem.loss_function.is_softmax:
        y = y / y.sum(-1, keepdim=True)
    queries = torch.rand(*tasks, 3, target.input_width, **float64)
    return as_task(problem, x, y, queries=queries, seed=5)


def program_of(problem: Problem, n_steps: int = 4) -> ChainProgram:
    return COT_NETWORK.build(problem, n_steps)
