"""Bound (a) holds for every task in the domain, before any run.

The trajectory bound repeats the block with the error that it left in the weights, and is never
worse than the distance between two points of the box. It costs O(|w|) a propagation, and at most
`MOST_ROUNDS` of them however many steps there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

import torch

from icgd.certificates.abstract_bounds import DomainBound
from icgd.problems.arrays import FLOAT32_ROUNDING
from icgd.shapes import Parameters


@dataclass(frozen=True)
class Weights:
    """After a block: bounds on every weight's error and on how far its copies in the registers lie
    from it, and the size of the transformer's largest weight.
    """

    error: Parameters
    drift: Parameters
    size: float


def worst(found: Sequence[Weights]) -> Weights:
    """What holds for all of several blocks."""
    first, *others = found
    for other in others:
        first = Weights(
            error=torch.maximum(first.error, other.error),
            drift=torch.maximum(first.drift, other.drift),
            size=max(first.size, other.size),
        )
    return first


AfterBlock = Callable[[float, float, float], Weights]
"""The weights after a block, from their reach, error and drift before it."""


def domain_bound(after_block: AfterBlock, box: float, n_steps: int) -> DomainBound:
    """The bounds of one block and of `n_steps` blocks, from the weights after any block."""
    after_block = cache(after_block)
    reach, drift = _reach_and_drift(after_block, box, n_steps)
    if reach == inf:
        return DomainBound(inf, inf)

    def error_after(error: float) -> float:
        return float(after_block(reach, error, drift).error.max())

    widest = box + reach
    trajectory = after_steps(error_after, n_steps, box, widest)
    after = float(after_block(reach, 0.0, drift).drift.max())
    return DomainBound(min(error_after(0.0), widest), trajectory, reach, max(after, drift))


def _reach_and_drift(after_block: AfterBlock, box: float, n_steps: int) -> tuple[float, float]:
    """How large the transformer's weights can be, and how far their copies may lie from them.

    Weights stay in the box, but for what rounding adds to a clip. A clip of w is off by the
    rounding of w, which is the larger the farther w has moved.
    """
    reach = box * (1 + FLOAT32_ROUNDING)
    for _ in range(8):
        drift = _largest_drift(after_block, reach, n_steps)
        size = after_block(reach, 0.0, drift).size
        if size <= reach:
            return reach, drift
        # A little farther than needed, or else it takes many rounds to arrive.
        reach = size * (1 + 2.0**-40) + (size - reach) / 16
    return inf, inf


def _largest_drift(after_block: AfterBlock, reach: float, n_steps: int) -> float:
    """How far copies of the weights drift apart before the last step; they all lie in the box.

    A step adds a little more where copies are farther apart. So it is assumed that every step adds
    what the last one does, and this is then checked.
    """

    def drift_after(drift: float) -> float:
        return float(after_block(reach, 0.0, drift).drift.max())

    step, most = drift_after(0.0), 2 * reach
    for _ in range(4):
        drift = min(max(n_steps - 1, 0) * step, most)
        added = drift_after(drift) - drift
        if added <= step or drift == most:
            return drift
        step = added * (1 + 2.0**-10)
    return most


STEPS_ONE_BY_ONE = 100
"""The last steps of a trajectory, or all of a short one, are followed singly: it is tighter."""


MOST_ROUNDS = 1000
"""The most propagations for one trajectory; one that needs more is bounded by the box alone."""


def after_steps(
    error_after: Callable[[float], float], n_steps: int, box: float, widest: float
) -> float:
    """The error after `n_steps` steps from 0, which never falls from step to step.

    A step adds more to a larger error, except where it clips: no two weights in the box are farther
    than 2 box apart, so that an error up to there may be cut. Below it all steps up to
    a level 5% higher add at most what a step from that level adds, so that slow growth is followed
    many steps at a time. At and beyond it, nothing is known of smaller errors.
    """
    error, left = 0.0, n_steps
    for _ in range(MOST_ROUNDS):
        if left <= 0 or error >= widest:
            return min(error, widest)
        level = 1.05 * error
        after = error_after(level) if left > STEPS_ONE_BY_ONE else inf
        gain = max(after - level, 0.0) if after < 2 * box else inf
        jump = min(left, int((level - error) / gain)) if gain > 0.0 else left
        error = error + jump * gain if jump > 1 else max(error, error_after(error))
        left -= max(jump, 1)
    return widest
