r"""wang-in-context: transformers of equal size train 2 and 3 layers on a ball, in their context.

A transformer is compiled for a network of 3 layers, and one for the network of 2 layers whose
transformer has about as many weights: both are `recursion`, and take as many steps. Each sees
examples of the indicator of the unit ball, trains its network on them by gradient descent in one
forward pass, and predicts fresh points. Each has its own step size, chosen on separate tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from math import log, sqrt
from statistics import fmean, median, stdev

import polars as pl
import torch

from icgd.compiled import Compiled
from icgd.constructions.recursion import Recursion
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, ORANGE
from icgd.pipeline import compile
from icgd.problems.data import Domain, Task
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.shapes import Labels
from icgd.weights.sizes import Summary as Size
from icgd_papers.figure import Figure, Job, of_preset, six_digits
from icgd_papers.studies.ball import LARGEST_RADIUS, ball_network, ball_sample
from icgd_papers.studies.wang_resources import DEEP, DEPTHS, SHALLOW

BOX = 4.0
"""Weights are projected onto this box; initial weights are normal with variance 1 / fan-in."""

FIRST_CHOICE, FIRST_TEST = 0, 10_000
"""The indices of the first tasks for choosing step sizes, and for measuring errors."""


@dataclass(frozen=True)
class Budget:
    """How long a transformer trains, on how many examples, and on how many tasks it is tried."""

    n_steps: int
    n_examples: int
    n_queries: int
    n_choice: int
    n_test: int
    step_sizes: tuple[float, ...]


@dataclass(frozen=True)
class Setting:
    """The transformer of one depth, of the size that 3 layers of `deep_width` give."""

    dimension: int
    deep_width: int
    depth: int
    seed: int
    budget: Budget


def settings(preset: str, seed: int) -> list[Setting]:
    """Return both depths at every size in every dimension.

    The paper has no experiment; the preset `paper` is what more time can buy.
    """
    dimensions, deep_widths, budget = of_preset(
        {
            "smoke": ((2,), (2,), Budget(5, 16, 32, 2, 2, (0.25, 0.5))),
            "laptop": (
                (2, 4),
                (2, 4, 8),
                Budget(1000, 256, 512, 6, 16, (0.125, 0.25, 0.5, 1.0, 2.0)),
            ),
            "paper": (
                (2, 4, 8),
                (2, 4, 6, 8, 12, 16),
                Budget(10_000, 1024, 4096, 16, 100, (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)),
            ),
        },
        preset,
    )
    return [Setting(*case, seed, budget) for case in product(dimensions, deep_widths, DEPTHS)]


def work(setting: Setting) -> float:
    """Return the weights of the network, of which every step visits every example."""
    return float(setting.deep_width**2 + setting.deep_width * (setting.dimension + 2))


def memory(setting: Setting) -> float:
    """Return the bytes of three float64 histories; 2 layers have up to 2.5 times the weights."""
    network = ball_network(setting.dimension, DEEP, setting.deep_width)
    n_weights = network.n_parameters * (2.5 if setting.depth == SHALLOW else 1)
    return 24.0 * setting.budget.n_steps * setting.budget.n_test * n_weights


def run(setting: Setting, job: Job) -> pl.DataFrame:
    """Choose the step size, then test with it; a row for each step size, one of them with tests."""
    budget = setting.budget
    width = setting.deep_width
    if setting.depth == SHALLOW:
        width = equal_width(setting.dimension, setting.deep_width)

    def compiled_with(step_size: float) -> Compiled:
        problem = ball_problem(setting.dimension, setting.depth, width, step_size)
        return compile(problem, Recursion(), n_steps=budget.n_steps)

    def choice_error(step_size: float) -> float:
        compiled = compiled_with(step_size)
        task, labels = draw_tasks(setting, compiled, FIRST_CHOICE, budget.n_choice)
        return fmean(errors_of_tasks(compiled.run_task(task).predictions, labels))

    choice = {
        step_size: job.cached(f"step-size-{step_size:g}", partial(choice_error, step_size))
        for step_size in budget.step_sizes
    }
    chosen = min(choice, key=lambda step_size: choice[step_size])
    compiled = compiled_with(chosen)
    task, labels = draw_tasks(setting, compiled, FIRST_TEST, budget.n_test)
    result, oracle = compiled.run_task(task), compiled.problem.oracle
    path, errors = result.parameters, errors_of_tasks(result.predictions, labels)
    example_errors = 2 * oracle.risk(task, path[..., -1, :])  # the risk is (1 / 2n) sum of squares
    tested = {
        "error": fmean(errors),
        "median_error": median(errors),
        "standard_error": stdev(errors) / sqrt(len(errors)),
        "least_error": min(errors),
        "largest_error": max(errors),
        "example_error": fmean(example_errors.tolist()),
        # how far a step ends from the exact step from the same weights
        "off_descent": float((path[..., 1:, :] - oracle.stepped(task, path)).abs().max()),
    }
    size = size_of(setting.dimension, setting.depth, width)
    return pl.DataFrame(
        [
            {
                "dimension": setting.dimension,
                "deep_width": setting.deep_width,
                "depth": setting.depth,
                "width": width,
                "weights": size.parameters,
                "heads": sum(layer.n_heads for layer in size.layers_of_a_step),
                "layers": size.layers_per_step,
                "step_size": step_size,
                "choice_error": six_digits(choice[step_size]),
                "is_chosen": step_size == chosen,
                "n_test": len(errors) if step_size == chosen else None,
                **{
                    name: six_digits(value) if step_size == chosen else None
                    for name, value in tested.items()
                },
            }
            for step_size in budget.step_sizes
        ],
        infer_schema_length=None,
    )


def draw_tasks(
    setting: Setting, compiled: Compiled, first: int, n_tasks: int
) -> tuple[Task, Labels]:
    """Draw tasks, each with its own points and initial weights; return also the queries' labels."""
    n = setting.budget.n_examples
    indices = range(first, first + n_tasks)
    samples = [
        ball_sample(setting.dimension, n + setting.budget.n_queries, seed=setting.seed, index=index)
        for index in indices
    ]
    x, y = (torch.stack(tensors) for tensors in zip(*samples, strict=True))
    initial = torch.stack([compiled.problem.network.initial_parameters(i, BOX) for i in indices])
    task = compiled.task(x[:, :n], y[:, :n, None], queries=x[:, n:], initial=initial)
    return task, y[:, n:, None]


