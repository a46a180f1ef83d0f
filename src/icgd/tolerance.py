"""The search for the coarsest setting of a construction that proves a tolerance."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import inf

from icgd.certificates.enclosures import is_ramp
from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction
from icgd.errors import SettingError, ToleranceError
from icgd.problems.problem import Problem
from icgd.problems.settings import positive
from icgd.problems.task import Task
from icgd.program.functions import Function, LatticeFunction
from icgd.program.instructions import IDENTITY, SQUARE
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram


@dataclass(frozen=True)
class Tolerance:
    """How far a step may err in any weight: on the whole domain, or in the run on a `task`."""

    size: float
    task: Task | None = None

    def __post_init__(self) -> None:
        positive("tolerance", self.size)

    def within(
        self,
        construction: AbstractConstruction,
        problem: Problem,
        n_steps: int,
        *,
        room: float = inf,
    ) -> Compiled:
        """The compiled run with about the coarsest setting whose proved step error is small enough.

        Gives up at the finest setting, or if twice the best one so far is no better. That tells
        nothing while a bound is not below the box, to which all weights are clipped. It also gives
        up where a run has more weights than there is `room` for. Raises `ToleranceError`.
        """
        if construction.setting is None:
            return self._exact_within(Compiled(problem, construction.program(problem, n_steps)))
        _require_default(construction)
        setting = best_setting = construction.coarsest
        best = inf
        while True:
            setting, compiled = _first_buildable(construction, problem, n_steps, setting)
            if compiled.summary().parameters > room:
                raise ToleranceError.no_room(self.size, construction.name, room)
            bound = _step_bound(compiled, self.task)
            if bound <= self.size:
                return compiled
            if bound < best:
                best, best_setting = bound, setting
            stuck = setting >= 2 * best_setting and best < problem.gradient_step.box
            if stuck or setting == construction.finest or not _has_smooth_functions(compiled):
                reason = _why_unreachable(compiled.program, self.task)
                finest = f"{best_setting} {construction.setting}"
                raise ToleranceError.unreachable(self.size, best, finest, reason)
            predicted = construction.finer(setting, min(bound / self.size, 1e6))
            setting = min(max(predicted, setting + 1), construction.finest)

    def _exact_within(self, compiled: Compiled) -> Compiled:
        """A run that cannot be finer, if its rounding and what it looks up are exact enough."""
        bound = _step_bound(compiled, self.task)
        if not bound <= self.size:
            looks_up = _has_smooth_functions(compiled)
            fine = "rounding, and look-ups as fine as they can be, err"
            errs = fine if looks_up else "rounding errs"
            helps = (
                "a smaller box or domain helps"
                if self.task
                else "prove it for one run with task=..."
            )
            reason = _kink_reason(compiled.program, self.task) or f"Only {errs}: {helps}."
            finest = "look-ups of full accuracy" if looks_up else "exact arithmetic"
            raise ToleranceError.unreachable(self.size, bound, finest, reason)
        return compiled


def _require_default(construction: AbstractConstruction) -> None:
    """The tolerance chooses the setting, so that nobody else may."""
    name = str(construction.setting)
    default = next(field.default for field in fields(construction) if field.name == name)
    if getattr(construction, name) != default:
        raise SettingError.both(name, "tolerance")


def _first_buildable(
    construction: AbstractConstruction, problem: Problem, n_steps: int, setting: int
) -> tuple[int, Compiled]:
    """The run with this setting, or, if that is too coarse for the problem, with a finer one."""
    while True:
        finer = replace(construction, **{str(construction.setting): setting})
        try:
            return setting, Compiled(problem, finer.program(problem, n_steps))
        except SettingError:
            if setting == construction.finest:
                raise
            setting = min(2 * setting, construction.finest)


def _step_bound(compiled: Compiled, task: Task | None) -> float:
    if task is None:
        return compiled.certificate().domain_step
    run = compiled.run_task(task)
    bounds = compiled.bounds_for(task, "fused").steps(task, run.parameters)
    return float(bounds.max()) if bounds.numel() else 0.0


def _has_smooth_functions(compiled: Compiled) -> bool:
    functions = compiled.program.functions
    return any(not (fit.is_exact or is_ramp(fit) or _is_line(fit)) for fit in functions)


def _is_line(fit: Function) -> bool:
    """Whether it is as good with few registers as with many."""
    return isinstance(fit, LatticeFunction) and fit.name in {IDENTITY, SQUARE}


def _why_unreachable(program: AbstractProgram, task: Task | None) -> str:
    if reason := _kink_reason(program, task):
        return reason
    if isinstance(program, StackProgram) and program.step_table is not None:
        return "The error falls like 1 / levels, and larger tables do not fit."
    return "Rounding or the size of the domain stands in the way; a smaller box or domain helps."


def _kink_reason(program: AbstractProgram, task: Task | None) -> str | None:
    """What a kink of the activation has to do with it, or None."""
    if not program.has_kinks:
        return None
    if task is not None:
        return "The run comes too close to a kink of the activation; see report.near_kinks."
    return (
        "On the whole domain some data fall on a kink of the activation. Prove it for one "
        "run with task=..., or use a smooth activation."
    )
