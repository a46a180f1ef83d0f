"""Power laws: the exponent with which a cost grows."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import linear_regression


def fitted_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """a of the cost c size^a that is nearest by least squares, in logarithms of both."""
    return linear_regression([log(size) for size in sizes], [log(cost) for cost in costs]).slope
