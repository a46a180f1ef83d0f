"""The way in: what a user hands over is checked against the problem and becomes a task."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from icgd.errors import DataError
from icgd.problems.arrays import (
    checked_array,
    checked_inputs,
    converted,
    dtype_named,
    require_within,
)
from icgd.problems.problem import Problem
from icgd.problems.settings import instance
from icgd.problems.task import Task


def as_task(
    problem: Problem,
    x: Any,
    y: Any,
    *,
    queries: Any = None,
    initial: Any = None,
    seed: int | None = None,
    dtype: str | torch.dtype = "float64",
) -> Task:
    """Check the data against the problem and bring it to torch.

    Args:
        problem: the problem.
        x: the inputs, (n, d_x) or (tasks, n, d_x).
        y: the labels, the same with d_y, or without the last axis when d_y = 1.
        queries: inputs whose labels are to be predicted.
        initial: the weights that a network starts from, or the coefficients that a linear model
            starts from (default 0). A kernel machine starts from the function 0.
        seed: what a network's weights are drawn from, if none are given; the default is 0.
        dtype: "float64" or "float32".

    Returns:
        The task.

    Raises:
        DataError: if shapes, types or labels do not fit the problem.
        DomainError: if a number leaves the domain, or an initial weight the box.
        UnknownNameError: if no dtype has this name.
        SettingError: if both a seed and initial weights are given, or if a kernel machine is given
            initial weights.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.as_task(problem, [[0.5, 1.0], [1.0, 0.0]], [1.0, 0.5]).x.shape
        torch.Size([2, 2])
    """
    instance("problem", problem, Problem)
    oracle, domain = problem.oracle, problem.domain
    x = checked_inputs(x, problem.target.input_width)
    y = _labels(problem, checked_array("y", y), x)
    queries = x[..., :0, :] if queries is None else _queries(checked_array("queries", queries), x)
    weights = oracle.initial(x, queries, given=initial, seed=seed)
    require_within("X", x, domain.x, "domain.x")
    require_within("y", y, domain.y, "domain.y")
    require_within("queries", queries, domain.x, "domain.x")
    if problem.box is not None:
        require_within("initial", weights, problem.box, "box")
    oracle.require_examples(x.shape[-2])
    named = {"X": x, "y": y, "queries": queries, "initial": weights}
    parts = (converted(name, part, x.device, dtype_named(dtype)) for name, part in named.items())
    return Task(*parts)


def checked_task(problem: Problem, task: Task) -> Task:
    """`task`, if it is one of this problem."""
    instance("task", task, Task)
    return as_task(
        problem,
        task.x,
        task.y,
        queries=task.queries if task.n_queries else None,
        initial=task.initial,
        dtype=task.x.dtype,
    )


def _labels(problem: Problem, y: Tensor, x: Tensor) -> Tensor:
    width = problem.target.output_width
    expected = (*x.shape[:-1], width)
    if tuple(y.shape) != expected and not (width == 1 and y.shape == x.shape[:-1]):
        raise DataError.wrong_shape("y", y.shape, f"{expected}, a label for each row of X")
    y = y.reshape(expected)
    problem.oracle.require_labels(y)
    return y


def _queries(queries: Tensor, x: Tensor) -> Tensor:
    fits = queries.ndim == x.ndim and queries.shape[:-2] == x.shape[:-2]
    if not fits or queries.shape[-1] != x.shape[-1]:
        sizes = (*x.shape[:-2], "n_queries", x.shape[-1])
        expected = f"({', '.join(str(size) for size in sizes)})"
        raise DataError.wrong_shape("queries", queries.shape, expected)
    return queries.to(x.device)
