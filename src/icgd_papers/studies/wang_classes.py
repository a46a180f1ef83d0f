r"""wang-classes: the networks of Lemmas 1 to 4, built and counted, and such networks in context.

`relu_networks.py` writes down the weights of networks for the indicator of a ball (Lemma 2) and for
squares, products and smooth functions (Lemma 3). Their errors are measured beside their proved
bounds, and beside what the lemmas print. `two_layers.py` has a lower bound for all networks of 2
layers (Lemma 1).

Networks of these shapes are then trained in context: `recursion` compiles their training, and the
literal transformer takes all steps. Each task is a function of the class. Training starts from
random weights or from those of the lemma, in which the prompt holds a neighbour of the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log, pi
from statistics import fmean, median
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from icgd.compiled import Compiled
from icgd.constructions.recursion import Recursion
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, ORANGE, PURPLE, RED, Axes
from icgd.pipeline import compile
from icgd.problems.data import Domain, Task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.figure import Figure, Job, of_preset, six_digits
from icgd_papers.studies.ball import LARGEST_RADIUS, UniformRadii, ball_sample
from icgd_papers.studies.relu_networks import (
    BallIndicator,
    ReluNetwork,
    SmoothNetwork,
    cosines,
    fewest_knots,
    indicator_error,
    product,
    smallest_indicator,
    square,
)
from icgd_papers.studies.two_layers import HardBall
from icgd_papers.training.tasks import generator_of

BALL, SEPARATION, SQUARE, PRODUCT, SMOOTH = "ball", "2 and 3 layers", "x^2", "x y", "smooth"
TRAINED_BALL, TRAINED_SMOOTH = "balls in context", "waves in context"

BOX = 8.0
"""Weights are projected onto this box."""

POINTS_IN_A_CELL = 9
"""The points a side of a cell at which the error of a smooth network is measured."""

FIRST_CHOICE, FIRST_TEST = 0, 10_000
"""The indices of the first tasks for choosing step sizes, and for measuring errors."""


@dataclass(frozen=True)
class Training:
    """How long a transformer trains, on how many examples, and on how many tasks it is tried."""

    n_steps: int
    n_examples: int
    n_queries: int
    n_choice: int
    n_test: int
    step_sizes: tuple[float, ...]


@dataclass(frozen=True)
class Setting:
    """A curve of sizes and errors, or the training of one network from one kind of start.

    `sizes` are knots on each side for balls, layers for x^2 and x y, cells a side for smooth
    functions of `order` derivatives. For the comparison of 2 and 3 layers there is one point.
    """

    part: str
    case: str
    seed: int
    dimension: int
    order: int
    sizes: tuple[int, ...]
    n_points: int
    training: Training


def settings(preset: str, seed: int) -> list[Setting]:
    """Return a curve for every dimension and order, and a training for every network and start.

    The paper has no experiment; the preset `paper` is what more time can buy.
    """
    balls, hard, knots, smooth, cells, most, n_points, training = of_preset(
        {
            "smoke": ((2,), (4,), 3, ((1, 2),), (1, 2), 4, 200, Training(3, 8, 8, 2, 2, (0.1,))),
            "laptop": (
                (2, 4, 8, 16),
                (4, 6, 8, 12, 16, 24, 32, 48, 64),
                7,
                ((1, 2), (1, 4), (2, 2), (2, 4)),
                (1, 2, 4, 8, 16, 32, 64, 128),
                12,
                10_000,
                Training(300, 128, 128, 8, 8, (0.025, 0.05, 0.1, 0.2, 0.4, 0.8)),
            ),
            "paper": (
                (2, 4, 8, 16, 32, 64),
                (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
                9,
                ((1, 2), (1, 3), (1, 4), (1, 6), (2, 2), (2, 3), (2, 4), (3, 3)),
                (1, 2, 4, 8, 16, 32, 64, 128, 256),
                20,
                1_000_000,
                Training(1000, 512, 512, 32, 100, (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)),
            ),
        },
        preset,
    )
    blank = Setting(BALL, "", seed, 1, 1, (), n_points, training)
    found = []
    for d in balls:
        least = fewest_knots(d) + 1
        sizes = tuple(max(least, 2**k) for k in range(knots) if 2 ** (k + 1) > least)
        found.append(replace(blank, case=f"d = {d}", dimension=d, sizes=sizes))
    found += [replace(blank, part=SEPARATION, case=f"d = {d}", dimension=d) for d in hard]
    for part in (SQUARE, PRODUCT):
        found.append(replace(blank, part=part, sizes=tuple(range(1, most + 1))))
    for d, n in smooth:
        sizes = tuple(size for size in cells if (POINTS_IN_A_CELL * size) ** d <= n_points**1.25)
        case = f"d = {d}, n = {n}"
        found.append(replace(blank, part=SMOOTH, case=case, dimension=d, order=n, sizes=sizes))
    for part, starts in STARTS.items():
        found += [replace(blank, part=part, case=start) for start in starts]
    return found


def work(setting: Setting) -> float:
    """Return about how many seconds the laptop's job takes, for all presets."""
    training = setting.training
    if setting.part in STARTS:
        return 1e-5 * training.n_steps * training.n_test * training.n_examples
    return 1.0 + 1e-4 * setting.n_points


