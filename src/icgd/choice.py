"""The construction that serves a problem best, where the user names none.

With a tolerance the candidates are the constructions that prove it. Without one they are those
whose functions are accurate to rounding, or, if there are none, all. The one with the fewest
weights is chosen, then the one with the fewest FLOPs, which stand for time. Where none is accurate
to rounding, the most accurate functions come first.

Fits take time. So a construction is not built if it is known to be too coarse before anything is
fitted, or if its sketch has more weights than the best run so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction
from icgd.constructions.registry import able_to_serve
from icgd.errors import SettingError, ToleranceError, listed
from icgd.problems.problem import Problem
from icgd.tolerance import Tolerance, function_error
from icgd.weights.sizes import summarise

FULL_ACCURACY = {"float64": 1e-9, "float32": 1e-6}
"""Functions with no larger certified error count as accurate to rounding."""

ONLY_ONE = "no other construction serves this problem with these settings"
SMALLEST_OF_ACCURATE = "no other construction is accurate to rounding with fewer weights"
SMALLEST_ERROR = "none is accurate to rounding here, and none smaller has more accurate functions"

Cost = Callable[[Compiled], tuple[float, ...]]
Build = Callable[[AbstractConstruction, float], Compiled | None]
"""From a construction and a number of weights to a run with no more, or None if it is no use."""


def choose(
    problem: Problem, n_steps: int, settings: Mapping[str, Any], goal: Tolerance | None
) -> Compiled:
    """The run compiled by the best construction that has these settings."""
    candidates = able_to_serve(problem, settings)
    choice = _Choice(problem, n_steps)
    if goal is not None:
        for setting in (c.setting for c in candidates if c.setting in settings):
            raise SettingError(f"Give either {setting} or tolerance, not both.")
        best = choice.within(goal, candidates)
    elif len(candidates) > 1:
        dtype = getattr(candidates[0], "dtype", "float64")  # all have the same
        best = choice.accurate(candidates, FULL_ACCURACY[dtype])
    else:
        best = choice.build(candidates[0])
    return replace(best, chosen_because=ONLY_ONE) if len(candidates) == 1 else best


def _cost(run: Compiled) -> tuple[float, ...]:
    summary = run.summary()
    return float(summary.parameters), float(summary.flops)


@dataclass(frozen=True)
class _Choice:
    """The choice for one problem; `refusals` says why constructions could not be built."""

    problem: Problem
    n_steps: int
    refusals: dict[str, SettingError | ToleranceError] = field(default_factory=dict)

    def build(self, construction: AbstractConstruction, room: float = inf) -> Compiled:
        return Compiled(self.problem, construction.program(self.problem, self.n_steps))

    def within(self, goal: Tolerance, candidates: list[AbstractConstruction]) -> Compiled:
        """The smallest run that proves the tolerance."""
        best = self.best(
            sorted(candidates, key=lambda c: not c.may_be_accurate(self.problem)),
            lambda c, room: goal.within(c, self.problem, self.n_steps, room),
        )
        if best is None and len(self.refusals) == 1:
            raise next(iter(self.refusals.values()))
        if best is None:
            raise ToleranceError(
                f"{goal.in_words} cannot be proved by any construction that serves this problem. "
                f"{listed(self.refusals)}"
            )
        fewest = f"no other construction proves {goal.in_words} with fewer weights"
        return replace(best, chosen_because=fewest)

    def accurate(self, candidates: list[AbstractConstruction], accuracy: float) -> Compiled:
        """The smallest run whose functions are this accurate, or else the most accurate one."""

        def build(construction: AbstractConstruction, room: float) -> Compiled | None:
            run = self.build(construction)
            return run if function_error(run.program) <= accuracy else None

        hopeful = [c for c in candidates if c.may_be_accurate(self.problem)]
        if (best := self.best(hopeful, build)) is not None:
            return replace(best, chosen_because=SMALLEST_OF_ACCURATE)
        others = [c for c in candidates if c.name not in self.refusals]
        best = self.best(others, self.build, lambda run: (function_error(run.program), *_cost(run)))
        if best is None:
            raise next(iter(self.refusals.values()))
        return replace(best, chosen_because=SMALLEST_ERROR)

    def best(
        self, candidates: list[AbstractConstruction], build: Build, cost: Cost = _cost
    ) -> Compiled | None:
        """The run of the least cost among those that can be built, or None if there is none.

        Candidates with smaller sketches are built first. Once a sketch has more weights than the
        best run, nothing smaller follows.
        """
        best: Compiled | None = None
        least = {candidate.name: self.least_weights(candidate) for candidate in candidates}
        for candidate in sorted(candidates, key=lambda c: least[c.name]):
            room = _cost(best)[0] if best else inf
            if least[candidate.name] > room:
                break
            run = self.attempt(build, candidate, room)
            if run and (best is None or cost(run) < cost(best)):
                best = run
        return best

    def attempt(
        self, build: Build, candidate: AbstractConstruction, room: float
    ) -> Compiled | None:
        """The run, or None if it cannot be built; `refusals` then keeps the reason."""
        try:
            return build(candidate, room)
        except (SettingError, ToleranceError) as refusal:
            self.refusals[candidate.name] = refusal
            return None

    def least_weights(self, construction: AbstractConstruction) -> int:
        sketch = construction.sketch(self.problem)
        return 0 if sketch is None else summarise(sketch, 1).parameters
