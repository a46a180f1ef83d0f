r"""wang-resources: parameter matrices against error, for shallow and deep networks.

The figure shows Theorems 3 and 4 (`resources.py`) and a measurement. Networks of 2 and of 3 layers
learn the indicator of a ball, all with the same method, budget and number of starts
(`least_squares.py`); the error is the mean of (g(x) - 1(|x| <= 1))^2 on fresh points, as in Lemmas
1 and 2. The width found to suffice for an error is the smallest one whose best start reaches it; a
narrower network may do with other starts. Every construction that accepts a network of that width
compiles it; its matrices are the heads of all layers of one training step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import ceil, exp, log
from typing import Any

import polars as pl

from icgd.constructions.registry import CONSTRUCTIONS
from icgd.errors import SettingError
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, ORANGE, Axes
from icgd.pipeline import compile
from icgd.problems.data import Domain
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd_papers.figure import Figure, Job, of_preset, six_digits
from icgd_papers.studies import resources
from icgd_papers.studies.ball import LARGEST_RADIUS, Points, ball_network, ball_sample
from icgd_papers.studies.least_squares import Budget, fit, mean_square

ERRORS = (0.1, 0.05, 0.03)
"""The errors for which widths are sought; the best constant has the error 0.25."""

SHALLOW, DEEP = DEPTHS = (2, 3)

FIRST_BOX = 3.0
"""Initial weights are normal with variance 1 / fan-in, clipped to this box."""

STEP_SIZE = 0.1
"""The step size of the compiled gradient step; sizes do not depend on it."""


@dataclass(frozen=True)
class Setting:
    """All networks of one depth in one dimension."""

    dimension: int
    depth: int
    widths: tuple[int, ...]
    seed: int
    budget: Budget


def settings(preset: str, seed: int) -> list[Setting]:
    """Return every dimension with every depth; 3 layers reach all errors with less width.

    The paper has no experiment; the preset `paper` is what more time can buy.
    """
    dimensions, shallow, deep, budget = of_preset(
        {
            "smoke": ((2, 3), (4, 8), (4, 8), Budget(400, 200, 500, 2, 3)),
            "laptop": (
                range(2, 9),
                (4, 8, 16, 32, 64),
                (4, 8, 16),
                Budget(32_000, 8000, 100_000, 3, 100),
            ),
            "paper": (
                range(2, 17),
                (2, 4, 8, 16, 32, 64, 128, 256),
                (2, 4, 8, 16, 32, 64),
                Budget(200_000, 20_000, 1_000_000, 10, 300, least_decrease=0.001),
            ),
        },
        preset,
    )
    widths = {SHALLOW: shallow, DEEP: deep}
    return [
        Setting(dimension, depth, widths[depth], seed, budget)
        for dimension, depth in product(dimensions, DEPTHS)
    ]


def work(setting: Setting) -> float:
    """Return the points times weights of all networks, squared for the curvature."""
    budget = setting.budget
    sizes = [ball_network(setting.dimension, setting.depth, w).n_parameters for w in setting.widths]
    iteration = sum(10 * budget.n_train * n + budget.n_curvature * n**2 for n in sizes)
    return float(iteration * budget.n_starts * budget.n_iterations)


def run(setting: Setting, job: Job) -> pl.DataFrame:
    """Train every width from every start; compile the widths found to suffice."""
    budget, dimension = setting.budget, setting.dimension
    # All networks of a dimension see the same points.
    training, fresh = (
        ball_sample(dimension, n, seed=setting.seed, index=index)
        for index, n in enumerate((budget.n_train, budget.n_test))
    )
    cases = list(product(setting.widths, range(budget.n_starts)))
    trained: list[dict[str, Any]] = []
    for width, start in cases:
        train_one = partial(train, setting, width, start, training, fresh)
        row = job.cached(f"width-{width}-start-{start}", train_one)
        trained.append(row)
        if job.on_step:
            job.on_step(len(trained), len(cases), row["error"])
    best = {w: min(row["error"] for row in trained if row["width"] == w) for w in setting.widths}
    narrowest = {min((w for w in best if best[w] <= error), default=None) for error in ERRORS}
    rows = []
    for row in trained:
        is_compiled = row["width"] in narrowest and row["error"] == best[row["width"]]
        sizes = list(compiled_sizes(setting, row)) if is_compiled else []
        rows += [{**row, **size} for size in sizes or [dict.fromkeys(SIZES)]]
    return pl.DataFrame(rows, infer_schema_length=None)


def train(
    setting: Setting, width: int, start: int, training: Points, fresh: Points
) -> dict[str, Any]:
    """Train one network from one start and return its row."""
    network, budget = ball_network(setting.dimension, setting.depth, width), setting.budget
    first = network.initial_parameters(setting.seed + start, FIRST_BOX)
    fitted = fit(network, training, first, budget)
    return {
        "dimension": setting.dimension,
        "depth": setting.depth,
        "width": width,
        "start": start,
        "error": six_digits(mean_square(network, fitted.weights, fresh)),
        "training_error": six_digits(mean_square(network, fitted.weights, training)),
        "ended": fitted.ended,
        "iterations": fitted.n_iterations,
        "largest_slope": six_digits(2 * float(fitted.slope.abs().max())),
        "largest_weight": six_digits(float(fitted.weights.abs().max())),
        "network_weights": network.n_parameters,
        "n_train": budget.n_train,
        "most_iterations": budget.n_iterations,
    }


SIZES = ("construction", "layers", "heads", "d_model", "nonzero_weights")


def compiled_sizes(setting: Setting, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the sizes of the transformers that train this network, in a box around its weights.

    All constructions have their default accuracy; one that cannot reach it is left out. The layers
    that predict at the end do not count.
    """
    network = ball_network(setting.dimension, setting.depth, row["width"])
    update = GradientStep(STEP_SIZE, box=float(ceil(row["largest_weight"])))
    problem = Problem(network, "squared", update, Domain(LARGEST_RADIUS, 1.0))
    for name, construction in CONSTRUCTIONS.items():
        if construction.why_not(problem) is not None:
            continue
        try:
            size = compile(problem, n_steps=1, construction=name).summary()
        except SettingError:  # such as a fit that would be too coarse in this box
            continue
        layers = size.layers_of_a_step
        heads, nonzeros = (sum(getattr(x, key) for x in layers) for key in ("n_heads", "nonzeros"))
        yield dict(zip(SIZES, (name, len(layers), heads, size.d_model, nonzeros), strict=True))


