r"""Evaluate a program's functions by table look-up, in time independent of their resolution.

Sums of ReLUs: functions of the same argument share one partition of the line into cells on which
all of them are linear: f(z) = slope[cell] * z + intercept[cell]. Knots are multiples of a power of
two, so one multiplication and a truncation find the cell; only partitions too fine for a table need
a binary search.

Softmax look-ups: the output of a head over a lattice is a fixed analytic function of its argument,
tabulated as polynomials of degree 4 on equal cells with a proved error (`table_error`). Sums of
many smooth units of one argument are tabulated in degree 10, to within their own rounding error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import ceil, exp, frexp, inf, log2, pi

import torch
from torch import Tensor

from icgd.approximation.lattice import chebyshev_points, lattice_of
from icgd.problems.functions import unit_activation_named
from icgd.program.functions import LatticeFunction, ReluSum, RidgeSum
from icgd.shapes import Values

MOST_CELLS = 2**20
"""The most cells of a table, 8 MiB in float64; finer partitions need a search."""

GATHERED_AT_ONCE = 2**15
"""The most table entries gathered by rows, in one call; larger gathers go column by column, to
limit the memory in use."""

Call = Callable[[], object]


class Table:
    """Functions of one argument, as the coefficients of a polynomial per cell."""

    finder: Callable[[Tensor], _Cells]
    n_powers: int
    columns: Tensor
    rows: Tensor

    def __call__(self, argument: Values, number: int) -> Values:
        """Return function `number` at every entry, in a new tensor."""
        cells, value = self.finder(argument), torch.empty_like(argument)
        cells.find()
        cells.evaluator(number, value)()
        return value


class _Cells(ABC):
    """The cells of an argument, and their rows of the table.

    Polynomials are evaluated at `at`: the argument, or its position within the cell.
    """

    def __init__(self, table: Table, argument: Tensor) -> None:
        self.table, self.argument, self.at = table, argument, argument
        self.cell = torch.empty(argument.numel(), dtype=torch.int32, device=argument.device)
        self.position = torch.empty_like(argument, memory_format=torch.contiguous_format)
        self.flat = self.position.view(-1)
        self.rows: Tensor | None = None
        if argument.numel() * table.rows.shape[1] <= GATHERED_AT_ONCE:
            self.rows = argument.new_empty(argument.numel(), table.rows.shape[1])

    @abstractmethod
    def locate(self) -> None:
        """Write the cell number of every entry to `cell`."""

    def find(self) -> None:
        """Find the cells, and gather their rows of the table."""
        self.locate()
        if self.rows is not None:
            torch.index_select(self.table.rows, 0, self.cell, out=self.rows)

    def evaluator(self, number: int, write: Tensor) -> Call:
        """Return a call that evaluates function `number` by Horner's rule after `find`."""
        n_powers, at = self.table.n_powers, self.at
        first, last = number * n_powers, (number + 1) * n_powers - 1  # the constant comes first
        if (rows := self.rows) is not None:
            shape = self.argument.shape
            *lower, value = (rows[:, n].view(shape) for n in range(first, last + 1))
            steps = [partial(torch.addcmul, lower.pop(), value, at, out=write)]
            steps += [partial(torch.addcmul, c, write, at, out=write) for c in reversed(lower)]
        else:
            columns, coefficient = self.table.columns, torch.empty_like(write)
            flat, flat_coefficient = write.view(-1), coefficient.view(-1)
            steps = [partial(torch.index_select, columns[last], 0, self.cell, out=flat)]
            for n in range(last - 1, first - 1, -1):
                gather = partial(torch.index_select, columns[n], 0, self.cell)
                steps.append(partial(gather, out=flat_coefficient))
                steps.append(partial(torch.addcmul, coefficient, write, at, out=write))

        def evaluate() -> None:
            for step in steps:
                step()

        return evaluate