def run(setting: Setting, job: Job) -> pl.DataFrame:
    """Build and measure the networks of one curve, or train one network."""
    build = {
        BALL: ball_rows,
        SEPARATION: separation_rows,
        SQUARE: square_rows,
        PRODUCT: square_rows,
        SMOOTH: smooth_rows,
    }
    rows = list(
        build[setting.part](setting) if setting.part in build else trained_rows(setting, job)
    )
    return pl.DataFrame(
        [{"part": setting.part, "case": setting.case, **row} for row in rows],
        schema=SCHEMA,
    )


SCHEMA = {
    "part": pl.String,
    "case": pl.String,
    "size": pl.Float64,
    "layers": pl.Int64,
    "parameters": pl.Int64,
    "error": pl.Float64,
    "bound": pl.Float64,
    "exact": pl.Float64,
    "test": pl.Float64,
    "median_test": pl.Float64,
    "exact_test": pl.Float64,
    "off_descent": pl.Float64,
    "step_size": pl.Float64,
    "heads": pl.Int64,
    "weights": pl.Int64,
}
"""`size` is a width for balls, a number of units for the other networks, a step of training."""


def ball_rows(setting: Setting) -> Iterator[dict[str, Any]]:
    """Measure indicators where |x| is uniform on [0, 2]."""
    generator, law = np.random.default_rng(setting.seed), UniformRadii()
    for n_knots in setting.sizes:
        indicator = BallIndicator(setting.dimension, n_knots)
        yield {
            **size_of(indicator.network, indicator.network.width),
            "error": six_digits(indicator_error(indicator, law, setting.n_points, generator)),
            "bound": six_digits(law.probability(*indicator.shell)),
        }


def separation_rows(setting: Setting) -> Iterator[dict[str, Any]]:
    """Find what exp(d) units of 2 layers err by at least, and a network of 3 layers for that."""
    law = HardBall(setting.dimension)
    least = law.least_error(exp(setting.dimension))
    indicator = smallest_indicator(setting.dimension, law, least)
    generator = np.random.default_rng(setting.seed)
    yield {
        **size_of(indicator.network, indicator.network.width),
        "error": six_digits(indicator_error(indicator, law, setting.n_points, generator)),
        "bound": six_digits(least),
    }


def square_rows(setting: Setting) -> Iterator[dict[str, Any]]:
    """Measure squares and products where they err most: between their knots."""
    for depth in setting.sizes:
        if setting.part == SQUARE:
            network = square(depth)
            x = torch.linspace(0, 1, 2 ** (depth + 1) + 1, dtype=torch.float64)[:, None]
            exact = x[:, 0].square()
        else:
            network = product(depth)
            side = torch.linspace(-1, 1, 2 ** min(depth + 2, 9) + 1, dtype=torch.float64)
            diagonal = torch.linspace(0, 1, 2 ** (depth + 1) + 1, dtype=torch.float64)
            x = torch.cat((torch.cartesian_prod(side, side), torch.stack([diagonal] * 2, dim=1)))
            exact = x.prod(1)
        yield {
            **size_of(network, network.n_units),
            "error": six_digits(float((network(x)[:, 0] - exact).abs().max())),
            "bound": six_digits(4.0 ** -(depth + 1)),
        }


def smooth_rows(setting: Setting) -> Iterator[dict[str, Any]]:
    """Measure networks of F_{d,n} for cos(x_1) .. cos(x_d) on a grid."""
    for n_cells in setting.sizes:
        network = SmoothNetwork(setting.dimension, setting.order, n_cells)
        side = torch.linspace(0, 1, POINTS_IN_A_CELL * n_cells + 1, dtype=torch.float64)
        grid = torch.cartesian_prod(*[side] * setting.dimension).reshape(-1, setting.dimension)
        errors = [
            (network.values(cosines, x) - torch.cos(x).prod(-1)).abs().max()
            for x in grid.split(4000)
        ]
        yield {
            "size": network.n_units,
            "layers": network.n_layers + 1,
            "parameters": None,  # dense matrices would be mostly 0
            "error": six_digits(float(torch.stack(errors).max())),
            "bound": six_digits(network.bound),
        }


