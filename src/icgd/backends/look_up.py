r"""A program's functions are evaluated by one table look-up, whatever their resolution.

Sums of ReLUs: all functions that are applied to the same argument share one division of the line
into cells, in each of which every one of them is straight: f(z) = slope[cell] * z +
intercept[cell]. Knots are multiples of a power of two, so the cell is found by one multiplication
and a truncation instead of a search; a search remains for cells too small to tabulate.

Softmax look-ups: what a head over a lattice returns is one fixed analytic function of its argument;
it is tabulated as polynomials of degree 4 on equal cells, with a proved error (`table_error`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil, exp, frexp, log2, pi

import torch
from torch import Tensor

from icgd.approximation.lattice import chebyshev_points, head
from icgd.errors import ProgramError
from icgd.program.functions import Function, LatticeFunction, ReluSum
from icgd.shapes import Values

MOST_CELLS = 2**20
"""The largest table, 8 MiB in float64; beyond it the cell is found by a search among the knots."""

Operation = Callable[[], object]
"""A closure that performs one instruction on buffers that are allocated once."""


class Evaluation:
    """Some functions at one argument: what is prepared once, and an operation for each function."""

    def __init__(self, functions: Sequence[Function], argument: Tensor) -> None:
        self.argument = argument
        sums = [function for function in functions if isinstance(function, ReluSum)]
        self._looked_up = [function for function in sums if not is_simple(function)]
        self._cells = Cells(self._looked_up, argument) if self._looked_up else None
        heads = [function for function in functions if isinstance(function, LatticeFunction)]
        self._table = Table(heads, argument) if heads else None

    def prepare(self) -> None:
        """Find the cells of the argument, if any function is looked up."""
        if self._cells:
            self._cells.find()
        if self._table:
            self._table.find()

    def operation(self, function: Function, write: Tensor) -> Operation:
        """The operation write = function(argument), once the argument is prepared."""
        if isinstance(function, LatticeFunction):
            return self._table.evaluate(function, write) if self._table else _unprepared
        if not isinstance(function, ReluSum):
            return _unprepared
        if self._cells and function in self._looked_up:
            return self._cells.evaluate(function, write)
        return simple_operation(function, self.argument, write)


def _unprepared() -> None:
    """A function that was not named beforehand has no table."""
    raise ProgramError.broken("look-up", "was not prepared for this argument")


class Cells:
    """The common division of the line for some functions, and the cell of every argument."""

    def __init__(self, functions: Sequence[ReluSum], argument: Tensor) -> None:
        self.argument = argument
        self.cell = torch.empty(argument.numel(), dtype=torch.int32, device=argument.device)
        knots = sorted({knot for function in functions for knot in function.knots})
        width = min(function.knot_unit for function in functions)
        n_cells = round((knots[-1] - knots[0]) / width) + 2
        is_level = all(function.slopes[0] == 0.0 for function in functions)
        bits = bits_of(knots) if is_level else None
        if n_cells <= MOST_CELLS:
            self.starts = knots[0] + width * torch.arange(-1, n_cells - 1, dtype=torch.float64)
            self.find = self._by_position(width, knots[0], n_cells)
        elif bits is not None:
            self.starts, self.find = self._by_exponent(knots, bits)
        else:
            self.starts = torch.tensor([knots[0] - 1.0, *knots], dtype=torch.float64)
            self.find = self._by_search(knots)

    def _by_position(self, width: float, low: float, n_cells: int) -> Operation:
        argument, cell = self.argument, self.cell
        position = torch.empty_like(argument)
        flat, first = position.view(-1), 1.0 - low / width

        def find() -> None:
            torch.mul(argument, 1.0 / width, out=position).add_(first).clamp_(0, n_cells - 1)
            cell.copy_(flat)

        return find

    def _by_exponent(self, knots: list[float], bits: int) -> tuple[Tensor, Operation]:
        """Knots of few bits: a number's exponent and its first bits tell its cell.

        As whole numbers, floats that are positive count on through all of them in order. Numbers
        below 0 are taken as 0.
        """
        argument = self.argument
        whole = torch.int64 if argument.dtype == torch.float64 else torch.int32
        shift = (52 if whole == torch.int64 else 23) - bits
        ends = torch.tensor([knots[-1], next(k for k in knots if k > 0)], dtype=argument.dtype)
        last, first = (ends.view(whole) >> shift).tolist()
        numbers = torch.arange(first, last + 1, dtype=whole) << shift
        starts = numbers.view(argument.dtype).double()
        below = starts.new_tensor([0.0])
        positive, position = torch.empty_like(argument), torch.empty_like(argument, dtype=whole)
        self.cell, self.argument = position.view(-1), positive  # a function is level below 0

        def find() -> None:
            torch.clamp_min(argument, 0.0, out=positive)
            torch.bitwise_right_shift(positive.view(whole), shift, out=position)
            position.clamp_(first - 1, last).sub_(first - 1)

        return torch.cat([below, starts]), find

    def _by_search(self, knots: list[float]) -> Operation:
        argument, cell = self.argument.view(-1), self.cell
        edges = argument.new_tensor(knots)

        def find() -> None:
            torch.bucketize(argument, edges, out_int32=True, right=True, out=cell)

        return find

    def evaluate(self, function: ReluSum, write: Tensor) -> Operation:
        """The operation write = function(argument), once the cells are found."""
        knots = torch.tensor(function.knots, dtype=torch.float64)
        piece = torch.searchsorted(knots, self.starts, right=True)
        slope = torch.tensor(function.slopes, dtype=torch.float64)[piece].to(write)
        intercept = torch.tensor(function.intercepts(), dtype=torch.float64)[piece].to(write)
        slopes = torch.empty_like(write)
        flat_slopes = slopes.view(-1)
        argument, cell, flat = self.argument, self.cell, write.view(-1)

        def evaluate() -> None:
            torch.index_select(slope, 0, cell, out=flat_slopes)
            torch.index_select(intercept, 0, cell, out=flat)
            write.addcmul_(slopes, argument)

        return evaluate


MOST_BITS = 12
"""The most bits of a knot besides the first for which cells are told by its exponent."""


def bits_of(knots: Sequence[float]) -> int | None:
    """How many bits after the first tell all knots, if they are few; knots are from 0 on."""
    if knots[0] < 0 or len(knots) < 2:
        return None
    most = 0
    for knot in knots:
        while most <= MOST_BITS and not (frexp(knot)[0] * 2 ** (most + 1)).is_integer():
            most += 1
    smallest = next(knot for knot in knots if knot > 0)
    n_octaves = frexp(knots[-1])[1] - frexp(smallest)[1] + 1
    return most if most <= MOST_BITS and n_octaves * 2**most <= MOST_CELLS else None


DEGREE = 4
"""The degree of the polynomials in a table."""

TABLE_ACCURACY = 2.0**-40
"""The proved error of a table, relative to the largest value of a lattice point: 1e-12."""


class Table:
    """What some heads return, all on the same lattice, as polynomials on equal cells."""

    def __init__(self, functions: Sequence[LatticeFunction], argument: Tensor) -> None:
        self.argument = argument
        self.cell = torch.empty(argument.numel(), dtype=torch.int32, device=argument.device)
        self.position = torch.empty_like(argument)
        end, n_cells = _cells_of(functions[0])
        self.find = self._finder(end, n_cells)

    def _finder(self, end: float, n_cells: int) -> Operation:
        argument, position, cell = self.argument, self.position, self.cell
        flat, per_unit = position.view(-1), n_cells / (2 * end)
        last = n_cells * (1 - torch.finfo(argument.dtype).eps)

        def find() -> None:
            torch.mul(argument, per_unit, out=position).add_(n_cells / 2).clamp_(0.0, last)
            cell.copy_(flat)
            position.frac_()

        return find

    def evaluate(self, function: LatticeFunction, write: Tensor) -> Operation:
        """The operation write = function(argument) by Horner's rule, once the cells are found."""
        columns = _polynomials(function).to(write).unbind()
        part = torch.empty_like(write)
        cell, position = self.cell, self.position
        flat, flat_part = write.view(-1), part.view(-1)

        def evaluate() -> None:
            torch.index_select(columns[-1], 0, cell, out=flat)
            for column in columns[-2::-1]:
                torch.index_select(column, 0, cell, out=flat_part)
                torch.addcmul(part, write, position, out=write)

        return evaluate


