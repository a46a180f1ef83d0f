"""Regions of the complex plane where functions of one variable are analytic, with bounds on them.

A proof that compares two functions at points must bound their difference in between. Such a bound
follows from a bound in the complex plane, which complex balls (Arb) provide: if the ball of a
function on a rectangle is finite, the function is analytic on the whole rectangle. Only the
function's formula is needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from math import ceil, inf, log2, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from icgd.errors import ConstructionError
from icgd.problems.piecewise import balls
from icgd.problems.scalar import ScalarFunction

Ball = Callable[[Any], Any]
Functions = tuple[ScalarFunction, ...]

FIRST_CELL = 2.0
"""The end of the first cell. Cells end at 0, at +-this and at its doublings, because functions
vary less far from 0. Panels subdivide cells, so proofs are reused for all intervals."""

SEMI_AXES = sqrt(5.0), 2.0
"""Semi-axes of the ellipse around a panel, in half-widths of the panel."""

LARGEST_GROWTH = 1e4
"""The largest ratio of the sizes in an ellipse and on its panel; it costs 1e-15 of the size."""

NARROWEST = 2.0**-30
"""The smallest half-width of a panel; a function that needs narrower ones is not analytic there."""


class Panel(NamedTuple):
    """An interval [low, high] with a bound `size` on |f| in the ellipse around it (`SEMI_AXES`)."""

    low: float
    high: float
    size: float


def largest_in(ball: Ball, low: float, high: float, height: float, bottom: float = 0.0) -> float:
    """Return a bound on |f| on [low, high] x [bottom, height], infinite if f may not be analytic.

    f is real on the real line, so the bound also holds on the mirror image below it.
    """
    arb = balls()
    return float(arb.size(ball(arb.acb(arb.interval(low, high), arb.interval(bottom, height)))))


def _ends(number: int) -> tuple[float, float]:
    """Return the ends of a cell; cell 0 is the first to the right of 0, cell -1 to the left."""
    distance = number if number >= 0 else -1 - number
    near, far = (
        FIRST_CELL * (2.0 ** (distance - 1) if distance else 0.0),
        FIRST_CELL * 2.0**distance,
    )
    return (near, far) if number >= 0 else (-far, -near)


def _cells_within(reach: float) -> range:
    n_cells = max(1, 1 + ceil(log2(reach / FIRST_CELL))) if reach > 0 else 1
    return range(-n_cells, n_cells)


@lru_cache(maxsize=2**12)
def _cell(function: ScalarFunction, number: int) -> tuple[Panel, ...]:
    """Return the panels of a cell, as wide as possible; no panel contains a knot inside."""
    panels: list[Panel] = []
    low, high = _ends(number)
    for piece, first, last in function.spans(max(low, function.low), min(high, function.high)):
        ball, pending = partial(function.complex_ball, piece), [(float(first), float(last))]
        while pending:
            low, high = pending.pop()
            centre, half_width = (low + high) / 2, (high - low) / 2
            along, across = (half_width * axis for axis in SEMI_AXES)
            size = largest_in(ball, centre - along, centre + along, across)
            if size <= LARGEST_GROWTH * (1 + largest_in(ball, centre, centre, 0.0)):
                panels.append(Panel(low, high, size))
            elif half_width < NARROWEST:
                raise ConstructionError(
                    f"{function} is not analytic near {centre:.6g}, so the error of its look-ups "
                    "cannot be bounded. Use another activation or loss."
                )
            else:
                pending += [(centre, high), (low, centre)]
    return tuple(panels)


@lru_cache(maxsize=2**14)
def _shared_cell(functions: Functions, number: int) -> tuple[tuple[float, ...], ...]:
    """Return the low ends of the functions' common panels, then the sizes of each function."""
    panels_of = [_cell(function, number) for function in functions]
    lows = sorted({panel.low for panels in panels_of for panel in panels})
    lows_of = [[panel.low for panel in panels] for panels in panels_of]
    return (
        tuple(lows),
        *(
            tuple(panels[bisect_right(own_lows, low) - 1].size for low in lows)
            for panels, own_lows in zip(panels_of, lows_of, strict=True)
        ),
    )


