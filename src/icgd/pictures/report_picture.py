"""A report drawn: measured errors beside their bounds, over the steps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import inf, isfinite, isnan, nan
from typing import Any

from icgd.pictures import plotting
from icgd.pictures.picture import Picture, saved
from icgd.pictures.plotting import BLUE, FAINT, ORANGE, PURPLE, Axes

SMALLEST = 1e-17
"""Where an error of exactly 0 is drawn, which has no place on a logarithmic axis."""

STYLES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "ls": "-", "lw": 2, "zorder": 3},
    {"color": ORANGE, "ls": "-", "lw": 7, "alpha": 0.6, "solid_capstyle": "round"},
    {"color": PURPLE, "ls": ":", "lw": 2},
    {"color": FAINT, "ls": "-.", "lw": 2},
)
"""The styles of curves, in the order in which they come: what is proved of a run is a broad band,
on which the thin line of what was measured can be seen."""

Curves = Mapping[str, Sequence[float]]
"""A number for each step by name, NaN where nothing is said."""


def draw(
    panels: Mapping[str, Curves], title: str, path: str | os.PathLike[str] | None = None
) -> Picture:
    """Return a panel for each kind of error, on logarithmic axes, below the title."""
    figure, places = plotting.new_figure(6.0 * len(panels), 5.3, len(panels))
    text = plotting.literal(f"{title[0].upper()}{title[1:]}")
    figure.suptitle(text, fontsize=13, color=plotting.INK)
    for place, (name, curves) in zip(places, panels.items(), strict=True):
        _draw_panel(place, name, curves)
    return saved(Picture(title, figure), path)


def _draw_panel(panel: Axes, name: str, curves: Curves) -> None:
    plotting.describe(panel, name, "training step", "largest error of any weight (log scale)")
    panel.set_yscale("log")
    plotting.whole_numbers(panel)
    for (what, values), style in zip(curves.items(), STYLES, strict=False):
        steps = range(1, len(values) + 1)
        heights = [_height(value) for value in values]
        panel.plot(steps, heights, label=said_of(plotting.literal(what), values), **style)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), frameon=False, fontsize=10)


def _height(value: float) -> float:
    return max(value, SMALLEST) if isfinite(value) else nan


def said_of(what: str, values: Sequence[float]) -> str:
    """Return the name of a curve, and where it says nothing."""
    silent = [step for step, value in enumerate(values, start=1) if isnan(value) or value == inf]
    if not silent:
        return what
    if len(silent) == len(values):
        return f"{what}: says nothing"
    is_end = silent == list(range(silent[0], len(values) + 1))
    return f"{what}: says nothing {f'from step {silent[0]} on' if is_end else 'at some steps'}"
