r"""meta-gradients: gradients through the transformer against autograd through exact descent.

The loss at the queries after three steps has a gradient by the step sizes and by the initial
weights. Through softmax-stack, and through relu-stack for piecewise-linear networks, it equals the
gradient through exact descent to rounding. relu-stack approximates smooth functions by pieces,
whose slope jumps; the gradient holds slopes of slopes, and errs far more than the run itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import torch
from torch import Tensor

from icgd.learnable import LearnableRun, unrolled_descent
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, RED
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.figure import Figure, Job, of_preset, six_digits

STEP_SIZES = (0.3, 0.2, 0.4)
N_EXAMPLES, N_QUERIES, N_TASKS = 5, 4, 3

ASKED = 1e-8
"""The relative error that gradients should not exceed."""


@dataclass(frozen=True)
class Setting:
    """A construction on a network 2-4-3-1, with `pieces` of relu-stack if it approximates."""

    construction: str
    activation: str
    loss: str
    pieces: int | None = None
    seed: int = 0


CASES = (
    Setting("softmax-stack", "tanh", "squared"),
    Setting("softmax-stack", "sigmoid", "logistic"),
    Setting("softmax-stack", "gelu", "squared"),
    Setting("softmax-stack", "silu", "huber"),
    Setting("softmax-stack", "softplus", "squared"),
    Setting("softmax-stack", "relu", "squared"),
    Setting("relu-stack", "relu", "squared"),
    Setting("relu-stack", "relu", "huber"),
    Setting("relu-stack", "leaky_relu", "squared"),
    Setting("relu-stack", "relu", "logistic", 128),
    Setting("relu-stack", "tanh", "squared", 32),
    Setting("relu-stack", "tanh", "squared", 128),
    Setting("relu-stack", "tanh", "squared", 512),
)

PRESETS = {
    "smoke": (1, (CASES[0], CASES[6], CASES[10])),
    "laptop": (3, CASES),
    "paper": (10, CASES),
}
"""Seeds and cases. No paper has this figure; the longest preset has the name of the others."""


def settings(preset: str, seed: int) -> list[Setting]:
    """Return every case with every seed."""
    n_seeds, cases = of_preset(PRESETS, preset)
    return [replace(case, seed=seed + i) for case in cases for i in range(n_seeds)]


def run(setting: Setting, job: Job) -> pl.DataFrame:
    """Compare the two gradients of one case; errors are shares of the largest entry."""
    problem = Problem(
        target=MLP((2, 4, 3, 1), setting.activation),
        loss=setting.loss,
        update=GradientStep(step_size=STEP_SIZES[0], box=1.0),
        domain=Domain(x=1.0, y=1.0),
    )
    options: dict[str, Any] = {"pieces": setting.pieces} if setting.pieces else {}
    compiled = compile(problem, setting.construction, n_steps=len(STEP_SIZES), **options)
    transformer = LearnableRun(compiled, step_sizes=STEP_SIZES, seed=setting.seed)
    parameters = (transformer.step_sizes, transformer.initial)

    generator = torch.Generator().manual_seed(setting.seed)
    x, y, queries, labels = (
        torch.rand(N_TASKS, *shape, generator=generator).double()
        for shape in ((N_EXAMPLES, 2), (N_EXAMPLES, 1), (N_QUERIES, 2), (N_QUERIES, 1))
    )
    x, queries = 2 * x - 1, 2 * queries - 1
    predictions = transformer(x, y, queries)
    descent = unrolled_descent(
        problem, x, y, queries, transformer.initial, transformer.step_sizes
    ).predictions[:, -1]

    def gradients(predictions: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((predictions - labels).square().mean(), parameters)

    step_size_error, start_error = (
        float((gradient - exact).abs().max() / exact.abs().max())
        for gradient, exact in zip(gradients(predictions), gradients(descent), strict=True)
    )
    pieces = f", {setting.pieces} pieces" if setting.pieces else ""
    return pl.DataFrame(
        {
            "case": f"{setting.construction}, {setting.activation}, {setting.loss}{pieces}",
            "construction": setting.construction,
            "activation": setting.activation,
            "loss": setting.loss,
            "pieces": pl.Series([setting.pieces], dtype=pl.Int64),
            "seed": setting.seed,
            "n_steps": len(STEP_SIZES),
            "n_examples": N_EXAMPLES,
            "n_tasks": N_TASKS,
            "prediction_error": six_digits(float((predictions - descent).detach().abs().max())),
            "step_size_error": six_digits(step_size_error),
            "start_error": six_digits(start_error),
        }
    )


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the largest error of all seeds, case by case."""
    columns = {
        "prediction_error": "predictions",
        "step_size_error": "by step sizes",
        "start_error": "by the start",
    }
    largest = rows.group_by("case", maintain_order=True).agg(pl.col(*columns).max())
    texts = pl.col(*columns).map_elements("{:.1e}".format, pl.String)
    names = {"case": "construction, activation, loss", **columns}
    return largest.with_columns(texts).rename(names)


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw a line for each case, with a point for each seed and gradient."""
    cases = rows["case"].unique(maintain_order=True).to_list()
    heights = rows["case"].replace_strict(cases, range(len(cases)), return_dtype=pl.Float64)
    figure, [panel] = plotting.new_figure(10.0, 1.6 + 0.38 * len(cases), 1)
    for column, colour, shift in (("step_size_error", BLUE, -0.12), ("start_error", RED, 0.12)):
        errors = rows[column].clip(lower_bound=1e-17)  # 0 has no logarithm
        panel.plot(errors, heights + shift, "o", color=colour, markersize=6, alpha=0.7)
    panel.axvline(ASKED, color=FAINT, linewidth=1.5, linestyle="--")
    panel.set_xscale("log")
    panel.set_yticks(range(len(cases)), cases)
    panel.invert_yaxis()
    message = "Gradients through the transformer against autograd through exact descent"
    plotting.describe(panel, message, "largest error over largest entry", "")
    entries = [("by step sizes", BLUE), ("by initial weights", RED), ("asked for", FAINT)]
    plotting.legend(figure, entries, dashed=["asked for"])
    return figure


FIGURES = (
    Figure(
        name="meta-gradients",
        place="no paper",
        shows="gradients by step sizes and start, through transformers and through exact descent",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
    ),
)
