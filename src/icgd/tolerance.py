"""The search for the coarsest setting of a construction that proves a tolerance."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import inf

from icgd.certificates.enclosures import is_ramp
from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction
from icgd.errors import SettingError, ToleranceError
from icgd.problems.problem import Problem
from icgd.problems.settings import instance, positive
from icgd.problems.task import Task
from icgd.program.instructions import IDENTITY, SQUARE
from icgd.program.program import AbstractProgram

LARGEST_EXCESS = 1e6
"""A bound that is further above the tolerance says little about the setting that is needed."""


@dataclass(frozen=True)
class Tolerance:
    """How far a step may err in any weight: on the whole domain, or in the run on a `task`."""

    size: float
    task: Task | None = None

    def __post_init__(self) -> None:
        positive("tolerance", self.size)
        if self.task is not None:
            instance("task", self.task, Task)

    def within(
        self, construction: AbstractConstruction, problem: Problem, n_steps: int, room: float = inf
    ) -> Compiled:
        """The compiled run with about the coarsest setting whose proved step error is small enough.

        The search gives up at the finest setting, where twice the best setting is no better, and
        where a run has more weights than there is `room` for. It raises `ToleranceError` then.
        """
        self._require_bounds(problem)
        if construction.setting is None:
            return self._exact_within(Compiled(problem, construction.program(problem, n_steps)))
        _require_default(construction)
        return _Search(self, construction, problem, n_steps, room).coarsest()

    def _require_bounds(self, problem: Problem) -> None:
        """Raise `ToleranceError` if no setting has a bound on the whole domain."""
        if self.task is None and problem.update.state:
            remembered = " and ".join(problem.update.state).replace("_", " ")
            reason = (
                f"On the whole domain nothing is known of the {remembered} that a step starts "
                "with. Prove it for one run with task=..."
            )
            raise ToleranceError.unreachable(self.size, inf, "any setting", reason)

    def bound(self, compiled: Compiled) -> float:
        """The largest error of a step that is proved for this run."""
        if self.task is None:
            certificate = compiled.certificate()
            self._require_proof(certificate.estimated)
            return certificate.domain_step
        rules = compiled.bounds_for(self.task, "fused")
        self._require_proof(rules.estimated)
        bounds = rules.steps(self.task, compiled.run_task(self.task).parameters)
        return float(bounds.max()) if bounds.numel() else 0.0

    def _require_proof(self, estimated: tuple[str, ...]) -> None:
        """Raise `ToleranceError` if bounds would be estimates."""
        if estimated:
            raise ToleranceError.of_estimates(self.size, estimated)

    def _exact_within(self, compiled: Compiled) -> Compiled:
        """A run that cannot be finer, if its rounding and what it looks up are exact enough."""
        bound = self.bound(compiled)
        if bound <= self.size:
            return compiled
        finest, errs = "exact arithmetic", "rounding errs"
        if can_be_finer(compiled.program):
            finest = "look-ups of full accuracy"
            errs = "rounding, and look-ups as fine as they can be, err"
        helps = (
            "a smaller box or domain helps" if self.task else "prove it for one run with task=..."
        )
        reason = self.kink_reason(compiled.program) or f"Only {errs}: {helps}."
        raise ToleranceError.unreachable(self.size, bound, finest, reason)

    def kink_reason(self, program: AbstractProgram) -> str | None:
        """How a kink of the activation stands in the way, or None if there is no kink."""
        if not program.has_kinks:
            return None
        if self.task is not None:
            return "The run comes too close to a kink of the activation; see report.near_kinks."
        return (
            "On the whole domain some data fall on a kink of the activation. Prove it for one "
            "run with task=..., or use a smooth activation."
        )


@dataclass(frozen=True)
class _Trial:
    """A run with one setting, and the step error that is proved for it."""

    setting: int
    compiled: Compiled
    bound: float


@dataclass(frozen=True)
class _Search:
    """A search through the settings of one construction, from coarse to fine."""

    goal: Tolerance
    construction: AbstractConstruction
    problem: Problem
    n_steps: int
    room: float

    def coarsest(self) -> Compiled:
        """The first run that proves the tolerance."""
        trial = best = self.trial(self.construction.coarsest)
        while not trial.bound <= self.goal.size:  # also if it is not a number
            best = min(best, trial, key=self.progress)
            if self.is_over(trial, best):
                raise self.refusal(best)
            trial = self.trial(self.finer(trial))
        return trial.compiled

    def trial(self, setting: int) -> _Trial:
        """The run with this setting, or with a finer one if this is too coarse for the problem."""
        own, finest = str(self.construction.setting), self.construction.finest
        try:
            finer = replace(self.construction, **{own: setting})
            program = finer.program(self.problem, self.n_steps)
        except SettingError:
            if setting == finest:
                raise
            return self.trial(min(2 * setting, finest))
        compiled = Compiled(self.problem, program)
        if compiled.summary().parameters > self.room:
            raise ToleranceError.no_room(self.goal.size, self.construction.name, self.room)
        return _Trial(setting, compiled, self.goal.bound(compiled))

    def progress(self, trial: _Trial) -> tuple[float, float]:
        """The bound, and beyond the box, where all bounds are alike, the error of the functions."""
        return min(self.problem.box or inf, trial.bound), function_error(trial.compiled.program)

    def is_over(self, trial: _Trial, best: _Trial) -> bool:
        """Whether finer settings are no better, or there are none."""
        no_better = trial.setting >= 2 * best.setting
        at_end = trial.setting == self.construction.finest
        return no_better or at_end or not can_be_finer(trial.compiled.program)

    def finer(self, trial: _Trial) -> int:
        """The setting that is expected to prove the tolerance."""
        excess = min(LARGEST_EXCESS, trial.bound / self.goal.size)
        expected = self.construction.finer(trial.setting, excess)
        return min(max(expected, trial.setting + 1), self.construction.finest)

    def refusal(self, best: _Trial) -> ToleranceError:
        """Why the tolerance cannot be proved, with the best that can be."""
        finest = f"{best.setting} {self.construction.setting}"
        reason = self.goal.kink_reason(best.compiled.program) or self.construction.limit
        return ToleranceError.unreachable(self.goal.size, best.bound, finest, reason)


def function_error(program: AbstractProgram) -> float:
    """The largest certified error of a function, except at jumps, which no program can have."""
    functions = (function for function in program.functions if not is_ramp(function))
    return max((function.largest_error for function in functions), default=0.0)


def can_be_finer(program: AbstractProgram) -> bool:
    """Whether a function errs that is not a line or a square, which are accurate at any setting."""
    curves = (f for f in program.functions if f.name not in (IDENTITY, SQUARE))
    return any(not (curve.is_exact or is_ramp(curve)) for curve in curves)


def _require_default(construction: AbstractConstruction) -> None:
    """The tolerance chooses the setting, so that nobody else may."""
    name = str(construction.setting)
    default = next(field.default for field in fields(construction) if field.name == name)
    if getattr(construction, name) != default:
        raise SettingError.both(name, "tolerance")
