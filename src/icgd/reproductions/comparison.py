"""One problem through every construction that accepts it: size, error, bound and time.

Data are drawn over the domain from a seed. Times are those of the fused backend, beside real
training done directly (torch.autograd for a network, kernel regression for a function, proximal
steps for a linear model, whose step size is chosen from the data unless it is given).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import nan
from typing import Any

import torch

from icgd.certificates.certificate import Verdict
from icgd.compiled import Compiled
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import SettingError, UnsupportedProblemError
from icgd.pipeline import compile, verify
from icgd.problems.entry import as_task
from icgd.problems.problem import Problem
from icgd.problems.settings import count
from icgd.problems.sizing import sized_problem
from icgd.problems.task import Task
from icgd.problems.updates import GradientStep
from icgd.reproductions import plotting
from icgd.reproductions.descent import descend
from icgd.reproductions.plotting import BLUE, FAINT, ORANGE, Axes, Figure
from icgd.reproductions.timing import interleaved_medians

SMALLEST_ERROR = 1e-17
"""Where an error of exactly 0 is drawn, which has no place on a logarithmic axis."""


@dataclass(frozen=True)
class Settings:
    """What is compared, and on how much data."""

    problem: Problem
    n_steps: int = 5
    n_examples: int = 6
    seed: int = 0
    n_timings: int = 7

    def __post_init__(self) -> None:
        for name in ("n_steps", "n_examples", "n_timings"):
            count(name, getattr(self, name))


@dataclass(frozen=True)
class Row:
    """One construction on the problem; errors and bounds are the largest over weights and steps."""

    construction: str
    layers_per_step: int
    n_layers: int
    max_heads: int
    d_model: int
    n_registers: int
    parameters: int
    flops: int
    step_error: float
    step_bound: float
    domain_bound: float
    run_error: float
    verdict: Verdict
    seconds: float
    over_descent: float


@dataclass(frozen=True)
class Comparison:
    """A row for each construction that accepts the problem, and why the others do not."""

    settings: Settings
    rows: tuple[Row, ...]
    refusals: Mapping[str, str]
    direct_flops: int
    descent_seconds: float


def compare(settings: Settings) -> Comparison:
    """Run everything, with full accuracy or the construction's default."""
    task = _task(settings)
    settings = replace(settings, problem=_sized(settings.problem, task))
    compiled, refusals = _compiled(settings)
    jobs: dict[str, Callable[[], object]] = {
        name: partial(run.run_task, task, history=False) for name, run in compiled.items()
    }
    seconds = interleaved_medians(
        {**jobs, "": lambda: descend(settings.problem, task, settings.n_steps)},
        rounds=settings.n_timings,
    )
    rows = tuple(
        _row(name, run, task, seconds[name], seconds[""]) for name, run in compiled.items()
    )
    flops = [run.summary(task.n_tokens).direct_flops for run in compiled.values()]
    return Comparison(settings, rows, refusals, flops[0], seconds[""])


def _task(settings: Settings) -> Task:
    """Inputs over the whole domain, labels between 0 and 1, which suit every loss."""
    problem = settings.problem
    generator = torch.Generator().manual_seed(settings.seed)
    shape = (settings.n_examples, problem.target.input_width)
    x = problem.domain.x * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1)
    shape = (settings.n_examples, problem.target.output_width)
    y = torch.rand(shape, generator=generator, dtype=torch.float64) * min(1.0, problem.domain.y)
    return as_task(problem, x, y, seed=settings.seed)


def _sized(problem: Problem, task: Task) -> Problem:
    """The problem with its step size written down."""
    return problem if problem.update.step_size else sized_problem(problem, task.x)


