"""The picture and the words of wu-mechanism: what the distances allow to say, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from textwrap import fill

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, GREEN, INK, ORANGE, RED, Axes, Figure
from icgd_papers.figures.wu_lines import ARC_COSINE, MEAN, RIDGE
from icgd_papers.reproduction import Row, Summary, Value, groups, number

LEARNT, UNTRAINED = "learnt block", "untrained block"
ANOTHER, DESCENT = "another prompt's label", "descent, other start"

COLOURS = {
    LEARNT: RED,
    UNTRAINED: ORANGE,
    RIDGE: FAINT,
    MEAN: "#A8A8A8",
    ARC_COSINE: INK,
    DESCENT: GREEN,
}
CONTROLS = (RIDGE, ARC_COSINE, UNTRAINED)
"""What predicts and does not descend on a network."""

REFERENCES = (MEAN, RIDGE, ARC_COSINE)


def nearest_rows(rows: Sequence[Row]) -> list[Row]:
    """For each predictor and stage the row of the nearest number of steps."""
    return [row for row in rows if row["is_nearest"]]


def last_stages(rows: Sequence[Row]) -> list[Row]:
    """The rows of each predictor's last stage: the last block, the smallest penalty."""
    last = {
        key: max(number(row, "stage") for row in of)
        for key, of in groups(rows, "attention", "seed", "predictor").items()
    }
    keys = ("attention", "seed", "predictor")
    return [row for row in rows if number(row, "stage") == last[tuple(row[key] for key in keys)]]


def summary_lines(rows: Sequence[Row]) -> Summary:
    """Means over the seeds at the nearest number of steps."""
    names = ("attention", "predictor", "stage", "R^2", "nearest steps", "distance", "error cosine")
    to = tuple(f"to {name}" for name in REFERENCES)
    shown = [row for row in nearest_rows(rows) if row["predictor"] != DESCENT] + _floor(rows)
    found = [_line(of) for of in groups(shown, "attention", "predictor", "stage").values()]
    return Summary((*names, *to), tuple(found))


def _floor(rows: Sequence[Row]) -> list[Row]:
    """Descent from another start, after its last step."""
    return [row for row in last_stages(nearest_rows(rows)) if row["predictor"] == DESCENT]


def _line(rows: Sequence[Row]) -> tuple[str, ...]:
    first, steps = rows[0], [number(row, "descent_steps") for row in rows]
    means = [_mean(rows, name) for name in ("r_squared", "distance", "error_cosine")]
    to = [f"{_mean(rows, f'to_{name}'):.4f}" for name in REFERENCES]
    about = (str(first["attention"]), str(first["predictor"]), str(first["stage"]))
    spread = f"{median(steps):g} ({min(steps):g} to {max(steps):g})"
    return (*about, f"{means[0]:.3f}", spread, f"{means[1]:.4f}", f"{means[2]:.2f}", *to)


def _mean(rows: Sequence[Row], name: str) -> float:
    return fmean(number(row, name) for row in rows)


def conclusions(rows: Sequence[Row]) -> list[str]:
    """What the distances of one attention say, in sentences. All seeds must agree."""
    last = groups(last_stages(nearest_rows(rows)), "predictor")
    own = {row["seed"]: row for row in last[(LEARNT,)]}
    return [_against_controls(own, last), _against_references(own), _of_stages(rows)]


def _against_controls(own: Mapping[Value, Row], last: Mapping[tuple[Value, ...], list[Row]]) -> str:
    """Whether the last block is nearer to descent than every control, for every seed."""
    nearer = [
        name
        for name in CONTROLS
        if all(
            number(own[row["seed"]], "distance") < number(row, "distance") for row in last[(name,)]
        )
    ]
    if len(nearer) == len(CONTROLS):
        return "The last block is nearer to descent than every control."
    others = ", ".join(name for name in CONTROLS if name not in nearer)
    return f"The last block is not nearer to descent than {others}: no sign of descent."


def _against_references(own: Mapping[Value, Row]) -> str:
    """Whether descent or something else is nearest to the last block."""
    found = {_nearest_reference(row) for row in own.values()}
    name = found.pop() if len(found) == 1 else "no one reference for all seeds"
    return f"Nearest to the last block: {name}."


def _nearest_reference(row: Row) -> str:
    distances = {"descent": number(row, "distance")}
    distances |= {name: number(row, f"to_{name}") for name in REFERENCES}
    return min(distances, key=distances.__getitem__)


