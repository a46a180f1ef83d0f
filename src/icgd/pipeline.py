"""The table of contents of the library: compile, verify, load."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch

from icgd.backends.run import OnProgress
from icgd.certificates.certificate import Report
from icgd.certificates.guarantee import Guarantee, check_guarantee
from icgd.certificates.linear_bound import LinearBounds
from icgd.certificates.measured import stepwise_errors, trajectory_errors
from icgd.certificates.near_kinks import near_kinks
from icgd.certificates.prediction_bounds import at_end, prediction_errors
from icgd.certificates.rigorous import require_enclosable, rigorous_trajectory
from icgd.choice import choose
from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction
from icgd.constructions.registry import construction_for
from icgd.errors import EstimateWarning, SettingError
from icgd.problems.problem import Problem
from icgd.problems.settings import count, instance
from icgd.problems.task import Task
from icgd.tolerance import STEP, goal_of
from icgd.weights import files


def compile(
    problem: Problem,
    construction: str | AbstractConstruction | None = None,
    *,
    n_steps: int,
    tolerance: float | None = None,
    tolerance_of: str = STEP,
    task: Task | None = None,
    **settings: Any,
) -> Compiled:
    """Build a transformer whose forward pass performs `n_steps` updates of `problem`.

    `construction` is an object such as `icgd.ReluStack(pieces=128)`, or a name such as
    "relu-stack", to which `settings` such as `pieces=128` are given here. Without one the best
    construction is chosen that serves the problem and has these settings; `summary()` says why.

    With `tolerance` the construction is as fine as it must be to prove that no step errs by more in
    any weight. The proof is for the whole domain, both backends, float64 and prompts of up to 1024
    tokens; if a `task` is given, it is for the fused run on that task in the task's precision. With
    `tolerance_of="weights"` it is about the weights after the whole run, and with "predictions"
    about those at the task's queries. Bounds of whole runs grow with every step: give a `task`.
    Raises `UnsupportedProblemError`, `SettingError` or `ToleranceError`.
    """
    instance("problem", problem, Problem)
    n_steps = count("n_steps", n_steps, least=0)
    goal = goal_of(tolerance, tolerance_of, task)
    if construction is None:
        return choose(problem, n_steps, settings, goal)
    chosen = construction_for(problem, construction, settings)
    if goal is None:
        return Compiled(problem, chosen.program(problem, n_steps))
    if chosen.setting in settings:
        raise SettingError.both(chosen.setting, "tolerance")
    return goal.within(chosen, problem, n_steps)


def verify(
    compiled: Compiled,
    X: Any,
    y: Any,
    *,
    queries: Any = None,
    initial: Any = None,
    seed: int | None = None,
    backend: str = "fused",
    dtype: str | torch.dtype = "float64",
    rigorous: bool = False,
    on_progress: OnProgress | None = None,
) -> Report:
    """Run `compiled`, and compare every step with the real algorithm and with what was proved.

    The real algorithm runs in float64 on the same data from the same initial weights. Predictions
    at `queries` are compared as well, with those of the real algorithm and with what is proved.
    With `rigorous` (and the extra `proofs`) exact descent in real numbers is enclosed too, and the
    distance of the whole run from it is proved. Of a kernel of your own, what `register_kernel` was
    told is taken for granted. It is held against the data, and `KernelError` is raised if they
    contradict it. If it was told nothing, bounds are estimates, and `EstimateWarning` says so.
    """
    instance("compiled", compiled, Compiled)
    task = compiled.task(X, y, queries=queries, initial=initial, seed=seed, dtype=dtype)
    problem, program = compiled.problem, compiled.program
    if rigorous:
        require_enclosable(problem, task, program.n_steps)
    running, bounding, enclosing = (_part(on_progress, part, 2 + rigorous) for part in range(3))
    run = compiled.run_task(task, backend=backend, on_progress=running)
    history, real = run.parameters, problem.oracle.train(task, program.n_steps)
    rules = compiled.bounds_for(task, backend)
    if rules.estimated:
        warnings.warn(EstimateWarning.of(rules.estimated), stacklevel=2)
    bounds = rules.run(task, history, real, bounding)
    exact = rigorous_trajectory(problem, task, history, enclosing) if rigorous else None
    return Report(
        certificate=compiled.certificate(n_tokens=task.n_tokens, backend=backend, dtype=dtype),
        step_errors=stepwise_errors(problem, task, history),
        step_bounds=bounds.steps,
        trajectory_errors=trajectory_errors(history, real),
        trajectory_bounds=bounds.trajectory,
        near_kinks=near_kinks(program, problem, task, history),
        backend=backend,
        dtype=str(task.x.dtype).removeprefix("torch."),
        paper_trajectory=bounds.paper,
        rigorous=exact,
        prediction_errors=prediction_errors(problem, task, run.predictions, real),
        prediction_bounds=rules.predictions(task, history, real, at_end(bounds.trajectory)),
    )


def _part(on_progress: OnProgress | None, part: int, n_parts: int) -> OnProgress | None:
    """The callback for one of several parts of the same length, counted from 0."""
    return on_progress and (lambda done, total: on_progress(part * total + done, n_parts * total))


def guarantee(
    compiled: Compiled,
    X: Any,
    y: Any,
    *,
    initial: Any = None,
    backend: str = "fused",
    stop_below: float | None = None,
    on_progress: OnProgress | None = None,
) -> Guarantee:
    """Run a linear model's descent, and compare its end with what cot's theorems promise.

    Raises `SettingError` if a step is longer than they allow, and `SeparableDataError` if there is
    no minimiser to come close to.
    """
    instance("compiled", compiled, Compiled)
    task = compiled.task(X, y, initial=initial)
    bounds = compiled.bounds_for(task, backend)
    if not isinstance(bounds, LinearBounds):
        raise SettingError.only_linear_models(compiled.program.construction)
    run = compiled.run_task(task, backend=backend, on_progress=on_progress, stop_below=stop_below)
    return check_guarantee(bounds, task, run.parameters)


def load(path: str | os.PathLike[str]) -> Compiled:
    """Read a compiled run that `Compiled.save` wrote."""
    return Compiled(*files.load(path))
