"""The construction that serves a problem best, where the user names none.

With a tolerance the candidates are the constructions that prove it. Without one they are those
whose functions are accurate to rounding, or, if there are none, the one with the smallest proved
error. Of these the one with the fewest weights is taken, then the one with the least arithmetic.

Fits take time. So a construction is not built if it is known to be too coarse before anything is
fitted, or if its sketch has more weights than the best one so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from icgd.certificates.enclosures import is_ramp
from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction
from icgd.constructions.registry import able_to_serve
from icgd.errors import SettingError, ToleranceError
from icgd.problems.problem import Problem
from icgd.program.program import AbstractProgram
from icgd.tolerance import Tolerance
from icgd.weights.summary import summarise

FULL_ACCURACY = {"float64": 1e-9, "float32": 1e-6}
"""Functions with a smaller certified error count as accurate to rounding."""

ONLY_ONE = "no other construction serves this problem with these settings"
SMALLEST_OF_ACCURATE = "no other construction is accurate to rounding with fewer weights"
SMALLEST_ERROR = "none is accurate to rounding here, and none smaller has a smaller proved error"


Refusals = dict[str, SettingError | ToleranceError]
"""Why constructions could not be built, by their names."""

Build = Callable[[AbstractConstruction, float], Compiled | None]
"""From a construction and a number of weights to a run with no more, or None if it is no use."""


def choose(
    problem: Problem, n_steps: int, settings: Mapping[str, Any], goal: Tolerance | None
) -> Compiled:
    """The run compiled by the best construction that has these settings."""
    candidates = able_to_serve(problem, settings)
    if goal is not None:
        return _smallest_within(goal, problem, n_steps, candidates, settings)
    if len(candidates) == 1:
        return _compiled(problem, n_steps, candidates[0], ONLY_ONE)
    return _smallest_accurate(problem, n_steps, candidates, settings.get("dtype", "float64"))


def _compiled(
    problem: Problem, n_steps: int, construction: AbstractConstruction, reason: str
) -> Compiled:
    program = construction.program(problem, n_steps)
    return Compiled(problem, program, chosen_because=reason)


def _smallest_within(
    goal: Tolerance,
    problem: Problem,
    n_steps: int,
    candidates: list[AbstractConstruction],
    settings: Mapping[str, Any],
) -> Compiled:
    """The smallest run that proves the tolerance."""
    for setting in (c.setting for c in candidates if c.setting in settings):
        raise SettingError.both(str(setting), "tolerance")
    accurate_first = sorted(candidates, key=lambda c: not c.may_be_accurate(problem))
    best, refusals = _best(
        problem,
        accurate_first,
        lambda c, room: goal.within(c, problem, n_steps, room=room),
        _cost,
    )
    if best is None and len(refusals) == 1:
        raise next(iter(refusals.values()))
    if best is None:
        raise ToleranceError.by_all(goal.size, refusals)
    fewest = f"no other construction proves tolerance={goal.size:g} with fewer weights"
    return replace(best, chosen_because=ONLY_ONE if len(candidates) == 1 else fewest)


def _smallest_accurate(
    problem: Problem, n_steps: int, candidates: list[AbstractConstruction], dtype: str
) -> Compiled:
    """The smallest run that is accurate to rounding, or else the most accurate one."""

    def build(construction: AbstractConstruction, room: float) -> Compiled | None:
        compiled = _compiled(problem, n_steps, construction, SMALLEST_OF_ACCURATE)
        return compiled if is_accurate(compiled.program, dtype) else None

    def build_any(construction: AbstractConstruction, room: float) -> Compiled:
        return _compiled(problem, n_steps, construction, SMALLEST_ERROR)

    hopeful = [c for c in candidates if c.may_be_accurate(problem)]
    best, refusals = _best(problem, hopeful, build, _cost)
    if best is None:
        coarse = [c for c in candidates if c.name not in refusals]
        best, others = _best(problem, coarse, build_any, _proved_error)
        refusals |= others
    if best is None:
        raise next(iter(refusals.values()))
    return best


def _best(
    problem: Problem,
    candidates: list[AbstractConstruction],
    build: Build,
    cost: Callable[[Compiled], tuple[float, ...]],
) -> tuple[Compiled | None, Refusals]:
    """The run of the least cost of those that can be built, and why others cannot be.

    Those whose sketch is larger than the best so far are left out.
    """
    best: Compiled | None = None
    refusals: Refusals = {}
    least = {c.name: _least_weights(c, problem) for c in candidates}
    for candidate in sorted(candidates, key=lambda c: least[c.name]):
        room = inf if best is None else float(best.summary().parameters)
        if least[candidate.name] > room:
            continue
        try:
            run = build(candidate, room)
        except (SettingError, ToleranceError) as refusal:
            refusals[candidate.name] = refusal
        else:
            runs = [known for known in (best, run) if known is not None]
            best = min(runs, key=cost) if len(runs) == 2 else next(iter(runs), None)
    return best, refusals


def _least_weights(construction: AbstractConstruction, problem: Problem) -> int:
    sketch = construction.sketch(problem)
    return 0 if sketch is None else summarise(sketch, 1).parameters


def _cost(run: Compiled) -> tuple[float, ...]:
    summary = run.summary()
    return float(summary.parameters), float(summary.flops)


def _proved_error(run: Compiled) -> tuple[float, ...]:
    return (run.certificate().domain_step, *_cost(run))


def is_accurate(program: AbstractProgram, dtype: str = "float64") -> bool:
    """Whether all functions are accurate to rounding, but for jumps, which no program has."""
    functions = (function for function in program.functions if not is_ramp(function))
    return all(function.largest_error <= FULL_ACCURACY[dtype] for function in functions)
