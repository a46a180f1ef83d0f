"""The picture of wu's Figures 1 to 4: panels of R^2 against the number of examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, RED, Axes, Figure
from icgd_papers.figures.wu_lines import ARC_COSINE, BEST, DIRECT, LEARNT, MEAN, RIDGE
from icgd_papers.reproduction import Row, groups, number

GREY = "#A8A8A8"

SHOWN = {0.0: 1.0, 0.5: 0.5, 0.8: 0.2, 0.9: 0.1, 0.95: 0.05, 0.98: 0.02, 0.99: 0.01, 0.999: 0.001}
"""The values of R^2 that the axis names; the height is the logarithm of 1 - R^2."""

BETWEEN = {0.85: 0.15, 0.92: 0.08, 0.94: 0.06, 0.96: 0.04, 0.97: 0.03}
"""The values that it names besides if it has nothing below 0.8."""


@dataclass(frozen=True)
class Style:
    """How a line looks."""

    colour: str
    dashes: str = "-"


FIXED = {
    LEARNT: Style(RED),
    DIRECT: Style(BLUE),
    BEST: Style(BLUE, ":"),
    MEAN: Style(GREY, ":"),
    RIDGE: Style(FAINT, "--"),
    ARC_COSINE: Style(INK),
}
CONSTRUCTED = (Style(GREEN, ":"), Style(GREEN, "--"), Style(GREEN))
"""The constructed transformers, from few steps to many."""


def draw(rows: Sequence[Row]) -> Figure:
    """Draw all panels; those of one depth stand in a row."""
    panels, styles = groups(rows, "panel"), _styles(rows)
    n_columns = len({(row["inputs"], row["teacher_weights"]) for row in rows})
    figure, axes = plotting.new_panels(len(panels), n_columns, 4.6, 3.7)
    for ax, of_panel in zip(axes, panels.values(), strict=True):
        _draw_panel(ax, of_panel, styles)
    r_squared_height(axes, rows)
    entries = [(line, style.colour) for line, style in styles.items()]
    dashes = {line: style.dashes for line, style in styles.items()}
    plotting.legend(figure, entries, dashes=dashes, n_columns=5)
    return figure


def _styles(rows: Sequence[Row]) -> dict[str, Style]:
    lines = dict.fromkeys(str(row["line"]) for row in rows)
    built = iter(CONSTRUCTED[-sum(line not in FIXED for line in lines) :])
    return {line: FIXED.get(line) or next(built) for line in lines}


def _draw_panel(ax: Axes, rows: Sequence[Row], styles: dict[str, Style]) -> None:
    for line in reversed(styles):  # the decoder on top
        _draw_line(ax, [row for row in rows if row["line"] == line], styles[line])
    ax.axvline(number(rows[0], "pretraining_length"), color=GREY, linewidth=1)
    plotting.describe(ax, _message(rows[0]), "examples in the prompt", "R^2")


def _draw_line(ax: Axes, rows: Sequence[Row], style: Style) -> None:
    by_length = groups(rows, "n_examples")
    places = [float(of[0]["n_examples"] or 0) for of in by_length.values()]
    left = [[1 - number(row, "r_squared") for row in of] for of in by_length.values()]
    alpha = 0.25 if style is FIXED[LEARNT] else 0.07  # many bands lie on top of each other
    plotting.band(ax, places, left, style.colour, linestyle=style.dashes, alpha=alpha)


def r_squared_height(
    axes: Sequence[Axes], rows: Sequence[Row], *, is_around_data: bool = False
) -> None:
    """Make the axis of 1 - R^2 logarithmic and name R^2: it rises, and does not crowd near 1.

    All panels have one height: around the data, or from 0 at the bottom to 0.91 at least. What has
    an R^2 below 0 leaves a panel that begins at 0.
    """
    left = [1 - number(row, "r_squared") for row in rows]
    ends = (1.15 * max(left), min(left) / 1.15) if is_around_data else (1.0, _top(min(left)))
    shown = SHOWN | BETWEEN if ends[0] < 0.2 else SHOWN
    for ax in axes:
        ax.set_yscale("log")
        ax.set_yticks(list(shown.values()), [f"{each:g}" for each in shown])
        ax.set_yticks([], minor=True)
        ax.set_ylim(*ends)


def _top(least: float) -> float:
    return min(0.7 * least, 0.09)


def law_of(row: Row) -> str:
    """What is shifted in the test: the teachers' weights or else the mixture of the inputs."""
    is_shifted = row["teacher_weights"] != "N(0, I)"
    return f"teachers {row['teacher_weights']}" if is_shifted else f"mixture {row['inputs']}"


def _message(row: Row) -> str:
    return f"{row['panel']}: {row['n_layers']} layers, {law_of(row)}"
