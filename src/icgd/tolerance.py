"""The search for the coarsest setting of a construction that proves a tolerance.

A tolerance is of a step, or of a whole run: of its final weights, or of its predictions. What is
proved of a whole run is carried from step to step and grows with each, the faster the less is
known: for all data in the domain it soon proves nothing, for one run on known data much later.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import inf

from torch import Tensor

from icgd.certificates.report import at_end, near_kinks
from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction
from icgd.errors import DataError, SettingError, ToleranceError, UnknownNameError
from icgd.problems.data import Task
from icgd.problems.problem import Problem
from icgd.problems.settings import positive
from icgd.program.instructions import IDENTITY, SQUARE
from icgd.program.program import AbstractProgram

STEP, WEIGHTS, PREDICTIONS = "step", "weights", "predictions"
OF = {STEP: "", WEIGHTS: " of the final weights", PREDICTIONS: " of the predictions"}
"""What a tolerance may be of, and how it is said."""

LARGEST_EXCESS = {STEP: 1e6, WEIGHTS: 64.0, PREDICTIONS: 64.0}
"""A bound that is further above the tolerance says little about the setting that is needed. Those
of a whole run grow by more than errors do."""


@dataclass(frozen=True)
class Tolerance:
    """How far a step may err in any weight: on the whole domain, or in the run on a `task`.

    It may also be `of` the weights after the run, or of its predictions, beside real training.
    """

    size: float
    task: Task | None = None
    of: str = STEP

    def __post_init__(self) -> None:
        positive("tolerance", self.size)
        if self.of not in OF:
            raise UnknownNameError.of("tolerance_of", self.of, known=list(OF))
        if self.task is not None and self.of == PREDICTIONS and not self.task.n_queries:
            raise DataError(
                "tolerance_of='predictions' is about predictions at queries, and the task has "
                "none. Give them: icgd.as_task(problem, X, y, queries=...)."
            )

    @property
    def in_words(self) -> str:
        """The tolerance, and what it is of if that is not a step."""
        return f"tolerance={self.size:g}{OF[self.of]}"

    def within(
        self, construction: AbstractConstruction, problem: Problem, n_steps: int, room: float = inf
    ) -> Compiled:
        """The compiled run with about the coarsest setting whose proved step error is small enough.

        The search gives up at the finest setting, where twice the best setting is no better, and
        where a run has more weights than there is `room` for. If the construction has narrower
        ramps, a run is tried with them. It raises `ToleranceError` then.
        """
        self._require_bounds(problem)
        narrower = construction.narrower(problem) if self.task else None
        try:
            return self._search(construction, problem, n_steps, room)
        except ToleranceError:
            if narrower is None:
                raise
        return self._search(narrower, problem, n_steps, room)

    def _search(
        self, construction: AbstractConstruction, problem: Problem, n_steps: int, room: float
    ) -> Compiled:
        if construction.setting is None:
            return self._exact_within(
                construction, Compiled(problem, construction.program(problem, n_steps))
            )
        _require_default(construction)
        return _Search(self, construction, problem, n_steps, room).coarsest()

    def _require_bounds(self, problem: Problem) -> None:
        """Raise `ToleranceError` if no setting has a bound on the whole domain."""
        if self.task is None and problem.update.has_root:
            remembered = " and ".join(problem.gradient_step.state).replace("_", " ")
            raise ToleranceError(
                f"{self.in_words} cannot be proved: the smallest bound is inf, with any setting. "
                f"On the whole domain nothing is known of the {remembered} that a step starts "
                "with. Prove it for one run with task=..."
            )

    def bound(self, compiled: Compiled) -> float:
        """The largest error that is proved for this run: of a step, or after the last one."""
        if self.task is None:
            certificate = compiled.certificate()
            self._require_proof(certificate.estimated)
            return {
                STEP: certificate.domain_step,
                WEIGHTS: certificate.domain_trajectory,
                PREDICTIONS: certificate.domain_predictions,
            }[self.of]
        rules = compiled.bounds_for(self.task, "fused")
        self._require_proof(rules.estimated)
        history = compiled.run_task(self.task).parameters
        if self.of == STEP:
            return _largest(rules.steps(self.task, history))
        real = compiled.problem.oracle.train(self.task, compiled.program.n_steps)
        ends = at_end(rules.run(self.task, history, real).trajectory)
        if self.of == WEIGHTS:
            return _largest(ends)
        return _largest(rules.predictions(self.task, history, real, ends))

    def _require_proof(self, estimated: tuple[str, ...]) -> None:
        """Raise `ToleranceError` if bounds would be estimates."""
        if estimated:
            raise ToleranceError(
                f"{self.in_words} cannot be proved: no Lipschitz constant was stated of the kernel "
                f"{', '.join(map(repr, estimated))}. Register it with icgd.register_kernel(..., "
                "lipschitz=...)."
            )

    def _exact_within(self, construction: AbstractConstruction, compiled: Compiled) -> Compiled:
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
        otherwise = f"Only {errs}: {helps}."
        reason = self.reason(construction, compiled, otherwise)
        raise ToleranceError(
            f"{self.in_words} cannot be proved: the smallest bound is {bound:.3g}, with {finest}. "
            f"{reason}"
        )

    def reason(self, construction: AbstractConstruction, compiled: Compiled, otherwise: str) -> str:
        """What stands in the way: the length of a run, a kink, or else `otherwise`."""
        length = None if self.of == STEP else self._length_reason(compiled)
        return length or self.kink_reason(construction, compiled) or otherwise

    def _length_reason(self, compiled: Compiled) -> str | None:
        """How the bound grows with the steps, if it is the steps that make it too large."""
        steps, grown, trivial = self._growth(compiled)
        n_steps = compiled.program.n_steps
        if not grown or grown[-1] <= 2 * n_steps * max(steps):
            return None
        helps = "Take fewer or shorter steps" if self.task else "Prove it for one run with task=..."
        where = next((k for k, bound in enumerate(grown, 1) if not bound < trivial), None)
        if where is None:
            return (
                f"A step errs by at most {max(steps):.3g}, and the bound grows from step to step, "
                f"to {grown[-1]:.3g} after {n_steps:,}. {helps}."
            )
        after = f"after {where:,} of {n_steps:,} steps" if self.task else f"after {n_steps:,} steps"
        return (
            f"The bound of the weights grows from step to step, and {after} it proves nothing but "
            f"that they stay in the box. {helps}; or icgd.verify(..., rigorous=True) proves how "
            "far the weights of one run are off."
        )

    def _growth(self, compiled: Compiled) -> tuple[list[float], list[float], float]:
        """Bounds on steps and on the weights after them, and one that is known without a proof.

        Weights in the box are twice as far apart as a weight in it is from one that is known.
        """
        if self.task is None:
            proved = compiled.certificate()
            return [proved.domain_step], [proved.domain_trajectory], proved.widest
        rules = compiled.bounds_for(self.task, "fused")
        history = compiled.run_task(self.task).parameters
        real = compiled.problem.oracle.train(self.task, compiled.program.n_steps)
        found = rules.run(self.task, history, real)
        return _over_tasks(found.steps), _over_tasks(found.trajectory), rules.widest / 2

    def kink_reason(self, construction: AbstractConstruction, compiled: Compiled) -> str | None:
        """How a kink of the activation stands in the way, or None if none does."""
        if not compiled.program.has_kinks:
            return None
        if self.task is not None:
            return self._ramp_reason(construction, compiled, self.task)
        return (
            "On the whole domain some data fall on a kink of the activation. Prove it for one "
            "run with task=..., or use a smooth activation."
        )

    def _ramp_reason(
        self, construction: AbstractConstruction, compiled: Compiled, task: Task
    ) -> str | None:
        """What a ramp has to do with it, if the run comes to lie on one."""
        history = compiled.run_task(task).parameters
        events = near_kinks(compiled.program, compiled.problem, task, history).count
        if not events:
            return None
        width = getattr(construction, "kink_width", None)
        remedy = "" if width is None else f" Leave kink_width={width:g} out, or make it smaller."
        return (
            f"The run comes too close to a kink of the activation: {events:,} preactivations lie "
            f"on the ramp that stands in for the jump of its slope; see report.near_kinks.{remedy}"
        )


def goal_of(size: float | None, of: str, task: Task | None) -> Tolerance | None:
    """The tolerance that was asked for, or None; what it is of means nothing without it."""
    if size is not None:
        return Tolerance(size, task, of)
    if task is not None:
        raise SettingError("task has no effect without tolerance; give both or neither.")
    if of != STEP:
        raise SettingError("tolerance_of has no effect without tolerance; give both or neither.")
    return None


@dataclass(frozen=True)
class _Trial:
    """A run with one setting, and the error that is proved for it."""

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
            raise ToleranceError(
                f"{self.goal.in_words} takes {self.construction.name} more than {self.room:,.0f} "
                "weights."
            )
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
        excess = min(LARGEST_EXCESS[self.goal.of], trial.bound / self.goal.size)
        expected = self.construction.finer(trial.setting, excess)
        return min(max(expected, trial.setting + 1), self.construction.finest)

    def refusal(self, best: _Trial) -> ToleranceError:
        """Why the tolerance cannot be proved, with the best that can be."""
        finest = f"{best.setting} {self.construction.setting}"
        reason = self.goal.reason(self.construction, best.compiled, self.construction.limit)
        return ToleranceError(
            f"{self.goal.in_words} cannot be proved: the smallest bound is {best.bound:.3g}, with "
            f"{finest}. {reason}"
        )


def _largest(bounds: Tensor) -> float:
    return float(bounds.max()) if bounds.numel() else 0.0


def _over_tasks(bounds: Tensor) -> list[float]:
    """The largest bound of all tasks, for each step."""
    largest: list[float] = bounds.reshape(-1, bounds.shape[-1]).amax(0).tolist()
    return largest


def function_error(program: AbstractProgram) -> float:
    """The largest certified error of a function, except at jumps, which no program can have."""
    functions = (function for function in program.functions if not function.is_ramp)
    return max((function.largest_error for function in functions), default=0.0)


def can_be_finer(program: AbstractProgram) -> bool:
    """Whether a function errs that is not a line or a square, which are accurate at any setting."""
    curves = (f for f in program.functions if f.name not in (IDENTITY, SQUARE))
    return any(not (curve.is_exact or curve.is_ramp) for curve in curves)


def _require_default(construction: AbstractConstruction) -> None:
    """The tolerance chooses the setting, so that nobody else may."""
    name = str(construction.setting)
    default = next(field.default for field in fields(construction) if field.name == name)
    if getattr(construction, name) != default:
        raise SettingError(f"Give either {name} or tolerance, not both.")
