"""Choose the construction that compiles a problem, and how finely it approximates.

If the user names no construction, the candidates are:

- with a tolerance, the constructions that prove it;
- without one, those whose functions are accurate to rounding, or all if there are none.

The candidate with the fewest weights is chosen, then the one with the fewest FLOPs (a proxy for
time). If none is accurate to rounding, the smallest function error decides first. Fitting functions
is slow, so a construction is skipped if it is known to be too coarse before any fit, or if its
sketch already has more weights than the best run so far.

A tolerance selects the coarsest setting that proves it. It bounds the error of one step, of the
final weights or of the predictions. For one run on given data, ball arithmetic proves the last two.
For all data in the domain, the bound is propagated from step to step and grows with each, so it
soon proves nothing.
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
            f"construction is the class {name.__name__}; expected an instance of it. "
            f"Give {name.__name__}()."
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
            f"{given} was given together with a construction object, which has its own settings. "
            f"Pass it to the object: {type(construction).__name__}({given})."
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
        else "No other construction can either."
    )
    raise UnsupportedProblemError(
        f"{construction.name} cannot compile this problem: {reason} {hint}"
    )


def with_settings(
    construction: AbstractConstruction, settings: Mapping[str, Any]
) -> AbstractConstruction:
    """Return a copy of the construction with these settings replaced."""
    valid = construction.settings()
    for name in settings:
        if name not in valid:
            owners = [c.name for c in CONSTRUCTIONS.values() if name in c.settings()]
            has = f"its settings are {', '.join(valid)}" if valid else "it has no settings"
            hint = f" {name} is a setting of {', '.join(owners)}." if owners else ""
            raise ConstructionError(
                f"{construction.name} has no setting {quoted(name)}; {has}."
                f"{hint or did_you_mean(name, valid)}"
            )
    return replace(construction, **settings)


def able_to_serve(problem: Problem, settings: Mapping[str, Any]) -> list[AbstractConstruction]:
    """Return the constructions that can compile `problem` with these settings.

    Last-resort constructions are included only if no other construction can.
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
        valid = [name for c in able for name in c.settings()]
        has = "; ".join(f"{c.name} has {', '.join(c.settings()) or 'none'}" for c in able)
        hints = (did_you_mean(name, valid) for name in settings if name not in valid)
        raise ConstructionError(
            "No construction that can compile this problem has all of the given settings "
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
"""The quantities that a tolerance may bound, each with its wording in messages."""

LARGEST_EXCESS = {STEP: 1e6, WEIGHTS: 64.0, PREDICTIONS: 64.0}
"""Cap on bound / tolerance when extrapolating to the next setting.

Larger ratios say little about the setting that is needed. Bounds of whole runs grow faster than
errors do, so their cap is lower.
"""


class Evidence(NamedTuple):
    """The proved `bound` on the quantity that a tolerance limits, and how it grows over the steps.

    `steps` bounds the error that each step adds, `grown` the error of the weights after it; both
    are empty for a tolerance of one step. `trivial` bounds the distance of weights without any
    proof, by the diameter of their box. `history` has the weights of the run, if there was a run.
    """

    compiled: Compiled
    bound: float
    steps: Sequence[float] = ()
    grown: Sequence[float] = ()
    trivial: float = inf
    history: History | None = None


@dataclass(frozen=True)
class Tolerance:
    """The largest error allowed in any weight of a step: on the whole domain, or on one `task`.

    `of` may choose the final weights or the predictions of the run instead of a step.
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
                "tolerance_of='predictions' needs queries to predict at, and the task has none. "
                "Give them: icgd.as_task(problem, X, y, queries=...)."
            )

    @property
    def in_words(self) -> str:
        """The tolerance as messages state it, such as "tolerance=0.1 of the predictions"."""
        return f"tolerance={self.size:g}{OF[self.of]}"

    def meeting(
        self, construction: AbstractConstruction, problem: Problem, n_steps: int, room: float = inf
    ) -> Compiled:
        """Return the compiled run with about the coarsest setting that proves the tolerance.

        The search stops at the finest setting, when doubling the best setting no longer helps, or
        when a run has more weights than there is `room` for. If the construction allows narrower
        ramps, the search is repeated with them. Then `ToleranceError` is raised.
        """
        if self.task is None and problem.update.has_root:
            remembered = " and ".join(problem.gradient_step.state).replace("_", " ")
            raise ToleranceError(
                f"{self.in_words} cannot be proved: the bound is infinite with any setting, "
                f"because on the whole domain nothing bounds the {remembered} at the start of a "
                "step. Prove it for one run with task=..."
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
            except SettingError:  # this setting is too coarse for the problem
                if setting == finest:
                    raise
                setting = min(2 * setting, finest)
                continue
            compiled = Compiled(problem, program)
            if compiled.summary().parameters > room:
                raise ToleranceError(
                    f"{construction.name} needs more than {room:,.0f} weights for {self.in_words}."
                )
            evidence = self.evidence(compiled)
            if evidence.bound <= self.size:
                return compiled
            # All bounds beyond the box are equally useless, so there progress is measured by the
            # error of the functions.
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
        """Return what is proved of this run: for each step, or after the last one."""
        task = self.task
        if task is None:
            proved = compiled.certificate()
            self._require_proof(proved.estimated)
            steps, grown = [proved.domain_step], [proved.domain_trajectory]
            bound = {STEP: steps[0], WEIGHTS: grown[0], PREDICTIONS: proved.domain_predictions}
            return Evidence(compiled, bound[self.of], steps, grown, proved.widest)
        backend = chosen_backend(AUTO, compiled.program, task).name  # the backend `verify` uses
        bounds = compiled.bounds_for(task, backend)
        self._require_proof(bounds.estimated)
        run = compiled.run_task(task, backend=backend)
        history, n_steps = run.parameters, compiled.program.n_steps
        if self.of == STEP:
            return Evidence(compiled, _largest(bounds.steps(task, history)), history=history)
        real = real_training(compiled.problem, task, n_steps)
        by_balls = not bounds.stated  # ball arithmetic cannot evaluate a user's own kernel
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
                f"{self.in_words} cannot be proved: no Lipschitz constant was given for the kernel "
                f"{', '.join(map(repr, estimated))}. Register it with icgd.register_kernel(..., "
                "lipschitz=...)."
            )

    def _require_exact(self, construction: AbstractConstruction, compiled: Compiled) -> None:
        """Raise `ToleranceError` if a construction that cannot be refined is not exact enough."""
        evidence = self.evidence(compiled)
        if evidence.bound <= self.size:
            return
        finest, sources = "exact arithmetic", "Rounding is the only source of error"
        if can_be_finer(compiled.program):
            finest = "look-ups of full accuracy"
            sources = "Rounding and look-ups at full accuracy are the only sources of error"
        remedy = (
            "Give a smaller box or domain." if self.task else "Prove it for one run with task=..."
        )
        reason = self._reason(construction, evidence, f"{sources}. {remedy}")
        raise ToleranceError(
            f"{self.in_words} cannot be proved: the smallest bound is {evidence.bound:.3g}, with "
            f"{finest}. {reason}"
        )

    def _reason(
        self, construction: AbstractConstruction, evidence: Evidence, otherwise: str
    ) -> str:
        """Return why the tolerance fails: the run's length, a kink, or else `otherwise`."""
        length = None if self.of == STEP else self._length_reason(evidence)
        return length or self._kink_reason(construction, evidence) or otherwise

    def _length_reason(self, evidence: Evidence) -> str | None:
        """Return how the bound grows over the steps, if that growth makes it too large."""
        steps, grown, n_steps = evidence.steps, evidence.grown, evidence.compiled.program.n_steps
        if not grown or grown[-1] <= 2 * n_steps * max(steps):
            return None
        remedy = "Take fewer or shorter steps."
        if self.task is None:
            remedy = "Prove it for one run with task=..."
        where = next((k for k, bound in enumerate(grown, 1) if not bound < evidence.trivial), None)
        if where is None:
            return (
                f"The error of a step is at most {max(steps):.3g}, but the bound grows with every "
                f"step, to {grown[-1]:.3g} after {n_steps:,}. {remedy}"
            )
        after = f"after {where:,} of {n_steps:,} steps" if self.task else f"after {n_steps:,} steps"
        return (
            f"The bound on the weights grows with every step; {after} it is as large as the "
            f"box and proves nothing. {remedy}"
        )

    def _kink_reason(self, construction: AbstractConstruction, evidence: Evidence) -> str | None:
        """Return why a kink of the activation prevents the proof, or None if none does."""
        compiled, history = evidence.compiled, evidence.history
        if not compiled.program.has_kinks:
            return None
        if self.task is None or history is None:
            return (
                "Some data in the domain put a unit on a kink of its activation. Prove it for one "
                "run with task=..., or use a smooth activation."
            )
        events = near_kinks(compiled.program, compiled.problem, self.task, history).count
        if not events:
            return None
        width = getattr(construction, "kink_width", None)
        remedy = "" if width is None else f" Omit kink_width={width:g}, or make it smaller."
        return (
            f"The run comes too close to a kink of the activation: {events:,} preactivations lie "
            "on the ramp that approximates the jump of its slope; see report.near_kinks."
            f"{remedy}"
        )


def goal_of(size: float | None, of: str, task: Task | None) -> Tolerance | None:
    """Return the requested tolerance, or None; raise if `of` or `task` is given without one."""
    if size is not None:
        return Tolerance(size, task, of)
    if task is not None:
        raise SettingError("task has no effect without tolerance; give both or neither.")
    if of != STEP:
        raise SettingError("tolerance_of has no effect without tolerance; give both or neither.")
    return None


def _largest(bounds: Tensor | None) -> float:
    """Return the largest bound, or infinity if there are no bounds."""
    if bounds is None:
        return inf
    return float(bounds.max()) if bounds.numel() else 0.0


def _over_tasks(bounds: Tensor | None) -> list[float]:
    """Return for each step the largest bound over all tasks."""
    if bounds is None:
        return [inf]
    largest: list[float] = bounds.unsqueeze(0).flatten(0, -2).amax(0).tolist()
    return largest


def function_error(program: AbstractProgram) -> float:
    """Return the largest certified error of any function except ramps.

    A ramp replaces a jump, which no continuous program can compute, so its error says nothing
    about accuracy.
    """
    functions = (function for function in program.functions if not function.is_ramp)
    return max((function.largest_error for function in functions), default=0.0)


def can_be_finer(program: AbstractProgram) -> bool:
    """Return whether a finer setting would make some function more accurate.

    The identity and the square are accurate at any setting.
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
"""Builds a run with at most the given number of weights; None if the run is not acceptable."""


def choose(
    problem: Problem, n_steps: int, settings: Mapping[str, Any], goal: Tolerance | None
) -> Compiled:
    """Compile the problem with the best construction that has these settings."""
    candidates = able_to_serve(problem, settings)
    choice = _Choice(problem, n_steps)
    if goal is not None:
        for setting in (c.refined_by for c in candidates if c.refined_by in settings):
            raise SettingError(f"Give either {setting} or tolerance, not both.")
        best = choice.meeting(goal, candidates)
    elif len(candidates) > 1:
        dtype = getattr(candidates[0], "dtype", "float64")  # equal in all candidates
        best = choice.accurate(candidates, FULL_ACCURACY[dtype])
    else:
        best = choice.build(candidates[0])
    return replace(best, chosen_because=ONLY_ONE) if len(candidates) == 1 else best


def _cost(run: Compiled) -> tuple[float, ...]:
    summary = run.summary()
    return float(summary.parameters), float(summary.flops)


@dataclass(frozen=True)
class _Choice:
    """The choice for one problem; `refusals` records why constructions could not be built."""

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
                f"{goal.in_words} cannot be proved by any construction that can compile this "
                f"problem. {listed(self.refusals)}"
            )
        fewest = f"no other construction proves {goal.in_words} with fewer weights"
        return replace(best, chosen_because=fewest)

    def accurate(self, candidates: list[AbstractConstruction], accuracy: float) -> Compiled:
        """Return the smallest run with this accuracy, or else the most accurate run."""

        def build(construction: AbstractConstruction, room: float) -> Compiled | None:
            run = self.build(construction)
            return run if function_error(run.program) <= accuracy else None

        promising = [c for c in candidates if c.may_be_accurate(self.problem)]
        if (best := self.best(promising, build)) is not None:
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
        """Return the cheapest run that can be built, or None.

        Candidates are built in order of their sketches' sizes. A sketch is a lower bound on the
        weights of a run, so the search ends once it exceeds the best run.
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
