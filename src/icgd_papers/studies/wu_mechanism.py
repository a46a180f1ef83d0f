r"""wu-mechanism: do learnt decoders descend on a network, block by block?

A linear read-out is fitted to every block of a learnt decoder, on prompts of its own. On test
prompts its predictions p are compared with those of gradient descent after s steps, g_s: descent on
a network of the teacher's architecture from random weights, as the constructed transformer carries
it out. The distance is the mean of (p - g_s)^2, as a share of the variance of the labels. g_s is a
mean over several first weights, which a decoder cannot know.

All that predicts well is near to descent that predicts well. So the same is measured of controls
that do not descend on a network: an untrained decoder with fitted read-outs, ridge regression from
a large penalty to a small one, the label mean, the arc-cosine process, and the answer to another
prompt. Descent from one other start shows the effect of the first weights alone. The cosine between
the errors p - y and g_s - y leaves out what follows from being right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from textwrap import fill
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, layer_norm, pad

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, RED, Axes
from icgd_papers.figure import Figure, Job, of_preset, six_digits
from icgd_papers.figures import wu_prompts
from icgd_papers.figures.wu import SETUPS as CURVE_SETUPS
from icgd_papers.figures.wu_prompts import (
    ARC_COSINE,
    MEAN,
    PRETRAINING,
    PROMPTS_AT_ONCE,
    RIDGE,
    Case,
    Constructed,
    Predictions,
    Setup,
    arc_cosine,
    label_mean,
    r_squared,
    relative_error,
    ridge,
    trained_decoder,
)
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.tasks import Batch

N_LAYERS = 3

READ_INDEX, TEST_INDEX = 2**30, 2**30 + 1
"""Indices of the batches that read-outs are fitted to, and that predictions are compared on."""

READ_OUT_PENALTY = 1e-3
"""The penalty of a read-out, as a share of the mean square of what it reads."""

PENALTIES = (1000.0, 100.0, 10.0, 1.0, 0.01)
"""Ridge regression from hardly more than the label mean to least squares."""

LEARNT, UNTRAINED = "learnt block", "untrained block"
ANOTHER, DESCENT = "another prompt's label", "descent, other start"
CONTROLS = (RIDGE, ARC_COSINE, UNTRAINED)
"""What predicts without descending on a network."""

REFERENCES = (MEAN, RIDGE, ARC_COSINE)
ATTENTIONS = ("relu", "softmax")


@dataclass(frozen=True)
class Mechanism:
    """A decoder, trained as in wu-fig2 whatever its attention, and how it is compared."""

    attention: str
    seed: int
    setup: Setup
    n_read: int
    """The prompts to which read-outs are fitted."""
    n_test: int
    steps: tuple[int, ...]
    n_starts: int

    @property
    def panel(self) -> str:
        """The row of panels that shows this attention."""
        return "ab"[ATTENTIONS.index(self.attention)]

    @property
    def decoder(self) -> Case:
        """The decoder's training alone."""
        return Case(N_LAYERS, (), self.seed, self.setup, self.attention)

    def prompts(self, index: int, n_tasks: int) -> Batch:
        """Draw prompts of pretraining with its length, which training never sees."""
        task = self.setup.task(N_LAYERS, PRETRAINING, self.setup.n_examples)
        return task.sample(n_tasks, seed=self.seed, index=index)

    def descent(self, step_size: float, start: int) -> Constructed:
        """Return descent on networks of the teacher's shape from start number `start`."""
        return Constructed(N_LAYERS, self.setup.hidden_width, step_size, start)


LONG_PATH = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"n_read": 32, "n_test": 8, "steps": (0, 1, 3), "n_starts": 2},
    "laptop": {"n_read": 4096, "n_test": 256, "steps": LONG_PATH, "n_starts": 4},
    "paper": {"n_read": 6400, "n_test": 640, "steps": LONG_PATH, "n_starts": 4},
}


def settings(preset: str, first_seed: int) -> list[Mechanism]:
    """List a decoder for each attention and seed."""
    sizes, setup = of_preset(SIZES, preset), CURVE_SETUPS[preset]
    seeds = range(first_seed, first_seed + setup.n_seeds)
    return [
        Mechanism(attention, seed, setup, **sizes) for attention, seed in product(ATTENTIONS, seeds)
    ]


