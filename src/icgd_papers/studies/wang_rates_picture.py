"""The picture of wang-rates: heads and units of a step on the left, units of a sum on the right."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, ORANGE, PURPLE, RED, Axes, Figure
from icgd_papers.reproduction import Row, groups, number

HEADS, DRAWN, GREEDY = "heads and units", "drawn units", "greedy units"
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE)
LEAST = 1e-16
"""Errors below rounding are drawn here."""


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the two panels."""
    figure, (left, right) = plotting.new_figure(12.0, 5.2, 2)
    _draw_heads(left, [row for row in rows if row["curve"] == HEADS])
    _draw_units(right, [row for row in rows if row["curve"] != HEADS])
    return figure


def _draw_heads(panel: Axes, rows: Sequence[Row]) -> None:
    """Draw a curve for each activation, and the promised rate from the first point on."""
    curves = groups(rows, "case")
    for index, ((name,), curve) in enumerate(curves.items()):
        _draw_named(panel, str(name), *_points(curve), COLOURS[index % len(COLOURS)], "-")
    sizes, errors = _points(next(iter(curves.values())))
    promised = [errors[0] * sqrt(sizes[0] / n) for n in sizes]
    _draw_named(panel, "Theorem 1", sizes, promised, FAINT, "--")
    _describe(panel, "Theorem 1: error of a step of 2-3-1 tanh", "heads and hidden units of a step")
    panel.set_xlim(right=5 * panel.get_xlim()[1])  # room for the names
    panel.set_ylabel("worst |eps(w)|, over the step size", fontsize=11.5)


def _draw_named(
    panel: Axes,
    name: str,
    sizes: Sequence[float],
    errors: Sequence[float],
    colour: str,
    style: str,
) -> None:
    """Draw a curve with its name at its end."""
    marker = "o" if style == "-" else ""
    panel.plot(sizes, errors, style, marker=marker, color=colour, linewidth=1.8)
    plotting.note(panel, name, (1.2 * sizes[-1], errors[-1]), colour)


def _draw_units(panel: Axes, rows: Sequence[Row]) -> None:
    """Draw each dimension in a colour: its bound dashed, the lottery, the greedy sum dotted."""
    for index, ((case,), curves) in enumerate(groups(rows, "case").items()):
        colour = COLOURS[index % len(COLOURS)]
        drawn, greedy = (
            [row for row in curves if row["curve"] == curve] for curve in (DRAWN, GREEDY)
        )
        panel.plot(*_points(drawn), marker="o", color=colour, linewidth=1.8, label=f"d = {case}")
        panel.plot(*_points(drawn, "allowed"), "--", color=colour, linewidth=1.4)
        panel.plot(*_points(greedy), ":", marker="s", markersize=4, color=colour, linewidth=1.6)
    for name, style in (("bound", "--"), ("drawn by lot", "o-"), ("chosen greedily", "s:")):
        panel.plot([], [], style, color=FAINT, label=name)
    _describe(panel, "Lemma 5: sums of n units for exp(-|x|^2/2)", "units n")
    panel.legend(frameon=False, fontsize=10.5, loc="lower left")
    panel.set_ylabel("distance in L^2", fontsize=11.5)


def _points(rows: Sequence[Row], name: str = "error") -> tuple[list[float], list[float]]:
    sizes = [number(row, "size") for row in rows]
    return sizes, [max(number(row, name), LEAST) for row in rows]


def _describe(panel: Axes, message: str, x: str) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    plotting.describe(panel, message, x, "")
