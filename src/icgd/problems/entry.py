"""The way in: what a user hands over is checked against the problem and becomes a task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from icgd.errors import DataError, SettingError
from icgd.problems.arguments import checked
from icgd.problems.arrays import (
    checked_array,
    checked_inputs,
    column_names,
    converted,
    dtype_named,
    first_set,
    require_within,
)
from icgd.problems.problem import Problem
from icgd.problems.settings import instance
from icgd.problems.task import Task


@checked
def as_task(
    problem: Problem,
    x: Any,
    y: Any,
    *,
    queries: Any = None,
    initial: Any = None,
    seed: int | None = None,
    dtype: str | torch.dtype = "float64",
    rates: Any = None,
) -> Task:
    """Check the data against the problem and bring it to torch.

    Args:
        problem: the problem.
        x: the inputs, (n, d_x) or (tasks, n, d_x). Of a data frame the task keeps the names of
            the columns; queries with names must have the same ones in the same order.
        y: the labels, the same with d_y, or without the last axis when d_y = 1, or when y holds
            classes, counted from 0, for the cross_entropy loss.
        queries: inputs whose labels are to be predicted.
        initial: the weights that a network starts from, or the coefficients that a linear model
            starts from (default 0). A kernel machine starts from the function 0.
        seed: what a network's weights are drawn from, if none are given and
            the problem brings none along; the default is 0.
        dtype: "float64" or "float32".
        rates: a number from 0 to `domain.rate` for each example, by which its gradient is
            multiplied; 1 if they are left out, and only where the domain has a rate.

    Returns:
        The task.

    Raises:
        DataError: if shapes, types or labels do not fit the problem, or if initial weights come
            with something that no optimiser remembers.
        DomainError: if a number leaves the domain, or an initial weight the box.
        UnknownNameError: if no dtype has this name.
        SettingError: if both a seed and initial weights are given, or if a kernel machine is given
            initial weights, or if rates are given and the domain has none.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.as_task(problem, [[0.5, 1.0], [1.0, 0.0]], [1.0, 0.5]).x.shape
        torch.Size([2, 2])
    """
    instance("problem", problem, Problem)
    oracle, domain = problem.oracle, problem.domain
    columns = _columns(x, queries)
    x = checked_inputs(x, problem.target.input_width)
    y = _labels(problem, checked_array("y", y), x)
    queries = x[..., :0, :] if queries is None else _queries(checked_array("queries", queries), x)
    weights = oracle.initial(x, queries, given=initial, seed=seed)
    require_within("X", x, domain.x, "domain.x", columns)
    require_within("y", y, domain.y, "domain.y")
    require_within("queries", queries, domain.x, "domain.x", columns)
    if problem.box is not None:
        require_within("initial", oracle.boxed(weights), problem.box, "box")
    kind = dtype_named(dtype)
    oracle.require_state(weights, kind)
    oracle.require_examples(x.shape[-2])
    named = {"X": x, "y": y, "queries": queries, "initial": weights}
    rated = _rates(domain.rate, rates, x)
    named |= {} if rated is None else {"rates": rated}
    inputs = {"X": columns, "queries": columns}
    parts = [converted(n, part, x.device, kind, inputs.get(n, ())) for n, part in named.items()]
    return Task(*parts[:4], rates=None if rated is None else parts[4], input_names=columns)


def checked_task(problem: Problem, task: Task) -> Task:
    """`task`, if it is one of this problem."""
    instance("task", task, Task)
    checked = as_task(
        problem,
        task.x,
        task.y,
        queries=task.queries if task.n_queries else None,
        initial=task.initial,
        dtype=task.x.dtype,
        rates=task.rates,
    )
    return replace(checked, input_names=task.input_names)


def _columns(x: Any, queries: Any) -> tuple[str, ...]:
    """The names of the inputs, if X has any."""
    names, asked = column_names(x), column_names(queries)
    if names and asked and names != asked:
        raise DataError.other_columns("queries", asked, names)
    return names


def _labels(problem: Problem, y: Tensor, x: Tensor) -> Tensor:
    width = problem.target.output_width
    expected = (*x.shape[:-1], width)
    y = problem.oracle.labelled(y, expected)
    if tuple(y.shape) != expected and not (width == 1 and y.shape == x.shape[:-1]):
        raise DataError.wrong_shape("y", y.shape, f"{expected}, a label for each row of X")
    y = y.reshape(expected)
    problem.oracle.require_labels(y)
    return y


def _rates(largest: float | None, given: Any, x: Tensor) -> Tensor | None:
    """The rates of the examples as a column, if examples have any."""
    if largest is None:
        if given is not None:
            raise SettingError.without("rates", "Domain(rate=...)")
        return None
    expected = tuple(x.shape[:-1])
    rates = x.new_ones(expected) if given is None else checked_array("rates", given)
    if tuple(rates.shape) not in (expected, (*expected, 1)):
        raise DataError.wrong_shape("rates", rates.shape, f"{expected}, a rate for each row of X")
    if index := first_set(rates < 0):
        raise DataError.negative_rate(index, rates[tuple(index)].item())
    require_within("rates", rates, largest, "domain.rate")
    return rates.reshape(*expected, 1)


def _queries(queries: Tensor, x: Tensor) -> Tensor:
    fits = queries.ndim == x.ndim and queries.shape[:-2] == x.shape[:-2]
    if not fits or queries.shape[-1] != x.shape[-1]:
        sizes = (*x.shape[:-2], "n_queries", x.shape[-1])
        expected = f"({', '.join(str(size) for size in sizes)})"
        raise DataError.wrong_shape("queries", queries.shape, expected)
    return queries.to(x.device)