class EqualCells(_Cells):
    """Cells of equal width, found by a multiplication and a truncation."""

    def __init__(
        self,
        table: Table,
        per_unit: float,
        first: float,
        last: float,
        argument: Tensor,
        *,
        at_position: bool = False,
    ) -> None:
        super().__init__(table, argument)
        self.per_unit, self.first, self.last = per_unit, first, last
        self.at_position = at_position
        if at_position:
            self.at = self.position

    def locate(self) -> None:
        torch.mul(self.argument, self.per_unit, out=self.position)
        self.position.add_(self.first).clamp_(0, self.last)
        self.cell.copy_(self.flat)
        if self.at_position:
            self.position.frac_()


class CellsByExponent(_Cells):
    """Cells between knots with few significant bits, found from the leading bits of the argument.

    The bit patterns of positive floats, read as integers, are in the order of the floats; a shift
    drops the bits that no knot uses. Negative arguments are clamped to 0, where functions are
    constant.
    """

    def __init__(self, table: Table, shift: int, first: int, last: int, argument: Tensor) -> None:
        super().__init__(table, argument)
        self.at = self.position
        integer = torch.int64 if argument.dtype == torch.float64 else torch.int32
        self.cell = torch.empty(argument.numel(), dtype=integer, device=argument.device)
        self.bits, self.shift = self.flat.view(integer), shift
        self.first, self.last = first, last

    def locate(self) -> None:
        torch.clamp_min(self.argument, 0.0, out=self.position)
        torch.bitwise_right_shift(self.bits, self.shift, out=self.cell)
        self.cell.clamp_(self.first - 1, self.last).sub_(self.first - 1)


class CellsBySearch(_Cells):
    """Cells of any width, found by a binary search among their edges."""

    def __init__(self, table: Table, edges: Tensor, argument: Tensor) -> None:
        super().__init__(table, argument)
        self.edges = edges

    def locate(self) -> None:
        source = self.argument.contiguous().view(-1)
        torch.bucketize(source, self.edges, out_int32=True, right=True, out=self.cell)


class PieceTable(Table):
    """Sums of ReLUs of one argument: the slope and intercept of every function in every cell.

    Every function is linear on every cell. Cells are equal if that takes at most `MOST_CELLS`, else
    found from the exponent and leading bits of the argument if the knots allow, else by search.
    """

    n_powers = 2

    def __init__(self, functions: Sequence[ReluSum], like: Tensor) -> None:
        knots = sorted({knot for function in functions for knot in function.knots})
        width = min(function.knot_unit for function in functions)
        n_cells = round((knots[-1] - knots[0]) / width) + 2
        is_level = all(function.slopes[0] == 0.0 for function in functions)
        bits = bits_of(knots) if is_level and n_cells > MOST_CELLS else None
        if n_cells <= MOST_CELLS:
            starts = knots[0] + width * torch.arange(-1, n_cells - 1, dtype=torch.float64)
            first, last = 1.0 - knots[0] / width, n_cells - 1.0
            self.finder = partial(EqualCells, self, 1.0 / width, first, last)
        elif bits is not None:
            starts, numbers = _starts_by_exponent(knots, bits, like.dtype)
            self.finder = partial(CellsByExponent, self, *numbers)
        else:
            starts = torch.tensor([knots[0] - 1.0, *knots], dtype=torch.float64)
            self.finder = partial(CellsBySearch, self, like.new_tensor(knots))
        columns = []
        for function in functions:
            function_knots = torch.tensor(function.knots, dtype=torch.float64)
            piece = torch.searchsorted(function_knots, starts, right=True)
            for coefficients in (function.intercepts(), function.slopes):
                columns.append(torch.tensor(coefficients, dtype=torch.float64)[piece])
        self.columns = torch.stack(columns).to(like)
        self.rows = self.columns.T.contiguous()


MOST_BITS = 12
"""The most significant bits after the leading one that knots of `CellsByExponent` may have."""


