r"""Figures 3, 5 and 6 of cheng: do the learnt matrices become those that the theorems predict?

The figures follow the distance of S B^T C S, S = Sigma^{1/2}, and of A to a multiple of I over the
training. Labels have one of three kernels, attention is of one of three kinds, and A is 0
(Theorem 4.5) or free (Theorem 4.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import final

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, Axes, Figure
from icgd_papers.figures.cheng_training import Budget, Outcome, Study
from icgd_papers.reproduction import (
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
        1000, 200, 2000, n_seeds=3, learning_rate=0.1, resample_every=5, logarithmic=True
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
"""Models with A free take so many times the steps: A of layer 2 is small and settles last."""

COLOURS = {"BC_0": BLUE, "BC_1": ORANGE, "BC_2": GREEN, "A_0": PURPLE, "A_1": INK}
NAMES = {f"BC_{layer}": f"$B_{layer}^T C_{layer}$" for layer in range(3)}
NAMES |= {f"A_{layer}": f"$A_{layer}$" for layer in range(2)}
"""The matrices; each S B^T C S is called by what training changes."""


@dataclass(frozen=True)
class Panel:
    """Labels of one kernel, attention of another, with A = 0 or free."""

    letter: str
    labels: str
    attention: str
    transforms_covariates: bool

    @property
    def title(self) -> str:
        value = "A free" if self.transforms_covariates else "A = 0"
        return f"({self.letter}) {self.attention} on {self.labels} labels, {value}"


@final
@dataclass(frozen=True)
class MatrixFigure(AbstractReproduction[Study, Outcome]):
    """log dist(M, I) over the steps of training, a panel for each pair of kernels."""

    panels: tuple[Panel, ...]
    n_columns: int

    def studies(self, preset: str, seed: int) -> list[Study]:
        """Every panel with every seed."""
        budget = preset_of(BUDGETS, preset)
        longer = replace(budget, n_steps=int(STEPS_OF_A * budget.n_steps))
        return [
            Study(
                labels=panel.labels,
                attention=(panel.attention,),
                n_examples=N_EXAMPLES,
                n_layers=N_LAYERS,
                transforms_covariates=panel.transforms_covariates,
                seed=seed + offset,
                budget=longer if panel.transforms_covariates else budget,
                panel=panel.letter,
            )
            for panel, offset in product(self.panels, range(budget.n_seeds))
        ]

    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row with all distances for each step that was measured."""
        return [
            _row(study, outcome, measured)
            for study, outcome in zip(studies, outcomes, strict=True)
            for measured in outcome.curve
        ]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """The last distances of each model, and whether all of them are near I."""
        names = _present(rows)
        found = []
        for *_, row in groups(rows, "panel", "seed").values():
            values = [row[name] for name in names]
            texts = ["" if value is None else f"{value:.3f}" for value in values]
            far = max(float(value) for value in values if value is not None)
            moves = "free" if row["transforms_covariates"] else "0"
            pair = f"{row['labels']}, {row['attention']}"
            near = "yes" if far < CLOSE else "no"
            found.append((pair, moves, str(row["seed"]), *texts, near))
        return Summary(("pair", "A", "seed", *names, "near"), tuple(found))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """Panels in rows, all with the same range of distances."""
        figure, axes = plotting.new_panels(len(self.panels), self.n_columns, 4.3, 3.1)
        by_panel = groups(rows, "panel")
        for panel, ax in zip(self.panels, axes, strict=True):
            _draw(ax, panel, by_panel[panel.letter,])
        plotting.legend(figure, [(NAMES[name], COLOURS[name]) for name in _present(rows)])
        return figure


def _present(rows: Sequence[Row]) -> list[str]:
    """The matrices that some model has."""
    return [name for name in NAMES if any(row[name] is not None for row in rows)]


def _row(study: Study, outcome: Outcome, measured: dict[str, float]) -> Row:
    distances: Row = {
        name: six_digits(measured[name]) if name in measured else None for name in NAMES
    }
    at_step: Row = {"step": int(measured["step"])}
    return study.columns | at_step | distances | outcome.columns | study.budget.columns


def _draw(ax: Axes, panel: Panel, rows: list[Row]) -> None:
    """Draw the distances of each matrix, and a line at the distance that counts as converged."""
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


def _nine(transforms_covariates: bool) -> tuple[Panel, ...]:
    """A row for each attention, a column for each kernel of the labels."""
    pairs = product(("linear", "relu", "softmax"), ("linear", "relu", "exp"))
    return tuple(
        Panel(letter, labels, attention, transforms_covariates)
        for letter, (attention, labels) in zip("abcdefghi", pairs, strict=True)
    )


FIGURE_3 = MatrixFigure(
    name="cheng-fig3",
    place="Figure 3, Section 4.5",
    shows="dist(M, I) over training; exp labels, softmax attention",
    laptop_time="3 minutes",
    panels=(Panel("a", "exp", "softmax", False), Panel("b", "exp", "softmax", True)),
    n_columns=2,
)
FIGURE_5 = MatrixFigure(
    name="cheng-fig5",
    place="Figure 5, App. H.2",
    shows="dist(M, I) over training with A = 0; 3 x 3 kernels",
    laptop_time="6 minutes",
    panels=_nine(transforms_covariates=False),
    n_columns=3,
)
FIGURE_6 = MatrixFigure(
    name="cheng-fig6",
    place="Figure 6, App. H.3",
    shows="dist(M, I) over training with A free; 3 x 3 kernels",
    laptop_time="14 minutes",
    panels=_nine(transforms_covariates=True),
    n_columns=3,
)
