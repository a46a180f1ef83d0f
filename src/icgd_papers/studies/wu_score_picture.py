"""The picture of wu-score: for each law, samples on their way from noise to data, and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from statistics import fmean

import numpy as np

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, Axes, Figure
from icgd_papers.reproduction import Row, groups, number
from icgd_papers.studies.digits import SIDE, Components, Numbers, read_digits

METHODS = {"exact score": INK, "in context": BLUE, "direct": ORANGE, "Adam": GREEN}
NORMAL = "N(0, I)"

STRIPS = (
    ("exact", "exact score", "exact\nscore"),
    ("exact", "in context", "in context,\nfrom scores"),
    ("exact", "direct", "direct,\nfrom scores"),
    ("denoising", "in context", "in context,\ndenoising"),
)
"""The rows of samples: their labels, their score, and the words beside them."""

STYLES = {"exact": "-", "denoising": "--"}

LEARNT = ("in context", "direct", "Adam")

LINES = ("direct", "in context", "Adam", "exact score")
"""In the order in which lines are drawn: that of direct training is wide, and lies below."""

SMALLEST_ERROR = 1e-3

MOST_SHOWN = 5
"""The times that fit into a row; the first and the last are among them."""

DOTS = {
    ("exact", "exact score", "floor"): FAINT,
    ("exact", "exact score", "distance"): INK,
    **{("exact", name, "distance"): METHODS[name] for name in LEARNT},
    **{("denoising", name, "distance"): METHODS[name] for name in LEARNT},
}
"""The lines of the last panel: labels, score and column, and their colours."""

HOLLOW = {"exact": "", "denoising": ",\ndenoising"}

NUMBERS = ("loss", "error", "distance")
NUMBERS_WIDE = 2.3
"""The panels of numbers, and their width over that of a panel of samples."""

WIDE, HIGH = 17.0, 5.6
"""The size of a law's block, in inches."""

REACH = 2.7
"""The plane is shown from -REACH to REACH."""

MONTAGE = 3
"""Images are shown in squares of so many in a row."""


def draw(rows: Sequence[Row]) -> Figure:
    """A block for each law, and one legend."""
    blocks = {str(law): of_law for (law,), of_law in groups(rows, "law").items()}
    n_times = len(_shown(rows))
    names = [line for law in blocks for line in _names(law, n_times)]
    ratios = [1.0] * n_times + [NUMBERS_WIDE] * len(NUMBERS)
    figure, panels = plotting.new_mosaic(WIDE, HIGH * len(blocks) + 0.4, names, ratios)
    for law, of_law in blocks.items():
        strips = [[panels[name] for name in line[:n_times]] for line in _names(law, n_times)]
        _draw_samples(strips, law, of_law)
        _draw_numbers([panels[f"{law} {name}"] for name in NUMBERS], of_law)
    plotting.legend(figure, _entries(), dashed=("from denoising",))
    return figure


def _names(law: str, n_times: int) -> list[list[str]]:
    """The names of a block's panels: a small one for each time and score, then the numbers."""
    numbers = [f"{law} {name}" for name in NUMBERS]
    return [
        [*(f"{law} {line} {column}" for column in range(n_times)), *numbers]
        for line in range(len(STRIPS))
    ]


def _entries() -> list[tuple[str, str]]:
    return [
        *METHODS.items(),
        (f"score of {NORMAL}", FAINT),
        ("from denoising", INK),
    ]


def _draw_samples(strips: list[list[Axes]], law: str, rows: Sequence[Row]) -> None:
    times = _shown(rows)
    for panels, (targets, method, words) in zip(strips, STRIPS, strict=True):
        for panel, time in zip(panels, times, strict=True):
            found = [
                row
                for row in rows
                if (row["targets"], row["method"], row["time"]) == (targets, method, time)
            ]
            text = next((str(row["points"]) for row in found if row["points"]), "")
            _bare(panel)
            _draw_points(panel, _points(text), METHODS[method])
        panels[0].set_ylabel(words, fontsize=11.5, color=INK, rotation=0, ha="right", va="center")
    for panel, time in zip(strips[0], times, strict=True):
        panel.set_title(f"t = {time:.2g}", fontsize=11.5, color=INK)
    first = strips[0][0]
    first.annotate(
        law, (-0.9, 1.22), xycoords="axes fraction", fontsize=15, color=INK, weight="bold"
    )


def _bare(panel: Axes) -> None:
    panel.set(xticks=[], yticks=[], aspect="equal")
    panel.grid(visible=False)
    panel.spines[["top", "right", "left", "bottom"]].set_visible(False)


def _points(text: str) -> Numbers:
    """The points of a cell, one in a row."""
    return np.array([[float(entry) for entry in point.split()] for point in text.split(";")])


