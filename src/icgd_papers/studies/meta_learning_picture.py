"""The picture of meta-learning: losses after each step, and how far from descent."""

from __future__ import annotations

from collections.abc import Sequence

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, ORANGE, PURPLE, RED, Axes, Figure
from icgd_papers.reproduction import Row, groups, number

LINES = (
    "step size 0.1",
    "best step size",
    "learnt step sizes",
    "and learnt start",
    "both for longer",
    "all weights",
)
"""What learns, from nothing to everything."""

NEAREST = "nearest descent"

SKY = "#56B4E9"
"""One more colour of Okabe and Ito."""

COLOURS = dict(zip(LINES, (FAINT, ORANGE, BLUE, SKY, GREEN, RED), strict=True))

SMALLEST = 1e-17
"""Distances that are 0 are drawn at this height."""


def draw(rows: Sequence[Row]) -> Figure:
    """Draw losses on the left and distances on the right."""
    figure, (losses, distances) = plotting.new_figure(14.6, 5.4, 2)
    lines = {str(name): of_line for (name,), of_line in groups(rows, "line").items()}
    for name, colour in COLOURS.items():
        _band(losses, lines[name], "loss", colour)
    plotting.logarithmic_height(losses)
    plotting.describe(losses, "Loss on new tasks", "steps of the run", "mean squared error")
    _draw_distances(distances, lines)
    entries = [*COLOURS.items(), (NEAREST, PURPLE)]
    plotting.legend(figure, entries, dashed=[NEAREST], n_columns=4)
    return figure


def _draw_distances(panel: Axes, lines: dict[str, list[Row]]) -> None:
    """Draw predictions against those of descent, from the first step on."""
    for name, colour in zip((*LINES[4:], NEAREST), (GREEN, RED, PURPLE), strict=True):
        after = [row for row in lines[name] if number(row, "step")]
        style = "--" if name == NEAREST else "-"
        _band(panel, after, "prediction_distance", colour, linestyle=style)
    plotting.logarithmic_height(panel)
    message = "Predictions against those of exact descent"
    plotting.describe(panel, message, "steps of the run", "difference in the median task")
    panel.yaxis.labelpad = 12  # room for the numbers


def _band(panel: Axes, rows: Sequence[Row], column: str, colour: str, linestyle: str = "-") -> None:
    at = {number(of[0], "step"): of for of in groups(rows, "step").values()}
    values = [[max(number(row, column), SMALLEST) for row in of] for of in at.values()]
    plotting.band(panel, list(at), values, colour, marker="o", linestyle=linestyle)
    panel.set_xticks(list(at))