def errors_of_tasks(predictions: Labels, labels: Labels) -> list[float]:
    """Return the mean squared error of each task."""
    errors: list[float] = (predictions - labels).square().mean((-2, -1)).tolist()
    return errors


def ball_problem(dimension: int, depth: int, width: int, step_size: float = 1.0) -> Problem:
    """Return the training of a network on points around the ball."""
    network = ball_network(dimension, depth, width)
    return Problem(network, "squared", GradientStep(step_size, BOX), Domain(LARGEST_RADIUS, 1.0))


@lru_cache(maxsize=1024)
def size_of(dimension: int, depth: int, width: int) -> Size:
    """Return the size of the transformer that trains this network."""
    return compile(ball_problem(dimension, depth, width), Recursion(), n_steps=1).summary()


def equal_width(dimension: int, deep_width: int) -> int:
    """Return the width of 2 layers whose transformer is nearest in weights to that of 3 layers."""
    wanted = size_of(dimension, DEEP, deep_width).parameters

    def ratio(width: int) -> float:
        return size_of(dimension, SHALLOW, width).parameters / wanted

    high = 2
    while ratio(high) <= 1:  # sizes grow with the width
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ratio(middle) <= 1 else (low, middle)
    return min(low, high, key=lambda width: abs(log(ratio(width))))


FORMATS = {
    "width": ("width", ",.0f"),
    "million weights": ("millions", ".2f"),
    "heads": ("heads", ",.0f"),
    "step size": ("step_size", "g"),
    "error": ("error", ".4f"),
    "median": ("median_error", ".4f"),
}
"""The columns of the summary: which column of the rows they show, and how."""


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Give widths, sizes and errors of 2 / 3 layers side by side."""
    chosen = rows.filter("is_chosen").with_columns(millions=pl.col("weights") / 1e6)
    lines = []
    for (dimension, _), pair in chosen.group_by("dimension", "deep_width", maintain_order=True):
        cells = {
            name: " / ".join(format(value, form) for value in pair[column])
            for name, (column, form) in FORMATS.items()
        }
        lines.append({"d": str(dimension), **cells})
    return pl.DataFrame(lines)


COLOURS = {SHALLOW: BLUE, DEEP: ORANGE}
SHIFTS = {SHALLOW: 0.94, DEEP: 1.06}
"""Points are moved apart a little, since both depths have nearly the same number of weights."""


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw a panel for each dimension: means with two standard errors, and widths beside them."""
    dimensions = list(rows.filter("is_chosen").group_by("dimension", maintain_order=True))
    figure, panels = plotting.new_figure(6.0 * len(dimensions), 5.0, len(dimensions))
    for panel, ((dimension,), in_dimension) in zip(panels, dimensions, strict=True):
        for depth, colour in COLOURS.items():
            curve = in_dimension.filter(depth=depth)
            places, errors = SHIFTS[depth] * curve["weights"], curve["error"]
            bars = 2 * curve["standard_error"]
            panel.errorbar(places, errors, bars, color=colour, fmt="o", capsize=4, linewidth=1.8)
            panel.plot(places, errors, color=colour, linewidth=1.8, alpha=0.35)
            side = "right" if depth == SHALLOW else "left"
            for place, error, width in zip(places, errors, curve["width"], strict=True):
                plotting.tag(panel, f"  width {width}  ", (place, error), ha=side)
        panel.set_xscale("log")
        panel.margins(x=0.2)
        panel.set_ylim(bottom=0)
        message = f"Indicator of the ball in dimension {dimension}, learnt in context"
        plotting.describe(panel, message, "weights of the transformer", "error at new points")
    plotting.legend(figure, [("2 layers", BLUE), ("3 layers", ORANGE)])
    return figure


FIGURES = (
    Figure(
        name="wang-in-context",
        place="Theorem 3, Section 4",
        shows="in-context training on a ball: 2 and 3 layers at equal transformer size",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
        work=work,
        memory=memory,
    ),
)
