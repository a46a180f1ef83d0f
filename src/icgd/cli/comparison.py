"""Compare all constructions of one problem: size, error, bound and time.

Errors, bounds and times in a row come from one backend. By default that is the literal
transformer where its run is short, and else the fused one; sizes are counted, not built.

Data are drawn over the domain from a seed; a linear model without a step size gets one from them.
Errors are measured on `n_seeds` sets of data, with as many runs, and the picture shows their range.
Times are processor seconds of one thread; a literal or dense run includes building its weights.
They are compared with real training done directly: torch.autograd for a network, kernel regression
for a function, proximal steps for a linear model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, nan
from statistics import median
from time import process_time
from typing import Any

import torch

from icgd.backends.dense import require_room
from icgd.backends.registry import AUTO, BACKENDS, Chosen, chosen_backend
from icgd.certificates.report import Verdict
from icgd.compiled import Compiled
from icgd.constructions.registry import CONSTRUCTIONS
from icgd.environment import one_thread
from icgd.errors import SettingError, SizeError, UnsupportedProblemError, listed
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, ORANGE, Axes, Figure
from icgd.pipeline import compile, verify
from icgd.problems.convergence import sized_problem
from icgd.problems.data import Task, drawn_task
from icgd.problems.problem import Problem
from icgd.problems.settings import count, named
from icgd.reprs import counted
from icgd.timing import descend, interleaved_seconds

SMALLEST_ERROR = 1e-17
"""Where an error of exactly 0 is drawn on the logarithmic axis."""

DESCENT = ""
"""The name of direct training among the jobs that are timed."""

SIZES = ("max_heads", "d_model", "n_registers", "parameters", "nonzeros", "sparse_flops")
"""The sizes of a transformer in a row."""

PATIENCE = 20.0
"""Seconds after which no further round is timed: long runs have little noise."""


@dataclass(frozen=True)
class Settings:
    """What is compared, on how much data, and by which backend."""

    problem: Problem
    n_steps: int = 5
    n_examples: int = 6
    seed: int = 0
    n_timings: int = 5
    backend: str = AUTO
    n_seeds: int = 1

    def __post_init__(self) -> None:
        for name in ("n_steps", "n_examples", "n_timings", "n_seeds"):
            count(name, getattr(self, name))
        named("backend", self.backend, {**BACKENDS, AUTO: None})


@dataclass(frozen=True)
class Row:
    """One construction on the problem; errors and bounds are the largest over weights and steps.

    A bound without information is None. `fused_because` says why "auto" chose the fused backend.
    `step_errors` has the largest error on each set of data. `over_descent` is the median time as a
    multiple of direct training, and `over_descent_range` its range over the rounds.
    """

    construction: str
    backend: str
    fused_because: str | None
    layers_per_step: int
    n_layers: int
    max_heads: int
    d_model: int
    n_registers: int
    parameters: int
    nonzeros: int
    sparse_flops: int
    step_error: float
    step_bound: float | None
    domain_bound: float | None
    run_error: float
    verdict: Verdict
    seconds: float
    over_descent: float
    step_errors: tuple[float, ...]
    over_descent_range: tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """A row for each construction that accepts the problem, and the reasons of the others."""

    settings: Settings
    rows: tuple[Row, ...]
    refusals: Mapping[str, str]
    direct_flops: int
    descent_seconds: float


def compare(settings: Settings) -> Comparison:
    """Run the problem through every construction, each with its default settings."""
    task = drawn_task(settings.problem, settings.n_examples, seed=settings.seed)
    if settings.problem.update.step_size is None:
        settings = replace(settings, problem=sized_problem(settings.problem, task.x))
    entries, refusals = _entries(settings, task)
    jobs: dict[str, Callable[[], object]] = {
        name: partial(compiled.run_task, task, history=False, backend=chosen.name)
        for name, (compiled, chosen) in entries.items()
    }
    jobs[DESCENT] = lambda: descend(settings.problem, task, settings.n_steps)
    with one_thread():
        turns = interleaved_seconds(jobs, settings.n_timings, process_time, patience=PATIENCE)
    seeds = range(settings.seed, settings.seed + settings.n_seeds)
    tasks = [drawn_task(settings.problem, settings.n_examples, seed=seed) for seed in seeds]
    return Comparison(
        settings=settings,
        rows=tuple(_row(*entry, tasks, turns) for entry in entries.values()),
        refusals=refusals,
        direct_flops=next(iter(entries.values()))[0].summary(task.n_tokens).direct_flops,
        descent_seconds=median(turn[DESCENT] for turn in turns),
    )


def _entries(
    settings: Settings, task: Task
) -> tuple[dict[str, tuple[Compiled, Chosen]], dict[str, str]]:
    """Return the problem as each construction compiles it, with its backend, and the refusals."""
    entries: dict[str, tuple[Compiled, Chosen]] = {}
    refusals: dict[str, str] = {}
    for name, construction in CONSTRUCTIONS.items():
        problem = settings.problem
        update: Any = problem.update
        if construction.needs_batches and getattr(update, "batch_size", 0) is None:
            # The same steps on all examples, with their number.
            problem = replace(problem, update=replace(update, batch_size=settings.n_examples))
        takes_count = "n_examples" in construction.settings()
        given: dict[str, Any] = {"n_examples": settings.n_examples} if takes_count else {}
        try:
            if reason := construction.why_not(problem):
                raise SettingError(reason)
            compiled = compile(problem, name, n_steps=settings.n_steps, **given)
            if settings.backend == "dense":
                require_room(compiled.program, torch.float64)
            entries[name] = compiled, chosen_backend(settings.backend, compiled.program, task)
        except (SettingError, SizeError) as refusal:  # such as a table that would be too large
            refusals[name] = str(refusal)
    if not entries:
        raise UnsupportedProblemError(
            f"No construction can compile this problem. {listed(refusals)}"
        )
    return entries, refusals


def _row(
    compiled: Compiled, chosen: Chosen, tasks: Sequence[Task], turns: Sequence[Mapping[str, float]]
) -> Row:
    summary = compiled.summary(tasks[0].n_tokens)
    reports = [
        verify(compiled, task.x, task.y, initial=task.initial, backend=chosen.name)
        for task in tasks
    ]
    errors = tuple(float(report.step_errors.max()) for report in reports)
    proved = reports[0].certificate
    sizes: dict[str, int] = {name: getattr(summary, name) for name in SIZES}
    name = summary.construction
    ratios = [turn[name] / turn[DESCENT] if turn[DESCENT] else nan for turn in turns]
    seconds, descent = (median(turn[job] for turn in turns) for job in (name, DESCENT))
    return Row(
        construction=name,
        backend=chosen.name,
        fused_because=chosen.fused_because,
        layers_per_step=summary.layers_per_step,
        n_layers=summary.n_layers,
        **sizes,
        step_error=max(errors),
        step_bound=proved.informative(max(float(report.step_bounds.max()) for report in reports)),
        domain_bound=proved.informative(proved.domain_step),
        run_error=max(float(report.trajectory_errors.max()) for report in reports),
        verdict=next((r.verdict for r in reports if not r.verdict.holds), reports[0].verdict),
        seconds=seconds,
        over_descent=seconds / descent if descent else nan,
        step_errors=errors,
        over_descent_range=(min(ratios), max(ratios)),
    )


def draw(comparison: Comparison) -> Figure:
    """Draw three panels with a line for each construction: weights, error and bound, time."""
    figure, panels = plotting.new_figure(13.5, 1.9 + 0.5 * len(comparison.rows), 3)
    rows = comparison.rows[::-1]  # the first at the top
    names = [f"{row.construction}, {row.backend}" for row in rows]
    for panel in panels:
        panel.set_xscale("log")
        panel.set_yticks(range(len(names)), names if panel is panels[0] else [""] * len(names))
        panel.set_ylim(-0.6, len(names) - 0.4)
    _dots(panels[0], [row.nonzeros / 1e3 for row in rows])
    plotting.describe(panels[0], "Weights that are not 0", "thousands", "")
    _errors(panels[1], rows)
    measured = f"dots: {counted(comparison.settings.n_seeds, 'set')} of data"
    plotting.describe(panels[1], "Error of a step", f"{measured}\nbar: proved, bound (b)", "")
    panels[2].axvline(1.0, color=FAINT, linewidth=1.2, linestyle="--")
    _dots(panels[2], [row.over_descent for row in rows], [row.over_descent_range for row in rows])
    times = "times real training\nband: all rounds that were timed"
    plotting.describe(panels[2], "Time of a run, building included", times, "")
    return figure


def _dots(
    panel: Axes, values: Sequence[float | None], ranges: Sequence[tuple[float, float]] = ()
) -> None:
    """Draw the value of each construction as a dot and in figures, and its range as a band.

    An axis with ranges shows 1 too, which is real training.
    """
    drawn = {place: value for place, value in enumerate(values) if value is not None}
    ends = [end for ends in ranges for end in ends]
    shown = [*drawn.values(), *ends] or [1.0, 100.0]
    for place, (least, largest) in enumerate(ranges):
        panel.plot((least, largest), (place, place), color=BLUE, lw=6, alpha=0.35)
    panel.plot(list(drawn.values()), list(drawn), "o", color=BLUE, markersize=8)
    low, high = min(*shown, 1.0 if ranges else inf) / 2, max(shown) * 6
    panel.set_xlim(low, high)
    for place in range(len(values)):
        value = drawn.get(place)
        end = ranges[place][1] if ranges else drawn.get(place, low)
        text = "no weights are built"
        if value is not None:
            text = f"{value:,.0f}" if value > 99 else f"{value:.3g}"
        plotting.tag(panel, text, (end * (high / low) ** 0.03, float(place)))


def _errors(panel: Axes, rows: tuple[Row, ...]) -> None:
    """Draw the error on each set of data as a dot and the bound as a bar, joined by a line."""
    for place, row in enumerate(rows):
        dots = [max(error, SMALLEST_ERROR) for error in row.step_errors]
        measured = max(dots)
        panel.plot(dots, [place] * len(dots), "o", color=BLUE, markersize=8, alpha=0.6, mew=0)
        if row.step_bound is not None:
            panel.plot((measured, row.step_bound), (place, place), color=FAINT, linewidth=1.2)
            panel.plot(row.step_bound, place, "|", color=ORANGE, markersize=16, markeredgewidth=3)