def _compiled(settings: Settings) -> tuple[dict[str, Compiled], dict[str, str]]:
    """The problem as each construction compiles it, or the reason why it does not."""
    compiled: dict[str, Compiled] = {}
    refusals: dict[str, str] = {}
    for name, construction in CONSTRUCTIONS.items():
        problem = _in_one_batch(settings) if construction.takes_batches else settings.problem
        reason = construction.why_not(problem)
        try:
            if reason is None:
                made_for: dict[str, Any] = {"n_examples": settings.n_examples}
                given = made_for if "n_examples" in construction.settings() else {}
                compiled[name] = compile(problem, name, n_steps=settings.n_steps, **given)
        except SettingError as refusal:  # such as a table that would be too large
            reason = str(refusal)
        if reason is not None:
            refusals[name] = reason
    if not compiled:
        raise UnsupportedProblemError.by_all(refusals)
    return compiled, refusals


def _in_one_batch(settings: Settings) -> Problem:
    """The same steps on all examples, for a construction that wants to know how many those are."""
    problem = settings.problem
    if not isinstance(problem.update, GradientStep) or problem.update.batch_size is not None:
        return problem
    return replace(problem, update=replace(problem.update, batch_size=settings.n_examples))


def _row(name: str, run: Compiled, task: Task, seconds: float, descent: float) -> Row:
    summary = run.summary(task.n_tokens)
    report = verify(run, task.x, task.y, initial=task.initial)
    return Row(
        construction=name,
        layers_per_step=summary.layers_per_step,
        n_layers=summary.n_layers,
        max_heads=summary.max_heads,
        d_model=summary.d_model,
        n_registers=summary.n_registers,
        parameters=summary.parameters,
        flops=summary.flops,
        step_error=float(report.step_errors.max()),
        step_bound=float(report.step_bounds.max()),
        domain_bound=report.certificate.domain_step,
        run_error=float(report.trajectory_errors.max()),
        verdict=report.verdict,
        seconds=seconds,
        over_descent=seconds / descent if descent else nan,
    )


def draw(comparison: Comparison) -> Figure:
    """Three panels with a line for each construction: weights, error and bound, time."""
    figure, panels = plotting.new_figure(13.5, 1.7 + 0.5 * len(comparison.rows), 3)
    rows = comparison.rows[::-1]  # the first at the top
    names = [row.construction for row in rows]
    for panel in panels:
        panel.set_xscale("log")
        panel.set_yticks(range(len(names)), names if panel is panels[0] else [""] * len(names))
        panel.set_ylim(-0.6, len(names) - 0.4)
    _dots(panels[0], [float(row.parameters) for row in rows])
    plotting.describe(panels[0], "Weights of the transformer", "numbers in all layers", "")
    _errors(panels[1], rows)
    plotting.describe(panels[1], "Error of a step", "dot: measured; bar: proved, bound (b)", "")
    panels[2].axvline(1.0, color=FAINT, linewidth=1.2, linestyle="--")
    _dots(panels[2], [row.over_descent for row in rows])
    plotting.describe(panels[2], "Time of a fused run", "times real training", "")
    return figure


def _dots(panel: Axes, values: list[float]) -> None:
    """A dot for each construction, and its value in figures."""
    panel.plot(values, range(len(values)), "o", color=BLUE, markersize=8)
    low, high = min(values) / 2, max(values) * 6
    panel.set_xlim(low, high)
    for place, value in enumerate(values):
        right_of_it = value * (high / low) ** 0.03
        plotting.tag(panel, f"{value:,.3g}", (right_of_it, float(place)))


def _errors(panel: Axes, rows: tuple[Row, ...]) -> None:
    """Measured as a dot, what is proved of this run as a bar, joined by a line."""
    for place, row in enumerate(rows):
        measured = max(row.step_error, SMALLEST_ERROR)
        panel.plot((measured, row.step_bound), (place, place), color=FAINT, linewidth=1.2)
        panel.plot(measured, place, "o", color=BLUE, markersize=8)
        panel.plot(row.step_bound, place, "|", color=ORANGE, markersize=16, markeredgewidth=3)
