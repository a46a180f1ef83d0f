"""Plot a report: measured errors and their bounds over the steps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import inf, isfinite, isnan, nan
from typing import Any

from icgd.pictures import plotting
from icgd.pictures.picture import Picture, saved
from icgd.pictures.plotting import BLUE, FAINT, ORANGE, PURPLE, Axes

SMALLEST = 1e-17
"""The height at which an error of exactly 0 is drawn on the logarithmic axis."""

STYLES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "ls": "-", "lw": 2, "zorder": 3},
    {"color": ORANGE, "ls": "-", "lw": 7, "alpha": 0.6, "solid_capstyle": "round"},
    {"color": PURPLE, "ls": ":", "lw": 2},
    {"color": FAINT, "ls": "-.", "lw": 2},
)
"""The styles of curves, in this order. The bound for a run is a broad line, so that a thin line of
measurements on it remains visible."""

Curves = Mapping[str, Sequence[float]]
"""The values of each curve by name, one per step, NaN where a bound says nothing."""


def draw(
    panels: Mapping[str, Curves], title: str, path: str | os.PathLike[str] | None = None
) -> Picture:
    """Draw a panel with logarithmic axis for each kind of error."""
    figure, places = plotting.new_figure(6.0 * len(panels), 5.3, len(panels))
    text = plotting.literal(f"{title[0].upper()}{title[1:]}")
    figure.suptitle(text, fontsize=13, color=plotting.INK)
    for place, (name, curves) in zip(places, panels.items(), strict=True):
        _draw_panel(place, name, curves)
    return saved(Picture(title, figure), path)


def _draw_panel(panel: Axes, title: str, curves: Curves) -> None:
    plotting.describe(panel, title, "training step", "largest error of any weight (log scale)")
    panel.set_yscale("log")
    plotting.whole_numbers(panel)
    for (name, values), style in zip(curves.items(), STYLES, strict=False):
        steps = range(1, len(values) + 1)
        heights = [_height(value) for value in values]
        panel.plot(steps, heights, label=curve_label(plotting.literal(name), values), **style)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), frameon=False, fontsize=10)


def _height(value: float) -> float:
    return max(value, SMALLEST) if isfinite(value) else nan


def curve_label(name: str, values: Sequence[float]) -> str:
    """Return the name of a curve, and the steps at which it says nothing: NaN or infinity."""
    silent = [step for step, value in enumerate(values, start=1) if isnan(value) or value == inf]
    if not silent:
        return name
    if len(silent) == len(values):
        return f"{name}: says nothing"
    is_end = silent == list(range(silent[0], len(values) + 1))
    return f"{name}: says nothing {f'from step {silent[0]} on' if is_end else 'at some steps'}"