def _of_stages(rows: Sequence[Row]) -> str:
    """Whether the number of nearest steps rises with the blocks, and with smaller penalties."""
    rises = [name for name in (LEARNT, RIDGE) if _rises(rows, name)]
    if LEARNT not in rises:
        return "The number of nearest steps does not rise from block to block."
    as_well = " So does ridge regression as its penalty falls." if RIDGE in rises else ""
    return f"The number of nearest steps rises from the first block to the last.{as_well}"


def _rises(rows: Sequence[Row], predictor: str) -> bool:
    of_seeds = groups([row for row in nearest_rows(rows) if row["predictor"] == predictor], "seed")
    return all(_is_rising([number(row, "descent_steps") for row in of]) for of in of_seeds.values())


def _is_rising(steps: Sequence[float]) -> bool:
    return steps[-1] > steps[0]


def draw(rows: Sequence[Row]) -> Figure:
    """For each attention three panels, each below the sentence that follows from it."""
    by_attention = groups(rows, "attention")
    figure, axes = plotting.new_panels(3 * len(by_attention), 3, 5.2, 4.2)
    for place, ((attention,), of) in enumerate(by_attention.items()):
        of_attention = axes[3 * place : 3 * place + 3]
        _draw_distances(of_attention[0], of, "distance", "distance to descent")
        _draw_distances(of_attention[1], of, "error_cosine", "cosine of the errors")
        _draw_stages(of_attention[2], of)
        for ax, text in zip(of_attention, conclusions(of), strict=True):
            ax.set_title(fill(f"{attention}: {text}", 52), loc="left", fontsize=11, color=INK)
    entries = [("learnt, last block", RED), ("learnt, others", BLUE), *list(COLOURS.items())[1:]]
    plotting.legend(figure, entries, dashed=[UNTRAINED])
    return figure


def _draw_distances(ax: Axes, rows: Sequence[Row], column: str, y: str) -> None:
    """Draw the last stage of each predictor, and faintly the learnt blocks before."""
    for of in groups(_inner(rows), "stage").values():
        _draw_line(ax, of, column, BLUE, alpha=0.45)
    for (predictor,), of in groups(last_stages(rows), "predictor").items():
        if predictor in COLOURS:
            dashes = "--" if predictor == UNTRAINED else "-"
            _draw_line(ax, of, column, COLOURS[str(predictor)], dashes)
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
    if column == "distance":
        plotting.logarithmic_height(ax)
    plotting.describe(ax, "", "steps of descent", y)


def _inner(rows: Sequence[Row]) -> list[Row]:
    last = last_stages(rows)
    return [row for row in rows if row["predictor"] == LEARNT and row not in last]


def _draw_line(
    ax: Axes,
    rows: Sequence[Row],
    column: str,
    colour: str,
    dashes: str = "-",
    *,
    alpha: float = 1.0,
) -> None:
    by_steps = groups(rows, "descent_steps")
    places = [number(of[0], "descent_steps") for of in by_steps.values()]
    values = [[number(row, column) for row in of] for of in by_steps.values()]
    ends = [min(of) for of in values], [max(of) for of in values]
    ax.fill_between(places, *ends, color=colour, alpha=0.15 * alpha, lw=0)
    ax.plot(places, [fmean(of) for of in values], color=colour, ls=dashes, lw=1.8, alpha=alpha)


def _draw_stages(ax: Axes, rows: Sequence[Row]) -> None:
    """Draw the nearest number of steps of each block, and of ridge from penalty to penalty."""
    for name in (LEARNT, UNTRAINED, RIDGE):
        of_name = [row for row in nearest_rows(rows) if row["predictor"] == name]
        by_stage = groups(of_name, "stage")
        places = [number(of[0], "stage") for of in by_stage.values()]
        steps = [[number(row, "descent_steps") for row in of] for of in by_stage.values()]
        ends = [min(of) for of in steps], [max(of) for of in steps]
        dashes = "--" if name == UNTRAINED else "-"
        ax.fill_between(places, *ends, color=COLOURS[name], alpha=0.15, lw=0)
        ax.plot(places, [median(of) for of in steps], color=COLOURS[name], ls=dashes, marker="o")
    ax.set_yscale("symlog", linthresh=1)
    ax.set_yticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
    ax.set_xticks(range(1, 1 + max(int(number(row, "stage")) for row in of_name)))  # of ridge
    plotting.describe(ax, "", "block, or place of the penalty", "nearest number of steps")
