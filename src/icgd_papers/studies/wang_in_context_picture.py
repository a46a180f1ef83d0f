"""The picture of wang-in-context: errors of two depths against the transformer's weights."""

from __future__ import annotations

from collections.abc import Sequence

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, ORANGE, Axes, Figure
from icgd_papers.reproduction import Row, groups, number

COLOURS = {2: BLUE, 3: ORANGE}
SHIFTS = {2: 0.94, 3: 1.06}
"""Points are moved apart a little, since both depths have nearly the same number of weights."""


def draw(rows: Sequence[Row]) -> Figure:
    """Draw a panel for each dimension; all have one height."""
    dimensions = groups(rows, "dimension")
    figure, panels = plotting.new_figure(6.0 * len(dimensions), 5.0, len(dimensions))
    for panel, ((dimension,), in_dimension) in zip(panels, dimensions.items(), strict=True):
        _draw_errors(panel, in_dimension)
        message = f"Indicator of the ball in dimension {dimension}, learnt in context"
        plotting.describe(panel, message, "weights of the transformer", "error at new points")
    plotting.legend(figure, [("2 layers", BLUE), ("3 layers", ORANGE)])
    return figure


def _draw_errors(panel: Axes, rows: Sequence[Row]) -> None:
    """Draw means with two standard errors; beside each the width of the network."""
    for curve in groups(rows, "depth").values():
        depth = int(number(curve[0], "depth"))
        places = [SHIFTS[depth] * number(row, "weights") for row in curve]
        errors = [number(row, "error") for row in curve]
        bars = [2 * number(row, "standard_error") for row in curve]
        colour = COLOURS[depth]
        panel.errorbar(places, errors, bars, color=colour, fmt="o", capsize=4, linewidth=1.8)
        panel.plot(places, errors, color=colour, linewidth=1.8, alpha=0.35)
        for row, place, error in zip(curve, places, errors, strict=True):
            side = "right" if depth == 2 else "left"
            plotting.tag(panel, f"  width {row['width']}  ", (place, error), ha=side)
    panel.set_xscale("log")
    panel.margins(x=0.2)
    panel.set_ylim(bottom=0)