def bits_of(knots: Sequence[float]) -> int | None:
    """Return how many bits after the leading one represent all knots, or None if cells cannot be
    found by them.
    """
    if knots[0] < 0 or len(knots) < 2:
        return None
    most = 0
    for knot in knots:
        while most <= MOST_BITS and not (frexp(knot)[0] * 2 ** (most + 1)).is_integer():
            most += 1
    smallest = next(knot for knot in knots if knot > 0)
    n_octaves = frexp(knots[-1])[1] - frexp(smallest)[1] + 1
    return most if most <= MOST_BITS and n_octaves * 2**most <= MOST_CELLS else None


def _starts_by_exponent(
    knots: list[float], bits: int, dtype: torch.dtype
) -> tuple[Tensor, tuple[int, int, int]]:
    """Return the starts of the cells, the shift, and the first and last shifted bit pattern."""
    integer = torch.int64 if dtype == torch.float64 else torch.int32
    shift = (52 if integer == torch.int64 else 23) - bits
    extreme_knots = torch.tensor([knots[-1], next(k for k in knots if k > 0)], dtype=dtype)
    last, first = (extreme_knots.view(integer) >> shift).tolist()
    patterns = torch.arange(first, last + 1, dtype=integer) << shift
    starts = patterns.view(dtype).double()
    return torch.cat([starts.new_tensor([0.0]), starts]), (shift, first, last)


DEGREE = 4
"""The degree of the polynomials that tabulate softmax look-ups."""

TABLE_ACCURACY = 2.0**-40
"""The proved error of a table, relative to the largest value of a lattice point: 1e-12."""


class PolynomialTable(Table):
    """The outputs of heads over one lattice, as polynomials on equal cells."""

    n_powers = DEGREE + 1

    def __init__(self, functions: Sequence[LatticeFunction], like: Tensor) -> None:
        end, n_cells = _cells_of(functions[0])
        last = n_cells * (1 - torch.finfo(like.dtype).eps)
        cells_per_unit, zero = n_cells / (2 * end), n_cells / 2
        self.finder = partial(EqualCells, self, cells_per_unit, zero, last, at_position=True)
        self.columns = _polynomials(tuple(functions)).to(like)
        self.rows = self.columns.T.contiguous()


def _strip(function: LatticeFunction) -> float:
    """Return the half-width of a strip around the real line where the output is analytic."""
    return pi * function.ratio**2 * function.spacing / 2


def _largest(function: LatticeFunction) -> float:
    """Return a bound on the modulus of the output in the strip."""
    size = max(map(abs, function.values))
    return 4 * size * exp((_strip(function) / (function.ratio * function.spacing)) ** 2 / 2)


def _cells_of(function: LatticeFunction) -> tuple[float, int]:
    """Return the end of the table and the number of cells that `TABLE_ACCURACY` requires.

    Interpolation in n + 1 Chebyshev points of a cell of width d has error at most
    4 M r^-n / (r - 1) with r = 4 strip / d, where M bounds the output in the strip.
    """
    end = function.reach * (1 + 2.0**-10)
    relative = 4 * _largest(function) / max(map(abs, function.values))
    ratio = (relative / TABLE_ACCURACY) ** (1 / (DEGREE + 1))
    return end, 2 ** ceil(log2(2 * end * (ratio + 1) / (4 * _strip(function))))


def table_error(function: LatticeFunction) -> float:
    """Return a proved bound on the error of the table of a head, for arguments of any size."""
    end, n_cells = _cells_of(function)
    ratio = 4 * _strip(function) * n_cells / (2 * end)
    inside = 4 * _largest(function) * ratio**-DEGREE / (ratio - 1)
    return inside + (2 * function.error if function.saturates else 0.0)


@lru_cache(maxsize=64)  # up to a megabyte for each function
def _polynomials(functions: tuple[LatticeFunction, ...]) -> Tensor:
    lattice = lattice_of(functions[0])  # shared by all functions, and so are its softmax weights
    values = torch.tensor([function.values for function in functions], dtype=torch.float64).T
    end, n_cells = _cells_of(functions[0])
    return _interpolated(lambda s: lattice.weights(s) @ values, end, n_cells, DEGREE, at_once=1024)


