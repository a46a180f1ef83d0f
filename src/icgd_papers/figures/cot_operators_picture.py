"""The picture of cot-fig2: losses over epochs, and distances of the chain over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import geometric_mean

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, Axes, Figure
from icgd_papers.reproduction import Row, groups, number

COLOURS = {"plain": BLUE, "plain, no positions": GREEN, "products, steep slopes": ORANGE}
"""The architectures that are drawn, each with the most teachers it had; the table has all."""

PAPER = {"forward": 3.00, "backward": 0.139}
"""The validation losses that the paper reports."""

BESIDE = {
    "mean_loss": ("mean block", FAINT),
    "linear_loss": ("linear map", INK),
    "unmoved": ("weights as at first", INK),
    "constructed": ("constructed block", PURPLE),
}
"""What is not learnt by steps: its column, its name, its colour."""

TRAINING = "training"

SMALLEST = 1e-33
"""A smaller distance is shown as this: a logarithmic axis has no 0."""

WIDTH, HEIGHT = 6.6, 4.4

LIFT = 0.045
"""How far from its line a name is written, as a part of the panel's height."""


def draw(rows: Sequence[Row]) -> Figure:
    """Draw four panels for each size of the networks: losses above, distances twice below."""
    sizes = groups(rows, "width", "depth")
    n_lines = 2 * len(sizes)
    figure, panels = plotting.new_grid(2 * WIDTH, HEIGHT * n_lines + 0.6, n_lines, 2)
    for line, ((width, depth), of_size) in enumerate(sizes.items()):
        forward, backward, near, far = panels[4 * line : 4 * line + 4]
        cases, size = _drawn(of_size), f"d = {width}, N = {depth}"
        for panel, operator in ((forward, "forward"), (backward, "backward")):
            _draw_losses(panel, operator, cases)
            plotting.describe(panel, f"{operator.capitalize()} operator, {size}", "epoch", "loss")
        distance, last = "squared distance from descent", _rounds(next(reversed(cases.values())))
        _draw_chain(near, cases)
        _draw_beside(near, last, "unmoved")
        plotting.describe(near, f"Weights of the chain, {size}", "round", distance)
        _draw_chain(far, cases)
        _band(far, last, "unmoved", INK)
        _draw_beside(far, last, "constructed")
        plotting.describe(far, "The same beside the constructed block", "round", distance)
    plotting.legend(figure, _entries(rows), dashed=[TRAINING])
    return figure


def _drawn(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each architecture that is drawn, with its largest number of teachers."""
    found: dict[str, list[Row]] = {}
    for (architecture, _), of_case in sorted(
        groups(rows, "architecture", "n_teachers").items(), key=lambda item: item[0]
    ):
        if architecture in COLOURS:
            found[str(architecture)] = of_case
    return found


def _entries(rows: Sequence[Row]) -> list[tuple[str, str]]:
    cases = [
        (f"{name}, {of_case[0]['n_teachers']:,} teachers", COLOURS[name])
        for name, of_case in _drawn(rows).items()
    ]
    return [*cases, ("validation", FAINT), (TRAINING, FAINT)]


def _draw_losses(panel: Axes, operator: str, cases: dict[str, list[Row]]) -> None:
    plotting.logarithmic_height(panel)
    for name, of_case in cases.items():
        of_operator = [row for row in of_case if row["operator"] == operator]
        _band(panel, of_operator, "validation_loss", COLOURS[name])
        _band(panel, of_operator, "training_loss", COLOURS[name], linestyle="--")
    _draw_beside(panel, of_operator, "mean_loss", "linear_loss")
    panel.axhline(PAPER[operator], color=RED, lw=1.5)
    last = _last_place(of_operator)
    _name_line(panel, "the paper's loss", last, PAPER[operator], lift=-LIFT)
    _whole_ticks(panel, last)


def _draw_chain(panel: Axes, cases: dict[str, list[Row]]) -> None:
    panel.set_yscale("log")
    for name, of_case in cases.items():
        _band(panel, _rounds(of_case), "learnt", COLOURS[name])
    _whole_ticks(panel, _last_place(_rounds(of_case)))


def _rounds(rows: Sequence[Row]) -> list[Row]:
    """The rows of a chain, from its first round on."""
    return [row for row in rows if row["operator"] == "chain" and number(row, "at") > 0]


def _last_place(rows: Sequence[Row]) -> float:
    return max(number(row, "at") for row in rows)


def _whole_ticks(panel: Axes, last: float) -> None:
    panel.set_xticks(range(0, int(last) + 1, max(1, int(last) // 4)))


def _draw_beside(panel: Axes, rows: Sequence[Row], *columns: str) -> None:
    """Draw what is not learnt by steps, with its name at the end of its line.

    The rows are those of the case with the most teachers, on which a linear map is fitted best.
    """
    end = _last_place(rows)
    for column in columns:
        name, colour = BESIDE[column]
        _band(panel, rows, column, colour)
        heights = [max(number(row, column), SMALLEST) for row in rows if row["at"] == end]
        lift = -LIFT if column == "unmoved" else LIFT  # a learnt chain is just above
        _name_line(panel, name, end, geometric_mean(heights), lift)


def _name_line(panel: Axes, name: str, end: float, height: float, lift: float = LIFT) -> None:
    """Write the name of a line above its end, or below it."""
    low, high = panel.get_ylim()
    plotting.tag(panel, name, (end, height * (high / low) ** lift), ha="right")


def _band(
    panel: Axes, rows: Sequence[Row], column: str, colour: str, *, linestyle: str = "-"
) -> None:
    """Draw the geometric mean over the seeds, in the band of their range, where all are numbers."""
    at = {number(of[0], "at"): [number(row, column) for row in of] for of in _by_place(rows)}
    kept = {place: values for place, values in at.items() if all(map(isfinite, values))}
    values = [[max(value, SMALLEST) for value in of] for of in kept.values()]
    plotting.band(panel, list(kept), values, colour, linestyle=linestyle)


def _by_place(rows: Sequence[Row]) -> list[list[Row]]:
    return list(groups(rows, "at").values())
