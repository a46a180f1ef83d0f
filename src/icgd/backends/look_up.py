r"""Evaluate a program's functions by one table look-up, whatever their resolution.

Sums of ReLUs: all functions that are applied to the same argument share one division of the line
into cells, in each of which every one of them is straight: f(z) = slope[cell] * z +
intercept[cell]. Knots are multiples of a power of two, so the cell is found by one multiplication
and a truncation instead of a search; a search remains for cells too small to tabulate.

Softmax look-ups: what a head over a lattice returns is one fixed analytic function of its argument;
it is tabulated as polynomials of degree 4 on equal cells, with a proved error (`table_error`). So
are sums of many smooth units at one argument, of degree 10, to no more than their own rounding.
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
"""The largest table, 8 MiB in float64; beyond it the cell is found by a search among the knots."""

GATHERED_AT_ONCE = 2**15
"""Up to so many numbers of a table are gathered row by row, which needs one call; more are gathered
column by column, which needs less memory at a time."""

Call = Callable[[], object]


class Table:
    """Some functions of one argument: coefficients of polynomials in every cell of the line."""

    finder: Callable[[Tensor], _Cells]
    n_powers: int
    columns: Tensor
    rows: Tensor

    def __call__(self, argument: Values, number: int) -> Values:
        """Function `number` at every entry, in a new tensor."""
        cells, value = self.finder(argument), torch.empty_like(argument)
        cells.find()
        cells.evaluator(number, value)()
        return value


class _Cells(ABC):
    """The cells of an argument, and what the table holds for them.

    Polynomials are evaluated `at` the argument, or at its position within the cell.
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
        """Write the number of every entry's cell to `cell`."""

    def find(self) -> None:
        """Find the cells, and gather what the table holds for them."""
        self.locate()
        if self.rows is not None:
            torch.index_select(self.table.rows, 0, self.cell, out=self.rows)

    def evaluator(self, number: int, write: Tensor) -> Call:
        """Return what evaluates function `number` of the table by Horner's rule, once cells are
        found.
        """
        n_powers, at = self.table.n_powers, self.at
        first, last = number * n_powers, (number + 1) * n_powers - 1  # the constant comes first
        if (rows := self.rows) is not None:
            shape = self.argument.shape
            *lower, value = (rows[:, n].view(shape) for n in range(first, last + 1))
            steps = [partial(torch.addcmul, lower.pop(), value, at, out=write)]
            steps += [partial(torch.addcmul, c, write, at, out=write) for c in reversed(lower)]
        else:
            columns, part = self.table.columns, torch.empty_like(write)
            flat, flat_part = write.view(-1), part.view(-1)
            steps = [partial(torch.index_select, columns[last], 0, self.cell, out=flat)]
            for n in range(last - 1, first - 1, -1):
                steps.append(partial(torch.index_select, columns[n], 0, self.cell, out=flat_part))
                steps.append(partial(torch.addcmul, part, write, at, out=write))

        def evaluate() -> None:
            for step in steps:
                step()

        return evaluate


class EqualCells(_Cells):
    """Cells of equal width, of which a multiplication and a truncation find the right one."""

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
    """Knots of few bits: a number's exponent and its first bits tell its cell.

    As whole numbers, floats that are positive count on through all of them in order. Numbers below
    0 are taken as 0, because functions are level there.
    """

    def __init__(self, table: Table, shift: int, first: int, last: int, argument: Tensor) -> None:
        super().__init__(table, argument)
        self.at = self.position
        whole = torch.int64 if argument.dtype == torch.float64 else torch.int32
        self.cell = torch.empty(argument.numel(), dtype=whole, device=argument.device)
        self.bits, self.shift = self.flat.view(whole), shift
        self.first, self.last = first, last

    def locate(self) -> None:
        torch.clamp_min(self.argument, 0.0, out=self.position)
        torch.bitwise_right_shift(self.bits, self.shift, out=self.cell)
        self.cell.clamp_(self.first - 1, self.last).sub_(self.first - 1)


class CellsBySearch(_Cells):
    """Cells of any width, of which a search among the edges finds the right one."""

    def __init__(self, table: Table, edges: Tensor, argument: Tensor) -> None:
        super().__init__(table, argument)
        self.edges = edges

    def locate(self) -> None:
        source = self.argument.contiguous().view(-1)
        torch.bucketize(source, self.edges, out_int32=True, right=True, out=self.cell)


