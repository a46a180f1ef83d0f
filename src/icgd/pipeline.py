"""The table of contents of the library: compile, verify, load."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

import torch

from icgd.approximation.relu_sum import DEFAULT_KINK_WIDTH
from icgd.backends.run import OnProgress
from icgd.certificates.certificate import Report
from icgd.certificates.enclosures import is_ramp
from icgd.certificates.guarantee import Guarantee, check_guarantee
from icgd.certificates.measured import stepwise_errors, trajectory_errors
from icgd.certificates.near_kinks import near_kinks
from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction, Precision
from icgd.constructions.registry import construction_for
from icgd.errors import SettingError, ToleranceError
from icgd.problems.oracles.linear import LinearOracle
from icgd.problems.problem import Problem
from icgd.problems.settings import count, instance, positive
from icgd.problems.task import Task
from icgd.program.check import check_program
from icgd.program.functions import Function, LatticeFunction
from icgd.program.instructions import IDENTITY, SQUARE
from icgd.program.program import AbstractProgram
from icgd.program.stack import StackProgram
from icgd.weights import files


def compile(
    problem: Problem,
    *,
    n_steps: int,
    construction: str | None = None,
    pieces: int | None = None,
    registers: int | None = None,
    levels: int | None = None,
    n_examples: int | None = None,
    units: int | None = None,
    unit_activation: str | None = None,
    tolerance: float | None = None,
    task: Task | None = None,
    kink_width: float = DEFAULT_KINK_WIDTH,
    dtype: str = "float64",
) -> Compiled:
    """Build a transformer whose forward pass performs `n_steps` updates of `problem`.

    Without a `construction` it is relu-stack for a network, functional for a kernel machine.
    Smooth functions get `pieces` pieces in relu-stack (64 unless said) and are looked up in
    `registers` registers in softmax-stack (as many as `dtype` can use unless said); universal puts
    every entry on one of `levels` levels (4 unless said), in a table for prompts of `n_examples`
    examples (2 unless said); recursion makes every function of up to `units` units (200 unless
    said), which apply `unit_activation` (the target's own unless said). With `tolerance` it is as
    many as prove that no step errs by more in any weight: on the whole domain, or, if a `task` is
    given, in the run on that task (by the fused backend, in the task's precision). On the domain it
    holds for both backends in float64 and prompts of up to 1024 tokens.
    Raises `UnsupportedProblemError` or `ToleranceError`.
    """
    instance("problem", problem, Problem)
    count("n_steps", n_steps, least=0)
    builder = construction_for(problem, construction)
    settings = {"pieces": pieces, "registers": registers, "levels": levels, "units": units}
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given:
        if builder.setting is None:
            raise SettingError.no_setting(name, builder.name)
        if name != builder.setting:
            raise SettingError.of_another_construction(name, builder.name, builder.setting)
    if n_examples is not None and not builder.fixes_examples:
        raise SettingError.any_number_of_examples(builder.name)
    if unit_activation is not None and not builder.takes_activation:
        raise SettingError.one_activation(builder.name)
    fixed = Precision(unit_activation=unit_activation, kink_width=kink_width, dtype=dtype)
    if n_examples is not None:
        fixed = replace(fixed, n_examples=n_examples)

    def build(chosen: Mapping[str, Any]) -> Compiled:
        precision = replace(fixed, **chosen)
        program = builder.build(problem, n_steps=n_steps, precision=precision)
        check_program(program)
        return Compiled(problem, program)

    if tolerance is None:
        if task is not None:
            raise SettingError.without("task", "tolerance")
        return build(given)
    for name in given:
        raise SettingError.both(name, "tolerance")
    return _within(positive("tolerance", tolerance), builder, build, task)


def _within(
    tolerance: float,
    builder: AbstractConstruction,
    build: Callable[[Mapping[str, int]], Compiled],
    task: Task | None,
) -> Compiled:
    """The compiled run with about the coarsest setting whose proved step error is small enough.

    Gives up at the finest setting, or if twice the best one so far is no better. That tells
    nothing while a bound is not below the box, to which all weights are clipped.
    """
    if builder.setting is None:
        return _exact_within(tolerance, build({}), task)
    setting = best_setting = builder.coarsest
    best = inf
    while True:
        setting, compiled = _first_buildable(builder, build, setting)
        bound = _step_bound(compiled, task)
        if bound <= tolerance:
            return compiled
        if bound < best:
            best, best_setting = bound, setting
        stuck = setting >= 2 * best_setting and best < compiled.problem.gradient_step.box
        if stuck or setting == builder.finest or not _has_smooth_functions(compiled.program):
            reason = _why_unreachable(compiled.program, task)
            finest = f"{best_setting} {builder.setting}"
            raise ToleranceError.unreachable(tolerance, best, finest, reason)
        predicted = builder.finer(setting, min(bound / tolerance, 1e6))
        setting = min(max(predicted, setting + 1), builder.finest)


def _exact_within(tolerance: float, compiled: Compiled, task: Task | None) -> Compiled:
    """A run that cannot be finer, if its rounding and what it looks up are exact enough."""
    bound = _step_bound(compiled, task)
    if not bound <= tolerance:
        looks_up = _has_smooth_functions(compiled.program)
        errs = "rounding, and look-ups as fine as they can be, err" if looks_up else "rounding errs"
        help_ = "a smaller box or domain helps" if task else "prove it for one run with task=..."
        reason = _kink_reason(compiled.program, task) or f"Only {errs}: {help_}."
        finest = "look-ups of full accuracy" if looks_up else "exact arithmetic"
        raise ToleranceError.unreachable(tolerance, bound, finest, reason)
    return compiled


def _first_buildable(
    builder: AbstractConstruction, build: Callable[[Mapping[str, int]], Compiled], setting: int
) -> tuple[int, Compiled]:
    """The run with this setting, or, if that is too coarse for the problem, with a finer one."""
    while True:
        try:
            return setting, build({str(builder.setting): setting})
        except SettingError:
            if setting == builder.finest:
                raise
            setting = min(2 * setting, builder.finest)


def _step_bound(compiled: Compiled, task: Task | None) -> float:
    if task is None:
        return compiled.certificate().domain_step
    run = compiled.run_task(task)
    bounds = compiled.bounds_for(task, "fused").steps(task, run.parameters)
    return float(bounds.max()) if bounds.numel() else 0.0


def _has_smooth_functions(program: AbstractProgram) -> bool:
    return any(not (fit.is_exact or is_ramp(fit) or _is_line(fit)) for fit in program.functions)


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
    on_progress: OnProgress | None = None,
) -> Report:
    """Run it and compare every step with the real algorithm, and with what was proved.

    The real algorithm runs in float64 on the same data from the same initial weights. With a
    kernel machine the function's values at `queries` are compared as well; the weights of a network
    do not depend on queries.
    """
    task = compiled.task(X, y, queries=queries, initial=initial, seed=seed, dtype=dtype)
    problem, program = compiled.problem, compiled.program
    run = compiled.run_task(task, backend=backend, on_progress=_part(on_progress, 0))
    history, real = run.parameters, problem.oracle.train(task, program.n_steps)
    bounds = compiled.bounds_for(task, backend).run(task, history, real, _part(on_progress, 1))
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
    )


def _part(on_progress: OnProgress | None, part: int) -> OnProgress | None:
    """Progress of the first (0) or the second (1) of two parts of the same length."""
    return on_progress and (lambda done, total: on_progress(part * total + done, 2 * total))


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

    Raises `SettingError` for a step longer than they allow, and `SeparableDataError` if there is no
    minimiser to come close to.
    """
    if not isinstance(compiled.problem.oracle, LinearOracle):
        raise SettingError.only_linear_models(compiled.program.construction)
    task = compiled.task(X, y, initial=initial)
    run = compiled.run_task(task, backend=backend, on_progress=on_progress, stop_below=stop_below)
    bounds = compiled.bounds_for(task, backend)
    return check_guarantee(compiled.problem, compiled.stack, task, run.parameters, bounds.how)


def load(path: str | os.PathLike[str]) -> Compiled:
    """Read a compiled run that `Compiled.save` wrote."""
    return Compiled(*files.load(path))
