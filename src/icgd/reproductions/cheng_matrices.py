r"""Figures 3, 5 and 6 of cheng: do the learnt matrices become those that the theorems predict?

The distance of S B^T C S, S = Sigma^{1/2}, and of A to a multiple of I is followed over the
training, for labels of three kernels and three kinds of attention, with A = 0 (Theorem 4.5) and
with A free (Theorem 4.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import final

from icgd.reproductions import plotting
from icgd.reproductions.cheng_training import Budget, Outcome, Run
from icgd.reproductions.plotting import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, Axes, Figure
from icgd.reproductions.reproduction import (
    AbstractReproduction,
    Row,
    Summary,
    groups,
    number,
    preset_of,
    six_digits,
)

N_EXAMPLES, N_LAYERS = 30, 3

CLOSE = 0.1
"""A matrix nearer to a multiple of I than this counts as converged."""

BUDGETS = {
    "smoke": Budget(n_steps=4, batch_size=4, n_test=8, n_seeds=1, n_rows=2),
    "laptop": Budget(
        n_steps=1000,
        batch_size=200,
        n_test=2000,
        n_seeds=2,
        learning_rate=0.1,
        resample_every=5,
        logarithmic=True,
    ),
    "paper": Budget(
        n_steps=20_000,
        batch_size=30_000,
        n_test=30_000,
        n_seeds=3,
        learning_rate=0.02,
        resample_every=10,
        averages_labels=False,
        n_rows=200,
    ),
}
"""The paper gives no number of steps."""

STEPS_OF_A = 2.5
"""So many times the steps if A is free: A of the second layer is small, and the last to settle."""

COLOURS = {"BC_0": BLUE, "BC_1": ORANGE, "BC_2": GREEN, "A_0": PURPLE, "A_1": INK}
NAMES = {
    "BC_0": "$B_0^T C_0$",
    "BC_1": "$B_1^T C_1$",
    "BC_2": "$B_2^T C_2$",
    "A_0": "$A_0$",
    "A_1": "$A_1$",
}
"""The matrices; each S B^T C S is called by what training changes."""


@dataclass(frozen=True)
class Panel:
    """Labels of one kernel, attention of another, with A = 0 or free."""

    labels: str
    attention: str
    transforms_covariates: bool

    @property
    def title(self) -> str:
        value = "A free" if self.transforms_covariates else "A = 0"
        return f"{self.labels} labels, {self.attention} attention, {value}"


@final
@dataclass(frozen=True)
class MatrixFigure(AbstractReproduction[Run, Outcome]):
    """log dist(M, I) over the steps of training, a panel for each pair of kernels."""

    name: str
    place: str
    shows: str
    laptop_time: str
    panels: tuple[Panel, ...]
    n_columns: int

    def runs(self, preset: str, seed: int) -> list[Run]:
        """Every panel with every seed."""
        budget = preset_of(BUDGETS, preset)
        return [
            Run(
                labels=panel.labels,
                attention=(panel.attention,),
                n_examples=N_EXAMPLES,
                n_layers=N_LAYERS,
                transforms_covariates=panel.transforms_covariates,
                seed=seed + offset,
                budget=_longer(budget) if panel.transforms_covariates else budget,
            )
            for panel, offset in product(self.panels, range(budget.n_seeds))
        ]

    def rows(self, runs: Sequence[Run], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each step that was measured, with all distances."""
        return [
            _row(run, outcome, measured)
            for run, outcome in zip(runs, outcomes, strict=True)
            for measured in outcome.curve
        ]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """The distances at the end of each run of a pair (labels, attention); are all near I?"""
        names = [name for name in NAMES if any(row[name] is not None for row in rows)]
        found = []
        for row in _last_rows(rows):
            values = [row[name] for name in names]
            texts = ["" if value is None else f"{value:.3f}" for value in values]
            far = max(float(value) for value in values if value is not None)
            moves = "free" if row["transforms_covariates"] else "0"
            pair = f"{row['labels']}, {row['attention']}"
            near = "yes" if far < CLOSE else "no"
            found.append((pair, moves, str(row["seed"]), *texts, near))
        return Summary(("pair", "A", "seed", *names, "near"), tuple(found))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """A grid of panels, all with the same range of distances."""
        n_rows = -(-len(self.panels) // self.n_columns)
        size = (4.3 * self.n_columns, 3.1 * n_rows + 0.4)
        figure, axes = plotting.new_grid(*size, n_rows, self.n_columns)
        by_panel = groups(rows, "labels", "attention", "transforms_covariates")
        for panel, ax in zip(self.panels, axes, strict=True):
            key = (panel.labels, panel.attention, panel.transforms_covariates)
            _draw(ax, panel, by_panel[key])
        names = [name for name in NAMES if any(row[name] is not None for row in rows)]
        plotting.legend(figure, [(NAMES[name], COLOURS[name]) for name in names])
        return figure


def _longer(budget: Budget) -> Budget:
    return replace(budget, n_steps=int(STEPS_OF_A * budget.n_steps))


def _row(run: Run, outcome: Outcome, measured: dict[str, float]) -> Row:
    distances: Row = {
        name: six_digits(measured[name]) if name in measured else None for name in NAMES
    }
    return {
        "labels": run.labels,
        "attention": run.attention[0],
        "transforms_covariates": run.transforms_covariates,
        "seed": run.seed,
        "step": int(measured["step"]),
        **distances,
        "test_loss": six_digits(outcome.test_loss),
        "bayes_loss": six_digits(max(outcome.bayes_loss, 0.0)),
        "learning_rate": outcome.learning_rate,
        "seconds": round(outcome.seconds, 1),
    }


def _last_rows(rows: Sequence[Row]) -> list[Row]:
    """The row of the last step, of every run."""
    by_run = groups(rows, "labels", "attention", "transforms_covariates", "seed")
    return [run[-1] for run in by_run.values()]


def _draw(ax: Axes, panel: Panel, rows: list[Row]) -> None:
    """The geometric mean of the seeds as a line, their range as a band."""
    plotting.logarithmic_height(ax)
    ax.set_ylim(0.005, 1.3)
    ax.axhline(CLOSE, color=FAINT, linewidth=1, linestyle=":")
    by_step = groups(rows, "step")
    steps = [number(at_step[0], "step") for at_step in by_step.values()]
    for name, colour in COLOURS.items():
        if rows[0][name] is not None:
            values = [[number(row, name) for row in at_step] for at_step in by_step.values()]
            plotting.band(ax, steps, values, colour)
    plotting.describe(ax, panel.title, "training step", "dist(M, I)")


ALL_KERNELS = ("linear", "relu", "exp")
ALL_ATTENTION = ("linear", "relu", "softmax")


def _nine(transforms_covariates: bool) -> tuple[Panel, ...]:
    """A row for each attention, a column for each kernel of the labels."""
    pairs = product(ALL_ATTENTION, ALL_KERNELS)
    return tuple(Panel(labels, attention, transforms_covariates) for attention, labels in pairs)


FIGURE_3 = MatrixFigure(
    name="cheng-fig3",
    place="Figure 3, Section 4.5",
    shows="dist(M, I) over training; exp labels, softmax attention",
    laptop_time="3 minutes",
    panels=(Panel("exp", "softmax", False), Panel("exp", "softmax", True)),
    n_columns=2,
)
FIGURE_5 = MatrixFigure(
    name="cheng-fig5",
    place="Figure 5, App. H.2",
    shows="dist(M, I) over training with A = 0; 3 x 3 kernels",
    laptop_time="3 minutes",
    panels=_nine(transforms_covariates=False),
    n_columns=3,
)
FIGURE_6 = MatrixFigure(
    name="cheng-fig6",
    place="Figure 6, App. H.3",
    shows="dist(M, I) over training with A free; 3 x 3 kernels",
    laptop_time="18 minutes",
    panels=_nine(transforms_covariates=True),
    n_columns=3,
)
