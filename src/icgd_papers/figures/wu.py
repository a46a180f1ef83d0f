"""Figures 1 to 5 of App. G of wu: learnt decoders beside what else can be made of a prompt.

Figures 1 to 4 show R^2 against the number of examples. Decoders learn prompts with inputs N(-2, I)
and teachers N(0, I), and are tested on mixtures with N(2, I) (Figures 1 and 2) and on teachers with
other weights (Figures 3 and 4). All lines of a panel see the same prompts.

Figure 5 shows R^2 against the number of blocks. The paper asks after 15, 30 and 45 examples of 50;
smaller presets ask after the same shares. It does not say how deep its teachers are; here they have
4 layers, as in Figures 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import fmean
from string import ascii_lowercase
from textwrap import fill
from typing import Any

import polars as pl

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, RED, Axes
from icgd_papers.figure import Figure, Job, draw_band, of_preset
from icgd_papers.figures.wu_prompts import (
    ARC_COSINE,
    BEST,
    DIRECT,
    LEARNT,
    MEAN,
    PRETRAINING,
    RIDGE,
    Baselines,
    Case,
    Law,
    Setup,
    decoder_rows,
    memory,
    run,
    trained_decoder,
    work,
)

SETUPS = {
    "smoke": Setup(
        input_width=2,
        hidden_width=4,
        n_examples=4,
        n_blocks=1,
        width=8,
        n_heads=2,
        mlp_width=8,
        n_steps=2,
        batch_size=4,
        learning_rate=0.002,
        lengths=(2, 4, 6),
        n_test=8,
        n_seeds=1,
        baselines=Baselines(4, 3, (0.01,), (1, 2), (0.05,), (1.0,), 4),
    ),
    "laptop": Setup(
        input_width=5,
        hidden_width=20,
        n_examples=20,
        n_blocks=4,
        width=64,
        n_heads=4,
        mlp_width=128,
        n_steps=1200,
        batch_size=64,
        learning_rate=0.002,
        lengths=(2, 5, 10, 20, 30),
        n_test=96,
        n_seeds=3,
        baselines=Baselines(64),
        warmup_steps=50,
    ),
    "paper": Setup(
        input_width=20,
        hidden_width=200,
        n_examples=50,
        n_blocks=12,
        width=256,
        n_heads=8,
        mlp_width=256,
        n_steps=500_000,
        batch_size=64,
        learning_rate=1e-4,
        lengths=(1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75),
        n_test=6400,
        n_seeds=3,
        baselines=Baselines(200, n_choice=64),
        tokens="interleaved",
        warmup_steps=5000,
    ),
}

MIXTURES = tuple(Law(mixture) for mixture in ((1.0, 0.0), (0.9, 0.1), (0.7, 0.3), (0.5, 0.5)))
SHIFTED_TEACHERS = tuple(Law(mean=mean) for mean in (0.0, -0.5, 0.5))

GREY = "#A8A8A8"
STYLES = {
    LEARNT: (RED, "-"),
    DIRECT: (BLUE, "-"),
    BEST: (BLUE, ":"),
    MEAN: (GREY, ":"),
    RIDGE: (FAINT, "--"),
    ARC_COSINE: (INK, "-"),
}
"""Colour and dashes of a line. Constructed transformers are green."""

TUNING = (
    "No test set was kept apart: the settings of decoders and of direct training were revised "
    "after looking at R^2 on the test prompts of seeds 0 to 2."
)
"""How the laptop preset came about."""

# Figures 1 to 4


def curve_settings(
    attention: str, depths: Sequence[int], laws: tuple[Law, ...], preset: str, first_seed: int
) -> list[Case]:
    """List a decoder for each depth and seed, and the baselines for each panel and seed."""
    setup = of_preset(SETUPS, preset)
    of_decoder = setup
    if preset == "laptop" and attention == "relu":  # learns later than softmax attention
        of_decoder = replace(setup, n_steps=2000, learning_rate=0.003, warmup_steps=100)
    seeds = range(first_seed, first_seed + setup.n_seeds)
    letters = {
        depth: ascii_lowercase[i * len(laws) : (i + 1) * len(laws)]
        for i, depth in enumerate(depths)
    }
    decoders = [
        Case(depth, laws, seed, of_decoder, attention, letters[depth])
        for depth, seed in product(reversed(depths), seeds)  # the slowest first
    ]
    baselines = [
        Case(depth, (law,), seed, setup, panel=letter)
        for depth in depths
        for (law, letter), seed in product(zip(laws, letters[depth], strict=True), seeds)
    ]
    return [*decoders, *baselines]


def summarise_curves(rows: pl.DataFrame) -> pl.DataFrame:
    """Return mean R^2 at the length of pretraining, and of the decoder at the longest."""
    longest = max(rows["n_examples"])
    table = []
    for panel in rows.sort("panel", maintain_order=True).partition_by("panel"):
        at_pretraining = panel.filter(pl.col("n_examples") == pl.col("pretraining_length"))
        learnt = at_pretraining.filter(line=LEARNT)["r_squared"].to_list()
        beyond = panel.filter(line=LEARNT, n_examples=longest)["r_squared"].to_list()
        lines = at_pretraining.group_by("line", maintain_order=True).agg(pl.mean("r_squared"))
        table.append(
            {
                "layers": str(panel["n_layers"][0]),
                "test law": law_name(panel),
                **{line: f"{mean:.3f}" for line, mean in lines.iter_rows()},
                "range of learnt": f"{min(learnt):.3f} to {max(learnt):.3f}",
                f"learnt, {longest} examples": f"{fmean(beyond):.3f}",
            }
        )
    return pl.DataFrame(table)


def law_name(panel: pl.DataFrame) -> str:
    """Say what is shifted in the test of a panel: the teachers' weights, or else the inputs."""
    inputs, weights = panel["inputs"][0], panel["teacher_weights"][0]
    return f"mixture {inputs}" if weights == PRETRAINING.teachers else f"teachers {weights}"