class HeadTable:
    """What one head returns, read from its table into a new tensor each time."""

    def __init__(self, function: LatticeFunction, like: Tensor) -> None:
        end, n_cells = _cells_of(function)
        self._per_unit, self._middle = n_cells / (2 * end), n_cells / 2
        self._last = n_cells * (1 - torch.finfo(like.dtype).eps)
        self._rows = _polynomials(function).T.contiguous().to(like)

    def __call__(self, argument: Values) -> Values:
        """The function at every entry, by Horner's rule."""
        position = argument.mul(self._per_unit).add_(self._middle).clamp_(0.0, self._last)
        rows = self._rows.index_select(0, position.flatten().int())
        *lower, value = rows.view(*argument.shape, DEGREE + 1).unbind(-1)
        position.frac_()
        for column in reversed(lower):
            value = torch.addcmul(column, value, position)
        return value


def _strip(function: LatticeFunction) -> float:
    """The head is analytic this far from the line, and at most `_largest` there."""
    return pi * function.ratio**2 * function.spacing / 2


def _largest(function: LatticeFunction) -> float:
    size = max(map(abs, function.values))
    return 4 * size * exp((_strip(function) / (function.ratio * function.spacing)) ** 2 / 2)


def _cells_of(function: LatticeFunction) -> tuple[float, int]:
    """The end of a table and the number of its cells, so that its error is small enough.

    A polynomial of degree n through n + 1 Chebyshev points of a cell of width d is off by at most
    4 M r^-n / (r - 1) with r = 4 strip / d, where M bounds the head in the strip.
    """
    end = function.reach * (1 + 2.0**-10)
    relative = 4 * _largest(function) / max(map(abs, function.values))
    ratio = (relative / TABLE_ACCURACY) ** (1 / (DEGREE + 1))
    return end, 2 ** ceil(log2(2 * end * (ratio + 1) / (4 * _strip(function))))


