"""Proved bounds, by ball arithmetic, on slopes u(t, y) of two variables and their derivatives.

Slopes that are sums of functions of one variable do not need this: `losses.py` splits them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import Any

from icgd.problems.expressions import Node, derivative, straight_line
from icgd.problems.losses import LABEL, PREDICTION, Loss
from icgd.problems.piecewise import balls

CELLS = 32
"""The number of cells of a box along t and along y."""

Ends = tuple[float, float]
ComplexSize = Callable[[Ends, float, Ends, float], float]


@dataclass(frozen=True)
class Surface:
    """Bounds on a slope u(t, y) for |t| <= reach, |y| <= label_reach.

    Attributes:
        low: a lower bound on u.
        high: an upper bound on u.
        steepness: a bound on |du/dt|.
        label_steepness: a bound on |du/dy|.
        rounding: a bound on the rounding error of u, in units of roundoff.
    """

    low: float
    high: float
    steepness: float
    label_steepness: float
    rounding: float

    @property
    def size(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))


@lru_cache(maxsize=64)
def surface_of(loss: Loss, reach: float, label_reach: float) -> Surface:
    """Return proved bounds on the slope of a loss, infinite if ball arithmetic proves nothing."""
    arb, node = balls(), _node(loss)
    lines = [straight_line(derivative(node, name)) for name in (PREDICTION, LABEL)]
    ranges, slopes, errors = list[Ends](), ([0.0], [0.0]), [0.0]
    for t, y in product(_cells(reach), _cells(label_reach)):
        values = {PREDICTION: arb.interval(*t), LABEL: arb.interval(*y)}
        value, error = arb.running(straight_line(node), values)
        ranges.append(arb.ends(value))
        errors.append(error / arb.ROUNDOFF)
        for sizes, line in zip(slopes, lines, strict=True):
            sizes.append(arb.size(arb.enclosed(line, values)))
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    return Surface(low, high, max(slopes[0]), max(slopes[1]), max(errors))


def complex_size(loss: Loss) -> ComplexSize:
    """Return a function that bounds |u| for t and y in rectangles, by infinity if not analytic.

    A rectangle is given by the ends of its real part and its largest imaginary part. u is real for
    real arguments, so if one argument is real, the upper half-plane suffices for the other.
    """
    arb, line = balls(), straight_line(_node(loss))

    def bound(t: Ends, t_height: float, y: Ends, y_height: float) -> float:
        values: dict[str, Any] = {
            PREDICTION: arb.acb(arb.interval(*t), arb.interval(0.0, t_height)),
            LABEL: arb.acb(arb.interval(*y), arb.interval(0.0, y_height)),
        }
        return float(arb.size(arb.enclosed(line, values, is_complex=True)))

    return bound


def _node(loss: Loss) -> Node:
    if loss.node is None:
        raise TypeError(f"The slope of {loss.name} is not given by a text.")
    return loss.node


def _cells(reach: float) -> list[Ends]:
    ends = [reach * (2 * k / CELLS - 1) for k in range(CELLS + 1)]
    return list(pairwise(ends))