def needed(rows: pl.DataFrame, errors: Sequence[float] = ERRORS) -> pl.DataFrame:
    """Return the narrowest width that reached each error, by dimension, error and depth.

    `width` is null if no start of a width up to `widest` reached it. A width that is not found may
    suffice all the same: only some starts of one method were tried. For each construction there
    is a column with the heads of its transformer.
    """
    reached = pl.concat(
        rows.group_by("dimension", "depth", maintain_order=True).agg(
            pl.lit(error).alias("error"),
            pl.col("width").filter(pl.col("error") <= error).min(),
            pl.col("width").max().alias("widest"),
        )
        for error in errors
    )
    keys = ["dimension", "depth", "width"]
    heads = rows.drop_nulls("construction").pivot(
        "construction", index=keys, values="heads", aggregate_function="last"
    )
    table = reached.join(heads, on=keys, how="left", nulls_equal=False)
    return table.sort(["dimension", "error", "depth"], descending=[False, True, False])


def summarise(rows: pl.DataFrame, errors: Sequence[float] = ERRORS) -> pl.DataFrame:
    """Give widths found to suffice and heads of a training step, for 2 / 3 layers."""
    lines = []
    for (dimension, error), depths in needed(rows, errors).group_by(
        "dimension", "error", maintain_order=True
    ):
        pair = depths.to_dicts()
        widths = [str(x["width"] or f">{x['widest']}") for x in pair]
        line = {"d": str(dimension), "error": f"{error:g}", "width": " / ".join(widths)}
        for name in depths.columns[5:]:
            line[name] = " / ".join("-" if x[name] is None else f"{x[name]:,}" for x in pair)
        lines.append(line)
    return pl.DataFrame(lines)


COLOURS = {SHALLOW: BLUE, DEEP: ORANGE}
MARKERS = {0.1: ("o", -0.2), 0.05: ("s", 0.0), 0.03: ("^", 0.2)}
SHIFTS = {SHALLOW: -0.05, DEEP: 0.05}
"""Points are shifted a little by error and depth, so that equal widths stay visible."""

LINES = {"relu-stack": "-", "softmax-stack": ":", "recursion": "--"}

COMPARED_ERROR = 0.05
"""The error at which transformers are compared."""

SMOOTH = {"-": {"dimension": 1, "smoothness": 6}, "--": {"dimension": 2, "smoothness": 4}}
"""Two functions of Theorem 4; the second does not satisfy 2 (L - 1) d < s."""

