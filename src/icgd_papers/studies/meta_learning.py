r"""meta-learning: what gradients through a compiled run are good for, and what they do to it.

A transformer runs five steps of descent on a relu network, exactly. On a family of tasks it learns
in stages:

    step sizes    a number for each step, from the best single one; the start is random
    start         the step sizes and the weights that every task starts from
    longer        the same for longer, through exact descent, whose gradients are equal
    all           from there every weight of every layer, of a transformer whose steps share none
    nearest       the start and step sizes of the descent whose predictions are nearest to "all"

"longer" makes sure that "all" does not merely learn what descent could have learnt, and "nearest"
tells whether what it learnt is still descent. Measured are the loss on new tasks after each step,
and the distance of the transformer's weights and predictions from exact descent.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Any, final

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from icgd.compiled import Compiled
from icgd.learnable import AbstractRun, LearnableRun, UntiedRun, unrolled_descent
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, ORANGE, PURPLE, RED, Axes
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.figure import Figure, Job, draw_band, of_preset, six_digits
from icgd_papers.training.loop import train
from icgd_papers.training.models import Units
from icgd_papers.training.own_data import GeneratedTask
from icgd_papers.training.settings import Settings
from icgd_papers.training.tasks import AbstractTask, Batch, Parts, QueryTask

N_STEPS, N_EXAMPLES, N_QUERIES = 5, 10, 10

HAND_CHOSEN = 0.1
"""The step size of someone who tries nothing."""

CANDIDATES = tuple(0.05 * 1.15**k for k in range(36))
"""Step sizes up to 6.7, of which the best single one is chosen."""

KINK_WIDTH = 2.0**-13
"""Width of the ramps. The default is far narrower, and its weights cannot move without breaking."""

TUNING_INDEX, TEST_INDEX = 2**31, 2**31 + 1
"""Batches that training never reaches: to choose the single step size, and to test."""


@dataclass(frozen=True)
class Setting:
    """A seed, the sizes, and the steps and Adam rates of each stage.

    Half a million weights that all move at once change a lot, so their rate is small.
    """

    seed: int
    width: int
    batch_size: int
    n_test: int
    step_size_steps: int
    start_steps: int
    longer_steps: int
    all_steps: int
    nearest_steps: int
    step_size_rate: float = 0.05
    start_rate: float = 0.02
    all_rate: float = 3e-6
    nearest_rate: float = 0.003


PRESETS = {
    "smoke": (1, (3, 2, 4, 1, 2, 2, 1, 1)),
    "laptop": (3, (8, 16, 1000, 250, 300, 3000, 350, 400)),
    "paper": (5, (16, 64, 4000, 500, 2000, 40000, 5000, 2000)),
}
"""Seeds; then width, batch size, test tasks, and the steps of the five stages.

No paper has this figure; the longest preset has the name of the others.
"""


def settings(preset: str, seed: int) -> list[Setting]:
    """Return one job for each seed."""
    n_seeds, sizes = of_preset(PRESETS, preset)
    return [Setting(seed + i, *sizes) for i in range(n_seeds)]


def sines(n_tasks: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return a sin(2 x + b) at 20 points x in [-1, 1], with a in [0.2, 1]; a 1 stands beside x."""
    x = generator.uniform(-1, 1, (n_tasks, N_EXAMPLES + N_QUERIES, 1))
    a, b = generator.uniform(0.2, 1, (n_tasks, 1)), generator.uniform(0, 2 * np.pi, (n_tasks, 1))
    inputs = np.concatenate([x, np.ones_like(x)], axis=-1)
    return torch.from_numpy(inputs), torch.from_numpy(a * np.sin(2 * x[..., 0] + b))


TASK = QueryTask(GeneratedTask(sines), N_QUERIES)


def compiled_run(width: int) -> Compiled:
    """Compile five steps on a relu network of one hidden layer, for which relu-stack is exact."""
    problem = Problem(
        target=MLP((2, width, 1), "relu"),
        loss="squared",
        update=GradientStep(step_size=HAND_CHOSEN, box=3.0),
        domain=Domain(x=1.0, y=1.0),
    )
    return compile(problem, "relu-stack", n_steps=N_STEPS, kink_width=KINK_WIDTH)


