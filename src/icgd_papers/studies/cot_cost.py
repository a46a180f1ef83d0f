"""cot-cost: time, FLOPs and memory of a gradient step, as networks and chains grow.

cot says that its chain costs a factor N less than carrying all N weight matrices through every
layer. The figure measures the same step in relu-stack, softmax-stack and cot-network, dense and
fused, and a block of a chain that reads two blocks, or all. The paper has no experiment on this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import log, nan
from statistics import linear_regression, median
from typing import Any

import polars as pl

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, Axes
from icgd_papers.figure import Figure, Job, of_preset, six_digits
from icgd_papers.studies.cost_cases import (
    CONSTRUCTIONS,
    Case,
    Network,
    chain_cases,
    measure,
    step_cases,
)

AXES = ("depth", "width", "length", "wide box")
"""The depth N at one width, the width at one N, the chain's length, and N in a box of 1."""

WIDE_BOX = 1.0


@dataclass(frozen=True)
class Setting:
    """The sizes along an axis, what is fixed meanwhile, and how often everything is timed.

    Fused runs do not take the `counted_sizes`. Lengths are multiples of 4 `depth`, two rounds.
    Fused jobs have `n_layers` layers. Dense jobs take about a second, fused ones less, so each
    has its own number of rounds in a turn.
    """

    axis: str
    seed: int
    sizes: tuple[int, ...]
    counted_sizes: tuple[int, ...]
    n_turns: int
    width: int = 8
    depth: int = 4
    n_examples: int = 8
    n_layers: int = 128
    dense_rounds: int = 2
    fused_rounds: int = 3


def settings(preset: str, seed: int) -> list[Setting]:
    """Return a setting for each axis.

    The paper has no experiment; the preset `paper` is what more time can buy.
    """
    sizes, fixed = of_preset(
        {
            "smoke": (
                {
                    "depth": ((2, 3), (4,)),
                    "width": ((2, 3), ()),
                    "length": ((24, 48), (96,)),
                    "wide box": ((2, 3), ()),
                },
                (1, 2, 2, 2, 4, 1, 1),
            ),
            "laptop": (
                {
                    "depth": ((2, 4, 8, 16, 32, 64), (128, 256, 512)),
                    "width": ((2, 4, 8, 16, 32, 64, 128, 256), ()),
                    "length": ((64, 256, 1024, 4096), (16_384, 65_536)),
                    "wide box": ((2, 4, 8, 16, 32, 64), ()),
                },
                (4,),
            ),
            "paper": (
                {
                    "depth": ((2, 4, 8, 16, 32, 64, 128, 256), (512, 1024)),
                    "width": ((2, 4, 8, 16, 32, 64, 128, 256, 512), ()),
                    "length": ((64, 256, 1024, 4096, 16_384), (65_536,)),
                    "wide box": ((2, 4, 8, 16, 32, 64, 128, 256), ()),
                },
                (25,),
            ),
        },
        preset,
    )
    return [Setting(axis, seed, *sizes[axis], *fixed) for axis in AXES]


def cases_of(setting: Setting) -> list[Case]:
    """Return the cases of an axis in the order in which they are timed."""
    if setting.axis == "length":
        network = Network(setting.depth, setting.width, setting.n_examples, setting.seed)
        return chain_cases(network, setting.sizes, setting.counted_sizes)
    is_box, cases = setting.axis == "wide box", []
    for size, name in product((*setting.sizes, *setting.counted_sizes), CONSTRUCTIONS):
        is_width = setting.axis == "width"
        depth, width = (setting.depth, size) if is_width else (size, setting.width)
        box = WIDE_BOX if is_box else None
        network = Network(depth, width, setting.n_examples, setting.seed, box)
        is_run = not is_box and size not in setting.counted_sizes
        both = step_cases(setting.axis, size, name, network, setting.n_layers, is_run=is_run)
        cases += both[:1] if is_box else both
    return cases


def run(setting: Setting, job: Job) -> pl.DataFrame:
    """Time all cases of an axis in turns; a row for each case has the median of its turns."""
    cases, turns = cases_of(setting), []
    rounds = {"dense": setting.dense_rounds, "fused": setting.fused_rounds}
    for turn in range(setting.n_turns):
        # Operations are counted in the first turn, because they never change.
        measure_all = partial(measure, cases, rounds, is_counted=turn == 0)
        turns.append(job.cached(f"turn-{turn}", measure_all))
        if job.on_step:
            job.on_step(turn + 1, setting.n_turns, 0.0)
    of_cases = zip(cases, zip(*turns, strict=True), strict=True)
    return pl.DataFrame([_row(*x) for x in of_cases], infer_schema_length=None)