def size_of(network: ReluNetwork, size: int) -> dict[str, int]:
    """Return the size that a curve shows, and the others."""
    target = network.target
    return {"size": size, "layers": target.depth, "parameters": target.n_parameters}


# Training in context.

GENTLE = BallIndicator(2, 2, softness=1.0).network
"""The network of Lemma 2 for the unit ball, with a ramp so flat that descent can follow it."""

SAWTOOTH = square(3)
"""The network of Lemma 3 for x^2."""


def shallow(network: ReluNetwork) -> MLP:
    """Return the network of 2 layers whose number of weights is nearest."""
    inputs = network.target.input_width
    width = round((network.target.n_parameters - 1) / (inputs + 2))
    return MLP((inputs, width, 1), "relu", biases=True)


def equal_knots(target: MLP) -> Tensor:
    """Return the weights of 2 layers on [0, 1] with equally spaced knots and zero output."""
    width = target.widths[1]
    knots = torch.arange(width, dtype=torch.float64) / width
    first = torch.stack((torch.ones_like(knots), -knots), dim=1)
    return torch.cat((first.flatten(), torch.zeros(width + 1, dtype=torch.float64)))


STARTS: dict[str, dict[str, tuple[MLP, Tensor | None]]] = {
    TRAINED_BALL: {
        "3 layers, random": (GENTLE.target, None),
        "3 layers, Lemma 2": (GENTLE.target, GENTLE.parameters),
        "2 layers, random": (shallow(GENTLE), None),
    },
    TRAINED_SMOOTH: {
        "4 layers, random": (SAWTOOTH.target, None),
        "4 layers, Lemma 3": (SAWTOOTH.target, SAWTOOTH.parameters),
        "2 layers, random": (shallow(SAWTOOTH), None),
        "2 layers, equal knots": (shallow(SAWTOOTH), equal_knots(shallow(SAWTOOTH))),
    },
}
"""The networks that are trained, and where they start; None is random."""


def trained_rows(setting: Setting, job: Job) -> Iterator[dict[str, Any]]:
    """Choose the step size by exact descent, then run the transformer on other tasks."""
    training = setting.training

    def choice_error(step_size: float) -> float:
        compiled = compiled_with(setting, step_size)
        task, labels = draw_tasks(setting, compiled, FIRST_CHOICE, training.n_choice)
        oracle = compiled.problem.oracle
        path = oracle.train(task, training.n_steps)
        return fmean(errors_of_tasks(oracle.predict(task, path[..., -1, :]), labels))

    step_size = min(training.step_sizes, key=choice_error)
    compiled = compiled_with(setting, step_size)
    task, labels = draw_tasks(setting, compiled, FIRST_TEST, training.n_test)
    yield from job.cached("trained", partial(literal_rows, compiled, task, labels, step_size))