def analytic_panels(functions: Functions, reach: float, widest: float) -> tuple[Tensor, Tensor]:
    """Return the ends of panels up to `widest` wide that cover [-reach, reach], and their sizes.

    Row i of the sizes bounds function i in the ellipse around each panel.
    """
    cells = [_shared_cell(functions, number) for number in _cells_within(reach)]
    lows, *sizes = (list(chain.from_iterable(rows)) for rows in zip(*cells, strict=True))
    first, last = bisect_right(lows, -reach) - 1, bisect_left(lows, reach)
    cuts = torch.tensor([-reach, *lows[first + 1 : last], reach], dtype=torch.float64)
    # Divide panels that are too wide; their parts lie in the same ellipse and keep its size.
    widths = cuts.diff()
    parts = (widths / widest).ceil().long()
    steps = torch.arange(int(parts.sum())) - (parts.cumsum(0) - parts).repeat_interleave(parts)
    low = cuts[:-1].repeat_interleave(parts)
    ends = low + (widths / parts).repeat_interleave(parts) * steps
    panel_sizes = torch.tensor([row[first:last] for row in sizes], dtype=torch.float64)
    return torch.cat([ends, cuts[-1:]]), panel_sizes.repeat_interleave(parts, dim=1)


# Strips around the real line, or around an interval of it.


@dataclass(frozen=True)
class Strip:
    """A bound on a function: |f(z)| <= size(reach) for |Im z| <= height and |Re z| <= reach."""

    height: float
    size: Callable[[float], float]


HIGHEST, STEPS = 4.0, 256
"""The largest height of a strip, and the number of heights that are tried."""

STRIP_GROWTH = 100.0
"""The largest ratio of the sizes in a strip and on the line."""

DEEPEST = 12
"""The number of bisections of a rectangle before a function counts as not analytic in it."""


@lru_cache(maxsize=256)
def strip_of_text(function: ScalarFunction) -> Strip:
    """Return about the highest strip around its domain in which a function is proved analytic.

    For a function with knots this holds for each piece, continued beyond its ends by the height of
    the strip.
    """
    cells = _cells_within(min(max(-function.low, function.high), 2.0**64))
    lowest, highest = 0, STEPS + 1  # bisection over the heights
    while highest - lowest > 1:
        middle = (lowest + highest) // 2
        height = HIGHEST * middle / STEPS
        if all(_largest_in_strip(function, height, number) < inf for number in cells):
            lowest = middle
        else:
            highest = middle
    height = HIGHEST * lowest / STEPS
    if not lowest:
        raise ConstructionError(
            f"{function} is not analytic in any strip around the real line, so the error of its "
            "fits by units cannot be bounded. Use another activation or loss."
        )

    def size(reach: float) -> float:
        if not reach < 2.0**64:
            return inf
        return max(_largest_in_strip(function, height, number) for number in _cells_within(reach))

    return Strip(height, size)


@lru_cache(maxsize=2**14)
def _largest_in_strip(function: ScalarFunction, height: float, number: int) -> float:
    """Return a bound on a function in a strip over a cell.

    The bound is infinite if it exceeds `STRIP_GROWTH` times the size on the line.
    """
    largest = 0.0
    for piece, first, last in function.spans(*_ends(number)):
        ball, low, high = partial(function.complex_ball, piece), float(first), float(last)
        on_line = max(largest_in(ball, end, end, 0.0) for end in (low, high))
        beyond = height if function.knots else 0.0
        limit = STRIP_GROWTH * (1 + on_line)
        bound = _largest_below(limit, ball, (low - beyond, high + beyond), (0.0, height), DEEPEST)
        largest = max(largest, bound)
    return largest


def _largest_below(
    limit: float, ball: Ball, real: tuple[float, float], imaginary: tuple[float, float], depth: int
) -> float:
    """Return a bound on |f| on a rectangle, by bisection; infinite if it exceeds `limit`."""
    (low, high), (bottom, top), largest = real, imaginary, 0.0
    bound = largest_in(ball, low, high, top, bottom)
    if bound <= limit:
        return bound
    if not depth:
        return inf
    if high - low >= top - bottom:
        middle = (low + high) / 2
        halves = [((low, middle), imaginary), ((middle, high), imaginary)]
    else:
        middle = (bottom + top) / 2
        halves = [(real, (bottom, middle)), (real, (middle, top))]
    for half in halves:
        largest = max(largest, _largest_below(limit, ball, *half, depth - 1))
        if largest == inf:
            break
    return largest