class PieceTable(Table):
    """Sums of ReLUs at one argument: the slope and the intercept of every function in every cell.

    The line is divided into cells in each of which all functions are straight. Knots are multiples
    of a power of two, so that a multiplication finds the cell; where that takes too many cells,
    the exponent of the argument and its first bits tell it, or a search does.
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
            own = torch.tensor(function.knots, dtype=torch.float64)
            piece = torch.searchsorted(own, starts, right=True)
            for numbers_of_pieces in (function.intercepts(), function.slopes):
                columns.append(torch.tensor(numbers_of_pieces, dtype=torch.float64)[piece])
        self.columns = torch.stack(columns).to(like)
        self.rows = self.columns.T.contiguous()


MOST_BITS = 12
"""The most bits of a knot besides the first for which cells are told by its exponent."""


def bits_of(knots: Sequence[float]) -> int | None:
    """Return how many bits after the first tell all knots, if they are few; knots are from 0 on."""
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
    """Return where the cells begin, the bits to shift by, and the first and last whole number."""
    whole = torch.int64 if dtype == torch.float64 else torch.int32
    shift = (52 if whole == torch.int64 else 23) - bits
    ends = torch.tensor([knots[-1], next(k for k in knots if k > 0)], dtype=dtype)
    last, first = (ends.view(whole) >> shift).tolist()
    numbers = torch.arange(first, last + 1, dtype=whole) << shift
    starts = numbers.view(dtype).double()
    return torch.cat([starts.new_tensor([0.0]), starts]), (shift, first, last)


DEGREE = 4
"""The degree of the polynomials in a table."""

TABLE_ACCURACY = 2.0**-40
"""The proved error of a table, relative to the largest value of a lattice point: 1e-12."""


class PolynomialTable(Table):
    """What heads over one lattice return, as polynomials on equal cells."""

    n_powers = DEGREE + 1

    def __init__(self, functions: Sequence[LatticeFunction], like: Tensor) -> None:
        end, n_cells = _cells_of(functions[0])
        last = n_cells * (1 - torch.finfo(like.dtype).eps)
        places = (n_cells / (2 * end), n_cells / 2, last)
        self.finder = partial(EqualCells, self, *places, at_position=True)
        self.columns = _polynomials(tuple(functions)).to(like)
        self.rows = self.columns.T.contiguous()


def _strip(function: LatticeFunction) -> float:
    """The head is analytic this far from the line, and at most `_largest` there."""
    return pi * function.ratio**2 * function.spacing / 2


def _largest(function: LatticeFunction) -> float:
    size = max(map(abs, function.values))
    return 4 * size * exp((_strip(function) / (function.ratio * function.spacing)) ** 2 / 2)


def _cells_of(function: LatticeFunction) -> tuple[float, int]:
    """Return the end of a table and the number of its cells, so that its error is small enough.

    A polynomial of degree n through n + 1 Chebyshev points of a cell of width d is off by at most
    4 M r^-n / (r - 1) with r = 4 strip / d, where M bounds the head in the strip.
    """
    end = function.reach * (1 + 2.0**-10)
    relative = 4 * _largest(function) / max(map(abs, function.values))
    ratio = (relative / TABLE_ACCURACY) ** (1 / (DEGREE + 1))
    return end, 2 ** ceil(log2(2 * end * (ratio + 1) / (4 * _strip(function))))


def table_error(function: LatticeFunction) -> float:
    """Return the proved distance between a table and what the head returns, for arguments of any
    size.
    """
    end, n_cells = _cells_of(function)
    ratio = 4 * _strip(function) * n_cells / (2 * end)
    inside = 4 * _largest(function) * ratio**-DEGREE / (ratio - 1)
    return inside + (2 * function.error if function.saturates else 0.0)


@lru_cache(maxsize=64)  # up to a megabyte for each function
def _polynomials(functions: tuple[LatticeFunction, ...]) -> Tensor:
    lattice = lattice_of(functions[0])  # of all functions, so that they have the same weights
    values = torch.tensor([function.values for function in functions], dtype=torch.float64).T
    end, n_cells = _cells_of(functions[0])
    return _interpolated(lambda s: lattice.weights(s) @ values, end, n_cells, DEGREE, at_once=1024)


def _interpolated(
    function: Callable[[Tensor], Tensor], end: float, n_cells: int, degree: int, at_once: int = 64
) -> Tensor:
    """Return the coefficients in the position within a cell, a row for each power of each value.

    The function adds an axis, for its values at an argument.
    """
    nodes = (1 + chebyshev_points(degree + 1)) / 2
    starts = torch.arange(n_cells, dtype=torch.float64)[:, None]
    arguments = (starts + nodes) * (2 * end / n_cells) - end
    values = torch.cat([function(part) for part in arguments.split(at_once)])
    powers = nodes[:, None] ** torch.arange(degree + 1, dtype=torch.float64)
    coefficients: Tensor = torch.linalg.solve(powers, values.permute(2, 1, 0)).flatten(0, 1)
    return coefficients.contiguous()


UNIT_DEGREE = 10
"""The degree of the polynomials that stand for a sum of units."""

FEWEST_TABULATED, MOST_UNIT_CELLS = 64, 2**14
"""Sums of fewer units are not tabulated, nor those that need more cells."""


class UnitTable(Table):
    """A sum of smooth units at one argument from -end to end, as polynomials on equal cells.

    It is as good as the sum itself. With S the sum of |coefficient| (1 + |offset|), a sum in pairs
    rounds each sample by less than 16 u S, which interpolation takes up to 2.5 times, and adds u S
    itself; Horner's rule rounds by some 30 u S. The bound on the rounding of so many units, one
    after the other, is larger.
    """

    n_powers = UNIT_DEGREE + 1

    def __init__(self, fit: RidgeSum, end: float, n_cells: int, like: Tensor) -> None:
        last = n_cells * (1 - torch.finfo(like.dtype).eps)
        places = (n_cells / (2 * end), n_cells / 2, last)
        self.finder = partial(EqualCells, self, *places, at_position=True)
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
    """Return the number of cells in which polynomials are off by no more than units round, if few
    do.

    The error of a unit is that in `_cells_of`, with its strip and its size there.
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