def _draw_points(panel: Axes, points: Numbers, colour: str) -> None:
    """Dots in the plane, or images whose principal components the points are."""
    if points.shape[1] == 2:
        panel.scatter(points[:, 0], points[:, 1], s=4.5, color=colour, alpha=0.7, linewidths=0)
        panel.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH))
        return
    images = _components(points.shape[1]).images(points)
    panel.imshow(_montage(images), cmap="gray_r", vmin=0, vmax=16)


@lru_cache(maxsize=4)
def _components(dimension: int) -> Components:
    return Components.of(read_digits().pixels, dimension)


def _montage(images: Numbers) -> Numbers:
    """The first images in a square, with a white line between them."""
    side = min(MONTAGE, int(len(images) ** 0.5))
    sheet = np.zeros((side * (SIDE + 1) - 1, side * (SIDE + 1) - 1))
    for index, image in enumerate(images[: side * side]):
        top, left = ((SIDE + 1) * place for place in divmod(index, side))
        sheet[top : top + SIDE, left : left + SIDE] = image.clip(0, 16)
    return sheet


def _draw_numbers(panels: list[Axes], rows: Sequence[Row]) -> None:
    losses, errors, distances = panels
    for targets, method in product(STYLES, LINES):
        of = [row for row in rows if (row["targets"], row["method"]) == (targets, method)]
        timed = [row for row in of if row["time"] is not None]
        steps = [_share(row) for row in of if row["step"] and method != "Adam"]
        style = (METHODS[method], STYLES[targets])
        _line(errors, timed, "time", "relative_error", *style)
        _line(losses, steps, "step", "share", *style)
    plotting.describe(losses, "loss on the prompt", "step of training", "over that of predicting 0")
    _finish_errors(errors, rows)
    _draw_distances(distances, rows)


def _finish_errors(panel: Axes, rows: Sequence[Row]) -> None:
    """The error of the score of N(0, I), and the axes: time runs from noise to data."""
    normal = [row for row in rows if (row["targets"], row["method"]) == ("exact", NORMAL)]
    _line(panel, normal, "time", "relative_error", FAINT, "-")
    panel.set_ylim(bottom=max(panel.get_ylim()[0], SMALLEST_ERROR))
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.invert_xaxis()
    plotting.describe(panel, "score: relative error", "t", "")


def _draw_distances(panel: Axes, rows: Sequence[Row]) -> None:
    """A dot for each seed at T_0; hollow ones learnt from denoising. A bar is the seeds' mean."""
    last = [row for row in rows if row["time"] == min(_times(rows))]
    for place, ((targets, method, column), colour) in enumerate(DOTS.items()):
        of = [row for row in last if (row["targets"], row["method"]) == (targets, method)]
        values = [number(row, column) for row in of]
        inside = colour if targets == "exact" else "white"
        heights = [-place] * len(values)
        panel.scatter(values, heights, s=42, color=inside, edgecolors=colour, linewidths=1.6)
        panel.scatter(fmean(values), -place, s=420, marker="|", color=colour, linewidths=2.2)
    names = ["data", *(f"{m}{HOLLOW[t]}" for t, m, _ in list(DOTS)[1:])]
    panel.set_yticks([-place for place in range(len(names))], names)
    panel.set_xlim(left=0)
    panel.set_ylim(0.6 - len(names), 0.6)
    plotting.describe(panel, "samples at T_0", "distance from data", "")


def _share(row: Row) -> Row:
    """A row of a loss, with the share of the loss of predicting 0."""
    return {**row, "share": number(row, "loss") / number(row, "label_power")}


def _line(
    panel: Axes, rows: Sequence[Row], along: str, column: str, colour: str, style: str
) -> None:
    """A line through the seeds' mean in a band of their range; a wide one for direct training."""
    found = [row for row in rows if row.get(column) is not None]
    if not found:
        return
    plotting.logarithmic_height(panel)
    places = {number(of[0], along): of for of in groups(found, along).values()}
    values = [[number(row, column) for row in of] for of in places.values()]
    width = 5.0 if colour == METHODS["direct"] else 1.8
    plotting.band(panel, list(places), values, colour, linestyle=style, width=width)


def _times(rows: Sequence[Row]) -> list[float]:
    found = {number(row, "time") for row in rows if row["time"] is not None}
    return sorted(found, reverse=True)


def _shown(rows: Sequence[Row]) -> list[float]:
    """The times of the columns: the last, those in which the law takes shape, and the first."""
    times = _times(rows)
    return times if len(times) <= MOST_SHOWN else [times[0], *times[2:MOST_SHOWN], times[-1]]
