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
from icgd.problems.data import FLOAT32_ROUNDING
from icgd.problems.optimisers.gradient_step import AVERAGE, AbstractGradientStep
from icgd.problems.optimisers.rule import WEIGHTS
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


def least_kept(update: AbstractGradientStep, n_steps: int, name: str = WEIGHTS) -> float:
    """The least share that a step keeps of a weight, or of what is remembered; at most 1.

    Errors and drifts are kept by the same share, and what else a step adds to them is the more the
    larger they are. Weight decay keeps less than all.
    """
    steps = range(1 if update.is_constant else n_steps)
    if name == AVERAGE:
        shares = [update.kept_of_average(step) for step in steps]
    else:
        shares = [abs(update.rule(step).linear[name][name]) for step in steps]
    least = min(shares, default=1.0)
    return least * (1 - 2.0**-40) if least < 1.0 else 1.0  # the program's share is rounded


def domain_bound(after_block: AfterBlock, box: float, n_steps: int, kept: float) -> DomainBound:
    """The bounds of one block and of `n_steps` blocks, from the weights after any block.

    A step keeps at least a share of `kept` of every weight.
    """
    after_block = cache(after_block)
    reach, drift = _reach_and_drift(after_block, box, n_steps, kept)
    if reach == inf:
        return DomainBound(inf, inf)

    def error_after(error: float) -> float:
        return float(after_block(reach, error, drift).error.max())

    widest = box + reach
    trajectory = after_steps(error_after, n_steps, box, widest, kept)
    after = float(after_block(reach, 0.0, drift).drift.max())
    return DomainBound(min(error_after(0.0), widest), trajectory, reach, max(after, drift))


def _reach_and_drift(
    after_block: AfterBlock, box: float, n_steps: int, kept: float
) -> tuple[float, float]:
    """How large the transformer's weights can be, and how far their copies may lie from them.

    Weights stay in the box, but for what rounding adds to a clip. A clip of w is off by the
    rounding of w, which is the larger the farther w has moved.
    """
    reach = box * (1 + FLOAT32_ROUNDING)
    for _ in range(8):
        drift = _largest_drift(after_block, reach, n_steps, kept)
        size = after_block(reach, 0.0, drift).size
        if size <= reach:
            return reach, drift
        # A little farther than needed, or else it takes many rounds to arrive.
        reach = size * (1 + 2.0**-40) + (size - reach) / 16
    return inf, inf


def _largest_drift(after_block: AfterBlock, reach: float, n_steps: int, kept: float) -> float:
    """How far copies of the weights drift apart before the last step; they all lie in the box.

    To what it keeps, a step adds a little more where copies are farther apart. So it is assumed
    that every step adds what the last one does, and this is then checked. That takes steps that
    keep less than others for the least of them; a few such steps are followed one by one.
    """

    def drift_after(drift: float) -> float:
        return float(after_block(reach, 0.0, drift).drift.max())

    added, most = drift_after(0.0), 2 * reach
    if kept < 1.0 and n_steps <= STEPS_ONE_BY_ONE:
        return min(after_steps(drift_after, n_steps - 1, reach, most), most)
    for _ in range(GUESSES):
        drift = min(added * n_added(max(n_steps - 1, 0), kept), most)
        found = drift_after(drift) - kept * drift
        if found <= added or drift == most:
            return drift
        added = found * (1 + 2.0**-10)
    return most


GUESSES = 16
"""How often it is guessed what a step adds to a drift, each time from what it adds after that."""


def n_added(n_steps: int, kept: float) -> float:
    """How often what a step adds is in the sum after `n_steps`, of which each keeps a share.

    That is 1 + kept + kept^2 + ... + kept^(n_steps - 1), which this is not below.
    """
    return min(float(n_steps), 1 / (1 - kept) if kept < 1.0 else inf)


STEPS_ONE_BY_ONE = 100
"""The last steps of a trajectory, or all of a short one, are followed singly: it is tighter."""


MOST_ROUNDS = 1000
"""The most propagations for one trajectory; one that needs more is bounded by the box alone."""


def after_steps(
    error_after: Callable[[float], float],
    n_steps: int,
    box: float,
    widest: float,
    kept: float = 1.0,
) -> float:
    """The error after `n_steps` steps from 0, which never falls from step to step.

    A step leaves more of a larger error. If it leaves no more of a level 5% higher than that level,
    no later error is beyond it. Otherwise slow growth is followed many steps at a time: a step
    keeps at least a share of `kept`, and adds more to a larger error. So all steps up to the level
    add at most what a step from the level adds, and what it does not keep of the rest. This is not
    so where it cuts: no two weights in the box are farther than 2 box apart, and of what is kept
    of them no more than that share. At and beyond it, nothing is known of smaller errors.
    """
    error, left = 0.0, n_steps
    for _ in range(MOST_ROUNDS):
        if left <= 0 or error >= widest:
            return min(error, widest)
        level = 1.05 * error
        after = error_after(level) if left > STEPS_ONE_BY_ONE else inf
        is_cut = after >= 2 * box * kept
        gain = inf if is_cut else max(after - level, 0.0) + (1 - kept) * (level - error)
        if after <= level and gain > 0.0:
            return min(level, widest)
        jump = min(left, int((level - error) / gain)) if gain > 0.0 else left
        error = error + jump * gain if jump > 1 else max(error, error_after(error))
        left -= max(jump, 1)
    return widest
