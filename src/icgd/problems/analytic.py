"""Where functions of one variable are analytic around the real line, and how large they are there.

A proof that compares two functions at points has to bound them in between. Such a bound follows
from one in the complex plane, which complex balls (Arb) give: evaluated on a rectangle, a finite
ball proves that the function is analytic on all of it. A function's formula is all that is needed.
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
"""Panels subdivide cells, so that a proof about one function serves all intervals. Cells end at 0,
at +-this and at its doublings, since functions vary less far out."""

SEMI_AXES = sqrt(5.0), 2.0
"""Of the ellipse around a panel, in half-widths of the panel."""

LARGEST_GROWTH = 1e4
"""The largest ratio of sizes in an ellipse and on its panel; it costs 1e-15 of the size."""

NARROWEST = 2.0**-30
"""Where panels would have to be narrower, a function counts as not analytic."""


class Panel(NamedTuple):
    """On [low, high] a function is at most `size` in the ellipse with half of these `SEMI_AXES`."""

    low: float
    high: float
    size: float


def largest_in(ball: Ball, low: float, high: float, height: float, bottom: float = 0.0) -> float:
    """Bound |f| on [low, high] x [bottom, height]; infinite where it is not proved analytic.

    A function is real on the line, so that its upper half is enough.
    """
    arb = balls()
    return float(arb.size(ball(arb.acb(arb.interval(low, high), arb.interval(bottom, height)))))


def _ends(number: int) -> tuple[float, float]:
    """Return the ends of a cell; 0 is the first on the right, -1 the first on the left."""
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
    """Return the panels of a cell, as wide as they can be; they end at knots."""
    found: list[Panel] = []
    low, high = _ends(number)
    for piece, first, last in function.spans(max(low, function.low), min(high, function.high)):
        ball, todo = partial(function.complex_ball, piece), [(float(first), float(last))]
        while todo:
            low, high = todo.pop()
            centre, half_width = (low + high) / 2, (high - low) / 2
            along, across = (half_width * axis for axis in SEMI_AXES)
            size = largest_in(ball, centre - along, centre + along, across)
            if size <= LARGEST_GROWTH * (1 + largest_in(ball, centre, centre, 0.0)):
                found.append(Panel(low, high, size))
            elif half_width < NARROWEST:
                raise ConstructionError(
                    f"{function} is not analytic near {centre:.6g}, so that no error of its "
                    "look-ups can be proved."
                )
            else:
                todo += [(centre, high), (low, centre)]
    return tuple(found)


@lru_cache(maxsize=2**14)
def _shared_cell(functions: Functions, number: int) -> tuple[tuple[float, ...], ...]:
    """Return the low ends of panels on which all functions are analytic, then the sizes of each."""
    panels = [_cell(function, number) for function in functions]
    lows = sorted({panel.low for own in panels for panel in own})
    ends = [[panel.low for panel in own] for own in panels]
    return (
        tuple(lows),
        *(
            tuple(own[bisect_right(end, low) - 1].size for low in lows)
            for own, end in zip(panels, ends, strict=True)
        ),
    )


def analytic_panels(functions: Functions, reach: float, widest: float) -> tuple[Tensor, Tensor]:
    """Return the ends of panels up to `widest` that cover [-reach, reach], and rows of sizes.

    There is a row for each function: it is nowhere larger in the ellipse around a panel.
    """
    cells = [_shared_cell(functions, number) for number in _cells_within(reach)]
    lows, *sizes = (list(chain.from_iterable(rows)) for rows in zip(*cells, strict=True))
    first, last = bisect_right(lows, -reach) - 1, bisect_left(lows, reach)
    cuts = torch.tensor([-reach, *lows[first + 1 : last], reach], dtype=torch.float64)
    widths = cuts.diff()
    parts = (widths / widest).ceil().long()
    steps = torch.arange(int(parts.sum())) - (parts.cumsum(0) - parts).repeat_interleave(parts)
    low = cuts[:-1].repeat_interleave(parts)
    ends = low + (widths / parts).repeat_interleave(parts) * steps
    found = torch.tensor([row[first:last] for row in sizes], dtype=torch.float64)
    return torch.cat([ends, cuts[-1:]]), found.repeat_interleave(parts, dim=1)


# Strips around the whole line, or around a part of it.


@dataclass(frozen=True)
class Strip:
    """|f(z)| <= size(reach) wherever |Im z| <= height and |Re z| <= reach."""

    height: float
    size: Callable[[float], float]


HIGHEST, STEPS = 4.0, 256
"""The height of a strip is a multiple of the first divided by the second."""

STRIP_GROWTH = 100.0
"""The largest ratio of sizes in a strip and on the line."""

DEEPEST = 12
"""How often a rectangle is halved before a function counts as not analytic in it."""


@lru_cache(maxsize=256)
def strip_of_text(function: ScalarFunction) -> Strip:
    """Return about the highest strip around its domain in which a function is proved analytic.

    One with knots is made of several, each of which is analytic around its own piece, and as far
    beyond its ends as the strip is high.
    """
    cells = _cells_within(min(max(-function.low, function.high), 2.0**64))
    lowest, highest = 0, STEPS + 1
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
            f"{function} is analytic in no strip around the line, so that no error of its fits by "
            "units can be proved."
        )

    def size(reach: float) -> float:
        if not reach < 2.0**64:
            return inf
        return max(_largest_in_strip(function, height, number) for number in _cells_within(reach))

    return Strip(height, size)


@lru_cache(maxsize=2**14)
def _largest_in_strip(function: ScalarFunction, height: float, number: int) -> float:
    """Bound a function in a strip over a cell; infinite if it is far larger than on the line."""
    largest = 0.0
    for piece, first, last in function.spans(*_ends(number)):
        ball, low, high = partial(function.complex_ball, piece), float(first), float(last)
        on_line = max(largest_in(ball, end, end, 0.0) for end in (low, high))
        beyond = height if function.knots else 0.0
        most = STRIP_GROWTH * (1 + on_line)
        found = _largest_below(most, ball, (low - beyond, high + beyond), (0.0, height), DEEPEST)
        largest = max(largest, found)
    return largest


def _largest_below(
    most: float, ball: Ball, real: tuple[float, float], imaginary: tuple[float, float], depth: int
) -> float:
    """Bound |f| on a rectangle, by its parts where need be; infinite if it exceeds `most`."""
    (low, high), (bottom, top), largest = real, imaginary, 0.0
    found = largest_in(ball, low, high, top, bottom)
    if found <= most:
        return found
    if not depth:
        return inf
    if high - low >= top - bottom:
        middle = (low + high) / 2
        parts = [((low, middle), imaginary), ((middle, high), imaginary)]
    else:
        middle = (bottom + top) / 2
        parts = [(real, (bottom, middle)), (real, (middle, top))]
    for part in parts:
        largest = max(largest, _largest_below(most, ball, *part, depth - 1))
        if largest == inf:
            break
    return largest
