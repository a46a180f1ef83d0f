"""The picture of cot-cost: time, FLOPs and memory over depth, width and length of the chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import log

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, Axes, Figure
from icgd_papers.reproduction import Row, Value, groups
from icgd_papers.studies.cost_lines import COSTS, Points, best_points, crossing, points

AXES = {
    "depth": ("N", "layers N of the network, width {width}"),
    "width": ("d", "width d of the network, {depth} layers"),
    "length": ("T", "blocks T of the chain so far"),
}
UNITS = {"time": "seconds of one processor", "FLOPs": "FLOPs", "memory": "bytes"}
TITLES = {"depth": "gradient step", "width": "gradient step", "length": "block"}

CONSTRUCTIONS = {
    "relu-stack": BLUE,
    "softmax-stack": ORANGE,
    "cot-network": GREEN,
    "cot-network, b = 1": PURPLE,
}
CHAINS = {
    "two blocks": GREEN,
    "all blocks": RED,
    "all blocks, not cached": ORANGE,
    "short memory": GREEN,
    "whole memory": RED,
}
COLOURS = CONSTRUCTIONS | CHAINS
BACKENDS = {"dense": "-", "fused": "--"}

ROOM = 0.08, 0.036
"""The shares of a panel's width and height that the name of a line takes."""


def draw(rows: Sequence[Row]) -> Figure:
    """Nine panels: a row for each axis, a column for each cost."""
    figure, panels = plotting.new_grid(14.0, 12.6, len(AXES), len(COSTS))
    for panel, (axis, cost) in zip(panels, product(AXES, COSTS), strict=True):
        lines = groups([row for row in rows if row["axis"] == axis], "name", "backend")
        shown = [line for line in lines.values() if _belongs(line, cost)]
        for line in shown:
            _draw_line(panel, line, cost)
        _describe(panel, shown[0][0], cost)
        _draw_exponents(panel, shown, cost)
        if (axis, cost) == ("depth", "FLOPs"):
            _draw_crossing(panel, lines)
    for panel in (panels[6], panels[8]):
        panel.legend(frameon=False, fontsize=10.5, loc="upper left")
    entries = [*CONSTRUCTIONS.items(), *((f"{name} backend", FAINT) for name in BACKENDS)]
    plotting.legend(figure, entries, dashed=["fused backend"])
    return figure


def _belongs(line: Sequence[Row], cost: str) -> bool:
    """Whether a panel shows the line; memory of chains is shown for fused runs only.

    Beside dense weights the memory of a chain cannot be seen.
    """
    is_reading = line[0]["axis"] == "length" and line[0]["backend"] == "dense"
    return not (is_reading and cost == "memory")


def _draw_line(panel: Axes, line: Sequence[Row], cost: str) -> None:
    """Draw a line through the best points, and dots where the cost was measured."""
    name, backend = str(line[0]["name"]), str(line[0]["backend"])
    colour, linestyle = COLOURS[name], BACKENDS[backend]
    label = name if name in CHAINS else None
    through = best_points(line, cost)
    panel.plot(through.sizes, through.costs, linestyle, color=colour, lw=1.8, label=label)
    dots = points(line, "seconds" if cost == "time" else f"{COSTS[cost]}_measured")
    face = "white" if backend == "fused" else colour
    panel.plot(dots.sizes, dots.costs, "o", color=colour, mfc=face, markersize=5)


def _describe(panel: Axes, row: Row, cost: str) -> None:
    axis = str(row["axis"])
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter("{x:,.0f}")
    title = f"{cost.capitalize() if cost != 'FLOPs' else cost} of a {TITLES[axis]}"
    if cost == "memory":
        title = "Memory of a chain" if axis == "length" else "Memory, weights included"
    plotting.describe(panel, title, AXES[axis][1].format(**row), UNITS[cost])


def _draw_exponents(panel: Axes, lines: Sequence[Sequence[Row]], cost: str) -> None:
    """Write the exponent at the right end of each line, unless another line ends there."""
    (left, right), (low, high) = panel.get_xlim(), panel.get_ylim()
    step = (right / left) ** 0.02
    taken: list[tuple[float, float]] = []
    for line in lines:
        found = best_points(line, cost)
        exponent = found.exponent()
        if exponent is None or _is_taken(found, taken, (right / left, high / low)):
            continue
        taken.append(found.end)
        letter, (size, cost_there) = AXES[str(line[0]["axis"])][0], found.end
        name = f"${letter}^{{{exponent:.1f}}}$".replace("-0.0", "0.0")
        plotting.tag(panel, name, (size * step, cost_there))
    panel.set_xlim(left, right * step**4)


def _is_taken(
    found: Points, taken: Sequence[tuple[float, float]], spans: tuple[float, float]
) -> bool:
    """Whether another name already stands where the line ends."""
    return any(
        all(
            abs(log(a / b)) < room * log(span)
            for a, b, span, room in zip(found.end, other, spans, ROOM, strict=True)
        )
        for other in taken
    )


def _draw_crossing(panel: Axes, lines: Mapping[tuple[Value, ...], Sequence[Row]]) -> None:
    """Mark where the chain begins to do less than the stack."""
    stack, chain = lines["relu-stack", "dense"], lines["cot-network", "dense"]
    found = crossing(best_points(stack, "FLOPs"), best_points(chain, "FLOPs"))
    if found is not None:
        panel.plot(*found, "s", color=INK, mfc="white", markersize=8)
        size, cost = found
        plotting.tag(panel, f"equal at N = {size:.0f}  ", (size, cost * 6), ha="right")
