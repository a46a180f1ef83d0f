"""The style of all figures, and their conversion to files with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from math import exp, log, log10
from statistics import fmean
from typing import Any

from matplotlib import patheffects, rc_context
from matplotlib.axes import Axes as Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

BLUE, ORANGE, RED = "#0072B2", "#E69F00", "#D55E00"
GREEN, PURPLE = "#009E73", "#CC79A7"
"""The palette of Okabe and Ito, which colour-blind readers can distinguish."""

INK, FAINT = "#222222", "#767676"
DOTS_PER_INCH = 150

PLAIN = 2e-5
"""The smallest axis limit for which tick labels are written without an exponent."""


def new_figure(width: float, height: float, n_panels: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with `n_panels` panels side by side; width and height are in inches."""
    return new_grid(width, height, 1, n_panels)


def new_grid(width: float, height: float, n_rows: int, n_columns: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with a grid of panels, listed row by row."""
    room = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout=room)
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for panel in panels:
        _style(panel)
    return figure, panels


def new_mosaic(
    width: float, height: float, names: list[list[Any]], ratios: Sequence[float]
) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure whose panels cover all cells with their name; `ratios` are column widths."""
    room = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06)
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout=room)
    FigureCanvasAgg(figure)
    panels: dict[str, Axes] = figure.subplot_mosaic(names, width_ratios=list(ratios))
    for panel in panels.values():
        _style(panel)
    return figure, panels


def new_panels(
    n_panels: int, n_columns: int, width: float, height: float
) -> tuple[Figure, list[Axes]]:
    """Return a figure with rows of at most `n_columns` panels, and room for a legend below."""
    n_columns = min(n_columns, n_panels)
    n_rows = -(-n_panels // n_columns)
    figure, places = new_grid(width * n_columns, height * n_rows + 0.4, n_rows, n_columns)
    for empty in places[n_panels:]:
        empty.set_visible(False)
    return figure, places[:n_panels]


def _style(panel: Axes) -> None:
    """Show two axes, a faint grid behind the data, and readable tick labels."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(FAINT)
    panel.tick_params(labelsize=10.5, colors=INK)
    panel.grid(color="#E6E6E6", linewidth=0.7)
    panel.set_axisbelow(True)


def describe(panel: Axes, message: str, x: str, y: str) -> None:
    """Set the title of a panel to `message`, and the labels of its axes."""
    panel.set_title(message, loc="left", fontsize=13, color=INK, pad=10)
    panel.set_xlabel(x, fontsize=11.5, color=INK)
    panel.set_ylabel(y, fontsize=11.5, color=INK)


def literal(text: str) -> str:
    """Escape dollar signs in a user's text, which would begin a formula."""
    return text.replace("$", r"\$")


def whole_numbers(panel: Axes) -> None:
    """Put the ticks of the x axis at whole numbers, for steps and other counts."""
    panel.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def logarithmic_height(panel: Axes) -> None:
    """Make the y axis logarithmic, with labels between powers of ten if there are few of these.

    Numbers below `PLAIN` would be written like 1e-05; such an axis shows powers of ten instead.
    """

    def major_label(value: float, _: object) -> str:
        is_plain = panel.get_ylim()[0] >= PLAIN or not value > 0  # 0 stands for an underflow
        return f"{value:g}" if is_plain else f"$10^{{{round(log10(value))}}}$"

    def minor_label(value: float, _: object) -> str:
        low, high = panel.get_ylim()
        is_labelled = high < 4 * low or (high < 50 * low and f"{value:e}"[0] in "2346")
        return f"{value:.3g}" if is_labelled else ""

    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(major_label)
    panel.yaxis.set_minor_formatter(minor_label)
    panel.tick_params(which="minor", labelsize=9, colors=INK)


def band(
    panel: Axes,
    places: Sequence[float],
    values: Sequence[Sequence[float]],
    colour: str,
    *,
    marker: str = "",
    linestyle: str = "-",
    width: float = 1.8,
    alpha: float = 0.2,
) -> None:
    """Draw a line through the geometric means at `places`, and a band over the range of values."""
    means = [exp(fmean(log(value) for value in at_place)) for at_place in values]
    ends = [min(at) for at in values], [max(at) for at in values]
    panel.fill_between(places, *ends, color=colour, alpha=alpha, lw=0)
    panel.plot(places, means, color=colour, marker=marker, ls=linestyle, lw=width, ms=4.5)


def legend(
    figure: Figure,
    entries: Sequence[tuple[str, str]],
    dashed: Sequence[str] = (),
    *,
    dashes: Mapping[str, str] | None = None,
    n_columns: int | None = None,
) -> None:
    """Draw a legend of names and colours below all panels, in one row or in `n_columns` columns.

    Lines of the names in `dashed` are dashed; `dashes` gives other line styles by name.
    """
    styles = {**dict.fromkeys(dashed, "--"), **(dashes or {})}
    handles = [
        Line2D([], [], color=colour, linewidth=3, label=name, ls=styles.get(name, "-"))
        for name, colour in entries
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=n_columns or len(handles),
        frameon=False,
        fontsize=11.5,
    )


def note(panel: Axes, text: str, at: tuple[float, float], colour: str, ha: str = "left") -> None:
    """Label a curve in its colour, at a point in data coordinates."""
    panel.text(*at, text, color=colour, fontsize=11.5, ha=ha, va="center")


def tag(panel: Axes, text: str, at: tuple[float, float], ha: str = "left") -> None:
    """Label a point in small letters; a white rim keeps them readable on top of a line."""
    rim = [patheffects.withStroke(linewidth=2.5, foreground="white")]
    panel.text(*at, text, color=INK, fontsize=9, ha=ha, va="center", path_effects=rim)


def png(figure: Figure) -> bytes:
    """Encode the figure as PNG; equal figures give equal bytes."""
    content = BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def svg(figure: Figure) -> bytes:
    """Encode the figure as SVG with texts as text elements; equal figures give equal bytes."""
    content = BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "icgd"}):
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return content.getvalue()
