r"""learnt-constructed: what does training find that the construction does not have?

Models with A = 0 learn labels of a kernel by attention with the same kernel, as in Figure 1 of
cheng. They are compared with the best constructions of functional descent on that kernel: one step
size for all layers, one for each layer, and a step size and a kernel width for each layer, which is
the family of Theorem 4.5. That family has several local minima, so the one nearest to the learnt
model is shown, too.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import polars as pl
import torch

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, GREEN, INK, ORANGE, PURPLE, RED, Axes
from icgd.problems.kernel_machine import KernelMachine
from icgd_papers.figure import Figure, Job, draw_band, of_preset, six_digits
from icgd_papers.figures.cheng import INPUT_WIDTH, LABELS, Budget, Model, first_model
from icgd_papers.training.averaged import AveragedTask
from icgd_papers.training.constructed import FAMILIES, NEAR, compare_with_constructions
from icgd_papers.training.descents import distances_to_descent, nearest_descent
from icgd_papers.training.loop import train
from icgd_papers.training.models import KernelTransformer

KERNELS = ("linear", "relu", "exp")

CONSTRUCTIONS = dict(zip((*FAMILIES, NEAR), ("constant", "steps", "widths", "near"), strict=True))
"""The constructions, and names that fit the head of a column."""

COLOURS = dict(zip(CONSTRUCTIONS, (ORANGE, BLUE, GREEN, PURPLE), strict=True))

PRESETS = {
    "smoke": ((1, 2), Budget(n_steps=2, batch_size=4, n_test=8, n_seeds=1, n_rows=1)),
    "laptop": (
        (1, 2, 3),
        Budget(
            300, 400, 1000, n_seeds=3, learning_rate=0.03, resample_every=4, logarithmic=True,
            n_rows=1,
        ),
    ),
    "paper": (
        (1, 2, 3, 4, 6, 8),
        Budget(
            3000, 2000, 8000, n_seeds=5, learning_rate=0.02, resample_every=4, logarithmic=True
        ),
    ),
}  # fmt: skip
"""Numbers of layers, and budgets. No paper has this figure; `paper` is the longest preset."""

TEST_SEED = 2**16
"""Test batches have this seed plus the model's; training has the model's."""

SMALLEST = 1e-6
"""A smaller loss, or distance of a cosine from 1, is rounding."""


def settings(preset: str, seed: int) -> list[Model]:
    """Return every kernel with every depth and seed; all models have A = 0."""
    layers, budget = of_preset(PRESETS, preset)
    return [
        Model(
            panel="",
            labels=kernel,
            attention=(kernel,),
            n_examples=14,
            n_layers=n_layers,
            transforms_covariates=False,
            seed=seed + i,
            budget=budget,
        )
        for kernel, n_layers, i in product(KERNELS, layers, range(budget.n_seeds))
    ]


def work(setting: Model) -> float:
    """Count layers times steps."""
    return float(setting.n_layers * setting.budget.n_steps)


def run(setting: Model, job: Job) -> pl.DataFrame:
    """Train a model and compare it with the best construction of each family.

    Constructions are fitted on one batch, and everything is measured on another.
    """
    budget, task = setting.budget, AveragedTask(setting.task, setting.budget.logarithmic)
    learnt = first_model(setting)
    train(learnt, task, setting.training, folder=job.folder, on_step=job.on_step)
    learnt.forget_units()
    learnt = learnt.double()
    seed = TEST_SEED + setting.seed
    test = task.sample(budget.n_test, seed=seed, index=1)
    comparisons = compare_with_constructions(
        learnt,
        task,
        KernelMachine(INPUT_WIDTH, LABELS[setting.labels]),
        setting.task.covariates.whitening,
        n_tasks=budget.n_test,
        seed=seed,
    )

    @torch.no_grad()
    def loss(model: KernelTransformer) -> float:
        return float(task.mean_loss(model, test))

    of_model = {
        "kernel": setting.labels,
        "n_examples": setting.n_examples,
        "n_layers": setting.n_layers,
        "seed": setting.seed,
        "logarithmic": budget.logarithmic,
        "learnt_loss": six_digits(loss(learnt)),
        "nearest_loss": six_digits(loss(nearest_descent(learnt).model)),
        "off_descent": six_digits(float(distances_to_descent(learnt).max())),
        "bayes_loss": six_digits(max(task.bayes_loss(test), 0.0)),
    }
    return pl.DataFrame(
        {
            **of_model,
            "family": family,
            "loss": six_digits(comparison.loss),
            "cosine": six_digits(comparison.similarity.sensitivity_cosine),
            "prediction_difference": six_digits(comparison.similarity.prediction_difference),
        }
        for family, comparison in comparisons.items()
    )


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Return means over the seeds: all losses, and the cosines of sensitivities."""
    losses = {family: pl.col("loss").filter(family=family) for family in CONSTRUCTIONS}
    cosines = {family: pl.col("cosine").filter(family=family) for family in CONSTRUCTIONS}
    means = rows.group_by("kernel", pl.col("n_layers").alias("layers"), maintain_order=True).agg(
        pl.col("learnt_loss").mean().alias("learnt"),
        *(losses[family].mean().alias(short) for family, short in CONSTRUCTIONS.items()),
        pl.col("bayes_loss").mean().alias("Bayes"),
        *(cosines[family].mean().alias(f"cosine, {x}") for family, x in CONSTRUCTIONS.items()),
    )

    def text(loss: float) -> str:
        return "0" if loss < SMALLEST else f"{loss:.4f}"

    return means.with_columns(
        pl.col("layers").cast(pl.String),
        pl.col("learnt", *CONSTRUCTIONS.values(), "Bayes").map_elements(text, pl.String),
        pl.col("^cosine.*$").map_elements("{:.4f}".format, pl.String),
    )


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw a column for each kernel: losses above, one minus the cosine of sensitivities below."""
    n = len(KERNELS)
    figure, axes = plotting.new_panels(2 * n, n, 4.4, 3.4)
    apart = (1 - pl.col("cosine")).clip(lower_bound=SMALLEST)
    for kernel, losses, cosines in zip(KERNELS, axes[:n], axes[n:], strict=True):
        of_kernel = rows.filter(kernel=kernel).with_columns(apart=apart)
        for family, colour in COLOURS.items():
            draw_curve(losses, of_kernel.filter(family=family), "loss", colour)
            draw_curve(cosines, of_kernel.filter(family=family), "apart", colour)
        draw_curve(losses, of_kernel, "learnt_loss", RED, linestyle="--")  # often on top of one
        if of_kernel.filter(pl.col("bayes_loss") <= SMALLEST).is_empty():
            draw_curve(losses, of_kernel, "bayes_loss", INK, linestyle="--")
        plotting.describe(losses, f"{kernel} labels, {kernel} attention", "layers", "test loss")
        losses.yaxis.labelpad = 14  # room for the numbers between powers of ten
        plotting.describe(cosines, "sensitivities against learnt", "layers", "1 - cosine")
    entries = [("learnt", RED), *COLOURS.items(), ("best predictor", INK)]
    plotting.legend(figure, entries, dashed=["learnt", "best predictor"])
    return figure


def draw_curve(panel: Axes, rows: pl.DataFrame, column: str, colour: str, **style: Any) -> None:
    """Draw a column over the layers, on a logarithmic axis."""
    draw_band(panel, rows, "n_layers", column, colour, marker="o", **style)
    plotting.logarithmic_height(panel)
    panel.set_xticks(rows["n_layers"].unique().sort().to_list())


FIGURES = (
    Figure(
        name="learnt-constructed",
        place="no paper; after von Oswald et al.",
        shows="losses and sensitivities of learnt and best constructed models; n = 14, A = 0",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
        work=work,
    ),
)