def run(plan: Mechanism, job: Job) -> pl.DataFrame:
    """Compare every block of a learnt decoder, and every control, with descent."""
    model, _ = trained_decoder(plan.decoder, job)
    untrained = plan.setup.decoder(plan.attention, plan.seed).float()
    test = plan.prompts(TEST_INDEX, plan.n_test)
    step_size = job.cached("step-size", lambda: best_step_size(plan))
    # The predictions of descent: start, number of steps, prompt. The last start is kept apart.
    paths = torch.tensor(job.cached("descent", lambda: descent_paths(plan, test, step_size)))
    labels, descent = test.y[:, -1], list(paths[:-1].mean(0))

    references = {
        MEAN: label_mean(test.y),
        RIDGE: ridge(test.x, test.y, 1.0),
        ARC_COSINE: arc_cosine(test.x, test.y, N_LAYERS),
    }
    predictors: dict[str, list[Tensor]] = {
        LEARNT: block_predictions(plan, model, test),
        UNTRAINED: block_predictions(plan, untrained, test),
        RIDGE: [ridge(test.x, test.y, penalty) for penalty in PENALTIES],
        MEAN: [references[MEAN]],
        ARC_COSINE: [references[ARC_COSINE]],
        ANOTHER: [labels.roll(1)],
        DESCENT: list(paths[-1]),
    }
    rows = [
        {
            "panel": plan.panel,
            "attention": plan.attention,
            "seed": plan.seed,
            "predictor": name,
            "stage": stage,
            **comparison,
            **{
                f"to_{reference}": six_digits(distance(predictions, values, labels))
                for reference, values in references.items()
            },
            "step_size": step_size,
            "n_layers": N_LAYERS,
            "n_blocks": plan.setup.n_blocks,
            "n_read": plan.n_read,
            "n_starts": plan.n_starts,
            **plan.setup.columns,
            "n_test": plan.n_test,
        }
        for name, stages in predictors.items()
        for stage, predictions in enumerate(stages, start=1)
        for comparison in beside_descent(predictions, labels, descent, plan.steps)
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


def best_step_size(plan: Mechanism) -> float:
    """Choose the step size that is best after all steps, on other prompts."""
    prompts = plan.setup.choice(N_LAYERS, plan.seed)

    def error(step_size: float) -> float:
        [last] = plan.descent(step_size, 0).path(prompts.x, prompts.y, plan.steps[-1:])
        return relative_error(last, prompts.y)

    return min(plan.setup.baselines.step_sizes, key=error)


def descent_paths(plan: Mechanism, test: Batch, step_size: float) -> list[list[list[float]]]:
    """Predict the queries by descent from all starts, and from one more."""
    return [
        [
            values.tolist()
            for values in plan.descent(step_size, start).path(test.x, test.y, plan.steps)
        ]
        for start in range(plan.n_starts + 1)
    ]


def block_predictions(plan: Mechanism, model: Decoder, test: Batch) -> list[Predictions]:
    """Predict the queries by a read-out of every block, fitted to other prompts."""
    fitted = plan.prompts(READ_INDEX, plan.n_read)
    streams = zip(streams_at_query(model, fitted), streams_at_query(model, test), strict=True)
    return [read_out(known, fitted.y[:, -1], asked) for known, asked in streams]


@torch.no_grad()
def streams_at_query(model: Decoder, prompts: Batch) -> list[Float[Tensor, "task width"]]:
    """Return the stream after each block at the query, through a norm.

    The decoder itself reads its last stream through one.
    """
    batches = [
        [layer_norm(stream[:, -1], (model.width,)) for stream in model.streams(batch.x, batch.y)]
        for batch in prompts.to("cpu", next(model.parameters()).dtype).split(PROMPTS_AT_ONCE)
    ]
    return [torch.cat(of_block).double() for of_block in zip(*batches, strict=True)]


def read_out(
    known: Float[Tensor, "known width"],
    labels: Float[Tensor, "known"],
    asked: Float[Tensor, "task width"],
) -> Predictions:
    """Fit a linear function with an intercept to known streams; apply it to others."""
    centre, size = known.mean(0), known.std(0).clamp(min=1e-12)
    design, other = (pad((each - centre) / size, (0, 1), value=1.0) for each in (known, asked))
    penalty = READ_OUT_PENALTY * len(known) * torch.eye(design.shape[1], dtype=torch.float64)
    penalty[-1, -1] = 0
    weights = torch.linalg.solve(design.mT @ design + penalty, design.mT @ labels.double())
    predicted: Tensor = other @ weights
    return predicted


def beside_descent(
    predictions: Predictions,
    labels: Predictions,
    descent: Sequence[Predictions],
    steps: Sequence[int],
) -> list[dict[str, Any]]:
    """Compare predictions with descent after each number of steps, and mark the nearest."""
    errors = predictions - labels
    distances = [distance(predictions, values, labels) for values in descent]
    nearest = distances.index(min(distances))
    return [
        {
            "descent_steps": n_steps,
            "distance": six_digits(distances[i]),
            "error_cosine": six_digits(float(cosine_similarity(errors, values - labels, dim=0))),
            "is_nearest": i == nearest,
            "r_squared": six_digits(r_squared(errors, labels)),
        }
        for i, (n_steps, values) in enumerate(zip(steps, descent, strict=True))
    ]


def distance(first: Predictions, second: Predictions, labels: Predictions) -> float:
    """Return the mean of (first - second)^2, as a share of the variance of the labels."""
    return float((first - second).square().mean() / labels.var(correction=0))


def last_stages(rows: pl.DataFrame) -> pl.DataFrame:
    """Keep each predictor's last stage: the last block, the smallest penalty, all steps."""
    last = pl.col("stage").max().over("attention", "seed", "predictor")
    return rows.filter(pl.col("stage") == last)


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Return means over the seeds at the nearest number of steps; of descent after all steps."""
    nearest = rows.filter("is_nearest")
    is_descent = pl.col("predictor") == DESCENT
    shown = pl.concat([nearest.filter(~is_descent), last_stages(nearest).filter(is_descent)])
    table = []
    for group in shown.partition_by("attention", "predictor", "stage"):
        steps = group["descent_steps"].to_list()
        means = group.mean().row(0, named=True)
        table.append(
            {
                "attention": group["attention"][0],
                "predictor": group["predictor"][0],
                "stage": str(group["stage"][0]),
                "R^2": f"{means['r_squared']:.3f}",
                "nearest steps": f"{median(steps):g} ({min(steps):g} to {max(steps):g})",
                "distance": f"{means['distance']:.4f}",
                "error cosine": f"{means['error_cosine']:.2f}",
                **{f"to {name}": f"{means[f'to_{name}']:.4f}" for name in REFERENCES},
            }
        )
    return pl.DataFrame(table)


def conclusions(rows: pl.DataFrame) -> tuple[str, str, str]:
    """Say what the rows of one attention show, in sentences; all seeds must agree."""
    nearest = rows.filter("is_nearest")
    last = last_stages(nearest)
    learnt = last.filter(predictor=LEARNT)

    pairs = last.join(learnt.select("seed", learnt="distance"), on="seed")
    nearer = pairs.filter(pl.col("distance") <= pl.col("learnt"))["predictor"]
    others = ", ".join(name for name in CONTROLS if name in nearer)
    against_controls = "The last block is nearer to descent than every control."
    if others:
        against_controls = (
            f"The last block is not nearer to descent than {others}: no sign of descent."
        )

    distances = learnt.select(descent="distance", **{name: f"to_{name}" for name in REFERENCES})
    names = {min(row, key=row.__getitem__) for row in distances.iter_rows(named=True)}
    nearest_name = names.pop() if len(names) == 1 else "no one reference for all seeds"

    def rises(predictor: str) -> bool:
        steps = pl.col("descent_steps")
        seeds = nearest.filter(predictor=predictor).group_by("seed")
        return bool(seeds.agg(rises=steps.last() > steps.first())["rises"].all())

    stages = "The number of nearest steps does not rise from block to block."
    if rises(LEARNT):
        stages = "The number of nearest steps rises from the first block to the last."
        if rises(RIDGE):
            stages += " So does ridge regression as its penalty falls."
    return against_controls, f"Nearest to the last block: {nearest_name}.", stages


COLOURS = {
    LEARNT: RED,
    UNTRAINED: ORANGE,
    RIDGE: FAINT,
    MEAN: "#A8A8A8",
    ARC_COSINE: INK,
    DESCENT: GREEN,
}


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw three panels for each attention, each below the sentence that follows from it."""
    attentions = rows.partition_by("attention")
    figure, axes = plotting.new_panels(3 * len(attentions), 3, 5.2, 4.2)
    for i, of_attention in enumerate(attentions):
        beside, cosines, stages = axes[3 * i : 3 * i + 3]
        _draw_against_steps(beside, of_attention, "distance", "distance to descent")
        plotting.logarithmic_height(beside)
        _draw_against_steps(cosines, of_attention, "error_cosine", "cosine of the errors")
        _draw_stages(stages, of_attention)
        for ax, sentence in zip((beside, cosines, stages), conclusions(of_attention), strict=True):
            title = f"{of_attention['attention'][0]}: {sentence}"
            ax.set_title(fill(title, 52), loc="left", fontsize=11, color=INK)
    entries = [("learnt, last block", RED), ("learnt, others", BLUE), *list(COLOURS.items())[1:]]
    plotting.legend(figure, entries, dashed=[UNTRAINED])
    return figure


def _draw_against_steps(ax: Axes, rows: pl.DataFrame, column: str, label: str) -> None:
    """Draw the last stage of each predictor, and faintly the learnt blocks before it."""
    last = last_stages(rows)
    *inner, _ = rows.filter(predictor=LEARNT).partition_by("stage")
    lines = [(block, BLUE, "-", 0.45) for block in inner]
    for predictor, colour in COLOURS.items():
        dashes = "--" if predictor == UNTRAINED else "-"
        lines.append((last.filter(predictor=predictor), colour, dashes, 1.0))
    for line, colour, dashes, alpha in lines:
        points = line.group_by("descent_steps", maintain_order=True).agg(
            low=pl.min(column), mean=pl.mean(column), high=pl.max(column)
        )
        steps = points["descent_steps"]
        ax.fill_between(
            steps, points["low"], points["high"], color=colour, alpha=0.15 * alpha, lw=0
        )
        ax.plot(steps, points["mean"], color=colour, ls=dashes, lw=1.8, alpha=alpha)
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
    plotting.describe(ax, "", "steps of descent", label)


def _draw_stages(ax: Axes, rows: pl.DataFrame) -> None:
    """Draw the nearest number of steps of each block, and of ridge from penalty to penalty."""
    for predictor in (LEARNT, UNTRAINED, RIDGE):
        steps = pl.col("descent_steps")
        points = (
            rows.filter("is_nearest", predictor=predictor)
            .group_by("stage", maintain_order=True)
            .agg(low=steps.min(), median=steps.median(), high=steps.max())
        )
        colour, dashes = COLOURS[predictor], "--" if predictor == UNTRAINED else "-"
        ax.fill_between(
            points["stage"], points["low"], points["high"], color=colour, alpha=0.15, lw=0
        )
        ax.plot(points["stage"], points["median"], color=colour, ls=dashes, marker="o")
    ax.set_yscale("symlog", linthresh=1)
    ax.set_yticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
    ax.set_xticks(range(1, len(PENALTIES) + 1))
    plotting.describe(ax, "", "block, or place of the penalty", "nearest number of steps")


FIGURES = (
    Figure(
        name="wu-mechanism",
        place="no figure of the paper; the claim of App. G",
        shows="blocks of learnt decoders beside gradient descent, and controls that do not descend",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
        work=lambda plan: wu_prompts.work(plan.decoder),
        memory=lambda plan: wu_prompts.memory(plan.decoder),
        uses_device=True,
    ),
)
