"""A task: the data of one training run (or of a batch of them), checked and in torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icgd.errors import DataError, DomainError, SettingError, UnknownNameError
from icgd.problems.linear_model import require_labels
from icgd.problems.problem import Problem
from icgd.problems.settings import count
from icgd.problems.updates import GradientStep
from icgd.shapes import Inputs, Labels, Parameters, Queries

DTYPES = {"float64": torch.float64, "float32": torch.float32}

FLOAT32_ROUNDING = 2.0**-22
"""Relative change, with room to spare, of a number that is converted to float32."""


def dtype_named(dtype: str | torch.dtype) -> torch.dtype:
    """`dtype` as a torch dtype; only float64 and float32 are offered."""
    name = getattr(dtype, "__name__", str(dtype)).removeprefix("torch.")  # numpy's is a class
    if name not in DTYPES:
        raise UnknownNameError.of("dtype", name, known=list(DTYPES))
    return DTYPES[name]


@dataclass(frozen=True)
class Task:
    """Examples (x, y), queries and initial weights; with a leading axis for many tasks.

    A task of a kernel machine has, for weights, the values of the function at all tokens.
    """

    x: Inputs
    y: Labels
    queries: Queries
    initial: Parameters

    @property
    def n_examples(self) -> int:
        return self.x.shape[-2]

    @property
    def n_queries(self) -> int:
        return self.queries.shape[-2]

    @property
    def n_tokens(self) -> int:
        return self.n_examples + self.n_queries

    @property
    def batch(self) -> tuple[int, ...]:
        """() for one task, (n_tasks,) for a batch."""
        return tuple(self.x.shape[:-2])


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

    `x` is (n, d_x) or (tasks, n, d_x); `y` is the same with d_y, or without its last axis when
    d_y = 1. Initial weights are given, or drawn from `seed` (0 unless said otherwise); coefficients
    of a linear model start from 0 unless given; a function has none, and starts from 0 everywhere.
    """
    target, domain = problem.target, problem.domain
    x = checked_array("X", x)
    if x.ndim not in (2, 3) or x.shape[-1] != target.input_width:
        expected = f"(n, {target.input_width}) or (tasks, n, {target.input_width})"
        raise DataError.wrong_shape("X", x.shape, expected)
    y = _labels(problem, checked_array("y", y), x)
    queries = x[..., :0, :] if queries is None else _queries(checked_array("queries", queries), x)
    weights = _initial(problem, initial, seed, x, queries)
    _within("X", x, domain.x, "domain.x")
    _within("y", y, domain.y, "domain.y")
    _within("queries", queries, domain.x, "domain.x")
    if problem.box is not None:
        _within("initial", weights, problem.box, "box")
    if isinstance(problem.update, GradientStep):
        _require_batch(problem.update.batch_size, x.shape[-2])
    target_dtype = dtype_named(dtype)
    named = {"X": x, "y": y, "queries": queries, "initial": weights}
    parts = [_converted(name, part, x.device, target_dtype) for name, part in named.items()]
    return Task(*parts)


def checked_task(problem: Problem, task: Task) -> Task:
    """`task`, if it is one of this problem."""
    return as_task(
        problem,
        task.x,
        task.y,
        queries=task.queries if task.n_queries else None,
        initial=None if problem.trains_function else task.initial,
        dtype=task.x.dtype,
    )


