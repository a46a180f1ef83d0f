r"""Learnt and constructed side by side: what does training find that the construction has not?

Models with A = 0 learn labels of a kernel by attention with the same kernel, as in Figure 1 of
cheng. Beside each stand the best constructions of functional descent on that kernel: one step size
for all layers, one for each layer, and a step size and a width of the kernel for each layer, which
is the family of Theorem 4.5. That family has several local minima. So the one that is nearest to
the learnt model stands there too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, final

import torch

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, GREEN, INK, ORANGE, PURPLE, RED, Axes, Figure
from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.figures import cheng_training
from icgd_papers.figures.cheng_training import INPUT_WIDTH, LABELS, Budget, first_model
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
from icgd_papers.training.averaged import AveragedBatch, AveragedTask
from icgd_papers.training.constructed import FAMILIES, NEAR, Comparison, compare_with_constructions
from icgd_papers.training.descents import distances_to_descent, nearest_descent
from icgd_papers.training.loop import train
from icgd_papers.training.models import KernelTransformer

N_EXAMPLES = 14

CONSTRUCTIONS = (*FAMILIES, NEAR)
COLOURS = dict(zip(CONSTRUCTIONS, (ORANGE, BLUE, GREEN, PURPLE), strict=True))
"""What learnt models are compared with, and the colour of each."""

BUDGETS = {
    "smoke": Budget(n_steps=2, batch_size=4, n_test=8, n_seeds=1, n_rows=1),
    "laptop": Budget(
        300, 400, 1000, n_seeds=3, learning_rate=0.03, resample_every=4, logarithmic=True, n_rows=1
    ),
    "paper": Budget(
        3000, 2000, 8000, n_seeds=5, learning_rate=0.02, resample_every=4, logarithmic=True
    ),
}
"""No paper has this figure; the longest preset is called after the others."""

SHORT = dict(zip(CONSTRUCTIONS, ("constant", "steps", "widths", "near"), strict=True))
"""Names that fit the head of a column."""

TEST_SEED = 2**16
"""Batches of the test have this seed and later ones; training has that of the study."""

SMALLEST = 1e-6
"""A smaller loss, or distance of a cosine from 1, is rounding."""

LAYERS = {"smoke": (1, 2), "laptop": (1, 2, 3), "paper": (1, 2, 3, 4, 6, 8)}


@dataclass(frozen=True)
class Constructed:
    """The best construction of a family beside a learnt model."""

    loss: float
    cosine: float
    """The mean cosine of the angle between the sensitivities of the two."""
    difference: float
    """The root mean square of the difference of their predictions."""

    @classmethod
    def of(cls, found: Comparison) -> Constructed:
        alike = found.similarity
        return cls(found.loss, alike.sensitivity_cosine, alike.prediction_difference)


@dataclass(frozen=True)
class Outcome:
    """A learnt model: its loss, how far it is from gradient descent, and all constructions."""

    learnt_loss: float
    bayes_loss: float
    off_descent: float
    """The largest distance of B^T C to a symmetric matrix without negative eigenvalues."""
    nearest_loss: float
    """The loss of the nearest model of gradient descent."""
    constructed: dict[str, Constructed]
    seconds: float


@final
@dataclass(frozen=True)
class Study(AbstractStudy[Outcome]):
    """One learnt model, and the constructions beside it."""

    kernel: str
    n_layers: int
    seed: int
    budget: Budget

    @property
    def model(self) -> cheng_training.Study:
        """The model as the figures of cheng set it up."""
        return cheng_training.Study(
            self.kernel, (self.kernel,), N_EXAMPLES, self.n_layers, False, self.seed, self.budget
        )

    def train(self, folder: Path | None = None) -> Outcome:
        start, task = perf_counter(), AveragedTask(self.model.task, self.budget.logarithmic)
        model = first_model(self.model)
        train(model, task, self.model.settings, folder=folder)
        model.forget_units()
        learnt, nearest = model.double(), nearest_descent(model).model
        test = task.sample(self.budget.n_test, seed=TEST_SEED + self.seed, index=1)
        return Outcome(
            learnt_loss=_loss(learnt, task, test),
            bayes_loss=max(task.bayes_loss(test), 0.0),
            off_descent=float(distances_to_descent(learnt).max()),
            nearest_loss=_loss(nearest, task, test),
            constructed=self._constructed(learnt, task),
            seconds=perf_counter() - start,
        )

    def _constructed(self, learnt: KernelTransformer, task: AveragedTask) -> dict[str, Constructed]:
        """The best constructions, fitted on one batch and measured on that of the test."""
        found = compare_with_constructions(
            learnt,
            task,
            KernelMachine(INPUT_WIDTH, LABELS[self.kernel]),
            self.model.task.covariates.whitening,
            n_tasks=self.budget.n_test,
            seed=TEST_SEED + self.seed,
        )
        return {family: Constructed.of(comparison) for family, comparison in found.items()}

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        families = data["constructed"].items()
        return Outcome(
            **{**data, "constructed": {name: Constructed(**each) for name, each in families}}
        )


@final
@dataclass(frozen=True)
class SimilarityFigure(AbstractReproduction[Study, Outcome]):
    """Losses and cosines of sensitivities over the layers, a column for each kernel."""

    kernels: tuple[str, ...]

    def studies(self, preset: str, seed: int) -> list[Study]:
        """Every kernel with every depth and seed."""
        budget, layers = preset_of(BUDGETS, preset), preset_of(LAYERS, preset)
        seeds = range(seed, seed + budget.n_seeds)
        return [
            Study(kernel, n_layers, seed, budget)
            for kernel, n_layers, seed in product(self.kernels, layers, seeds)
        ]

    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each model and family."""
        return [
            _row(study, outcome, family)
            for study, outcome in zip(studies, outcomes, strict=True)
            for family in CONSTRUCTIONS
        ]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Means over the seeds: all losses, and the cosines of sensitivities."""
        names = ("kernel", "layers", "learnt", *SHORT.values(), "Bayes")
        cosines = (f"cosine, {name}" for name in SHORT.values())
        found = (
            (str(kernel), str(n_layers), *_means(of_model))
            for (kernel, n_layers), of_model in groups(rows, "kernel", "n_layers").items()
        )
        return Summary((*names, *cosines), tuple(found))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """Losses above, one minus the cosine below."""
        n = len(self.kernels)
        figure, axes = plotting.new_panels(2 * n, n, 4.4, 3.4)
        for column, kernel in enumerate(self.kernels):
            of_kernel = [row for row in rows if row["kernel"] == kernel]
            _draw_losses(axes[column], kernel, of_kernel)
            _draw_cosines(axes[n + column], of_kernel)
        entries = [("learnt", RED), *COLOURS.items(), ("best predictor", INK)]
        plotting.legend(figure, entries, dashed=["learnt", "best predictor"])
        return figure


def _loss(model: KernelTransformer, task: AveragedTask, test: AveragedBatch) -> float:
    with torch.no_grad():
        return float(task.mean_loss(model, test))


def _row(study: Study, outcome: Outcome, family: str) -> Row:
    of_family = outcome.constructed[family]
    return {
        "kernel": study.kernel,
        "n_examples": N_EXAMPLES,
        "n_layers": study.n_layers,
        "seed": study.seed,
        "logarithmic": study.budget.logarithmic,
        "family": family,
        "loss": six_digits(of_family.loss),
        "cosine": six_digits(of_family.cosine),
        "prediction_difference": six_digits(of_family.difference),
        "learnt_loss": six_digits(outcome.learnt_loss),
        "nearest_loss": six_digits(outcome.nearest_loss),
        "off_descent": six_digits(outcome.off_descent),
        "bayes_loss": six_digits(outcome.bayes_loss),
        "seconds": round(outcome.seconds, 1),
    }


def _means(rows: Sequence[Row]) -> list[str]:
    """The cells of a line of the summary."""
    of_each = [groups(rows, "family")[(name,)] for name in CONSTRUCTIONS]
    losses = [_mean(of_one, "loss") for of_one in of_each]
    ends = [_mean(rows, name) for name in ("learnt_loss", "bayes_loss")]
    cosines = [f"{_mean(of_one, 'cosine'):.4f}" for of_one in of_each]
    return [*map(_text, (ends[0], *losses, ends[1])), *cosines]


def _mean(rows: Sequence[Row], column: str) -> float:
    return fmean(number(row, column) for row in rows)


def _text(loss: float) -> str:
    return "0" if loss < SMALLEST else f"{loss:.4f}"


def _draw_losses(ax: Axes, kernel: str, rows: list[Row]) -> None:
    plotting.logarithmic_height(ax)
    for (family,), of_family in groups(rows, "family").items():
        _band(ax, of_family, "loss", COLOURS[str(family)])
    _band(ax, rows, "learnt_loss", RED, linestyle="--")  # often on top of a construction
    if min(number(row, "bayes_loss") for row in rows) > SMALLEST:
        _band(ax, rows, "bayes_loss", INK, linestyle="--")
    plotting.describe(ax, f"{kernel} labels, {kernel} attention", "layers", "test loss")
    ax.yaxis.labelpad = 14  # room for the numbers between powers of ten


def _draw_cosines(ax: Axes, rows: list[Row]) -> None:
    plotting.logarithmic_height(ax)
    apart = [{**row, "apart": max(1 - number(row, "cosine"), SMALLEST)} for row in rows]
    for (family,), of_family in groups(apart, "family").items():
        _band(ax, of_family, "apart", COLOURS[str(family)])
    plotting.describe(ax, "sensitivities against learnt", "layers", "1 - cosine")


def _band(ax: Axes, rows: Sequence[Row], column: str, colour: str, linestyle: str = "-") -> None:
    at = {number(of[0], "n_layers"): of for of in groups(rows, "n_layers").values()}
    values = [[number(row, column) for row in of] for of in at.values()]
    plotting.band(ax, list(at), values, colour, marker="o", linestyle=linestyle)
    ax.set_xticks(list(at))


SIMILARITY = SimilarityFigure(
    name="learnt-constructed",
    place="no paper; after von Oswald et al.",
    shows="losses and sensitivities of learnt and best constructed models; n = 14, A = 0",
    laptop_time="8 minutes",
    kernels=("linear", "relu", "exp"),
)