def literal_rows(
    compiled: Compiled, task: Task, labels: Tensor, step_size: float
) -> list[dict[str, Any]]:
    """Run the literal transformer and exact descent; tests stand in the row of the last step."""
    result, oracle = compiled.run_task(task, backend="literal"), compiled.problem.oracle
    path = result.parameters
    n_steps = path.shape[-2] - 1
    exact = oracle.train(task, n_steps)
    size, target = compiled.summary(), compiled.problem.network
    rows: list[dict[str, Any]] = []
    for step in range(0, n_steps + 1, max(n_steps // 60, 1)):
        means = [2 * oracle.risk(task, weights[..., step, :]) for weights in (path, exact)]
        rows.append(
            {
                "size": step,
                "layers": target.depth,
                "parameters": target.n_parameters,
                "error": six_digits(float(means[0].mean())),
                "exact": six_digits(float(means[1].mean())),
                "step_size": step_size,
                "heads": sum(layer.n_heads for layer in size.layers_of_a_step),
                "weights": size.parameters,
            }
        )
    errors = errors_of_tasks(result.predictions, labels)
    exact_errors = errors_of_tasks(oracle.predict(task, exact[..., -1, :]), labels)
    rows[-1] |= {
        "test": six_digits(fmean(errors)),
        "median_test": six_digits(median(errors)),
        "exact_test": six_digits(fmean(exact_errors)),
        "off_descent": six_digits(
            float((path[..., 1:, :] - oracle.stepped(task, path)).abs().max())
        ),
    }
    return rows


def compiled_with(setting: Setting, step_size: float) -> Compiled:
    """Compile the training of the setting's network."""
    target, _ = STARTS[setting.part][setting.case]
    domain = Domain(LARGEST_RADIUS if setting.part == TRAINED_BALL else 1.0, 1.0)
    problem = Problem(target, "squared", GradientStep(step_size, BOX), domain)
    return compile(problem, Recursion(), n_steps=setting.training.n_steps)


def draw_tasks(
    setting: Setting, compiled: Compiled, first: int, n_tasks: int
) -> tuple[Task, Tensor]:
    """Draw tasks with their initial weights; return also the labels of queries."""
    n, n_queries = setting.training.n_examples, setting.training.n_queries
    target, start = STARTS[setting.part][setting.case]
    draw = ball_task if setting.part == TRAINED_BALL else wave_task
    indices = range(first, first + n_tasks)
    drawn = [draw(setting.seed, index, n + n_queries) for index in indices]
    x, y = (torch.stack(tensors) for tensors in zip(*drawn, strict=True))
    initial = torch.stack(
        [target.initial_parameters(i, BOX) if start is None else start for i in indices]
    )
    task = compiled.task(x[:, :n], y[:, :n, None], queries=x[:, n:], initial=initial)
    return task, y[:, n:, None]


def ball_task(seed: int, index: int, n_points: int) -> tuple[Tensor, Tensor]:
    """Draw points of the plane, and a ball of radius 0.7 to 1.3 whose centre is within 1/2."""
    x = ball_sample(2, n_points, seed=seed, index=index)[0][:, :2]
    numbers = torch.from_numpy(generator_of(seed, index, 1).random(3))
    centre, radius = numbers[:2] - 0.5, 0.7 + 0.6 * numbers[2]
    return x, ((x - centre).norm(dim=1) <= radius).double()


def wave_task(seed: int, index: int, n_points: int) -> tuple[Tensor, Tensor]:
    """Draw points of [0, 1] and cos(w x + b), 3 < w < 6; w^-n times it is in F_{1,n}."""
    generator = generator_of(seed, index, 1)
    frequency, phase = 3 + 3 * generator.random(), 2 * pi * generator.random()
    x = torch.from_numpy(generator.random((n_points, 1)))
    return x, torch.cos(frequency * x[:, 0] + phase)


def errors_of_tasks(predictions: Tensor, labels: Tensor) -> list[float]:
    """Return the mean squared error of each task."""
    errors: list[float] = (predictions - labels).square().mean((-2, -1)).tolist()
    return errors


# The summary and the picture.


def exponent(sizes: Sequence[float], errors: Sequence[float]) -> float:
    """Return p of the fit size = c error^-p to the last half of the points, at least two."""
    last = slice(-max(len(sizes) // 2, 2), None)
    slope, _ = np.polyfit(-np.log(errors[last]), np.log(sizes[last]), 1)
    return float(slope)


def without_logarithm(curve: pl.DataFrame) -> list[float]:
    """Return the units over ln(1/eps) + 1, whose exponent Lemma 3 prints."""
    return (curve["size"] / (1 - curve["error"].log())).to_list()


def width_in_dimensions(rows: pl.DataFrame, error: float) -> float | None:
    """Return the exponent of d in the width at one error, between the points of each curve."""
    dimensions, widths = [], []
    for (case,), curve in rows.filter(part=BALL).group_by("case", maintain_order=True):
        if curve["error"].min() <= error <= curve["error"].max():  # type: ignore[operator]
            logs = np.log(curve["error"].reverse()), np.log(curve["size"].reverse())
            dimensions.append(log(int(str(case).removeprefix("d = "))))
            widths.append(float(np.interp(log(error), *logs)))
    return float(np.polyfit(dimensions, widths, 1)[0]) if len(widths) > 1 else None


DIMENSION_ERROR = 1e-3
"""The error at which widths in different dimensions are compared."""


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Give sizes and errors at both ends of each curve, with fitted and printed exponents."""
    lines = []

    def add(what: object, case: object, size: str, error: str, fitted: str, said: str) -> None:
        names = ("what", "case", "size", "error", "exponent", "printed")
        lines.append(
            dict(zip(names, map(str, (what, case, size, error, fitted, said)), strict=True))
        )

    for (part, case), curve in rows.group_by("part", "case", maintain_order=True):
        first, last = curve.row(0, named=True), curve.row(-1, named=True)
        size = f"{first['size']:,.0f} to {last['size']:,.0f}"
        error = f"{first['error']:.2g} to {last['error']:.2g}"
        if part == BALL:
            fitted = exponent(curve["size"].to_list(), curve["error"].to_list())
            add(part, case, size, error, f"{fitted:.2f}", "1")
        elif part == SEPARATION:
            d = int(str(case).removeprefix("d = "))
            add(part, case, f"> {exp(d):.2g} / {last['size']:,.0f}", f"{last['bound']:.2g}", "", "")
        elif part in (SQUARE, PRODUCT):
            add(part, case, size, error, "0", "0")
        elif part == SMOOTH:
            d, n = (int(text.split(" = ")[1]) for text in str(case).split(", "))
            fitted = exponent(without_logarithm(curve), curve["error"].to_list())
            add(part, case, size, error, f"{fitted:.2f}", f"{d / n:g}")
        else:
            add(part, case, f"{last['parameters']}", f"{last['test']:.2g}", "", "")
    in_dimensions = width_in_dimensions(rows, DIMENSION_ERROR)
    if in_dimensions is not None:
        add(BALL, "over d", "", f"{DIMENSION_ERROR:g}", f"{in_dimensions:.2f}", "2")
    return pl.DataFrame(lines)


COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED)


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw the ball on the left, smooth functions in the middle, training on the right."""
    figure, panels = plotting.new_grid(17.5, 10.2, 2, 3)
    _draw_ball(panels[0], rows.filter(part=BALL))
    _draw_square(panels[1], rows)
    _draw_trained(
        panels[2], rows.filter(part=TRAINED_BALL), "Balls in the plane, in context: 45 weights"
    )
    _draw_separation(panels[3], rows.filter(part=SEPARATION))
    _draw_smooth(panels[4], rows.filter(part=SMOOTH))
    _draw_trained(
        panels[5], rows.filter(part=TRAINED_SMOOTH), "cos(wx + b), in context: 28 or 29 weights"
    )
    return figure


def _logarithmic(panel: Axes) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")


def _draw_ball(panel: Axes, rows: pl.DataFrame) -> None:
    """Draw measured errors, proved bounds dashed, and the widths of Lemma 2 dotted."""
    for index, ((case,), curve) in enumerate(rows.group_by("case", maintain_order=True)):
        colour = COLOURS[index % len(COLOURS)]
        d = int(str(case).removeprefix("d = "))
        fitted = exponent(curve["size"].to_list(), curve["error"].to_list())
        name = f"{case}: {fitted:.2f}"
        panel.plot(curve["size"], curve["error"], "o-", color=colour, linewidth=1.8, label=name)
        panel.plot(curve["size"], curve["bound"], "--", color=colour, linewidth=1.3)
        widths = np.geomspace(32 * d**2, 320 * d**2, 2)
        panel.plot(widths, 8 * d**2 / widths, ":", color=colour, linewidth=1.6)
    panel.plot([], [], "--", color=FAINT, label="proved")
    panel.plot([], [], ":", color=FAINT, label="printed: 1")
    _logarithmic(panel)
    panel.set_xlim(right=1e6)  # room for the names
    title = "Lemma 2: 3 layers for the indicator of a ball"
    plotting.describe(panel, title, "width", "mean squared error")
    panel.legend(frameon=False, fontsize=10, loc="center right", title="exponent of 1 / error")


def _draw_separation(panel: Axes, rows: pl.DataFrame) -> None:
    """Draw the widths of 2 and 3 layers for one error in each dimension."""
    d = rows["case"].str.strip_prefix("d = ").cast(pl.Float64)
    panel.plot(d, d.exp(), "o-", color=BLUE, linewidth=1.8)
    panel.plot(d, rows["size"], "o-", color=ORANGE, linewidth=1.8)
    for place, height, error in zip(d, rows["size"], rows["bound"], strict=True):
        plotting.tag(panel, f"{error:.2g}", (place, height / 4), ha="center")
    _logarithmic(panel)
    panel.set_ylim(1, 1e16)
    panel.set_xticks(d.to_list(), [f"{x:g}" for x in d])
    panel.minorticks_off()
    plotting.note(panel, "2 layers need more than exp(d)", (d[0], 1e14), BLUE)
    plotting.note(panel, "3 layers suffice", (d[0], 1e13), ORANGE)
    plotting.note(panel, "for the error below each point", (d[0], 1e12), FAINT)
    title = "Lemma 1: a ball and a law that are hard for 2 layers"
    plotting.describe(panel, title, "dimension", "width")


def _draw_square(panel: Axes, rows: pl.DataFrame) -> None:
    """Draw x^2 and x y, and what shallow networks cannot go below."""
    for part, colour in ((SQUARE, BLUE), (PRODUCT, ORANGE)):
        curve = rows.filter(part=part)
        panel.plot(curve["size"], curve["error"], "o-", color=colour, linewidth=1.8, label=part)
    units = np.arange(2.0, rows.filter(part=PRODUCT)["size"].to_numpy().max() + 1)
    panel.plot(
        units,
        np.exp(1 - units / LEMMA_3),
        "--",
        color=FAINT,
        label=f"{LEMMA_3:.2f} (ln(1/eps) + 1) units",
    )
    for layers, colour in ((2, GREEN), (3, PURPLE)):
        pieces = (units / (layers - 1) + 1) ** (layers - 1)
        name = f"x^2: no {layers} layers get below"
        panel.plot(units, 1 / (8 * pieces**2), ":", color=colour, linewidth=1.8, label=name)
    panel.set_yscale("log")
    panel.set_ylim(1e-9, 100)
    plotting.describe(panel, "Lemmas 3 and 4: squares and products", "units", "largest error")
    panel.legend(frameon=False, fontsize=10, loc="upper right")


LEMMA_3 = 3 / (2 * log(2))
"""Units of x^2 for each unit of ln(1/eps): three for a factor of 4."""


def _draw_smooth(panel: Axes, rows: pl.DataFrame) -> None:
    """Draw networks for F_{d,n}, bounds dashed, and dotted how the lemma lets units grow."""
    for index, ((case,), curve) in enumerate(rows.group_by("case", maintain_order=True)):
        colour = COLOURS[index % len(COLOURS)]
        d, n = (int(text.split(" = ")[1]) for text in str(case).split(", "))
        fitted = exponent(without_logarithm(curve), curve["error"].to_list())
        name = f"{case}: {fitted:.2f}, printed {d / n:g}"
        panel.plot(curve["size"], curve["error"], "o-", color=colour, linewidth=1.8, label=name)
        panel.plot(curve["size"], curve["bound"], "--", color=colour, linewidth=1.3)
        errors = curve["error"].to_numpy()
        growth = errors ** (-d / n) * (1 - np.log(errors))
        panel.plot(
            growth / growth[-1] * curve["size"][-1], errors, ":", color=colour, linewidth=1.6
        )
    panel.plot([], [], "--", color=FAINT, label="proved for all of $F_{d,n}$")
    panel.plot([], [], ":", color=FAINT, label="printed growth, to the last point")
    _logarithmic(panel)
    title = "Lemma 3: a product of cosines, in $F_{d,n}$"
    plotting.describe(panel, title, "units", "largest error on a grid")
    panel.set_ylim(bottom=1e-17)  # room for the names
    panel.legend(frameon=False, fontsize=10, loc="lower left", title="exponent of 1 / error")


def _draw_trained(panel: Axes, rows: pl.DataFrame, title: str) -> None:
    """Draw the error on the examples over steps, and at the right the error at new points."""
    for index, ((case,), curve) in enumerate(rows.group_by("case", maintain_order=True)):
        colour = COLOURS[index % len(COLOURS)]
        last = curve.row(-1, named=True)
        panel.plot(curve["size"], curve["error"], "-", color=colour, linewidth=2.4, label=case)
        panel.plot(curve["size"], curve["exact"], "--", color="black", linewidth=1)
        panel.plot(1.04 * last["size"], last["test"], "D", color=colour)
    panel.plot([], [], "--", color="black", linewidth=1, label="exact descent")
    panel.plot([], [], "D", color=FAINT, label="error at new points")
    plotting.logarithmic_height(panel)
    panel.set_ylim(top=6)  # room for the names
    plotting.describe(panel, title, "step of the literal transformer", "mean squared error")
    panel.legend(frameon=False, fontsize=10, loc="upper right", ncols=2, columnspacing=1)


FIGURES = (
    Figure(
        name="wang-classes",
        place="Lemmas 1 to 4, Section 4",
        shows="the lemmas' networks: size over error beside the printed exponents, and in context",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
        work=work,
    ),
)
