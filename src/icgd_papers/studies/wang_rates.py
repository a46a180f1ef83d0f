r"""wang-rates: how fast errors fall with heads (Theorem 1) and with units (Lemma 5).

Theorem 1 promises an error eps of a step with O(eps^-2) heads and hidden units, whatever the
activation. `recursion` is compiled with more and more units for each function, and the worst step
of its dense transformer is measured. The rate comes from Lemma 5: n units are within C n^(-1/2) of
a function. Its lottery is run, and a greedy choice of the same units beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import polars as pl
import torch

from icgd.compiled import Compiled
from icgd.constructions.recursion import Recursion
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, ORANGE, PURPLE, RED, Axes
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.figure import Figure, Job, of_preset, six_digits
from icgd_papers.studies.barron_sums import Lottery

HEADS, DRAWN, GREEDY = "heads and units", "drawn units", "greedy units"

STEP, BOX = 0.1, 0.5
PROBLEM = Problem(MLP((2, 3, 1), "tanh"), "squared", GradientStep(STEP, box=BOX), Domain(1.0, 1.0))
"""The network whose steps are measured, on data in [-1, 1]."""

N_TASKS = 16


@dataclass(frozen=True)
class Setting:
    """One curve: its kind, and the activation of the heads or the dimension of the ball.

    `sizes` are the units of each function, or the units of a sum. A sum of n units is drawn
    `n_repeats` times; the greedy sum chooses from `n_drawn` units.
    """

    curve: str
    case: str
    seed: int
    sizes: tuple[int, ...]
    n_repeats: int
    n_drawn: int


def settings(preset: str, seed: int) -> list[Setting]:
    """Return a curve for each activation, and two for each dimension.

    The paper has no experiment; the preset `paper` is what more time can buy.
    """
    activations, dimensions, units, sums, n_repeats, n_drawn = of_preset(
        {
            "smoke": (("relu",), (1, 2), (24, 48), (1, 4), 2, 20),
            "laptop": (
                ("relu", "elu", "softplus", "sigmoid"),
                (1, 4, 8),
                (24, 48, 96, 192, 384, 768),
                (1, 4, 16, 64, 256),
                20,
                1000,
            ),
            "paper": (
                ("relu", "elu", "softplus", "gelu", "silu", "sigmoid", "tanh", "cos"),
                (1, 2, 4, 8, 16),
                (24, 48, 96, 192, 384, 768, 1536),
                (1, 4, 16, 64, 256, 1024, 4096),
                100,
                10_000,
            ),
        },
        preset,
    )
    heads = [Setting(HEADS, name, seed, units, n_repeats, n_drawn) for name in activations]
    return heads + [
        Setting(curve, str(d), seed, sums, n_repeats, n_drawn)
        for d in dimensions
        for curve in (DRAWN, GREEDY)
    ]


def run(setting: Setting, job: Job) -> pl.DataFrame:
    """Measure one curve; its rows are sizes, the error there, and the proved bound if any."""
    del job  # a curve takes a minute at most
    sizes: Sequence[int] = setting.sizes
    if setting.curve == HEADS:
        results = [step_error(n_units, setting.case, setting.seed) for n_units in sizes]
        sizes, errors = [size for size, _ in results], [error for _, error in results]
        allowed: list[float | None] = [None] * len(sizes)  # Theorem 1 has no constant
    else:
        lottery = Lottery(int(setting.case))
        allowed = [six_digits(lottery.constant / sqrt(n)) for n in sizes]
        if setting.curve == DRAWN:
            errors = [lottery.drawn_distance(n, setting.n_repeats, setting.seed) for n in sizes]
        else:
            errors = lottery.greedy_distances(setting.sizes, setting.n_drawn, setting.seed)
    return pl.DataFrame(
        {
            "curve": setting.curve,
            "case": setting.case,
            "size": sizes,
            "error": [six_digits(error) for error in errors],
            "allowed": pl.Series(allowed, dtype=pl.Float64),
        }
    )


def step_error(n_units: int, activation: str, seed: int) -> tuple[int, float]:
    """Return the heads and hidden units of a step, and its worst |eps(w)|_2 over eta."""
    compiled = compile(PROBLEM, Recursion(n_units, activation), n_steps=2)
    size = sum(layer.units for layer in compiled.summary().layers_of_a_step)
    return size, worst_step(compiled, seed, "dense") / STEP


def worst_step(compiled: Compiled, seed: int, backend: str) -> float:
    """Return the largest distance of a step from the exact one, over random tasks.

    This is the norm of Theorem 1. Data lie in [-1, 1], initial weights in the box.
    """
    network, generator = compiled.problem.network, torch.Generator().manual_seed(seed)
    shapes = ((5, network.input_width), (5, 1), (network.n_parameters,))
    x, y, w = (
        2 * torch.rand(N_TASKS, *shape, generator=generator, dtype=torch.float64) - 1
        for shape in shapes
    )
    labels = (y > 0).double() if compiled.problem.loss == "logistic" else y
    task = compiled.task(x, labels, initial=BOX * w)
    path = compiled.run_task(task, backend=backend).parameters
    step = compiled.problem.oracle.exact_step(task)
    errors = [
        (path[..., i + 1, :] - step(path[..., i, :], i)).norm(dim=-1)
        for i in range(path.shape[-2] - 1)
    ]
    return float(torch.stack(errors).max())


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Give the first and the last point of each curve, and the bound at the last."""
    lines = []
    for (curve, case), points in rows.group_by("curve", "case", maintain_order=True):
        first, last = points.row(0, named=True), points.row(-1, named=True)
        lines.append(
            {
                "curve": str(curve),
                "case": str(case),
                "size": f"{first['size']:,} to {last['size']:,}",
                "error": f"{first['error']:.2g} to {last['error']:.2g}",
                "bound at the end": "-" if last["allowed"] is None else f"{last['allowed']:.2g}",
            }
        )
    return pl.DataFrame(lines)


COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE)
LEAST = 1e-16
"""Errors below rounding are drawn here."""


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw heads and units of a step on the left, units of a sum on the right."""
    rows = rows.with_columns(pl.col("error").clip(LEAST))
    figure, (left, right) = plotting.new_figure(12.0, 5.2, 2)
    _draw_heads(left, rows.filter(curve=HEADS))
    _draw_units(right, rows.filter(pl.col("curve") != HEADS))
    for panel in (left, right):
        panel.set_xscale("log")
        panel.set_yscale("log")
    left.set_xlim(right=5 * left.get_xlim()[1])  # room for the names
    return figure


def _draw_heads(panel: Axes, rows: pl.DataFrame) -> None:
    """Draw a curve for each activation, and the promised rate from the first point on."""
    for index, ((name,), curve) in enumerate(rows.group_by("case", maintain_order=True)):
        colour = COLOURS[index % len(COLOURS)]
        panel.plot(curve["size"], curve["error"], "o-", color=colour, linewidth=1.8)
        plotting.note(panel, str(name), (1.2 * curve["size"][-1], curve["error"][-1]), colour)
    first = rows.filter(case=rows["case"][0])
    promised = first["error"][0] * (first["size"][0] / first["size"]).sqrt()
    panel.plot(first["size"], promised, "--", color=FAINT, linewidth=1.8)
    plotting.note(panel, "Theorem 1", (1.2 * first["size"][-1], promised[-1]), FAINT)
    plotting.describe(
        panel,
        "Theorem 1: error of a step of 2-3-1 tanh",
        "heads and hidden units of a step",
        "worst |eps(w)|, over the step size",
    )


def _draw_units(panel: Axes, rows: pl.DataFrame) -> None:
    """Draw each dimension in a colour: its bound dashed, the lottery, the greedy sum dotted."""
    for index, ((case,), curves) in enumerate(rows.group_by("case", maintain_order=True)):
        colour = COLOURS[index % len(COLOURS)]
        drawn, greedy = (curves.filter(curve=curve) for curve in (DRAWN, GREEDY))
        panel.plot(
            drawn["size"], drawn["error"], "o-", color=colour, linewidth=1.8, label=f"d = {case}"
        )
        panel.plot(drawn["size"], drawn["allowed"], "--", color=colour, linewidth=1.4)
        panel.plot(greedy["size"], greedy["error"], "s:", markersize=4, color=colour, linewidth=1.6)
    for name, style in (("bound", "--"), ("drawn by lot", "o-"), ("chosen greedily", "s:")):
        panel.plot([], [], style, color=FAINT, label=name)
    title = "Lemma 5: sums of n units for exp(-|x|^2/2)"
    plotting.describe(panel, title, "units n", "distance in L^2")
    panel.legend(frameon=False, fontsize=10.5, loc="lower left")


FIGURES = (
    Figure(
        name="wang-rates",
        place="Theorem 1 and Lemma 5",
        shows="errors over heads and over units, beside the promised rates",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
    ),
)