def _converted(name: str, array: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """`array` in `dtype`, if it fits: float32 has a smaller range."""
    converted = array.to(device=device, dtype=dtype)
    if index := _first(~torch.isfinite(converted)):
        dtype_name = str(dtype).removeprefix("torch.")
        raise DataError.overflows(name, index, array[tuple(index)].item(), dtype_name)
    return converted


def checked_array(name: str, data: Any) -> Tensor:
    """`data` as a finite, non-empty tensor of float64 or float32."""
    if not isinstance(data, Tensor):
        if np.ma.is_masked(data):
            raise DataError.not_an_array(name, "it has masked entries")
        try:
            data = np.asarray(data)
        except (ValueError, TypeError, RuntimeError):
            raise DataError.not_an_array(name, "rows of different lengths") from None
        if data.dtype.kind in "OUS":
            raise DataError.not_an_array(name, f"dtype {data.dtype}")
    elif data.layout != torch.strided:
        raise DataError.not_an_array(name, "a sparse tensor")
    if str(data.dtype).removeprefix("torch.") not in DTYPES:
        raise DataError.wrong_dtype(name, str(data.dtype).removeprefix("torch."))
    if 0 in data.shape:
        raise DataError.empty(name, data.shape)
    array = data.detach() if isinstance(data, Tensor) else torch.from_numpy(data.copy())
    _finite(name, array)
    return array


def _finite(name: str, array: Tensor) -> None:
    if index := _first(~torch.isfinite(array)):
        raise DataError.not_finite(name, index, array[tuple(index)].item())


def _first(flags: Tensor) -> list[int] | None:
    """Where the first flag is set, if any is."""
    return flags.nonzero()[0].tolist() if flags.any() else None


def _labels(problem: Problem, y: Tensor, x: Tensor) -> Tensor:
    width = problem.target.output_width
    expected = (*x.shape[:-1], width)
    if tuple(y.shape) != expected and not (width == 1 and y.shape == x.shape[:-1]):
        raise DataError.wrong_shape("y", y.shape, f"{expected}, a label for each row of X")
    y = y.reshape(expected)
    if problem.trains_coefficients:
        require_labels(problem.model.link_function, y)
        return y
    are_probabilities = problem.loss_function.labels_are_probabilities
    if are_probabilities and (index := _first((y < 0) | (y > 1))):
        raise DataError.label_range(problem.loss, index, y[tuple(index)].item())
    return y


def _queries(queries: Tensor, x: Tensor) -> Tensor:
    expected = (*x.shape[:-2], "n_queries", x.shape[-1])
    fits = queries.ndim == x.ndim and queries.shape[:-2] == x.shape[:-2]
    if not fits or queries.shape[-1] != x.shape[-1]:
        raise DataError.wrong_shape("queries", queries.shape, _shape_text(expected))
    return queries.to(x.device)


def _initial(
    problem: Problem, initial: Any, seed: int | None, x: Tensor, queries: Tensor
) -> Tensor:
    batch = tuple(x.shape[:-2])
    if problem.trains_function:
        if initial is not None:
            raise SettingError.starts_from_zero()
        n_values = (x.shape[-2] + queries.shape[-2]) * problem.target.output_width
        return x.new_zeros(*batch, n_values, dtype=torch.float64)
    if initial is None and problem.trains_coefficients:
        return problem.model.initial_parameters(batch)
    if initial is None:
        seed = count("seed", 0 if seed is None else seed, least=0, most=2**63 - 1)
        return problem.network.initial_parameters(seed, problem.gradient_step.box, batch)
    if seed is not None:
        raise SettingError.both("initial", "seed")
    weights, n_parameters = checked_array("initial", initial), _n_parameters(problem)
    if tuple(weights.shape) not in {(n_parameters,), (*batch, n_parameters)}:
        expected = _shape_text((*batch, n_parameters))
        raise DataError.wrong_shape("initial", weights.shape, expected)
    return weights.expand(*batch, n_parameters)


def _n_parameters(problem: Problem) -> int:
    target = problem.model if problem.trains_coefficients else problem.network
    return target.n_parameters


def _within(name: str, array: Tensor, bound: float, setting: str) -> None:
    # A bound itself may round up when it is converted to float32.
    slack = FLOAT32_ROUNDING * bound if array.dtype == torch.float32 else 0.0
    if index := _first(array.double().abs() > bound + slack):
        raise DomainError.outside(name, index, array[tuple(index)].item(), bound, setting)


def _require_batch(batch_size: int | None, n_examples: int) -> None:
    """Raise `DataError` if a step would take an example twice."""
    if batch_size is not None and batch_size > n_examples:
        raise DataError.smaller_than_batch(n_examples, batch_size)


def _shape_text(shape: tuple[object, ...]) -> str:
    return f"({', '.join(str(size) for size in shape)}{',' * (len(shape) == 1)})"
