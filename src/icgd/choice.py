"""Which construction compiles a problem, and how fine it is.

A user names a construction with its settings, or none: then the one that serves best is chosen.
With a tolerance the candidates are the constructions that prove it. Without one they are those
whose functions are accurate to rounding, or, if there are none, all. The one with the fewest
weights is chosen, then the one with the fewest FLOPs, which stand for time. Where none is accurate
to rounding, the most accurate functions come first. Fits take time. So a construction is not built
if it is known to be too coarse before anything is fitted, or if its sketch has more weights than
the best run so far.

A tolerance asks for the coarsest setting of a construction that proves it. It is of a step, or of a
whole run: of its final weights, or of its predictions. For one run on known data, balls prove that.
For all data in the domain a bound is carried from step to step and grows with each, so that it soon
proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any, NamedTuple

from torch import Tensor

from icgd.backends.registry import AUTO, chosen_backend
from icgd.certificates.report import bounds_of_run, near_kinks, real_training
from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import (
    ConstructionError,
    DataError,
    SettingError,
    ToleranceError,
    UnknownNameError,
    UnsupportedProblemError,
    did_you_mean,
    listed,
    quoted,
)
from icgd.problems.data import Task
from icgd.problems.problem import Problem
from icgd.problems.settings import named, positive
from icgd.program.instructions import IDENTITY, SQUARE
from icgd.program.program import AbstractProgram
from icgd.shapes import History
from icgd.weights.sizes import summarise


def construction_named(name: str) -> AbstractConstruction:
    """Return the construction called `name`."""
    if isinstance(name, type) and issubclass(name, AbstractConstruction):
        raise ConstructionError(
            f"construction is the class {name.__name__}; an object of it is expected, which has "
            f"settings. Give {name.__name__}()."
        )
    return named("construction", name, CONSTRUCTIONS)


def construction_for(
    problem: Problem, chosen: str | AbstractConstruction, settings: Mapping[str, Any] | None = None
) -> AbstractConstruction:
    """Return the chosen construction with these settings; raise if it cannot serve `problem`."""
    construction = (
        chosen if isinstance(chosen, AbstractConstruction) else construction_named(chosen)
    )
    if settings and construction is chosen:
        given = ", ".join(f"{name}={quoted(value)}" for name, value in settings.items())
        raise ConstructionError(
            f"{given} was given beside a construction object, which has its own settings. Put it "
            f"into the object: {type(construction).__name__}({given})."
        )
    construction = with_settings(construction, settings or {})
    _require_able(construction, problem)
    return construction


def _require_able(construction: AbstractConstruction, problem: Problem) -> None:
    """Raise `UnsupportedProblemError` if the construction cannot serve the problem."""
    if (reason := construction.why_not(problem)) is None:
        return
    others = [other for name, other in CONSTRUCTIONS.items() if name != construction.name]
    able = [other.name for other in others if other.why_not(problem) is None]
    hint = (
        f"Constructions that can: {', '.join(able)}."
        if able
        else "No construction takes it as it is."
    )
    raise UnsupportedProblemError(
        f"{construction.name} cannot compile this problem: {reason} {hint}"
    )


def with_settings(
    construction: AbstractConstruction, settings: Mapping[str, Any]
) -> AbstractConstruction:
    """Return the construction with these settings in place of its own."""
    own = construction.settings()
    for name in settings:
        if name not in own:
            owners = [c.name for c in CONSTRUCTIONS.values() if name in c.settings()]
            has = f"its settings are {', '.join(own)}" if own else "it has no settings"
            hint = f" {name} is a setting of {', '.join(owners)}." if owners else ""
            raise ConstructionError(
                f"{construction.name} has no setting {quoted(name)}; {has}."
                f"{hint or did_you_mean(name, own)}"
            )
    return replace(construction, **settings)


def able_to_serve(problem: Problem, settings: Mapping[str, Any]) -> list[AbstractConstruction]:
    """Return the constructions that serve `problem` with these settings.

    A last resort is among them only if there is no other.
    """
    able = [c for c in CONSTRUCTIONS.values() if c.why_not(problem) is None]
    if not able:
        of_this_kind = (c for c in CONSTRUCTIONS.values() if c.trains(problem))
        reasons = {c.name: c.why_not(problem) for c in of_this_kind}
        raise UnsupportedProblemError(
            f"No construction can compile this problem. {listed(reasons)}"
        )
    owners = [c for c in able if set(settings) <= set(c.settings())] or able[:1]
    if len(able) > 1 and not set(settings) <= set(owners[0].settings()):
        known = [name for c in able for name in c.settings()]
        has = "; ".join(f"{c.name} has {', '.join(c.settings()) or 'none'}" for c in able)
        hints = (did_you_mean(name, known) for name in settings if name not in known)
        raise ConstructionError(
            "No construction that serves this problem has all of the given settings "
            f"({', '.join(settings)}): {has}.{''.join(hints)}"
        )
    first_choices = [c for c in owners if not c.is_last_resort] or owners
    candidates = [with_settings(construction, settings) for construction in first_choices]
    still_able = [c for c in candidates if c.why_not(problem) is None]
    if not still_able:
        _require_able(candidates[0], problem)
    return still_able


STEP, WEIGHTS, PREDICTIONS = "step", "weights", "predictions"
OF = {STEP: "", WEIGHTS: " of the final weights", PREDICTIONS: " of the predictions"}
"""What a tolerance may be of, and how it is said."""

LARGEST_EXCESS = {STEP: 1e6, WEIGHTS: 64.0, PREDICTIONS: 64.0}
"""A bound that is further above the tolerance says little about the setting that is needed. Those
of a whole run grow by more than errors do."""


class Evidence(NamedTuple):
    """What is proved of a compiled run: the `bound` that a tolerance is about, and how it grows.

    `steps` and `grown` bound what each step adds, and the weights after it; nothing is known of
    them if the tolerance is of a step. Weights are known to be as close as `trivial` without a
    proof. `history` has the weights of the run, if there is one.
    """

    compiled: Compiled
    bound: float
    steps: Sequence[float] = ()
    grown: Sequence[float] = ()
    trivial: float = inf
    history: History | None = None


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

    def meeting(
        self, construction: AbstractConstruction, problem: Problem, n_steps: int, room: float = inf
    ) -> Compiled:
        """Return the compiled run with about the coarsest setting that proves the tolerance.

        The search gives up at the finest setting, where twice the best setting is no better, and
        where a run has more weights than there is `room` for. If the construction has narrower
        ramps, a run is tried with them. It raises `ToleranceError` then.
        """
        if self.task is None and problem.update.has_root:
            remembered = " and ".join(problem.gradient_step.state).replace("_", " ")
            raise ToleranceError(
                f"{self.in_words} cannot be proved: the smallest bound is inf, with any setting. "
                f"On the whole domain nothing is known of the {remembered} that a step starts "
                "with. Prove it for one run with task=..."
            )
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
        """Return the first run that proves the tolerance, from coarse settings to fine ones."""
        name = construction.refined_by
        if name is None:
            compiled = Compiled(problem, construction.program(problem, n_steps))
            self._require_exact(construction, compiled)
            return compiled
        default = next(field.default for field in fields(construction) if field.name == name)
        if getattr(construction, name) != default:
            raise SettingError(f"Give either {name} or tolerance, not both.")

        setting, finest = construction.coarsest, construction.finest
        best: tuple[tuple[float, float], int, Evidence] | None = None
        while True:
            try:
                program = replace(construction, **{name: setting}).program(problem, n_steps)
            except SettingError:  # too coarse for the problem
                if setting == finest:
                    raise
                setting = min(2 * setting, finest)
                continue
            compiled = Compiled(problem, program)
            if compiled.summary().parameters > room:
                raise ToleranceError(
                    f"{self.in_words} takes {construction.name} more than {room:,.0f} weights."
                )
            evidence = self.evidence(compiled)
            if evidence.bound <= self.size:
                return compiled
            # Beyond the box, where all bounds are alike, the error of the functions tells progress.
            progress = (min(problem.box or inf, evidence.bound), function_error(program))
            if best is None or progress < best[0]:
                best = progress, setting, evidence
            _, best_setting, best_evidence = best
            is_no_better = setting >= 2 * best_setting
            if is_no_better or setting == finest or not can_be_finer(program):
                reason = self._reason(construction, best_evidence, construction.why_no_finer)
                raise ToleranceError(
                    f"{self.in_words} cannot be proved: the smallest bound is "
                    f"{best_evidence.bound:.3g}, with {best_setting} {name}. {reason}"
                )
            excess = min(LARGEST_EXCESS[self.of], evidence.bound / self.size)
            setting = min(max(construction.finer(setting, excess), setting + 1), finest)

    def evidence(self, compiled: Compiled) -> Evidence:
        """Return what is proved for this run: of a step, or after the last one."""
        task = self.task
        if task is None:
            proved = compiled.certificate()
            self._require_proof(proved.estimated)
            steps, grown = [proved.domain_step], [proved.domain_trajectory]
            bound = {STEP: steps[0], WEIGHTS: grown[0], PREDICTIONS: proved.domain_predictions}
            return Evidence(compiled, bound[self.of], steps, grown, proved.widest)
        backend = chosen_backend(AUTO, compiled.program, task).name  # as `verify` chooses it
        bounds = compiled.bounds_for(task, backend)
        self._require_proof(bounds.estimated)
        run = compiled.run_task(task, backend=backend)
        history, n_steps = run.parameters, compiled.program.n_steps
        if self.of == STEP:
            return Evidence(compiled, _largest(bounds.steps(task, history)), history=history)
        real = real_training(compiled.problem, task, n_steps)
        by_balls = not bounds.stated  # no ball encloses a kernel of the user's own
        of_run = bounds_of_run(bounds, task, run, real, by_balls=by_balls)
        growth = _over_tasks(of_run.steps), _over_tasks(of_run.trajectory)
        at_end = growth[1][-1] if n_steps else 0.0
        if self.of == PREDICTIONS:
            at_end = _largest(of_run.predictions)
        return Evidence(compiled, at_end, *growth, bounds.widest / 2, history)

    def _require_proof(self, estimated: tuple[str, ...]) -> None:
        """Raise `ToleranceError` if bounds would be estimates."""
        if estimated:
            raise ToleranceError(
                f"{self.in_words} cannot be proved: no Lipschitz constant was stated of the kernel "
                f"{', '.join(map(repr, estimated))}. Register it with icgd.register_kernel(..., "
                "lipschitz=...)."
            )

    def _require_exact(self, construction: AbstractConstruction, compiled: Compiled) -> None:
        """Raise `ToleranceError` unless a run that cannot be finer is exact enough."""
        evidence = self.evidence(compiled)
        if evidence.bound <= self.size:
            return
        finest, errs = "exact arithmetic", "rounding errs"
        if can_be_finer(compiled.program):
            finest = "look-ups of full accuracy"
            errs = "rounding, and look-ups as fine as they can be, err"
        helps = (
            "a smaller box or domain helps" if self.task else "prove it for one run with task=..."
        )
        reason = self._reason(construction, evidence, f"Only {errs}: {helps}.")
        raise ToleranceError(
            f"{self.in_words} cannot be proved: the smallest bound is {evidence.bound:.3g}, with "
            f"{finest}. {reason}"
        )

    def _reason(
        self, construction: AbstractConstruction, evidence: Evidence, otherwise: str
    ) -> str:
        """Return what stands in the way: the length of a run, a kink, or else `otherwise`."""
        length = None if self.of == STEP else self._length_reason(evidence)
        return length or self._kink_reason(construction, evidence) or otherwise

    def _length_reason(self, evidence: Evidence) -> str | None:
        """Return how the bound grows with the steps, if it is the steps that make it too large."""
        steps, grown, n_steps = evidence.steps, evidence.grown, evidence.compiled.program.n_steps
        if not grown or grown[-1] <= 2 * n_steps * max(steps):
            return None
        helps = "Take fewer or shorter steps."
        if self.task is None:
            helps = "Prove it for one run with task=..."
        where = next((k for k, bound in enumerate(grown, 1) if not bound < evidence.trivial), None)
        if where is None:
            return (
                f"A step errs by at most {max(steps):.3g}, and the bound grows from step to step, "
                f"to {grown[-1]:.3g} after {n_steps:,}. {helps}"
            )
        after = f"after {where:,} of {n_steps:,} steps" if self.task else f"after {n_steps:,} steps"
        return (
            f"The bound of the weights grows from step to step, and {after} it proves nothing but "
            f"that they stay in the box. {helps}"
        )

    def _kink_reason(self, construction: AbstractConstruction, evidence: Evidence) -> str | None:
        """Return how a kink of the activation stands in the way, or None if none does."""
        compiled, history = evidence.compiled, evidence.history
        if not compiled.program.has_kinks:
            return None
        if self.task is None or history is None:
            return (
                "On the whole domain some data fall on a kink of the activation. Prove it for one "
                "run with task=..., or use a smooth activation."
            )
        events = near_kinks(compiled.program, compiled.problem, self.task, history).count
        if not events:
            return None
        width = getattr(construction, "kink_width", None)
        remedy = "" if width is None else f" Leave kink_width={width:g} out, or make it smaller."
        return (
            f"The run comes too close to a kink of the activation: {events:,} preactivations lie "
            f"on the ramp that stands in for the jump of its slope; see report.near_kinks.{remedy}"
        )


def goal_of(size: float | None, of: str, task: Task | None) -> Tolerance | None:
    """Return the tolerance that was asked for, or None; what it is of means nothing without it."""
    if size is not None:
        return Tolerance(size, task, of)
    if task is not None:
        raise SettingError("task has no effect without tolerance; give both or neither.")
    if of != STEP:
        raise SettingError("tolerance_of has no effect without tolerance; give both or neither.")
    return None


def _largest(bounds: Tensor | None) -> float:
    """Return the largest bound, infinite if there is none."""
    if bounds is None:
        return inf
    return float(bounds.max()) if bounds.numel() else 0.0


def _over_tasks(bounds: Tensor | None) -> list[float]:
    """Return the largest bound of all tasks, for each step."""
    if bounds is None:
        return [inf]
    largest: list[float] = bounds.unsqueeze(0).flatten(0, -2).amax(0).tolist()
    return largest


def function_error(program: AbstractProgram) -> float:
    """Return largest certified error of a function, except at jumps, which no program can have."""
    functions = (function for function in program.functions if not function.is_ramp)
    return max((function.largest_error for function in functions), default=0.0)


def can_be_finer(program: AbstractProgram) -> bool:
    """Return whether a function errs that is not a line or a square, which are accurate at any
    setting.
    """
    curves = (f for f in program.functions if f.name not in (IDENTITY, SQUARE))
    return any(not (curve.is_exact or curve.is_ramp) for curve in curves)


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
    """Return the run compiled by the best construction that has these settings."""
    candidates = able_to_serve(problem, settings)
    choice = _Choice(problem, n_steps)
    if goal is not None:
        for setting in (c.refined_by for c in candidates if c.refined_by in settings):
            raise SettingError(f"Give either {setting} or tolerance, not both.")
        best = choice.meeting(goal, candidates)
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

    def build(self, construction: AbstractConstruction) -> Compiled:
        return Compiled(self.problem, construction.program(self.problem, self.n_steps))

    def meeting(self, goal: Tolerance, candidates: list[AbstractConstruction]) -> Compiled:
        """Return the smallest run that proves the tolerance."""
        best = self.best(
            sorted(candidates, key=lambda c: not c.may_be_accurate(self.problem)),
            lambda c, room: goal.meeting(c, self.problem, self.n_steps, room),
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
        """Return smallest run whose functions are this accurate, or else the most accurate one."""

        def build(construction: AbstractConstruction, room: float) -> Compiled | None:
            run = self.build(construction)
            return run if function_error(run.program) <= accuracy else None

        hopeful = [c for c in candidates if c.may_be_accurate(self.problem)]
        if (best := self.best(hopeful, build)) is not None:
            return replace(best, chosen_because=SMALLEST_OF_ACCURATE)
        others = [c for c in candidates if c.name not in self.refusals]
        best = self.best(
            others,
            lambda construction, room: self.build(construction),
            lambda run: (function_error(run.program), *_cost(run)),
        )
        if best is None:
            raise next(iter(self.refusals.values()))
        return replace(best, chosen_because=SMALLEST_ERROR)

    def best(
        self, candidates: list[AbstractConstruction], build: Build, cost: Cost = _cost
    ) -> Compiled | None:
        """Return the run of the least cost among those that can be built, or None if there is none.

        Candidates with smaller sketches are built first. Once a sketch has more weights than the
        best run, nothing smaller follows.
        """
        least: dict[str, int] = {}
        for candidate in candidates:
            sketch = candidate.sketch(self.problem)
            least[candidate.name] = 0 if sketch is None else summarise(sketch, 1).parameters
        best: Compiled | None = None
        for candidate in sorted(candidates, key=lambda c: least[c.name]):
            room = _cost(best)[0] if best else inf
            if least[candidate.name] > room:
                break
            try:
                run = build(candidate, room)
            except (SettingError, ToleranceError) as refusal:
                self.refusals[candidate.name] = refusal
                continue
            if run and (best is None or cost(run) < cost(best)):
                best = run
        return best