def draw_curves(rows: pl.DataFrame) -> plotting.Figure:
    """Draw a panel for each depth and law; those of one depth stand in a row."""
    panels = rows.sort("panel", maintain_order=True).partition_by("panel")
    lines = panels[0]["line"].unique(maintain_order=True).to_list()
    constructed = [line for line in lines if line not in STYLES]
    dashes = (":", "--", "-")[-len(constructed) :]  # from few steps to many
    styles = {**STYLES, **{line: (GREEN, d) for line, d in zip(constructed, dashes, strict=True)}}

    n_columns = rows.select("inputs", "teacher_weights").n_unique()
    figure, axes = plotting.new_panels(len(panels), n_columns, 4.6, 3.9)
    for ax, panel in zip(axes, panels, strict=True):
        for line in reversed(lines):  # the decoder on top
            colour, linestyle = styles[line]
            alpha = 0.25 if line == LEARNT else 0.07  # many bands lie on top of each other
            band(
                ax, panel.filter(line=line), "n_examples", colour, linestyle=linestyle, alpha=alpha
            )
        ax.axvline(panel["pretraining_length"][0], color=GREY, linewidth=1)
        title = f"{panel['panel'][0]}: {panel['n_layers'][0]} layers, {law_name(panel)}"
        plotting.describe(ax, f"{title}\n{_beyond(panel)}", "examples in the prompt", "R^2")
    least = 1 - max(rows["r_squared"])
    r_squared_height(axes, 1.0, min(0.7 * least, 0.09))  # what is below 0 leaves the panel
    plotting.legend(
        figure,
        [(line, styles[line][0]) for line in lines],
        dashes={line: styles[line][1] for line in lines},
        n_columns=5,
    )
    _say_how_it_was_tuned(figure, rows)
    return figure


def _beyond(panel: pl.DataFrame) -> str:
    """Say what the decoder gains or loses beyond the length of pretraining."""
    lengths = panel["pretraining_length"][0], max(panel["n_examples"])
    learnt = panel.filter(line=LEARNT).group_by("n_examples").agg(pl.mean("r_squared"))
    means = dict(learnt.iter_rows())
    return "learnt: " + ", ".join(f"{means[n]:.3f} after {n}" for n in lengths)


def _say_how_it_was_tuned(figure: plotting.Figure, rows: pl.DataFrame) -> None:
    if rows["pretraining_length"][0] == SETUPS["laptop"].n_examples:
        text = fill(TUNING, int(12 * figure.get_figwidth()))  # 12 characters an inch
        figure.suptitle(text, x=0.01, ha="left", fontsize=11, color=INK)


def band(ax: Axes, rows: pl.DataFrame, column: str, colour: str, **style: Any) -> None:
    """Draw 1 - R^2 against a column: geometric means over seeds, in a band of their range."""
    draw_band(
        ax, rows.with_columns(error=1 - pl.col("r_squared")), column, "error", colour, **style
    )


def r_squared_height(axes: Sequence[Axes], bottom: float, top: float) -> None:
    """Make the axis of 1 - R^2 logarithmic and label it with R^2, so it is not crowded near 1."""
    shown = [0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999]
    if bottom < 0.2:
        shown += [0.85, 0.92, 0.94, 0.96, 0.97]
    for ax in axes:
        ax.set_yscale("log")
        ax.set_yticks([1 - value for value in shown], [f"{value:g}" for value in shown])
        ax.set_yticks([], minor=True)
        ax.set_ylim(bottom, top)


# Figure 5

ATTENTIONS = ("relu", "softmax")
SHALLOW, DEEP = 4, 8
"""The numbers of blocks between which depth should help."""

DEPTH_SETUPS = {
    "smoke": replace(SETUPS["smoke"], lengths=(1, 2, 4)),
    "laptop": replace(
        SETUPS["laptop"], lengths=(6, 12, 18), n_steps=800, mlp_width=64, n_test=1024
    ),
    "paper": replace(SETUPS["paper"], lengths=(15, 30, 45)),
}
BLOCKS = {"smoke": (1, 2), "laptop": (4, 6, 8, 10), "paper": (4, 6, 8, 10)}


