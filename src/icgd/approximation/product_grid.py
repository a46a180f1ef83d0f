r"""Evaluate slopes u(t, y) of two variables by one softmax head on a product of two lattices.

Token (g, k) has the score of g in a lattice along t plus the score of k in a lattice along y, so
its softmax weight is the product of both weights: a discrete Gaussian around (t, y). The values
V_gk are found by least squares along both lattices. As in one dimension (`lattice.py`), the error
falls exponentially with the number of points of each lattice.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise, product
from math import ceil, inf

import torch
from torch import Tensor

from icgd.approximation.lattice import (
    ACCURACIES,
    BETWEEN,
    FIT_MARGIN,
    NODES,
    RATIO,
    TAIL,
    Lattice,
    chebyshev_points,
)
from icgd.errors import ConstructionError
from icgd.problems.analytic import LARGEST_GROWTH, SEMI_AXES
from icgd.problems.losses import Loss
from icgd.problems.surface import ComplexSize, Surface, complex_size, surface_of
from icgd.program.functions import GridMean

MOST_TOKENS = 2**14
"""The largest number of tokens of a search."""

FEWEST = 12
"""The fewest points on either side of 0 in a lattice, 8 of which are margin."""

SMALLEST = 1e-14
"""Relative cut-off for the singular values of a fit."""

ROOM = 1 / 16
"""The allowed error of least squares relative to the accuracy, because the proof multiplies it."""

MOST_PANELS = 256
"""The largest number of panels in a proof that a slope is analytic."""

_ROUNDOFF = 2.0**-53


@lru_cache(maxsize=64)
def mean_of_slope(loss: Loss, reach: float, label_reach: float) -> GridMean:
    """Return the head that computes the slope u(t, y) for |t| <= reach and |y| <= label_reach.

    Raise `ConstructionError` if no error can be proved: if u has a kink or a pole, or needs too
    many tokens.
    """
    if not max(reach, label_reach) <= min(-loss.low, loss.high):
        raise ConstructionError(
            f"Predictions can reach {reach:.4g} and labels {label_reach:.4g}, and {loss!r} is "
            f"defined on [{loss.low:g}, {loss.high:g}] only. Define it there, by low= and high=, "
            "or give a smaller box or domain."
        )
    surface = surface_of(loss, reach, label_reach)
    if surface.size == inf:
        raise ConstructionError(
            f"{loss!r} is not finite for predictions up to {reach:.4g} and labels up to "
            f"{label_reach:.4g}. Give a smaller box or domain."
        )
    # Raise early if u is not analytic near the range.
    _between_points(loss, surface, *_lattices(reach, label_reach, (FEWEST, FEWEST)), 1.0)
    best, halves = None, (FEWEST, FEWEST)
    # From coarse to fine accuracy: each search continues where the previous one ended.
    for accuracy in reversed(ACCURACIES):
        allowed = accuracy * max(1.0, surface.size)
        halves = _enough_points(loss, reach, label_reach, ROOM * allowed, halves)
        while _n_tokens(halves) <= MOST_TOKENS:
            fit = _certified(loss, surface, *_lattices(reach, label_reach, halves))
            if fit.error <= allowed:
                best = fit
                break
            halves = _longer(halves[0]), _longer(halves[1])
    if best is not None:
        return best
    raise ConstructionError(
        f"A head of {MOST_TOKENS} tokens cannot return {loss!r} for predictions up to {reach:.4g} "
        f"and labels up to {label_reach:.4g} within {ACCURACIES[-1]:g} of its size. Give a smaller "
        "box or domain; relu-stack evaluates such a loss by layers."
    )


Halves = tuple[int, int]


def _n_tokens(halves: Halves) -> int:
    return (2 * halves[0] + 1) * (2 * halves[1] + 1)


def _longer(half: int) -> int:
    return half + ceil(half / 8)


def _lattices(reach: float, label_reach: float, halves: Halves) -> tuple[Lattice, Lattice]:
    """Return the lattices that cover the ranges of t and y with a margin."""
    along_t, along_y = (
        Lattice(until, until / (half - ceil(FIT_MARGIN * RATIO)), RATIO, half)
        for until, half in zip((reach, label_reach), halves, strict=True)
    )
    return along_t, along_y


def _enough_points(
    loss: Loss, reach: float, label_reach: float, allowed: float, halves: Halves
) -> Halves:
    """Lengthen lattices until the error of least squares at sample points is `allowed`.

    In each round lengthen the lattice that reduces the error more.
    """

    def gap(halves: Halves) -> float:
        lattices = _lattices(reach, label_reach, halves)
        t, y = (
            lattice.reach * torch.linspace(-1, 1, 301, dtype=torch.float64) for lattice in lattices
        )
        rows, columns = (lattice.weights(s) for lattice, s in zip(lattices, (t, y), strict=True))
        head = rows @ _values(loss, *lattices) @ columns.T
        return float((head - _slopes(loss, t, y)).abs().max())

    while gap(halves) > allowed and _n_tokens(halves) <= MOST_TOKENS:
        t, y = halves
        halves = min((_longer(t), y), (t, _longer(y)), key=gap)
    return halves


def _slopes(loss: Loss, t: Tensor, y: Tensor) -> Tensor:
    """Return u at all pairs of points."""
    return loss.slope(*torch.broadcast_tensors(t[:, None], y))


def _values(loss: Loss, along_t: Lattice, along_y: Lattice) -> Tensor:
    """Fit the values of all tokens by least squares at Chebyshev points.

    The singular values of the product basis are the products of those of both lattices. Components
    with tiny singular values are omitted: they would add large values that cancel.
    """
    t, y = (
        lattice.reach * chebyshev_points(3 * lattice.n_points) for lattice in (along_t, along_y)
    )
    left, sizes, rows = torch.linalg.svd(along_t.weights(t), full_matrices=False)
    label_left, label_sizes, columns = torch.linalg.svd(along_y.weights(y), full_matrices=False)
    scale = sizes[:, None] * label_sizes
    components = left.T @ _slopes(loss, t, y) @ label_left
    is_small = scale <= SMALLEST * scale.max()
    values: Tensor = rows.T @ (components / scale).masked_fill(is_small, 0.0) @ columns
    return values


def _certified(loss: Loss, surface: Surface, along_t: Lattice, along_y: Lattice) -> GridMean:
    """Fit the values of all tokens, and prove an error bound of the head.

    The error G is analytic in t around a panel, and in y around a panel. As in one dimension, the
    interpolation error at Chebyshev points in t is at most e_t = `TAIL` M, where M bounds G for t
    in the ellipse around the panel and real y; likewise e_y. An interpolant is at most
    c = `BETWEEN` times its largest value at the points, so that

        |G| <= e_t + c e_y + c^2 max |G at the points|.

    M is the sum of bounds on the slope, by complex balls, and on the head. For real y, the head is
    a head along t whose values are means over the lattice along y, so the one-dimensional bound
    holds with the same largest value.
    """
    values = _values(loss, along_t, along_y)
    largest = float(values.abs().max())
    beyond, nodes = _between_points(loss, surface, along_t, along_y, largest)
    rows, columns = along_t.weights(nodes[0]), along_y.weights(nodes[1])
    points, label_points = along_t.keys(), along_y.keys()
    offsets, label_offsets = along_t.offsets(), along_y.offsets()

    def mean_of(a: Tensor) -> Tensor:
        """Return the softmax mean of `a`, a number for each token, at all pairs of points."""
        return rows @ a @ columns.T

    head, size = mean_of(values), mean_of(values.abs())

    def moved_by(along: Tensor, across: Tensor) -> Tensor:
        """Bound the sum of weight |value - mean| a over tokens, where a = along + across."""
        a = along[:, None] + across
        return mean_of(values.abs() * a) + head.abs() * mean_of(a)

    # The 2 in `per_offset` covers exp.
    per_argument = moved_by(points.abs(), torch.zeros_like(label_points))
    per_label = moved_by(torch.zeros_like(points), label_points.abs())
    per_offset = moved_by(offsets.abs() + 2, label_offsets.abs())
    sensitivity = along_t.reach * per_argument + along_y.reach * per_label + per_offset
    n_terms = along_t.n_terms + along_y.n_terms
    rounding = _ROUNDOFF * (
        4 * sensitivity + 2 * n_terms * size + 2.0**-4 * largest + surface.rounding
    )
    gap = (head - _slopes(loss, *nodes)).abs() + rounding
    return GridMean(
        loss.name,
        along_t.reach,
        tuple(points.repeat_interleave(len(label_points)).tolist()),
        tuple((offsets[:, None] + label_offsets).flatten().tolist()),
        tuple(values.flatten().tolist()),
        beyond + BETWEEN**2 * float(gap.max()),
        float(size.max()),
        float(per_argument.max()),
        float(per_offset.max()),
        along_y.reach,
        tuple(label_points.repeat(len(points)).tolist()),
        float(per_label.max()),
    )


def _between_points(
    loss: Loss, surface: Surface, along_t: Lattice, along_y: Lattice, largest: float
) -> tuple[float, tuple[Tensor, Tensor]]:
    """Bound e_t + c e_y over all pairs of panels; return also the points in t and in y.

    Choose panels so narrow that the bound on the head holds, and that the slope is not much larger
    in the ellipses around them than on the box.
    """
    bound, most = complex_size(loss), LARGEST_GROWTH * (1 + surface.size)
    lattices, total = (along_t, along_y), 0.0
    counts = [ceil(2 * lattice.reach / lattice.widest_panel) for lattice in lattices]
    while True:
        panels = [_panels(*pair) for pair in zip(lattices, counts, strict=True)]
        sizes = _largest_around(bound, panels)
        if max(sizes) <= most:
            break
        # Halve the panels along the variable whose bound is too large. If both are, the cause may
        # be either one, because a ball is infinite if any argument is too wide.
        counts = [
            2 * count if size > most or min(sizes) > most else count
            for count, size in zip(counts, sizes, strict=True)
        ]
        if max(counts) > MOST_PANELS:
            raise ConstructionError(
                f"{loss!r} is not proved to be analytic near predictions up to {along_t.reach:.4g} "
                f"and labels up to {along_y.reach:.4g}, so a look-up has no proved error. A slope "
                "with kinks must be a sum of functions, each of one combination of t and y."
            )
    for lattice, count, size, factor in zip(lattices, counts, sizes, (1.0, BETWEEN), strict=True):
        half_width = torch.tensor(lattice.reach / count, dtype=torch.float64)
        head = float(lattice.size_around(half_width, largest))
        total += factor * TAIL * (head + size)
    nodes = [
        (ends[:-1, None] + ends[1:, None]) / 2
        + (ends[1:, None] - ends[:-1, None]) / 2 * chebyshev_points(NODES)
        for ends in panels
    ]
    return total, (nodes[0].flatten(), nodes[1].flatten())


def _panels(lattice: Lattice, count: int) -> Tensor:
    ends = torch.linspace(-lattice.reach, lattice.reach, count + 1, dtype=torch.float64)
    ends[0], ends[-1] = -lattice.reach, lattice.reach
    return ends


def _largest_around(bound: ComplexSize, panels: list[Tensor]) -> list[float]:
    """Bound |slope| for t in the ellipses and real y, and for real t and y in the ellipses."""
    sizes = [0.0, 0.0]
    for (a, b), (c, d) in product(*(pairwise(ends.tolist()) for ends in panels)):
        t, t_half, y, y_half = (a + b) / 2, (b - a) / 2, (c + d) / 2, (d - c) / 2
        along, across = SEMI_AXES
        wide_t = (t - along * t_half, t + along * t_half)
        wide_y = (y - along * y_half, y + along * y_half)
        sizes[0] = max(sizes[0], bound(wide_t, across * t_half, (c, d), 0.0))
        sizes[1] = max(sizes[1], bound((a, b), 0.0, wide_y, across * y_half))
        if min(sizes) == inf:
            break
    return sizes