CURVE_ERRORS = [0.5 * exp(log(1e-6 / 0.5) * k / 199) for k in range(200)]
"""The curves of the theorems end at 1e-6, beyond their crossings."""


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw the two theorems above, measured widths and heads below."""
    figure, panels = plotting.new_grid(12.0, 8.8, 2, 2)
    _draw_indicator(panels[0])
    _draw_smooth(panels[1])
    table = needed(rows)
    _draw_widths(panels[2], table)
    _draw_heads(panels[3], table)
    for panel in panels[2:]:
        panel.set_xticks(table["dimension"].unique().to_list())
    entries = [("2 layers", BLUE), ("3 layers (Theorem 4: ln(1/error) + 1 layers)", ORANGE)]
    plotting.legend(figure, entries)
    return figure


def _draw_indicator(panel: Axes) -> None:
    """Draw layers times heads by Theorem 3, and dashed the count that it prints for 3 layers."""
    pairs = [resources.indicator(error) for error in CURVE_ERRORS]
    _curve(panel, BLUE, [pair.shallow.log_matrices for pair in pairs])
    _curve(panel, ORANGE, [pair.deep.log_matrices for pair in pairs])
    printed = [pair.deep.log_printed or 0.0 for pair in pairs]
    _curve(panel, ORANGE, printed, "--", "3 layers, as printed")
    _describe(panel, "Theorem 3: the indicator of a ball", resources.indicator_crossover())


def _draw_smooth(panel: Axes) -> None:
    """Draw Theorem 4 for two functions; the cost of 2 layers depends on neither."""
    for linestyle, function in SMOOTH.items():
        pairs = [resources.smooth(error, **function, depth=SHALLOW) for error in CURVE_ERRORS]
        name = f"d = {function['dimension']}, {function['smoothness']} derivatives"
        _curve(panel, ORANGE, [pair.deep.log_matrices for pair in pairs], linestyle, name)
    _curve(panel, BLUE, [pair.shallow.log_matrices for pair in pairs])
    crossover = resources.smooth_crossover(**SMOOTH["-"], depth=SHALLOW)
    _describe(panel, "Theorem 4: smooth functions", crossover)


def _curve(
    panel: Axes, colour: str, logs: Sequence[float], linestyle: str = "-", name: str | None = None
) -> None:
    panel.plot(
        CURVE_ERRORS, [exp(x) for x in logs], linestyle, color=colour, linewidth=2, label=name
    )


def _describe(panel: Axes, message: str, crossover: float | None) -> None:
    """Make both axes logarithmic, errors falling to the right; mark where depth begins to pay."""
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_ylim(bottom=1)
    panel.invert_xaxis()
    panel.legend(edgecolor="none", framealpha=1, fontsize=10.5, loc="upper left")
    plotting.describe(panel, message, "error", "layers x heads, all constants 1")
    if crossover is not None:
        panel.axvline(exp(-crossover), color=FAINT, linewidth=1, linestyle=":")
        height = panel.get_ylim()[1] ** 0.05  # the axis begins at 1
        plotting.tag(panel, "  deep costs less", (exp(-crossover), height))


def _draw_widths(panel: Axes, table: pl.DataFrame) -> None:
    """Draw the narrowest network that reached each error; hollow and above all if none did."""
    for (error, (marker, shift)), depth in product(MARKERS.items(), DEPTHS):
        line = table.filter(error=error, depth=depth)
        places = line["dimension"] + shift + SHIFTS[depth]
        panel.plot(places, line["width"], color=COLOURS[depth], linewidth=1.2, alpha=0.5)
        for place, width, widest in zip(places, line["width"], line["widest"], strict=True):
            face = "white" if width is None else COLOURS[depth]
            height = width or 2 * widest
            panel.plot(place, height, marker, color=COLOURS[depth], mfc=face, markersize=7)
    for error, (marker, _) in MARKERS.items():
        panel.plot([], [], marker, color=FAINT, label=f"error {error:g}")
    panel.plot([], [], "s", color=FAINT, mfc="white", label="table in no start")
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter("{x:g}")
    title = "Width table to suffice, best of all starts"
    plotting.describe(panel, title, "dimension of the ball", "width")
    panel.set_ylim(top=4 * panel.get_ylim()[1])  # room for the names
    panel.legend(frameon=False, fontsize=10.5, loc="upper left", ncols=2)


def _draw_heads(panel: Axes, table: pl.DataFrame) -> None:
    """Draw the heads of one training step of the networks table to suffice for one error."""
    for depth, (name, linestyle) in product(DEPTHS, LINES.items()):
        if name in table.columns:
            line = table.filter(error=COMPARED_ERROR, depth=depth).drop_nulls(name)
            colour = COLOURS[depth]
            panel.plot(line["dimension"], line[name], linestyle, color=colour, marker="o")
    for name, linestyle in LINES.items():
        panel.plot([], [], linestyle, color=FAINT, label=name)
    panel.set_yscale("log")
    title = f"Transformers for these networks, error {COMPARED_ERROR:g}"
    plotting.describe(panel, title, "dimension of the ball", "heads of one training step")
    panel.legend(frameon=False, fontsize=10.5, loc="upper left")


FIGURES = (
    Figure(
        name="wang-resources",
        place="Theorems 3 and 4, Section 4",
        shows="parameter matrices over error; widths for the indicator of a ball",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
        work=work,
    ),
)