@final
class Descent(nn.Module):
    """Exact descent whose step sizes and start are parameters."""

    def __init__(self, run: LearnableRun) -> None:
        super().__init__()
        self.problem = run.problem
        self.initial = nn.Parameter(run.initial.detach().clone())
        self.step_sizes = nn.Parameter(run.step_sizes.detach().clone())

    @torch.no_grad()
    def in_transformer(self, compiled: Compiled) -> LearnableRun:
        """Return the same descent, run by the transformer."""
        run = LearnableRun(compiled, step_sizes=[HAND_CHOSEN] * N_STEPS)
        run.initial.copy_(self.initial)
        run.step_sizes.copy_(self.step_sizes)
        return run

    def forward(self, x: Tensor, y: Tensor, queries: Tensor) -> Tensor:
        """Return the predictions at the queries after all steps."""
        steps = unrolled_descent(self.problem, x, y, queries, self.initial, self.step_sizes)
        return steps.predictions[..., -1, :, :]


@final
@dataclass(frozen=True)
class NearTask(AbstractTask):
    """Predict what `model` predicts, on the tasks of the family."""

    model: UntiedRun

    def sample(self, n_tasks: int, *, seed: int, index: int, shard: int = 0) -> Batch:
        return TASK.sample(n_tasks, seed=seed, index=index, shard=shard)

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean squared difference between the two predictions."""
        x, y, queries, _ = TASK.parts(batch)
        with torch.no_grad():
            target: Tensor = self.model(x, y, queries).to(x)
        prediction: Tensor = model(x, y, queries)
        return (prediction - target).square().mean()

    def description(self) -> dict[str, object]:
        return {"task": type(self).__name__, "family": TASK.description()}


def in_units(run: UntiedRun) -> UntiedRun:
    """Learn what a layer reads in units of the inverse of its largest output weight.

    A ramp of width 2^-13 is a relu times 2^13, which multiplies every change of what it reads. In
    these units Adam can move all weights at the same speed.
    """
    for layer in (*run.transformer.block, *run.transformer.final):
        weights = {name: weight.detach() for name, weight in layer.named_parameters()}
        outputs = [name for name in weights if name in ("W_O", "W_out")]
        largest = max(float(weights[name].abs().max()) for name in outputs)
        unit = torch.tensor(2.0 ** -max(0, ceil(log2(largest))), dtype=torch.float64)
        for name in weights:  # in a fixed order: the gradient's norm is a sum over parameters
            if name not in outputs:
                register_parametrization(layer, name, Units(unit))
    return run


@torch.no_grad()
def best_step_size(run: LearnableRun, tasks: Parts) -> float:
    """Return the candidate whose loss after the last step of exact descent is smallest."""
    x, y, queries, labels = tasks

    def loss(step_size: float) -> float:
        sizes = torch.full((N_STEPS,), step_size, dtype=torch.float64)
        steps = unrolled_descent(run.problem, x, y, queries, run.initial, sizes)
        return float((steps.predictions[:, -1] - labels).square().mean())

    return min(CANDIDATES, key=loss)


HAND, BEST, SIZES = "step size 0.1", "best step size", "learnt step sizes"
START, LONGER, ALL = "and learnt start", "both for longer", "all weights"
NEAREST = "nearest descent"
"""The lines: what learns, from nothing to everything, and the descent nearest to "all weights"."""


def run(setting: Setting, job: Job) -> pl.DataFrame:
    """Learn stage by stage, and measure each stage on new tasks after every step."""
    seed, compiled = setting.seed, compiled_run(setting.width)
    tuning, test = (
        TASK.parts(TASK.sample(setting.n_test, seed=seed, index=index))
        for index in (TUNING_INDEX, TEST_INDEX)
    )
    n_steps = setting.step_size_steps + setting.start_steps + setting.longer_steps
    n_steps += setting.all_steps + setting.nearest_steps
    n_before = 0

    def learn(
        stage: str, model: nn.Module, stage_steps: int, rate: float, task: AbstractTask = TASK
    ) -> None:
        """Train the model in place; an interrupted stage resumes from its checkpoint."""
        nonlocal n_before

        def on_step(step: int, _: int, loss: float) -> None:
            if job.on_step:
                job.on_step(n_before + step, n_steps, loss)

        folder = job.folder and job.folder / stage
        options = training_settings(setting, stage_steps, rate)
        train(model, task, options, folder=folder, on_step=on_step)
        n_before += stage_steps

    hand = LearnableRun(compiled, step_sizes=HAND_CHOSEN, seed=seed)
    best = best_step_size(hand, tuning)
    single = LearnableRun(compiled, step_sizes=best, seed=seed)
    sizes = LearnableRun(compiled, step_sizes=[best] * N_STEPS, seed=seed)
    sizes.initial.requires_grad = False
    learn("step-sizes", sizes, setting.step_size_steps, setting.step_size_rate)
    start = LearnableRun(compiled, step_sizes=[best] * N_STEPS, seed=seed)
    learn("start", start, setting.start_steps, setting.start_rate)
    exact = Descent(start)
    learn("longer", exact, setting.longer_steps, setting.start_rate)
    longer = exact.in_transformer(compiled)
    tuned = in_units(longer.untied())
    learn("all", tuned, setting.all_steps, setting.all_rate)
    nearest = Descent(longer)
    learn("nearest", nearest, setting.nearest_steps, setting.nearest_rate, NearTask(tuned))

    # A line: the run, the descent that it is compared with, its learning steps and last rate.
    n_longer = setting.start_steps + setting.longer_steps
    n_all, n_nearest = n_longer + setting.all_steps, n_longer + setting.nearest_steps
    lines: dict[str, tuple[AbstractRun, LearnableRun | Descent, int, float | None]] = {
        HAND: (hand, hand, 0, None),
        BEST: (single, single, 0, None),
        SIZES: (sizes, sizes, setting.step_size_steps, setting.step_size_rate),
        START: (start, start, setting.start_steps, setting.start_rate),
        LONGER: (longer, longer, n_longer, setting.start_rate),
        ALL: (tuned, longer, n_all, setting.all_rate),
        NEAREST: (tuned, nearest, n_nearest, setting.nearest_rate),
    }
    frames = [
        measure(model, descent, test, loss_of_descent=name == NEAREST).with_columns(
            line=pl.lit(name),
            learning_steps=pl.lit(steps),
            learning_rate=pl.lit(rate, pl.Float64),
        )
        for name, (model, descent, steps, rate) in lines.items()
    ]
    return pl.concat(frames).with_columns(
        seed=pl.lit(seed),
        width=pl.lit(setting.width),
        n_examples=pl.lit(N_EXAMPLES),
        n_queries=pl.lit(N_QUERIES),
        n_test=pl.lit(setting.n_test),
        batch_size=pl.lit(setting.batch_size),
    )


def training_settings(setting: Setting, n_steps: int, rate: float) -> Settings:
    """Return the settings of a stage: its rate rises for ten steps, then falls to a hundredth."""
    return Settings(
        n_steps=n_steps,
        batch_size=setting.batch_size,
        learning_rate=rate,
        final_learning_rate=rate / 100,
        clip_norm=1.0,
        warmup_steps=min(10, n_steps - 1),
        seed=setting.seed,
        log_every=n_steps,
        checkpoint_every=50,
        dtype="float64",
    )


@torch.no_grad()
def measure(
    run: AbstractRun, descent: LearnableRun | Descent, tasks: Parts, *, loss_of_descent: bool
) -> pl.DataFrame:
    """Measure the distance of `run` from a descent after every step, and the loss of either.

    Distances are root mean squares over all weights, or over the predictions at the queries, in
    the median task. `mean_distance` is the root mean square of the latter over tasks, which is
    large where a unit of some task lies on a ramp.
    """
    x, y, queries, labels = tasks
    sizes = descent.step_sizes.expand(N_STEPS)
    exact = unrolled_descent(descent.problem, x, y, queries, descent.initial, sizes)
    steps = run.steps(x, y, queries)

    def distances(one: Tensor, other: Tensor) -> Float[Tensor, "task step"]:
        return (one - other).flatten(2).square().mean(-1).sqrt()

    of_weights = distances(steps.parameters, exact.parameters)
    of_predictions = distances(steps.predictions, exact.predictions)
    predictions = (exact if loss_of_descent else steps).predictions
    losses = (predictions - labels[:, None]).square().mean((0, 2, 3))
    frame = pl.DataFrame(
        {
            "step": range(N_STEPS + 1),
            "loss": losses.tolist(),
            "weight_distance": of_weights.median(0).values.tolist(),
            "prediction_distance": of_predictions.median(0).values.tolist(),
            "mean_distance": of_predictions.square().mean(0).sqrt().tolist(),
            "step_size": [None, *sizes.tolist()],
        }
    )
    return frame.with_columns(pl.col(pl.Float64).map_elements(six_digits, pl.Float64))


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Return mean losses over the seeds; after the last step also their range and distances."""
    losses = {"loss after 0": 0, "1": 1, "3": 3, "5 steps": N_STEPS}
    distances = {
        "weight_distance": "weights from descent",
        "prediction_distance": "predictions from descent",
        "mean_distance": "in the mean",
    }
    last_loss = pl.col("loss").filter(step=N_STEPS)
    lines = rows.group_by(pl.col("line").alias("what learns"), maintain_order=True).agg(
        *(pl.col("loss").filter(step=step).mean().alias(name) for name, step in losses.items()),
        last_loss.min().alias("smallest"),
        last_loss.max().alias("largest"),
        pl.col(*distances).filter(step=N_STEPS).mean(),
    )
    digits = pl.col(*losses, "smallest", "largest").map_elements("{:.4f}".format, pl.String)
    powers = pl.col(*distances).map_elements("{:.1e}".format, pl.String)
    return lines.with_columns(digits, powers).select(
        "what learns",
        *losses,
        pl.format("{} to {}", "smallest", "largest").alias("smallest to largest"),
        *(pl.col(column).alias(name) for column, name in distances.items()),
    )


