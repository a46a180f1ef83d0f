"""Lines of a cost comparison: their points, and the exponents with which they grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from statistics import linear_regression

from icgd_papers.reproduction import Row, number

COSTS = {"time": "seconds", "FLOPs": "flops", "memory": "bytes"}
"""Names of the costs, and of their columns, which end in _counted or _measured but for time."""

N_FITTED = 4
"""Exponents are fitted to so many of the largest sizes: at small ones overhead dominates."""


def fitted_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The exponent a of the power law c size^a that fits the costs best in logarithms."""
    return linear_regression([log(size) for size in sizes], [log(cost) for cost in costs]).slope


@dataclass(frozen=True)
class Points:
    """Sizes, and the cost at each."""

    sizes: tuple[int, ...]
    costs: tuple[float, ...]

    def at(self, size: int) -> float:
        """The cost at one of the sizes."""
        return self.costs[self.sizes.index(size)]

    @property
    def end(self) -> tuple[float, float]:
        """The largest size, and its cost."""
        return float(self.sizes[-1]), self.costs[-1]

    @property
    def largest(self) -> Points:
        """The points to which the exponent is fitted."""
        return Points(self.sizes[-N_FITTED:], self.costs[-N_FITTED:])

    def exponent(self) -> float | None:
        """The exponent with which the cost grows at the largest sizes; None for a single point."""
        last = self.largest
        return fitted_exponent(last.sizes, last.costs) if len(last.sizes) > 1 else None


def crossing(first: Points, second: Points) -> tuple[float, float] | None:
    """Where the first line rises above the second, if both are straight in logarithms."""
    sizes = sorted(set(first.sizes) & set(second.sizes))
    gaps = [log(first.at(size) / second.at(size)) for size in sizes]
    for here, before in zip(range(1, len(sizes)), gaps, strict=False):
        if before < 0 <= gaps[here]:
            share = before / (before - gaps[here])
            low, high = sizes[here - 1], sizes[here]
            cost = second.at(low) * (second.at(high) / second.at(low)) ** share
            return low * (high / low) ** share, cost
    return None


def points(line: Sequence[Row], column: str) -> Points:
    """The rows of a line that have a number in this column."""
    found = [(int(number(row, "size")), number(row, column)) for row in line if row[column]]
    return Points(tuple(size for size, _ in found), tuple(cost for _, cost in found))


def best_points(line: Sequence[Row], cost: str) -> Points:
    """The measured points; the counted ones for dense transformers, of which few can be run."""
    column = COSTS[cost]
    if column == "seconds":
        return points(line, column)
    is_dense = line[0]["backend"] == "dense"
    return points(line, f"{column}_{'counted' if is_dense else 'measured'}")


def exponents(line: Sequence[Row]) -> tuple[str, ...]:
    """The exponent of time and the sizes it was fitted to; then those of FLOPs and memory."""
    time, flops, memory = (best_points(line, cost) for cost in COSTS)
    return (_exponent(time), _sizes(time), _exponent(flops), _exponent(memory), _sizes(flops))


def _exponent(found: Points) -> str:
    exponent = found.exponent()
    return "-" if exponent is None else f"{exponent:.2f}"


def _sizes(found: Points) -> str:
    sizes = found.largest.sizes
    return f"{sizes[0]}-{sizes[-1]}" if len(sizes) > 1 else "-"