def depth_settings(preset: str, first_seed: int) -> list[Case]:
    """List a decoder for each number of blocks, attention and seed; the deepest come first."""
    setup = of_preset(DEPTH_SETUPS, preset)
    seeds = range(first_seed, first_seed + setup.n_seeds)
    return [
        Case(4, (PRETRAINING,), seed, replace(setup, n_blocks=n_blocks), attention, letter)
        for n_blocks, (letter, attention), seed in product(
            reversed(BLOCKS[preset]), zip("ab", ATTENTIONS, strict=True), seeds
        )
    ]


def run_depth(case: Case, job: Job) -> pl.DataFrame:
    """Train one decoder and return its R^2 after a few numbers of examples."""
    model, loss = trained_decoder(case, job)
    return decoder_rows(case, model).with_columns(n_blocks=case.setup.n_blocks, loss=loss)


def summarise_depth(rows: pl.DataFrame) -> pl.DataFrame:
    """Return means over the seeds with their range, and whether depth helps beyond it."""
    table = []
    ordered = rows.sort("attention", "n_examples", "n_blocks", maintain_order=True)
    for line in ordered.partition_by("attention", "n_examples", maintain_order=True):
        cells = {}
        for depth in line.partition_by("n_blocks", maintain_order=True):
            values = depth["r_squared"].to_list()
            spread = f"({min(values):.4f} to {max(values):.4f})"
            cells[f"{depth['n_blocks'][0]} blocks"] = f"{fmean(values):.4f} {spread}"
        table.append(
            {
                "attention": line["attention"][0],
                "examples": str(line["n_examples"][0]),
                **cells,
                f"{SHALLOW} to {DEEP} blocks": depth_verdict(line),
            }
        )
    return pl.DataFrame(table)


def depth_verdict(rows: pl.DataFrame) -> str:
    """Say whether every seed of 8 blocks is better than every seed of 4, or the other way round."""
    shallow, deep = (rows.filter(n_blocks=n)["r_squared"].to_list() for n in (SHALLOW, DEEP))
    if not shallow or not deep:
        return "not measured"
    if min(deep) > max(shallow):
        return "depth helps beyond the spread"
    return "worse beyond the spread" if max(deep) < min(shallow) else "no more than the spread"


def draw_depth(rows: pl.DataFrame) -> plotting.Figure:
    """Draw a panel for each attention and a line for each number of examples."""
    rows = rows.sort("attention", "n_examples", "n_blocks", maintain_order=True)
    lengths = rows["n_examples"].unique(maintain_order=True).to_list()
    colours = dict(zip(lengths, (BLUE, ORANGE, GREEN), strict=True))
    panels = rows.partition_by("attention")
    figure, axes = plotting.new_panels(len(panels), len(panels), 5.2, 4.2)
    for ax, panel in zip(axes, panels, strict=True):
        verdicts = set()
        for line in panel.partition_by("n_examples"):
            band(ax, line, "n_blocks", colours[line["n_examples"][0]], marker="o")
            verdicts.add(depth_verdict(line))
        ax.set_xticks(panel["n_blocks"].unique().sort().to_list())
        verdict = verdicts.pop() if len(verdicts) == 1 else "depends on the length"
        title = f"{panel['attention'][0]} attention\n{SHALLOW} to {DEEP} blocks: {verdict}"
        plotting.describe(ax, title, "blocks of the decoder", "R^2")
    errors = [1 - value for value in rows["r_squared"]]
    r_squared_height(axes, 1.15 * max(errors), min(errors) / 1.15)
    plotting.legend(figure, [(f"{n} examples", colour) for n, colour in colours.items()])
    _say_how_it_was_tuned(figure, rows)
    return figure


def _curves(number: int, place: str, attention: str, laws: tuple[Law, ...]) -> Figure[Case]:
    depths = (3, 4, 6) if laws == MIXTURES else (4,)
    words = "ReLU" if attention == "relu" else attention
    tests = "teachers of 3, 4, 6 layers, four mixtures"
    if laws == SHIFTED_TEACHERS:
        tests = "teachers N(0, I), N(-0.5, I), N(0.5, I)"
    settings: Callable[[str, int], list[Case]] = partial(curve_settings, attention, depths, laws)
    return Figure(
        name=f"wu-fig{number}",
        place=f"Figure {number}, {place}",
        shows=f"R^2 against examples; {words} attention, {tests}",
        settings=settings,
        run=run,
        summarise=summarise_curves,
        draw=draw_curves,
        work=work,
        memory=memory,
        uses_device=True,
    )


FIGURES = (
    _curves(1, "App. G.1.1", "relu", MIXTURES),
    _curves(2, "App. G.1.2", "softmax", MIXTURES),
    _curves(3, "App. G.2", "relu", SHIFTED_TEACHERS),
    _curves(4, "App. G.2", "softmax", SHIFTED_TEACHERS),
    Figure(
        name="wu-fig5",
        place="Figure 5, App. G.3",
        shows="R^2 against 4, 6, 8, 10 blocks of the decoder; both kinds of attention",
        settings=depth_settings,
        run=run_depth,
        summarise=summarise_depth,
        draw=draw_depth,
        work=work,
        memory=memory,
        uses_device=True,
    ),
)
