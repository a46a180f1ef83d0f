"""Bounds on data (`Domain`), the data of a run (`Task`), and the validation of users' data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from icgd.environment import own_modes, require_memory
from icgd.errors import DataError, DomainError, SettingError, at, quoted
from icgd.problems.settings import count, named, positive, require_between, set_fields
from icgd.reprs import counted, in_short, with_repr
from icgd.shapes import Inputs, Labels, Parameters, Points, Queries, Rates

if TYPE_CHECKING:  # problem.py imports this module
    from icgd.problems.problem import Problem

ROOM = 1.25
"""Factor from the data to the bounds of `Domain.of`, so that queries may lie slightly outside."""


@dataclass(frozen=True)
class Domain:
    """Bounds on every entry: |x| <= `x` and |y| <= `y`. Certificates rely on them.

    Args:
        x: the bound of inputs.
        y: the bound of labels.
        score: for a linear model, a bound on |<w, x>|, which may be smaller than `x` and the box
            imply. A run that exceeds it stops with an error.
        rate: for a network, a bound on the rates of examples: nonnegative factors of their
            gradients. Without it examples have no rates.

    Raises:
        SettingError: if a bound is not a positive number.

    Example:
        >>> import icgd
        >>> icgd.Domain(x=2.0, y=1.0).in_words()
        '|x| <= 2, |y| <= 1'
    """

    x: float
    y: float
    score: float | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("x", "y", "score", "rate"):
            bound = getattr(self, name)
            if bound is not None or name in ("x", "y"):
                set_fields(self, **{name: positive(f"domain.{name}", bound)})

    def in_words(self) -> str:
        """Return the bounds, such as "|x| <= 2, |y| <= 1".

        Returns:
            The text.

        Example:
            >>> import icgd
            >>> icgd.Domain(x=2.0, y=1.0, score=3.0).in_words()
            '|x| <= 2, |y| <= 1, |<w, x>| <= 3'
        """
        bounds = {"x": self.x, "y": self.y, "<w, x>": self.score}
        words = [f"|{name}| <= {b:g}" for name, b in bounds.items() if b is not None]
        words += [] if self.rate is None else [f"rates <= {self.rate:g}"]
        return ", ".join(words)

    @classmethod
    def of(cls, X: Any, y: Any, *, room: float = ROOM) -> Domain:
        """Return the smallest bounds of these data times the factor `room`; 1 if all data are 0.

        Args:
            X: the inputs, of one task or of many.
            y: the labels.
            room: the factor from the data to the bounds, which leaves room for queries.

        Returns:
            The bounds on inputs and labels.

        Raises:
            DataError: if the data are not arrays of finite numbers.
            SettingError: if `room` is not a positive number.

        Example:
            >>> import icgd
            >>> icgd.Domain.of([[1.0, -2.0]], [4.0])
            Domain(x=2.5, y=5.0, score=None, rate=None)
        """
        factor = positive("room", room)
        bounds = [factor * float(checked_array(n, a).abs().max()) for n, a in (("X", X), ("y", y))]
        return cls(*(bound or 1.0 for bound in bounds))


@with_repr
@dataclass(frozen=True)
class Task:
    """Examples (x, y), queries and initial weights; with a leading axis for many tasks.

    `icgd.as_task` and `Compiled.task` create validated tasks.

    Attributes:
        x: the inputs of the examples.
        y: their labels.
        queries: the inputs of the queries.
        initial: the initial weights. For a kernel machine, they are the values of the function at
            all tokens.
        rates: the rates of the examples (..., n, 1), or None.
        input_names: the names of the columns of x, if x was a data frame.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> task = icgd.as_task(problem, [[0.5, 1.0]], [1.0], queries=[[0.0, 1.0], [1.0, 1.0]])
        >>> task.n_examples, task.n_queries, task.n_tokens
        (1, 2, 3)
    """

    x: Inputs
    y: Labels
    queries: Queries
    initial: Parameters
    rates: Rates | None = field(default=None, kw_only=True)
    input_names: tuple[str, ...] = field(default=(), kw_only=True)

    def facts(self) -> dict[str, str]:
        """Return a summary of the task, as shown in its repr and in notebooks.

        Returns:
            A text for each name.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.as_task(problem, [[0.5, 1.0]], [1.0]).facts()["examples"]
            '1 of 2 inputs, 1 label'
        """
        tasks = {"tasks": f"{self.batch[0]:,}"} if self.batch else {}
        inputs = counted(self.x.shape[-1], "input")
        names = {"inputs": in_short(self.input_names)} if self.input_names else {}
        return tasks | {
            "examples": f"{self.n_examples:,} of {inputs}, {counted(self.y.shape[-1], 'label')}",
            **names,
            **({} if self.rates is None else {"rates": "one for each example"}),
            "queries": f"{self.n_queries:,}",
            "initial": counted(self.initial.shape[-1], "number"),
            "dtype": dtype_name(self.x.dtype),
        }

    @property
    def n_examples(self) -> int:
        """The number of examples."""
        return self.x.shape[-2]

    @property
    def n_queries(self) -> int:
        """The number of queries."""
        return self.queries.shape[-2]

    @property
    def n_tokens(self) -> int:
        """The number of examples and queries."""
        return self.n_examples + self.n_queries

    @property
    def points(self) -> Points:
        """The inputs of examples and queries, in float64."""
        return torch.cat([self.x, self.queries], dim=-2).double()

    @property
    def batch(self) -> tuple[int, ...]:
        """() for one task, (n_tasks,) for a batch."""
        return tuple(self.x.shape[:-2])

    def double(self) -> Task:
        """Return the same task in float64.

        Returns:
            A task with the same numbers.

        Example:
            >>> import icgd
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> icgd.as_task(problem, [[0.5, 1.0]], [1.0], dtype="float32").double().x.dtype
            torch.float64
        """
        names = ("x", "y", "queries", "initial", "rates")
        tensors = {name: data for name in names if (data := getattr(self, name)) is not None}
        return replace(self, **{name: data.double() for name, data in tensors.items()})

    def of_batch(self, place: int | slice) -> Task:
        """Return one task of a batch, or a slice of the batch.

        Args:
            place: the index or the slice.

        Returns:
            A task without a leading axis, or a smaller batch.

        Raises:
            DataError: if this is one task, not a batch.
            SettingError: if the index is out of range.

        Example:
            >>> import icgd, torch
            >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
            >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
            >>> batch = icgd.as_task(problem, torch.ones(4, 3, 2), torch.ones(4, 3))
            >>> batch.of_batch(0).batch, batch.of_batch(slice(2)).batch
            ((), (2,))
        """
        if not self.batch:
            raise DataError("This is one task, not a batch. Use it without of_batch.")
        if not isinstance(place, slice):
            require_between("place", place, -len(self.x), len(self.x) - 1)
        rates = None if self.rates is None else self.rates[place]
        tensors = (self.x, self.y, self.queries, self.initial)
        return Task(*(tensor[place] for tensor in tensors), rates=rates)


DTYPES = {"float64": torch.float64, "float32": torch.float32}
NUMPY_DTYPES = (np.dtype(np.float64), np.dtype(np.float32))

FLOAT32_ROUNDING = 2.0**-22
"""Upper bound on the relative error of a conversion to float32 (2^-24), with a safety margin."""


@own_modes()
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
    """Validate data against the problem and convert them to a task of torch tensors.

    Args:
        problem: the problem.
        x: the inputs, (n, d_x) or (tasks, n, d_x). The task keeps the column names of a data
            frame; queries with column names must have the same in the same order.
        y: the labels, (n, d_y) or (tasks, n, d_y); the last axis may be absent if d_y = 1, or if y
            holds classes, counted from 0, for the cross_entropy loss.
        queries: inputs whose labels are predicted.
        initial: the initial weights of a network, or the initial coefficients of a linear model
            (default 0). A kernel machine starts from the function 0.
        seed: the seed of a network's random initial weights; it overrides initial weights of the
            problem. The default is these weights, or else the seed 0.
        dtype: "float64" or "float32".
        rates: a factor from 0 to `domain.rate` for the gradient of each example, if the domain has
            a rate; the default is 1.

    Returns:
        The task.

    Raises:
        DataError: if shapes, types or labels do not fit the problem, or if initial weights come
            with an impossible state of the optimiser.
        DomainError: if a value leaves the domain, or an initial weight the box.
        UnknownNameError: if no dtype has this name.
        SettingError: if both a seed and initial weights are given, if a kernel machine is given
            initial weights, or if rates are given and the domain has none.

    Example:
        >>> import icgd
        >>> network, step = icgd.MLP((2, 1)), icgd.GradientStep(0.1, box=1.0)
        >>> problem = icgd.Problem(network, "squared", step, icgd.Domain(x=1.0, y=1.0))
        >>> icgd.as_task(problem, [[0.5, 1.0], [1.0, 0.0]], [1.0, 0.5]).x.shape
        torch.Size([2, 2])
    """
    oracle, domain, kind = problem.oracle, problem.domain, dtype_named(dtype)
    seed = None if seed is None else count("seed", seed, least=0)
    columns, query_columns = column_names(x), column_names(queries)
    if columns and query_columns and columns != query_columns:
        raise DataError(
            f"queries has the columns {', '.join(query_columns)}, but X has {', '.join(columns)}. "
            "Give the same columns in the same order."
        )
    if (preprocessing := problem.preprocessing) is not None:
        width = problem.target.input_width
        x, queries = preprocessing.inputs(x, width), preprocessing.inputs(queries, width)
    x = checked_inputs(x, problem.target.input_width)
    expected = (*x.shape[:-1], problem.target.output_width)
    given = checked_array("y", y)
    y = oracle.labelled(given, expected)
    are_classes = y.shape != given.shape
    if tuple(y.shape) != expected and not (expected[-1] == 1 and y.shape == expected[:-1]):
        raise DataError(
            f"y has shape {tuple(y.shape)}; expected {expected}, a label for each row of X."
        )
    y = y.reshape(expected)
    oracle.require_labels(y)
    if queries is None:
        queries = x[..., :0, :]
    else:
        queries = checked_array("queries", queries)
        fits = queries.ndim == x.ndim and queries.shape[:-2] == x.shape[:-2]
        if not fits or queries.shape[-1] != x.shape[-1]:
            wanted = ", ".join(map(str, (*x.shape[:-2], "n_queries", x.shape[-1])))
            raise DataError(f"queries has shape {tuple(queries.shape)}; expected ({wanted}).")
    weights = oracle.initial(x, queries, given=initial, seed=seed)
    require_within("X", x, domain.x, "domain.x", columns)
    require_within("y", y, domain.y, "domain.y")
    require_within("queries", queries, domain.x, "domain.x", columns)
    rates = _rates(domain.rate, rates, x)
    if preprocessing is not None:
        batch = getattr(problem.update, "batch_size", None)
        x, y, rates = preprocessing.prompt(x, y, rates, are_classes=are_classes, batch=batch)
        if rates is not None:
            require_within("rates", rates[..., 0], domain.rate or 0.0, "domain.rate")
    oracle.require_start(weights, x.shape[-2], kind)
    device = x.device
    return Task(
        converted("X", x, device, kind, columns),
        converted("y", y, device, kind),
        converted("queries", queries, device, kind, columns),
        converted("initial", weights, device, kind),
        rates=None if rates is None else converted("rates", rates, device, kind),
        input_names=columns,
    )


def checked_task(problem: Problem, task: Task) -> Task:
    """Validate a task that may have been constructed directly, or for another problem."""
    checked = as_task(
        _without_preprocessing(problem),
        task.x,
        task.y,
        queries=task.queries if task.n_queries else None,
        initial=task.initial,
        dtype=task.x.dtype,
        rates=task.rates,
    )
    return replace(checked, input_names=task.input_names)


def drawn_task(problem: Problem, n_examples: int, *, seed: int) -> Task:
    """Draw inputs over the whole domain, and labels in [0, 1]; labels of classes sum to 1.

    Raise `SizeError` if the examples do not fit into memory.
    """
    target = problem.target
    n_entries = n_examples * (target.input_width + target.output_width)
    require_memory(f"{n_examples:,} examples", 8 * n_entries, "Give fewer examples.")
    generator = torch.Generator().manual_seed(count("seed", seed, least=0))
    x, y = (
        torch.rand((n_examples, width), generator=generator, dtype=torch.float64)
        for width in (target.input_width, target.output_width)
    )
    x, y = problem.domain.x * (2 * x - 1), y * min(1.0, problem.domain.y)
    if problem.loss == "cross_entropy":
        y = y / y.sum(-1, keepdim=True)
    return as_task(_without_preprocessing(problem), x, y, seed=seed)


def _without_preprocessing(problem: Problem) -> Problem:
    """Return the problem for data that are preprocessed already."""
    return replace(problem, preprocessing=None) if problem.preprocessing else problem


def _rates(largest: float | None, given: Any, x: Tensor) -> Tensor | None:
    """Validate rates and return them as a column, or None if the domain has no rate."""
    if largest is None:
        if given is not None:
            raise SettingError(
                "rates has no effect without Domain(rate=...); give both or neither."
            )
        return None
    expected = tuple(x.shape[:-1])
    rates = x.new_ones(expected) if given is None else checked_array("rates", given)
    if tuple(rates.shape) not in (expected, (*expected, 1)):
        raise DataError(
            f"rates has shape {tuple(rates.shape)}; expected {expected}, a rate for each row of X."
        )
    if index := first_set(rates < 0):
        raise DataError(
            f"rates{at(index)} is {rates[tuple(index)].item():.12g}; expected a number from 0 to "
            "domain.rate, the factor of the example's gradient."
        )
    require_within("rates", rates, largest, "domain.rate")
    return rates.reshape(*expected, 1)


def checked_inputs(data: Any, width: int) -> Tensor:
    """Validate the inputs X of one task or of a batch, with `width` columns."""
    x = checked_array("X", data)
    if x.ndim not in (2, 3) or x.shape[-1] != width:
        raise DataError(
            f"X has shape {tuple(x.shape)}; expected (n, {width}) or (tasks, n, {width})."
        )
    return x


def checked_array(name: str, data: Any) -> Tensor:
    """Copy `data` into a finite, non-empty tensor of float64 or float32."""
    array = as_numbers(name, data)
    if 0 in array.shape:
        raise DataError(
            f"{name} is empty: its shape is {tuple(array.shape)}. Give at least one row."
        )
    if not largest_size(array) < inf:
        index = (~torch.isfinite(array)).nonzero()[0].tolist()
        raise DataError(
            f"{name}{at(index, column_names(data))} is {array[tuple(index)].item()}; every entry "
            "must be finite. Drop or fill such rows first."
        )
    return array


def as_numbers(name: str, data: Any) -> Tensor:
    """Copy `data` into a tensor of float64 or float32; integers and bools become float64."""
    if isinstance(data, Tensor):
        numbers: Tensor = data.detach()
        if numbers.layout is not torch.strided or numbers.is_meta:
            raise DataError(
                f"{name} is a sparse or meta tensor; expected a dense tensor with data, such as "
                f"{name}.to_dense()."
            )
        dtype = dtype_name(numbers.dtype)
        if not (numbers.is_floating_point() or numbers.is_complex()):
            return numbers.double()
        if dtype in DTYPES:
            return numbers.clone()
    else:
        array = _as_array(name, data)
        if array.dtype in NUMPY_DTYPES:
            return torch.from_numpy(array.copy())  # torch does not accept negative strides
        dtype = array.dtype.name
        if array.dtype.kind in "Obiu":
            try:
                return torch.from_numpy(array.astype(np.float64))
            except OverflowError:  # a Python int of any size
                raise DataError(
                    f"{name} holds a number beyond the range of float64. Rescale the data."
                ) from None
        if dtype in DTYPES:
            return torch.from_numpy(array.astype(dtype))  # torch needs the native byte order
    raise DataError(
        f"{name} has dtype {dtype}; expected float64, float32, integers or bool. Convert it to one "
        "of them."
    )


def _as_array(name: str, data: Any) -> Any:
    """Return lists, arrays and data frames as a numpy array; raise at the first text or gap."""
    if np.ma.is_masked(data):  # np.asarray would return the masked values
        raise DataError(f"{name} has masked entries. Drop or fill them first.")
    columns = column_names(data)
    try:
        array = np.asarray(data)
    except TypeError:  # polars cannot convert a frame of dates and numbers
        if not columns:
            raise
        array = np.array([list(data[column]) for column in columns], object).T
    except ValueError:
        raise DataError(
            f"{name} is not a rectangular array of numbers (rows of different lengths). "
            "Every row must have the same length."
        ) from None
    if array.dtype.kind in "OUS":
        if isinstance(data, list | tuple):  # numpy converts numbers next to a string to strings
            array = np.array(data, object)
        for index, cell in np.ndenumerate(array):
            if not isinstance(cell, Real):
                where = at(index, columns) if index else ""
                if isinstance(cell, np.generic):
                    cell = cell.item()  # show 'a', not np.str_('a')
                raise DataError(
                    f"{name}{where} is {quoted(cell)}, which is not a number. Remove the column or "
                    "encode it as numbers; drop or fill missing values."
                )
    return array


def column_names(data: Any) -> tuple[str, ...]:
    """Return the column names of a data frame, or () unless they are distinct strings."""
    names = tuple(getattr(data, "columns", ()))
    is_named = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return names if is_named else ()


def first_set(flags: Tensor) -> list[int] | None:
    """Return the index of the first flag that is set, or None."""
    return flags.nonzero()[0].tolist() if flags.any() else None


def largest_size(array: Tensor) -> float:
    """Return the largest absolute value of an entry; NaN if one is NaN, 0 without entries."""
    if array.numel() == 0:
        return 0.0
    low, high = array.aminmax()  # one pass over memory
    return max(-low.item(), high.item())


def converted(
    name: str,
    array: Tensor,
    device: torch.device,
    dtype: torch.dtype,
    columns: Sequence[str] = (),
) -> Tensor:
    """Convert a finite `array` to `dtype`; raise if an entry overflows float32."""
    result = array.to(device=device, dtype=dtype)
    if result.dtype != array.dtype and not largest_size(result) < inf:
        index = (~torch.isfinite(result)).nonzero()[0].tolist()
        raise DataError(
            f"{name}{at(index, columns)} is {array[tuple(index)].item():.12g}, too large for "
            f"{dtype_name(dtype)}. Rescale the data, or run in float64."
        )
    return result


def require_within(
    name: str, array: Tensor, bound: float, setting: str, columns: Sequence[str] = ()
) -> None:
    """Raise `DomainError` if an entry exceeds `bound`, the value of `setting`."""
    # An entry equal to the bound may round up in the conversion to float32.
    slack = FLOAT32_ROUNDING * bound if array.dtype == torch.float32 else 0.0
    if not largest_size(array) <= bound + slack:
        index = (array.double().abs() > bound + slack).nonzero()[0].tolist()
        raise DomainError(
            f"{name}{at(index, columns)} is {array[tuple(index)].item():.12g}, outside "
            f"[-{bound:g}, {bound:g}]. Rescale the data or compile with a larger {setting}."
        )


def dtype_named(dtype: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype of a name or dtype of torch or numpy; float64 or float32."""
    return named("dtype", dtype_name(dtype), DTYPES)


def dtype_name(dtype: str | torch.dtype) -> str:
    """Return the name of a dtype of torch or numpy, such as "float64"."""
    return getattr(dtype, "__name__", str(dtype)).removeprefix("torch.")


def device_of(device: str | torch.device) -> torch.device:
    """Return the torch device of this name; raise if it is not available."""
    try:
        available = torch.device(device)
        torch.empty(0, device=available)
    except (RuntimeError, AssertionError, ValueError, NotImplementedError):  # all from torch
        raise SettingError(
            f"device is {quoted(device)}; expected an available device of torch, such as 'cpu'."
        ) from None
    return available
