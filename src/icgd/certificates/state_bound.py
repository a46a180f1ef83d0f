r"""Bound (a) of updates that remember something linear, such as momentum.

What is remembered is not clipped to a box. But it starts at 0, and a step makes of it

    m <- mu m + g,   so that   |m| <= G (1 - mu^t) / (1 - mu)   after t steps,

where G bounds the gradient on the domain. So a run is followed step by step, with a bound on the
size of every weight and of all that is remembered, and a bound on its error. Most runs are short.
Of a long one the first `MOST_STEPS` are followed. For all others a size is guessed, as the sum of
the geometric series that the last two steps begin, and one step is asked whether it stays below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from icgd.certificates.abstract_bounds import DomainBound
from icgd.certificates.domain_bound import GUESSES
from icgd.shapes import Parameters

MOST_STEPS = 100
"""The steps that are followed one by one; of later ones no more is known than their sizes."""

SLACK = 1 + 2.0**-10
"""How much more than the guess is allowed, so that rounding does not spoil it."""


@dataclass(frozen=True)
class Trained:
    """Bounds on every weight and on all that is remembered: sizes, errors, drifts of copies."""

    sizes: Parameters
    error: Parameters
    drift: Parameters

    @classmethod
    def exactly(cls, sizes: Parameters, drift: Parameters) -> Trained:
        """Numbers of these sizes without an error, whose copies may lie `drift` apart."""
        return cls(sizes, torch.zeros_like(sizes), drift)


AfterStep = Callable[[Trained, int], Trained]
"""What is trained after a step of this number, from what is trained before it."""


@dataclass(frozen=True)
class StateBound:
    """The bounds of a run whose `ends` are steps that differ: the last of each kind.

    `is_state` tells which numbers are remembered. All others are clipped to a box. `kept` is the
    least share of every number that a step keeps.
    """

    after_step: AfterStep
    is_state: Tensor
    kept: Tensor
    ends: Sequence[int]
    n_steps: int

    def domain(self, reach: float) -> DomainBound:
        """The bounds, if weights are at most `reach` at the start and nothing is remembered."""
        weights = torch.full(self.is_state.shape, reach, dtype=torch.float64)
        sizes = weights.masked_fill(self.is_state, 0.0)
        before = Trained.exactly(sizes, torch.zeros_like(sizes))
        last, worst = before, 0.0
        for step in range(min(self.n_steps, MOST_STEPS)):
            last, before = before, self._after(before, step)
            worst = max(worst, float(before.error.nan_to_num(nan=inf, posinf=inf).max()))
        if self.n_steps > MOST_STEPS:
            last = self._later(last, before)
            worst = 2 * float(last.sizes.max())  # nothing else is known
        return self._bound(last, worst)

    def _after(self, before: Trained, step: int) -> Trained:
        """What is trained after a step; sizes and drifts never fall."""
        after = self.after_step(before, step)
        sizes, drift = before.sizes, before.drift
        return Trained(
            torch.maximum(sizes, after.sizes), after.error, torch.maximum(drift, after.drift)
        )

    def _bound(self, before: Trained, trajectory: float) -> DomainBound:
        """The bound of any step, of which the last one starts from the largest numbers."""
        exact = Trained.exactly(before.sizes, before.drift)
        steps = [self.after_step(exact, end) for end in self.ends]
        if not all(bool(part.isfinite().all()) for after in steps for part in vars(after).values()):
            return DomainBound(inf, inf)
        weights = ~self.is_state
        drift = max(float(after.drift.max()) for after in steps)
        return DomainBound(
            step=max(float(after.error.max()) for after in steps),
            trajectory=trajectory,
            reach=max(float(after.sizes[..., weights].max()) for after in steps),
            drift=max(drift, float(before.drift.max())),
        )

    def _later(self, before: Trained, after: Trained) -> Trained:
        """Sizes that no later step leaves, and the drift before the last one; or infinity.

        It is assumed that every step adds to what it keeps of the drift what the last one does,
        which is then checked, and once more with what a step was found to add. What a step adds
        is counted from the drift that is known, of which a part is lost again in every step.
        """
        sizes, added = self._limit(before, after), after.drift - before.drift
        ends = [end for end in self.ends if end >= MOST_STEPS] or self.ends
        times = (1 / (1 - self.kept)).clamp(max=self.n_steps - MOST_STEPS)
        for _ in range(GUESSES):
            drift = after.drift + times * SLACK * added
            exact = Trained.exactly(sizes, drift)
            found = [self.after_step(exact, end) for end in ends]
            if not all(bool((part.sizes <= sizes).all()) for part in found):
                break
            lost = (1 - self.kept) * after.drift
            most = torch.stack([part.drift - self.kept * drift - lost for part in found]).amax(0)
            if bool((most <= SLACK * added).all()):
                return exact
            added = torch.maximum(added, SLACK * most)
        return Trained.exactly(torch.full_like(sizes, inf), after.drift)

    def _limit(self, before: Trained, after: Trained) -> Parameters:
        """The sum of the geometric series that the last growth and the next one begin.

        Weights are clipped, and grow by rounding alone.
        """
        following = self._after(after, self.ends[-1]).sizes
        first, second = after.sizes - before.sizes, following - after.sizes
        ratio = torch.where(first > 0, second / first, 0.0)
        sum_of_all = SLACK * (after.sizes + second / (1 - ratio).clamp(min=0.0))
        return torch.where(self.is_state, sum_of_all, (1 + 2.0**-40) * following)