def _interpolated(
    function: Callable[[Tensor], Tensor], end: float, n_cells: int, degree: int, at_once: int = 64
) -> Tensor:
    """Interpolate in every cell; return coefficients with a row for each power of each function.

    Powers are of the position within the cell, from 0 to 1. `function` returns its values at an
    argument along a new last axis.
    """
    nodes = (1 + chebyshev_points(degree + 1)) / 2
    starts = torch.arange(n_cells, dtype=torch.float64)[:, None]
    arguments = (starts + nodes) * (2 * end / n_cells) - end
    values = torch.cat([function(chunk) for chunk in arguments.split(at_once)])
    powers = nodes[:, None] ** torch.arange(degree + 1, dtype=torch.float64)
    coefficients: Tensor = torch.linalg.solve(powers, values.permute(2, 1, 0)).flatten(0, 1)
    return coefficients.contiguous()


UNIT_DEGREE = 10
"""The degree of the polynomials that tabulate sums of units."""

FEWEST_TABULATED, MOST_UNIT_CELLS = 64, 2**14
"""Sums of fewer units, or that would need more cells, are not tabulated."""


class UnitTable(Table):
    """A sum of smooth units of one argument in [-end, end], as polynomials on equal cells.

    Its error stays below the bound for summing the units one after the other. With S the sum of
    |coefficient| (1 + |offset|) and u the unit roundoff, pairwise summation rounds a sample by less
    than 16 u S, which interpolation amplifies at most 2.5 times; interpolation itself errs by u S,
    and Horner's rule by about 30 u S.
    """

    n_powers = UNIT_DEGREE + 1

    def __init__(self, fit: RidgeSum, end: float, n_cells: int, like: Tensor) -> None:
        last = n_cells * (1 - torch.finfo(like.dtype).eps)
        cells_per_unit, zero = n_cells / (2 * end), n_cells / 2
        self.finder = partial(EqualCells, self, cells_per_unit, zero, last, at_position=True)
        # Pad with zero units to a power of two, for pairwise summation.
        activation, n_units = unit_activation_named(fit.activation), 2 ** ceil(log2(fit.n_units))
        rows = [(*unit.direction, unit.offset, unit.coefficient) for unit in fit.units]
        rows += [(0.0, 0.0, 0.0)] * (n_units - fit.n_units)
        slopes, offsets, coefficients = torch.tensor(rows, dtype=torch.float64).T

        def summed(arguments: Tensor) -> Tensor:
            terms: Tensor = coefficients * activation(arguments.unsqueeze(-1) * slopes + offsets)
            while terms.shape[-1] > 1:
                left, right = terms.chunk(2, dim=-1)
                terms = left + right
            return terms

        self.columns = _interpolated(summed, end, n_cells, UNIT_DEGREE).to(like)
        self.rows = self.columns.T.contiguous()


def unit_cells(fit: RidgeSum, end: float) -> int | None:
    """Return how many cells interpolate the sum to within its rounding error u S, or None.

    None means that a table does not pay: kinked or few units, or too many cells. The error of each
    unit is bounded as in `_cells_of`, with the strip and the bound of its activation.
    """
    activation = unit_activation_named(fit.activation)
    if activation.kinked or fit.n_units < FEWEST_TABULATED:
        return None
    height, size = activation.strip.height, activation.strip.size
    allowed = 2.0**-53 * sum(abs(unit.coefficient) * (1 + abs(unit.offset)) for unit in fit.units)
    n_cells = 2**6
    while n_cells <= MOST_UNIT_CELLS:
        error = 0.0
        for unit in fit.units:
            steepness = abs(unit.direction[0])
            ratio = 4 * height * n_cells / (2 * end * steepness) if steepness else inf
            largest = abs(unit.coefficient) * size(steepness * end + height + abs(unit.offset))
            error += 4 * largest * ratio**-UNIT_DEGREE / (ratio - 1) if ratio > 1 else inf
        if error <= allowed:
            return n_cells
        n_cells *= 2
    return None