SKY = "#56B4E9"
"""One more colour of Okabe and Ito."""

COLOURS = {
    HAND: FAINT, BEST: ORANGE, SIZES: BLUE, START: SKY, LONGER: GREEN, ALL: RED, NEAREST: PURPLE
}  # fmt: skip


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw losses on the left, and distances from the first step on on the right."""
    figure, (losses, distances) = plotting.new_figure(14.6, 5.4, 2)
    for name in (HAND, BEST, SIZES, START, LONGER, ALL):
        draw_curve(losses, rows.filter(line=name), "loss", COLOURS[name])
    plotting.describe(losses, "Loss on new tasks", "steps of the run", "mean squared error")
    for name in (LONGER, ALL, NEAREST):
        after = rows.filter(pl.col("step") > 0, line=name)
        style = "--" if name == NEAREST else "-"
        draw_curve(distances, after, "prediction_distance", COLOURS[name], linestyle=style)
    message = "Predictions against those of exact descent"
    plotting.describe(distances, message, "steps of the run", "difference in the median task")
    distances.yaxis.labelpad = 12  # room for the numbers
    plotting.legend(figure, list(COLOURS.items()), dashed=[NEAREST], n_columns=4)
    return figure


def draw_curve(panel: Axes, rows: pl.DataFrame, column: str, colour: str, **style: Any) -> None:
    """Draw a column over the steps of the run, on a logarithmic axis."""
    positive = rows.with_columns(pl.col(column).clip(lower_bound=1e-17))  # 0 has no logarithm
    draw_band(panel, positive, "step", column, colour, marker="o", **style)
    plotting.logarithmic_height(panel)
    panel.set_xticks(rows["step"].unique().sort().to_list())


FIGURES = (
    Figure(
        name="meta-learning",
        place="no paper; after Finn et al. and von Oswald et al.",
        shows="losses on new tasks with learnt step sizes, start, and all weights of a transformer",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
    ),
)
