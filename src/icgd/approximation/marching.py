r"""Fit functions defined by a text as sums of ReLUs: near-optimal knots, errors proved by balls.

March from left to right. From each node the next piece extends as far as some line through the node
stays within eps of the function: the admissible slopes form an interval, which shrinks as the piece
gets longer. Where the function is convex the piece ends as low as possible, where it is concave as
high as possible, because then the next piece can extend farthest. Several functions march together
with the same nodes, each with its own eps. Nodes are knots of the functions or points of a dyadic
grid that is finer where the functions bend more. Linear pieces between knots are exact.

The proof trusts no computed value. On a cell of width h where balls show that f'' has one sign, the
gap between line and function is convex or concave, so its values at the ends and a tangent bound
it. Other cells are halved until h^2 max |f''| / 8 is small.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, frexp, inf, log2, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from icgd.errors import ConstructionError
from icgd.problems.piecewise import Function, balls, joined_lines
from icgd.problems.scalar import ScalarFunction
from icgd.program.functions import ReluSum

Numbers = NDArray[np.float64]

PER_PIECE = 24
"""The number of grid points per piece."""

FINE = 2.0**-4
"""The largest spacing of the grid near 0 and near knots."""

SLACK = 0.003
"""The slack of a proof, relative to the error."""

MOST_MULTIPLES = 2.0**34
"""The largest length of an interval in units of its finest grid."""

MOST_PARTS, DEEPEST = 2000, 45
"""Limits of a proof: on the cells of a piece, and on how often a cell is halved."""


def fit_by_marching(
    functions: Sequence[Function],
    low: float,
    high: float,
    pieces: int,
    goals: Sequence[float] = (),
    most: float | int = inf,
) -> tuple[ReluSum, ...]:
    """Approximate functions on [low, high] by sums of ReLUs with common knots.

    With `goals`, the error of each function is about its goal; otherwise there are at most `pieces`
    pieces. Return nothing if the goals need `most` pieces or more.
    """
    suspects: list[tuple[float, float]] = []
    for attempt in range(4):
        grid = _Grid.of(functions, low, high, pieces, goals, suspects)
        nodes, values, eps = _marched(grid, pieces, goals)
        if len(nodes) > most:
            return ()
        fits = tuple(
            _proved(function, _sum(function, nodes, row, low, high), size)
            for function, row, size in zip(functions, values, eps, strict=True)
        )
        # Where the proved error is much larger than the error of the march, the grid has missed a
        # feature: refine it there and march again.
        missed = [
            (left, right)
            for fit, size in zip(fits, eps, strict=True)
            for left, right, error in zip(nodes[:-1], nodes[1:], fit.errors, strict=True)
            if error > 1.5 * size + 1e-12
        ]
        if not missed or attempt == 3:
            break
        suspects += missed
    return fits


def fit_together(
    functions: Sequence[Function], low: float, high: float, pieces: int
) -> tuple[ReluSum, ...]:
    """Approximate functions with common knots, each as accurately as with `pieces` own pieces.

    If common knots save nothing, fit every function separately.
    """
    goals = []
    for function in functions:
        *_, (eps,) = _marched(_Grid.of((function,), low, high, pieces, (), []), pieces, ())
        goals.append(eps)
    together = fit_by_marching(functions, low, high, pieces, goals, len(functions) * pieces)
    alone = (fit_by_marching((function,), low, high, pieces)[0] for function in functions)
    return together or tuple(alone)


class _Span(NamedTuple):
    """A subinterval between knots, with its grid points `x`.

    For each function it has the values, the signs of the second derivative, and whether it is
    linear.
    """

    x: Numbers
    values: list[Numbers]
    signs: list[Numbers]
    lines: list[bool]


class _Grid(NamedTuple):
    """The spans of an interval, and the integral of sqrt(max |f''| / goal) over it."""

    spans: list[_Span]
    mass: float

    @classmethod
    def of(
        cls,
        functions: Sequence[Function],
        low: float,
        high: float,
        pieces: int,
        goals: Sequence[float],
        suspects: list[tuple[float, float]],
    ) -> _Grid:
        knots = sorted({knot for function in functions for knot in function.knots})
        bends = [function.derivative().derivative() for function in functions]
        scales = [1 / max(goal, 1e-18) for goal in goals] or [1.0] * len(functions)
        exponent = ceil(log2(high - low)) - 6
        first = np.floor(low * 2.0**-exponent)
        starts = (first + np.arange(np.ceil(high * 2.0**-exponent) - first)) * 2.0**exponent
        # Halve dyadic cells until each has a small share of the mass.
        cells, finished = [(starts, 2.0**exponent)], list[Numbers]()
        mass = 0.0  # of the finished cells
        while cells:
            starts, width = cells.pop()
            ends = np.clip(np.stack([starts, starts + width]), low, high)
            masses = _bend_mass(bends, scales, ends, suspects)
            total = mass + float(masses.sum())
            is_large = masses > total / (PER_PIECE * max(pieces, 4))
            if width > FINE:  # samples of coarse cells may miss bends near 0 and near knots
                for place in (0.0, *knots):
                    is_large |= (ends[0] - 2 * width < place) & (place < ends[1] + 2 * width)
            if width * MOST_MULTIPLES < high - low and is_large.any():
                place = float(starts[int(masses.argmax())])
                raise ConstructionError(
                    f"{functions[0]} is so steep near x = {place:.6g} that pieces would be shorter "
                    f"than {width:.1g}. Give another function, or a domain without that place."
                )
            finished.append(starts[~is_large])
            mass += float(masses[~is_large].sum())
            halves = np.concatenate([starts[is_large], starts[is_large] + width / 2])
            if len(halves):
                cells.append((halves, width / 2))
        points = np.concatenate(finished)
        inner = [knot for knot in knots if low < knot < high]
        points = np.unique(np.concatenate([points[(points > low) & (points < high)], inner]))
        points = np.concatenate([[low], points, [high]])
        places = [0, *np.searchsorted(points, inner).tolist(), len(points) - 1]
        spans = []
        for start, end in pairwise(places):
            x = points[start : end + 1]
            middle = float(x[0] + x[-1]) / 2
            lines, values, signs = [], [], []
            for function, bend in zip(functions, bends, strict=True):
                piece = bisect_left(function.knots, middle)
                lines.append(function.is_line(piece))
                values.append(function.on_piece(piece, torch.from_numpy(x)).numpy())
                signs.append(np.sign(bend.on_piece(piece, torch.from_numpy(x)).numpy()))
            spans.append(_Span(x, values, signs, lines))
        return cls(spans, mass)


def _bend_mass(
    bends: Sequence[Function],
    scales: Sequence[float],
    ends: Numbers,
    suspects: list[tuple[float, float]],
) -> Numbers:
    """Return the length of each cell times sqrt(max |f''| / goal).

    The maximum is sampled, and proved by balls in cells that meet a suspect interval.
    """
    shares = np.array([0.02, 0.25, 0.5, 0.75, 0.98])
    points = ends[0][:, None] + (ends[1] - ends[0])[:, None] * shares
    largest = np.zeros(len(points))
    for bend, scale in zip(bends, scales, strict=True):
        sampled = bend(torch.from_numpy(points)).abs().amax(1).numpy() * scale
        largest = np.maximum(largest, np.where(np.isfinite(sampled), sampled, 0.0))
    for left, right in suspects:
        for cell in np.nonzero((ends[0] < right) & (ends[1] > left))[0].tolist():
            for bend, scale in zip(bends, scales, strict=True):
                proved = scale * _largest(bend, float(ends[0][cell]), float(ends[1][cell]))
                largest[cell] = max(largest[cell], min(proved, 1e300))
    mass: Numbers = np.sqrt(largest) * np.maximum(ends[1] - ends[0], 0.0)
    return mass


def _largest(function: Function, low: float, high: float) -> float:
    """Bound |function| on [low, high] by balls."""
    module = balls()
    with module.precision(module.BITS):
        sizes: list[float] = [
            module.size(function.ball(0, piece, module.interval(left, right)))
            for piece, left, right in function.spans(low, high)
        ]
    return max(sizes)


March = tuple[Numbers, list[Numbers], list[float]]
"""Nodes, the fitted values of each function there, and the eps of each."""


def _marched(grid: _Grid, pieces: int, goals: Sequence[float]) -> March:
    """March with these goals, or with about the smallest eps that needs at most `pieces` pieces."""
    if goals:
        return _march(grid, list(goals))
    n_functions = len(grid.spans[0].values)
    lines = sum(all(span.lines) for span in grid.spans)
    curved = max(pieces - lines, 1)
    if grid.mass == 0.0:
        return _march(grid, [0.0] * n_functions)
    # Start from the optimal error of many pieces, (integral sqrt|f''|)^2 / (16 K^2), and correct it
    # by the number of pieces found, ~ 1 / sqrt(eps); bisect where that leaves the bracket.
    eps, best = max((grid.mass / (4 * curved)) ** 2, 1e-300), None
    low, high = 0.0, inf  # the largest eps with too many pieces, the smallest with few enough
    for _ in range(12):
        march = _march(grid, [eps] * n_functions)
        number = len(march[0]) - 1 - lines
        if number <= curved:
            high, best = eps, march
        else:
            low = eps
        if high <= 1.01 * low or (high < inf and len(grid.spans) > pieces):
            break
        guess = eps * (max(number, 1) / curved) ** 2 * (1.01 if number > curved else 0.99)
        inside = low < guess < high and not 0.99 < guess / eps < 1.005
        if not inside:
            guess = sqrt(low * high) if low and high < inf else (2 * low or high / 2)
        eps = guess
    return best or _march(grid, [high if high < inf else 4 * low] * n_functions)


def _march(grid: _Grid, eps: list[float]) -> March:
    """March from the left to the right end with the longest possible pieces."""
    nodes: list[float] = []
    values: list[list[float]] = [[] for _ in eps]
    last: list[float] | None = None
    for number, span in enumerate(grid.spans):
        # At its end a span must meet the function exactly if the function is linear on either side.
        following = grid.spans[number + 1] if number + 1 < len(grid.spans) else None
        pinned = [
            line or (following is not None and following.lines[i])
            for i, line in enumerate(span.lines)
        ]
        start = [
            f[0] if line else f[0] - e * sign[min(1, len(sign) - 1)]
            for f, line, sign, e in zip(span.values, span.lines, span.signs, eps, strict=True)
        ]
        if last is not None:
            start = [
                f[0] if line else before
                for f, line, before in zip(span.values, span.lines, last, strict=True)
            ]
        places, rows = _across(span, start, pinned, eps)
        skip = int(bool(nodes))
        nodes += span.x[places[skip:]].tolist()
        for row, new_values in zip(values, rows, strict=True):
            row += new_values[skip:]
        last = [row[-1] for row in rows]
    return np.array(nodes), [np.array(row) for row in values], eps


def _across(
    span: _Span, start: list[float], pinned: list[bool], eps: list[float]
) -> tuple[list[int], list[list[float]]]:
    """Cross a span from the values `start`; `pinned` functions end at their exact value.

    Return the indices of the nodes and the values of each function there.
    """
    end = len(span.x) - 1
    at, v = 0, [float(value) for value in start]
    places, rows = [0], [[value] for value in v]
    curved = [i for i, line in enumerate(span.lines) if not line]
    ahead = 2 * PER_PIECE
    while at < end:
        # Cones: the smallest and largest admissible slope of each function up to every point. Look
        # `ahead` points, and farther while all cones are still open.
        last, cones = end, dict[int, tuple[Numbers, Numbers]]()
        while curved:
            last = min(at + ahead, end)
            dx = span.x[at + 1 : last + 1] - span.x[at]
            is_open = np.ones(len(dx), dtype=bool)
            for i in curved:
                dy = span.values[i][at + 1 : last + 1] - v[i]
                cones[i] = (
                    np.maximum.accumulate((dy - eps[i]) / dx),
                    np.minimum.accumulate((dy + eps[i]) / dx),
                )
                is_open &= cones[i][0] <= cones[i][1]
            n_open = len(dx) if is_open.all() else int(np.argmin(is_open))
            if n_open == len(dx) and last < end:
                ahead *= 4
                continue
            last = at + max(n_open, 1)
            break
        # The last piece of a pinned function must end at its exact value: if no admissible slope
        # leads there, take two pieces.
        if last == end and at + 1 < end and any(pinned[i] and not span.lines[i] for i in curved):
            slopes = {i: (span.values[i][end] - v[i]) / (span.x[end] - span.x[at]) for i in curved}
            fits = all(
                cones[i][0][end - at - 1] <= slopes[i] <= cones[i][1][end - at - 1]
                for i in curved
                if pinned[i]
            )
            if not fits:
                last = (at + 1 + end) // 2
        for i, line in enumerate(span.lines):
            f = span.values[i]
            if line or (last == end and pinned[i]):
                v[i] = float(f[last])
            else:
                least, largest = (float(slopes_to[last - at - 1]) for slopes_to in cones[i])
                sign = span.signs[i][last]
                slope = least if sign > 0 else largest if sign < 0 else (least + largest) / 2
                v[i] += slope * float(span.x[last] - span.x[at])
            rows[i].append(v[i])
        ahead, at = max(PER_PIECE, 3 * (last - at) // 2), last
        places.append(last)
    return places, rows


def _sum(
    function: ScalarFunction, nodes: Numbers, values: Numbers, low: float, high: float
) -> ReluSum:
    """Return the sum of ReLUs through these nodes, with errors to be proved later."""
    slopes, knots = np.diff(values) / np.diff(nodes), nodes[1:-1]
    # An anchor at a knot of the function makes the lines at that knot exact.
    exact = [knot for knot in function.knots if low < knot < high]
    anchor = min(exact or knots.tolist(), key=abs, default=None)
    place = 0 if anchor is None else int(np.searchsorted(nodes, anchor))
    return ReluSum(
        name=function.name,
        low=low,
        high=high,
        knot_unit=unit_of(knots.tolist()),
        knots=tuple(knots.tolist()),
        slopes=tuple(slopes.tolist()),
        anchor=0.0 if anchor is None else anchor,
        anchor_value=float(values[0] - slopes[0] * low if anchor is None else values[place]),
        errors=(0.0,) * len(slopes),
    )


def unit_of(knots: Sequence[float]) -> float:
    """Return the largest power of two, at most 1, that divides all knots."""
    unit = 1.0
    for knot in knots:
        mantissa, exponent = frexp(knot)
        whole = int(mantissa * 2.0**53)
        if whole:
            unit = min(unit, 2.0 ** (exponent - 53) * (whole & -whole))
    return unit


def exact_lines(function: Function, low: float, high: float) -> ReluSum:
    """Return a piecewise-linear function as a sum of ReLUs; its error is the rounding of floats."""
    knots = [knot for knot in function.knots if low < knot < high]
    first = bisect_right(function.knots, low)
    anchor = min(knots, key=abs, default=0.0)
    value = function(torch.tensor(anchor, dtype=torch.float64))
    slopes = function.slopes[first : first + len(knots) + 1]
    fit = ReluSum(
        name=function.name,
        low=low,
        high=high,
        knot_unit=unit_of(knots),
        knots=tuple(knots),
        slopes=slopes,
        anchor=anchor,
        anchor_value=float(value),
        errors=(0.0,) * len(slopes),
    )
    return _proved(function, fit, 0.0)


def _proved(function: Function, fit: ReluSum, eps: float) -> ReluSum:
    """Bound the distance of a sum of ReLUs from the function, in real numbers, on every piece."""
    nodes = map(Fraction, (fit.low, *fit.knots, fit.high))
    lines = joined_lines(fit.knots, fit.slopes, fit.anchor, fit.anchor_value)
    module, errors = balls(), list[float]()
    with module.precision(module.BITS):
        for (slope, constant), (left, right) in zip(lines, pairwise(nodes), strict=True):
            line = module.exact(slope), module.exact(constant)
            gaps = [
                _largest_gap(function, piece, line, a, b, SLACK * eps)
                for piece, a, b in function.spans(left, right)
            ]
            errors.append(max(gaps))
    return replace(fit, errors=tuple(errors))


def _largest_gap(
    function: Function,
    piece: int,
    line: tuple[Any, Any],
    low: Fraction,
    high: Fraction,
    slack: float,
) -> float:
    """Bound |slope x + constant - f(x)| on an interval of one piece of the function."""
    module, (slope, constant) = balls(), line

    def gap(x: Any) -> float:
        return float(module.size(slope * x + constant - function.ball(0, piece, x)))

    start, end = module.exact(low), module.exact(high)
    worst = max(gap(start), gap(end))
    if function.is_line(piece):
        return worst
    waiting, n_seen = [(start, end, 0)], 0
    while waiting:
        left, right, depth = waiting.pop()
        n_seen += 1
        x, width = module.hull(left, right), module.size(right - left)
        bend = function.ball(2, piece, x)
        at_ends = max(gap(left), gap(right))
        if bend.is_finite() and not bend.contains(0):
            # The gap is extremal where f' is the slope: find this point by Newton's method, and
            # bound the gap by a tangent there, which needs no convergence.
            at, ends = float(x.mid()), (float(left.mid()), float(right.mid()))
            more = inf
            for _ in range(6):
                point = module.exact(at)
                steep = slope - function.ball(1, piece, point)
                reach = max(abs(at - ends[0]), abs(ends[1] - at)) * (1 + 1e-15)
                more = module.size(steep) * reach
                if more <= slack:
                    break
                at += float(steep.mid()) / float(bend.mid())
                at = min(max(at, ends[0]), ends[1])
            bound = max(at_ends, gap(point) + more)
        elif bend.is_finite():
            more = width * width / 8 * module.size(bend)
            bound = at_ends + more
        else:
            more = width / 2 * module.size(slope - function.ball(1, piece, x))
            bound = at_ends + more
        room = max(slack, SLACK * worst)  # precision beyond an error already found is not needed
        if bound <= worst + room or more <= room or depth > DEEPEST or n_seen > MOST_PARTS:
            worst = max(worst, min(bound, gap(x)))
            continue
        middle = module.exact(Fraction(float(((left + right) / 2).mid())))
        waiting += [(left, middle, depth + 1), (middle, right, depth + 1)]
    return worst * (1 + 2.0**-40)