def _row(case: Case, turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    counts = case.counts
    seconds = [turn["seconds"] for turn in turns if turn["seconds"] is not None]
    return {
        "axis": case.axis,
        "size": case.size,
        "name": case.name,
        "backend": case.backend,
        "depth": case.network.depth,
        "width": case.network.width,
        "seconds": six_digits(median(seconds or (nan,))),
        "fastest_turn": six_digits(min(seconds, default=nan)),
        "slowest_turn": six_digits(max(seconds, default=nan)),
        "flops_counted": counts.flops if counts else None,
        "flops_measured": turns[0]["flops"],
        "weights": counts.weights if counts else None,
        "bytes_counted": counts.bytes if counts else None,
        "bytes_measured": turns[0]["bytes"],
        "why_not_measured": case.why_not,
    }


COSTS = {"time": "seconds", "FLOPs": "flops", "memory": "bytes"}
"""Names of the costs, and of their columns, which end in _counted or _measured but for time."""

N_FITTED = 4
"""Exponents are fitted to this many of the largest sizes: at small ones overhead dominates."""


def best_points(line: pl.DataFrame, cost: str) -> pl.DataFrame:
    """Return sizes and measured costs; counted costs of dense runs, of which few can be run."""
    column = COSTS[cost]
    if column != "seconds":
        column += "_counted" if line["backend"][0] == "dense" else "_measured"
    return points(line, column)


def points(line: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return the sizes and costs of the rows that have a cost in this column."""
    return line.select("size", cost=pl.col(column).cast(pl.Float64)).filter(pl.col("cost") > 0)


def fitted_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the exponent a of the power law c size^a that fits the costs best in logarithms."""
    return linear_regression([log(size) for size in sizes], [log(cost) for cost in costs]).slope


def exponent(line: pl.DataFrame) -> float | None:
    """Return the exponent with which a cost grows at the largest sizes; None for one point."""
    last = line.tail(N_FITTED)
    return fitted_exponent(*last.to_dict(as_series=False).values()) if last.height > 1 else None


def crossing(first: pl.DataFrame, second: pl.DataFrame) -> tuple[float, float] | None:
    """Return where the first line rises above the second, if both are straight in logarithms."""
    both = first.join(second, on="size", suffix="_second").sort("size")
    gaps = [log(a / b) for a, b in zip(both["cost"], both["cost_second"], strict=True)]
    for i in range(1, len(gaps)):
        if gaps[i - 1] < 0 <= gaps[i]:
            share = gaps[i - 1] / (gaps[i - 1] - gaps[i])
            (low, high), (a, b) = both["size"][i - 1 : i + 1], both["cost_second"][i - 1 : i + 1]
            return low * (high / low) ** share, a * (b / a) ** share
    return None


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Give the exponents of every line, with the sizes to which they were fitted."""
    lines = []
    shown = rows.filter(pl.col("axis") != "wide box")
    for (axis, name, backend), line in shown.group_by(
        "axis", "name", "backend", maintain_order=True
    ):
        cells = {}
        for cost in COSTS:
            cost_points = best_points(line, cost)
            growth, sizes = exponent(cost_points), cost_points["size"].tail(N_FITTED)
            cells[cost] = "-" if growth is None else f"{growth:.2f}"
            at = "at" if cost == "time" else "both at"
            cells[at] = "-" if growth is None else f"{sizes[0]}-{sizes[-1]}"
        lines.append({"over": str(axis), "what": f"{name}, {backend}", **cells})
    names = ("over", "what", "time", "at", "FLOPs", "memory", "both at")
    return pl.DataFrame(lines).select(names)


LABELS = {
    "depth": ("N", "layers N of the network, width {width}"),
    "width": ("d", "width d of the network, {depth} layers"),
    "length": ("T", "blocks T of the chain so far"),
}
UNITS = {"time": "seconds of one processor", "FLOPs": "FLOPs", "memory": "bytes"}
STEP_COLOURS = dict(zip(CONSTRUCTIONS, (BLUE, ORANGE, GREEN, PURPLE), strict=True))
CHAIN_COLOURS = {
    "two blocks": GREEN,
    "all blocks": RED,
    "all blocks, not cached": ORANGE,
    "short memory": GREEN,
    "whole memory": RED,
}
BACKENDS = {"dense": "-", "fused": "--"}

ROOM = 0.08, 0.036
"""The shares of a panel's width and height that the name of a line takes."""


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw nine panels: a row for each axis, a column for each cost."""
    figure, panels = plotting.new_grid(14.0, 12.6, len(LABELS), len(COSTS))
    for panel, (axis, cost) in zip(panels, product(LABELS, COSTS), strict=True):
        shown = rows.filter(axis=axis)
        if (axis, cost) == ("length", "memory"):  # a chain is small beside dense weights
            shown = shown.filter(backend="fused")
        for (name, backend), line in shown.group_by("name", "backend", maintain_order=True):
            _draw_line(panel, str(name), str(backend), line, cost)
        _describe(panel, shown.row(0, named=True), cost)
        _draw_exponents(panel, shown, cost)
    dense = rows.filter(axis="depth", backend="dense")
    stack = best_points(dense.filter(name="relu-stack"), "FLOPs")
    for name, room, side in (("cot-network", 6, "right"), ("cot-network, b = 1", 1 / 6, "left")):
        chain = best_points(dense.filter(name=name), "FLOPs")
        if place := crossing(stack, chain):
            size, flops = place
            panels[1].plot(size, flops, "s", color=INK, mfc="white", markersize=8)
            text = f"  equal at N = {size:.0f}  "
            plotting.tag(panels[1], text, (size, flops * room), ha=side)
    for panel in (panels[6], panels[8]):
        panel.legend(frameon=False, fontsize=10.5, loc="upper left")
    entries = [*STEP_COLOURS.items(), *((f"{name} backend", FAINT) for name in BACKENDS)]
    plotting.legend(figure, entries, dashed=["fused backend"])
    return figure


def _draw_line(panel: Axes, name: str, backend: str, line: pl.DataFrame, cost: str) -> None:
    """Draw a line through the best points, and dots where the cost was measured."""
    colour = (STEP_COLOURS | CHAIN_COLOURS)[name]
    label = name if name in CHAIN_COLOURS else None
    best = best_points(line, cost)
    panel.plot(best["size"], best["cost"], BACKENDS[backend], color=colour, lw=1.8, label=label)
    dots = points(line, "seconds" if cost == "time" else f"{COSTS[cost]}_measured")
    face = "white" if backend == "fused" else colour
    panel.plot(dots["size"], dots["cost"], "o", color=colour, mfc=face, markersize=5)


def _describe(panel: Axes, row: dict[str, Any], cost: str) -> None:
    is_chain = row["axis"] == "length"
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter("{x:,.0f}")
    title = f"{cost[0].upper()}{cost[1:]} of a {'block' if is_chain else 'gradient step'}"
    if cost == "memory":
        title = "Memory of a chain" if is_chain else "Memory, weights included"
    plotting.describe(panel, title, LABELS[row["axis"]][1].format(**row), UNITS[cost])


def _draw_exponents(panel: Axes, rows: pl.DataFrame, cost: str) -> None:
    """Write the exponent at the right end of each line, unless another line ends there."""
    (left, right), (low, high) = panel.get_xlim(), panel.get_ylim()
    step = (right / left) ** 0.02
    rooms = ROOM[0] * log(right / left), ROOM[1] * log(high / low)
    taken: list[tuple[float, float]] = []
    for _, line in rows.group_by("name", "backend", maintain_order=True):
        best = best_points(line, cost)
        if (growth := exponent(best)) is None:
            continue
        size, there = best.row(-1)
        if any(abs(log(size / x)) < rooms[0] and abs(log(there / y)) < rooms[1] for x, y in taken):
            continue
        taken.append((size, there))
        text = f"${LABELS[rows['axis'][0]][0]}^{{{growth:.1f}}}$".replace("-0.0", "0.0")
        plotting.tag(panel, text, (size * step, there))
    panel.set_xlim(left, right * step**4)


FIGURES = (
    Figure(
        name="cot-cost",
        place="Remark 4.1",
        shows="time, FLOPs and memory of a gradient step over depth, width, chain length",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
    ),
)
