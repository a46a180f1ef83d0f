r"""Evaluating piecewise-linear functions fast: one table look-up, whatever the number of pieces.

All functions that are applied to the same argument share one division of the line into cells,
in each of which every one of them is straight: f(z) = slope[cell] * z + intercept[cell]. Knots
are multiples of a power of two, so the cell is found by one multiplication and a truncation
instead of a search; a search remains for grids too fine to tabulate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from icgd.program.functions import ReluSum

MOST_CELLS = 2**20
"""Largest table, 8 MiB in float64; beyond it the cell is found by a search among the knots."""

Kernel = Callable[[], object]


class Evaluation:
    """Some functions at one argument: what is prepared once, and a kernel for each function."""

    def __init__(self, functions: Sequence[ReluSum], argument: Tensor) -> None:
        self.argument = argument
        self._looked_up = [function for function in functions if not is_simple(function)]
        self._cells = Cells(self._looked_up, argument) if self._looked_up else None

    def prepare(self) -> None:
        """Find the cells of the argument, if any function is looked up."""
        if self._cells:
            self._cells.find()

    def kernel(self, function: ReluSum, write: Tensor) -> Kernel:
        """Kernel: write = function(argument), once the argument is prepared."""
        if self._cells and function in self._looked_up:
            return self._cells.evaluate(function, write)
        return simple_kernel(function, self.argument, write)


class Cells:
    """The common division of the line for some functions, and the cell of every argument."""

    def __init__(self, functions: Sequence[ReluSum], argument: Tensor) -> None:
        self.argument = argument
        self.cell = torch.empty(argument.numel(), dtype=torch.int32, device=argument.device)
        knots = sorted({knot for function in functions for knot in function.knots})
        grid = min(function.grid for function in functions)
        n_cells = round((knots[-1] - knots[0]) / grid) + 2
        if n_cells <= MOST_CELLS:
            self.starts = knots[0] + grid * torch.arange(-1, n_cells - 1, dtype=torch.float64)
            self.find = self._by_grid(grid, knots[0], n_cells)
        else:
            self.starts = torch.tensor([knots[0] - 1.0, *knots], dtype=torch.float64)
            self.find = self._by_search(knots)

    def _by_grid(self, grid: float, low: float, n_cells: int) -> Kernel:
        argument, cell = self.argument, self.cell
        position = torch.empty_like(argument)
        flat, first = position.view(-1), 1.0 - low / grid

        def find() -> None:
            torch.mul(argument, 1.0 / grid, out=position).add_(first).clamp_(0, n_cells - 1)
            cell.copy_(flat)

        return find

    def _by_search(self, knots: list[float]) -> Kernel:
        argument, cell = self.argument.view(-1), self.cell
        edges = argument.new_tensor(knots)

        def find() -> None:
            torch.bucketize(argument, edges, out_int32=True, right=True, out=cell)

        return find

    def evaluate(self, function: ReluSum, write: Tensor) -> Kernel:
        """Kernel: write = function(argument), once the cells are found."""
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


def is_simple(function: ReluSum) -> bool:
    """Whether it needs no table: a straight line, a kink at 0, or a single ramp."""
    return _is_line(function) or _is_kink(function) or _is_ramp(function)


def _is_line(function: ReluSum) -> bool:
    return not function.knots


def _is_kink(function: ReluSum) -> bool:
    left, right = function.slopes[0], function.slopes[-1]
    through_origin = function.anchor == function.anchor_value == 0.0
    return function.knots == (0.0,) and through_origin and left < right == 1.0


def _is_ramp(function: ReluSum) -> bool:
    return len(function.knots) == 2 and function.slopes[0] == function.slopes[2] == 0.0


def simple_kernel(function: ReluSum, argument: Tensor, write: Tensor) -> Kernel:
    """Kernel of a function that needs no table."""
    if _is_line(function):
        return _line(function.slopes[0], function.intercepts()[0], argument, write)
    if _is_kink(function):
        return _kink(function.slopes[0], argument, write)
    return _ramp(function, argument, write)


def _line(slope: float, intercept: float, argument: Tensor, write: Tensor) -> Kernel:
    def constant() -> None:
        write.fill_(intercept)

    def line() -> None:
        torch.mul(argument, slope, out=write)
        if intercept:
            write.add_(intercept)

    return line if slope else constant


def _kink(left: float, argument: Tensor, write: Tensor) -> Kernel:
    def relu() -> None:
        torch.clamp_min(argument, 0.0, out=write)

    def leaky() -> None:  # left < 1
        torch.mul(argument, left, out=write)
        torch.maximum(argument, write, out=write)

    return leaky if left else relu


def _ramp(function: ReluSum, argument: Tensor, write: Tensor) -> Kernel:
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
