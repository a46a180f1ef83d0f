"""Draw the log of a training: a panel for its losses, and one for each other column."""

from __future__ import annotations

from math import isfinite, nan

from icgd.errors import DataError
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, GREEN, ORANGE, PURPLE, RED, Axes, Figure
from icgd_papers.training.logs import Log

LOSSES = {"loss": BLUE, "validation_loss": RED}
"""The columns of the first panel, and their colours."""

OTHERS = (GREEN, ORANGE, PURPLE, BLUE, RED)

LARGEST_DRAWN = 1e150
"""Larger numbers are drawn at this height, because the ticks of an axis would overflow."""

MOST_PANELS = 12
"""Further columns are left out: their panels would be too small to read."""


def log_picture(log: Log, title: str) -> Figure:
    """Draw a panel for the losses, and one for every other column of the log."""
    if len(log.rows) < 2:
        raise DataError(
            f"The log of {title} has {len(log.rows)} row{'s' * (len(log.rows) != 1)}; a curve "
            "needs two. Train longer, or with a smaller log_every."
        )
    others = [name for name in log.columns if name not in ("step", *LOSSES)][: MOST_PANELS - 1]
    figure, panels = plotting.new_panels(1 + len(others), min(3, 1 + len(others)), 4.4, 3.2)
    losses = [name for name in LOSSES if name in log.columns]
    for name in losses:
        _curve(panels[0], log, name, LOSSES[name])
    plotting.describe(panels[0], title, "step", "loss")
    values = [value for name in losses for value in log.column(name) if isfinite(value)]
    if min(values, default=0.0) > 0:
        plotting.logarithmic_height(panels[0])
    for place, name in enumerate(others):
        _curve(panels[1 + place], log, name, OTHERS[place % len(OTHERS)])
        plotting.describe(panels[1 + place], name.replace("_", " "), "step", "")
    for panel in panels[1 + len(others) :]:
        panel.set_visible(False)
    if len(losses) > 1:
        plotting.legend(figure, [(name.replace("_", " "), LOSSES[name]) for name in losses])
    return figure


def _curve(panel: Axes, log: Log, name: str, colour: str) -> None:
    """Draw a column against the step; numbers that are not finite leave a gap."""
    drawn = [
        max(-LARGEST_DRAWN, min(LARGEST_DRAWN, value)) if isfinite(value) else nan
        for value in log.column(name)
    ]
    panel.plot(log.column("step"), drawn, color=colour, lw=1.8)
