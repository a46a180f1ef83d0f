r"""Why some matrices of Figures 5 and 6 do not converge: how the loss bends off the family.

At the family's best point the slope off the family is 0, by Theorems 4.5 and 4.6. Whether training
ends there depends on the curvature: the second derivative of the loss by the tilt t of a matrix,
which is its distance to the multiples of I, over the loss. A curvature of c means that a distance
of t adds about c t^2 / 2 of the loss. The smallest curvature decides, over all mixtures of the
layers. Its direction comes from half of the batches, and its value from the other half, which keeps
it from being smaller by chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, final

import torch
from torch import Tensor

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, ORANGE, Axes, Figure
from icgd_papers.figures.cheng_matrices import N_EXAMPLES, N_LAYERS
from icgd_papers.figures.cheng_training import task_of, unit
from icgd_papers.reproduction import (
    AbstractReproduction,
    AbstractStudy,
    Row,
    Summary,
    groups,
    number,
    preset_of,
    six_digits,
)
from icgd_papers.stopwatch import Stopwatch
from icgd_papers.training.averaged import AveragedTask
from icgd_papers.training.family import KINDS, TILT, curvatures, family_model, settle

COLOURS = dict(zip(KINDS, (ORANGE, BLUE), strict=True))
PANELS = {"a": False, "b": True}
"""Whether A is free, by the letter of the panel."""


@dataclass(frozen=True)
class Budget:
    """How many tasks the family's best point is found on, and how many batches measure there."""

    n_fit: int
    n_batches: int
    batch_size: int
    n_seeds: int


BUDGETS = {
    "smoke": Budget(n_fit=4, n_batches=4, batch_size=4, n_seeds=1),
    "laptop": Budget(n_fit=1000, n_batches=8, batch_size=500, n_seeds=3),
    "paper": Budget(n_fit=4000, n_batches=100, batch_size=2000, n_seeds=3),
}
"""The paper measures no curvature; its preset is the one with small sampling errors."""


@dataclass(frozen=True)
class Outcome:
    """The curvatures of each kind with their sampling errors, the smallest first."""

    family_loss: float
    """The loss at the family's best point, on the tasks that it was found on."""
    curvatures: dict[str, tuple[float, ...]]
    errors: dict[str, tuple[float, ...]]
    seconds: float


@final
@dataclass(frozen=True)
class Study(AbstractStudy[Outcome]):
    """The curvatures of one pair of kernels, with A = 0 or free."""

    labels: str
    attention: str
    transforms_covariates: bool
    seed: int
    budget: Budget
    panel: str

    def train(self, folder: Path | None = None) -> Outcome:
        """Find the family's best point, and measure there; `folder` stays empty."""
        stopwatch = Stopwatch()
        task = AveragedTask(task_of(self.labels, N_EXAMPLES, self.seed))
        moves = self.transforms_covariates
        step = unit(self.attention, N_EXAMPLES)
        model = family_model(
            self.attention, task.task.covariates, N_LAYERS, step, transforms_covariates=moves
        )
        first = task.sample(self.budget.n_fit, seed=self.seed, index=0)
        loss = settle(model, task, first)
        measured = []
        for index in range(1, self.budget.n_batches + 1):
            batch = task.sample(self.budget.batch_size, seed=self.seed, index=index)
            measured.append(curvatures(model, task, batch, self.seed, index))
        values, errors = smallest_first(torch.stack(measured))
        return Outcome(loss, values, errors, stopwatch.seconds)

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        tables = {name: data[name] for name in ("curvatures", "errors")}
        found = {
            name: {kind: tuple(values) for kind, values in table.items()}
            for name, table in tables.items()
        }
        return Outcome(**{**data, **found})


def smallest_first(
    measured: Tensor,
) -> tuple[dict[str, tuple[float, ...]], dict[str, tuple[float, ...]]]:
    """The eigenvalues of the mean and their errors, of each kind.

    `measured` is (batch, kind, matrix, matrix). The eigenvectors are those of the first half of the
    batches; the second half gives the values.
    """
    half = len(measured) // 2
    _, vectors = torch.linalg.eigh(measured[:half].mean(0))
    values = torch.einsum("bkij,kin,kjn->bkn", measured[half:], vectors, vectors)
    errors = values.std(0) / len(values) ** 0.5
    means = dict(zip(KINDS, map(tuple, values.mean(0).tolist()), strict=True))
    return means, dict(zip(KINDS, map(tuple, errors.tolist()), strict=True))