def table_error(function: LatticeFunction) -> float:
    """The proved distance between a table and what the head returns, for arguments of any size."""
    end, n_cells = _cells_of(function)
    ratio = 4 * _strip(function) * n_cells / (2 * end)
    inside = 4 * _largest(function) * ratio**-DEGREE / (ratio - 1)
    return inside + (2 * function.error if function.saturates else 0.0)


@lru_cache(maxsize=64)  # up to a megabyte each
def _polynomials(function: LatticeFunction) -> Tensor:
    """The coefficients in the position within a cell, a row for each power."""
    end, n_cells = _cells_of(function)
    nodes = (1 + chebyshev_points(DEGREE + 1)) / 2
    starts = torch.arange(n_cells, dtype=torch.float64)[:, None]
    arguments = (starts + nodes) * (2 * end / n_cells) - end
    values = torch.cat([head(function, part) for part in arguments.split(1024)])
    powers = nodes[:, None] ** torch.arange(DEGREE + 1, dtype=torch.float64)
    coefficients: Tensor = torch.linalg.solve(powers, values.T)
    return coefficients.contiguous()


def is_simple(function: ReluSum) -> bool:
    """Whether a function needs no table: a straight line, a kink at 0, or a single ramp."""
    return _is_line(function) or _is_kink(function) or _is_ramp(function)


def _is_line(function: ReluSum) -> bool:
    return not function.knots


def _is_kink(function: ReluSum) -> bool:
    left, right = function.slopes[0], function.slopes[-1]
    through_origin = function.anchor == function.anchor_value == 0.0
    return function.knots == (0.0,) and through_origin and left < right == 1.0


def _is_ramp(function: ReluSum) -> bool:
    return len(function.knots) == 2 and function.slopes[0] == function.slopes[2] == 0.0


def simple_operation(function: ReluSum, argument: Tensor, write: Tensor) -> Operation:
    """The operation of a function that needs no table."""
    if _is_line(function):
        return _line(function.slopes[0], function.intercepts()[0], argument, write)
    if _is_kink(function):
        return _kink(function.slopes[0], argument, write)
    return _ramp(function, argument, write)


def _line(slope: float, intercept: float, argument: Tensor, write: Tensor) -> Operation:
    def constant() -> None:
        write.fill_(intercept)

    def line() -> None:
        torch.mul(argument, slope, out=write)
        if intercept:
            write.add_(intercept)

    return line if slope else constant


def _kink(left: float, argument: Tensor, write: Tensor) -> Operation:
    def relu() -> None:
        torch.clamp_min(argument, 0.0, out=write)

    def leaky() -> None:  # left < 1
        torch.mul(argument, left, out=write)
        torch.maximum(argument, write, out=write)

    return leaky if left else relu


def _ramp(function: ReluSum, argument: Tensor, write: Tensor) -> Operation:
    start, end = function.knots
    slope, foot = function.slopes[1], function(start)
    low, high = sorted((0.0, slope * (end - start)))

    def ramp() -> None:
        torch.mul(argument, slope, out=write)
        if start:
            write.sub_(slope * start)
        write.clamp_(low, high)
        if foot:
            write.add_(foot)

    return ramp
