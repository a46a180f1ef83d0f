"""The picture of wang-resources: two theorems above, measured widths and matrices below."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import exp, log, nan

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, ORANGE, Axes, Figure
from icgd_papers.reproduction import Row
from icgd_papers.studies import resources
from icgd_papers.studies.wang_widths import DEEP, DEPTHS, SHALLOW, dimensions, needed

COLOURS = {SHALLOW: BLUE, DEEP: ORANGE}
MARKERS = {0.1: ("o", -0.2), 0.05: ("s", 0.0), 0.03: ("^", 0.2)}
SHIFTS = {SHALLOW: -0.05, DEEP: 0.05}
"""Points are shifted a little by error and depth, so that equal widths stay visible."""

LEAST_ERROR = 1e-6
"""The curves of the theorems end at this error, beyond their crossings."""

SMOOTH = {"-": {"dimension": 1, "smoothness": 6}, "--": {"dimension": 2, "smoothness": 4}}
"""Two functions of Theorem 4; the second does not satisfy 2 (L - 1) d < s."""

N_POINTS = 200
ERROR = 0.05
"""The error at which transformers are compared."""

LINES = {"relu-stack": "-", "softmax-stack": ":", "recursion": "--"}


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the four panels."""
    figure, panels = plotting.new_grid(12.0, 8.8, 2, 2)
    _draw_indicator(panels[0])
    _draw_smooth(panels[1])
    _draw_widths(panels[2], rows)
    _draw_matrices(panels[3], rows)
    entries = [("2 layers", BLUE), ("3 layers (Theorem 4: ln(1/error) + 1 layers)", ORANGE)]
    plotting.legend(figure, entries)
    return figure


def _draw_indicator(panel: Axes) -> None:
    """Draw layers times heads by Theorem 3, and dashed the count that it prints for 3 layers."""
    pairs = [resources.indicator(error) for error in _errors()]
    _curve(panel, BLUE, [pair.shallow.log_matrices for pair in pairs])
    _curve(panel, ORANGE, [pair.deep.log_matrices for pair in pairs])
    printed = [pair.deep.log_printed or 0.0 for pair in pairs]
    _curve(panel, ORANGE, printed, "--", "3 layers, as printed")
    _describe(panel, "Theorem 3: the indicator of a ball")
    _mark(panel, resources.indicator_crossover())


def _draw_smooth(panel: Axes) -> None:
    """Draw Theorem 4 for two functions; the cost of 2 layers depends on neither."""
    for linestyle, function in SMOOTH.items():
        pairs = [resources.smooth(error, **function, depth=SHALLOW) for error in _errors()]
        name = f"d = {function['dimension']}, {function['smoothness']} derivatives"
        _curve(panel, ORANGE, [pair.deep.log_matrices for pair in pairs], linestyle, name)
    _curve(panel, BLUE, [pair.shallow.log_matrices for pair in pairs])
    _describe(panel, "Theorem 4: smooth functions")
    _mark(panel, resources.smooth_crossover(**SMOOTH["-"], depth=SHALLOW))


def _curve(
    panel: Axes, colour: str, logs: Sequence[float], linestyle: str = "-", name: str | None = None
) -> None:
    counts = [exp(value) for value in logs]
    panel.plot(_errors(), counts, linestyle, color=colour, linewidth=2, label=name)


def _errors() -> list[float]:
    """The errors from 1/2 down to the least, in equal ratios."""
    span = log(LEAST_ERROR / 0.5)
    return [0.5 * exp(span * k / (N_POINTS - 1)) for k in range(N_POINTS)]


def _mark(panel: Axes, crossover: float | None) -> None:
    """Mark the error below which the deep network costs less."""
    if crossover is not None:
        panel.axvline(exp(-crossover), color=FAINT, linewidth=1, linestyle=":")
        height = panel.get_ylim()[1] ** 0.05  # the axis begins at 1
        plotting.tag(panel, "  deep costs less", (exp(-crossover), height))


def _describe(panel: Axes, message: str) -> None:
    """Make both axes logarithmic; errors fall to the right."""
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_ylim(bottom=1)
    panel.invert_xaxis()
    panel.legend(edgecolor="none", framealpha=1, fontsize=10.5, loc="upper left")
    plotting.describe(panel, message, "error", "layers x heads, all constants 1")


def _draw_widths(panel: Axes, rows: Sequence[Row]) -> None:
    """Draw the narrowest network that reached each error; hollow and above all if none did."""
    for (error, (marker, shift)), depth in product(MARKERS.items(), DEPTHS):
        found = {place: needed(rows, place, depth, error) for place in dimensions(rows)}
        places = [place + shift + SHIFTS[depth] for place in found]
        heights = [each.width or 2 * each.widest for each in found.values()]
        joined = [each.width or nan for each in found.values()]  # no line to what was not found
        panel.plot(places, joined, color=COLOURS[depth], linewidth=1.2, alpha=0.5)
        for place, height, each in zip(places, heights, found.values(), strict=True):
            face = "white" if each.width is None else COLOURS[depth]
            panel.plot(place, height, marker, color=COLOURS[depth], mfc=face, markersize=7)
    for error, (marker, _) in MARKERS.items():
        panel.plot([], [], marker, color=FAINT, label=f"error {error:g}")
    panel.plot([], [], "s", color=FAINT, mfc="white", label="found in no start")
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter("{x:g}")
    _describe_measured(panel, rows, "Width found to suffice, best of all starts", "width")
    panel.set_ylim(top=4 * panel.get_ylim()[1])  # room for the names
    panel.legend(frameon=False, fontsize=10.5, loc="upper left", ncols=2)


def _draw_matrices(panel: Axes, rows: Sequence[Row]) -> None:
    """Draw the heads of one training step of the networks found to suffice for one error."""
    for depth, (name, linestyle) in product(DEPTHS, LINES.items()):
        found = {place: needed(rows, place, depth, ERROR).heads(name) for place in dimensions(rows)}
        seen = {place: heads for place, heads in found.items() if heads is not None}
        panel.plot(list(seen), list(seen.values()), linestyle, color=COLOURS[depth], marker="o")
    for name, linestyle in LINES.items():
        panel.plot([], [], linestyle, color=FAINT, label=name)
    panel.set_yscale("log")
    message = f"Transformers for these networks, error {ERROR:g}"
    _describe_measured(panel, rows, message, "heads of one training step")
    panel.legend(frameon=False, fontsize=10.5, loc="upper left")


def _describe_measured(panel: Axes, rows: Sequence[Row], message: str, height: str) -> None:
    panel.set_xticks(dimensions(rows))
    plotting.describe(panel, message, "dimension of the ball", height)