@final
@dataclass(frozen=True)
class CurvatureFigure(AbstractReproduction[Study, Outcome]):
    """The smallest curvature of each kind at the best point of the family, for each pair."""

    def studies(self, preset: str, seed: int) -> list[Study]:
        """The pairs of Figure 5, in its order, with A = 0; and again with A free."""
        budget = preset_of(BUDGETS, preset)
        pairs = product(("linear", "relu", "softmax"), ("linear", "relu", "exp"))
        return [
            Study(labels, attention, moves, seed + offset, budget, panel)
            for (panel, moves), (attention, labels), offset in product(
                PANELS.items(), list(pairs), range(budget.n_seeds)
            )
        ]

    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each curvature."""
        return [
            _row(study, outcome, kind, place)
            for study, outcome in zip(studies, outcomes, strict=True)
            for kind in KINDS
            for place in range(len(outcome.curvatures[kind]))
        ]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """The smallest curvature of each kind, in the mean over the seeds, and its error."""
        found = []
        for (labels, attention, moves), of_pair in groups(rows, *PAIR).items():
            loss = fmean(number(row, "family_loss") for row in of_pair)
            texts = [text for kind in KINDS for text in _mean_of_smallest(of_pair, kind)]
            free = "free" if moves else "0"
            found.append((f"{labels}, {attention}", free, f"{loss:.4f}", *texts))
        names = [name for kind in KINDS for name in (kind, f"error of {kind}")]
        return Summary(("pair", "A", "loss", *names), tuple(found))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """A panel for A = 0 and one for A free; the pairs side by side."""
        figure, axes = plotting.new_panels(len(PANELS), 2, 6.0, 4.6)
        for (panel, moves), ax in zip(PANELS.items(), axes, strict=True):
            _draw(ax, [row for row in rows if row["panel"] == panel and row["number"] == 0])
            title = f"({panel}) A {'free' if moves else '= 0'}"
            plotting.describe(ax, title, "labels, attention", "smallest curvature over the loss")
        plotting.legend(figure, [(f"{kind} tilts", COLOURS[kind]) for kind in KINDS])
        return figure


PAIR = ("labels", "attention", "transforms_covariates")


def _row(study: Study, outcome: Outcome, kind: str, place: int) -> Row:
    return {
        "panel": study.panel,
        "labels": study.labels,
        "attention": study.attention,
        "n_examples": N_EXAMPLES,
        "n_layers": N_LAYERS,
        "transforms_covariates": study.transforms_covariates,
        "seed": study.seed,
        "kind": kind,
        "number": place,
        "curvature": six_digits(outcome.curvatures[kind][place]),
        "error": six_digits(outcome.errors[kind][place]),
        "family_loss": six_digits(outcome.family_loss),
        "seconds": round(outcome.seconds, 1),
        "n_fit": study.budget.n_fit,
        "n_batches": study.budget.n_batches,
        "batch_size": study.budget.batch_size,
        "tilt": TILT,
    }


def _mean_of_smallest(rows: Sequence[Row], kind: str) -> tuple[str, str]:
    """The mean over the seeds, and the sampling error of that mean."""
    smallest = [row for row in rows if row["kind"] == kind and row["number"] == 0]
    mean = fmean(number(row, "curvature") for row in smallest)
    error = sum(number(row, "error") ** 2 for row in smallest) ** 0.5 / len(smallest)
    return f"{mean:.1e}", f"{error:.0e}"


def _draw(ax: Axes, rows: Sequence[Row]) -> None:
    """A point with its error for each seed; beyond 0.001 the axis is logarithmic, on both sides."""
    ax.set_yscale("symlog", linthresh=1e-3)
    ax.axhline(0, color=FAINT, linewidth=1)
    pairs = [f"{labels}, {attention}" for labels, attention in groups(rows, "labels", "attention")]
    for row in rows:
        kind = str(row["kind"])
        place = pairs.index(f"{row['labels']}, {row['attention']}") + (KINDS.index(kind) - 0.5) / 4
        ax.errorbar(
            place,
            number(row, "curvature"),
            yerr=number(row, "error"),
            color=COLOURS[kind],
            marker="o",
            markersize=4.5,
        )
    ax.set_xticks(range(len(pairs)), pairs, rotation=40, ha="right")


CURVATURE = CurvatureFigure(
    name="cheng-curvature",
    place="Figures 5 and 6, App. H",
    shows="curvature of the loss off the predicted family",
    laptop_time="14 minutes",
)
