r"""wu-fig5: R^2 against the number of the decoder's blocks, for a few lengths of the prompt.

The paper asks after 15, 30 and 45 examples of 50; smaller presets ask after the same shares. It
does not say how deep its teachers are; here they have 4 layers, as in its Figures 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import final

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, GREEN, ORANGE, Axes, Figure
from icgd_papers.figures.wu_curves import BUDGETS as CURVE_BUDGETS
from icgd_papers.figures.wu_curves_picture import r_squared_height
from icgd_papers.figures.wu_learnt import LearntStudy
from icgd_papers.figures.wu_lines import Outcome
from icgd_papers.figures.wu_setting import PRETRAINING
from icgd_papers.reproduction import (
    AbstractReproduction,
    Row,
    Summary,
    groups,
    number,
    preset_of,
)

N_LAYERS = 4

BUDGETS = {
    "smoke": replace(CURVE_BUDGETS["smoke"], lengths=(1, 2, 4)),
    "laptop": replace(
        CURVE_BUDGETS["laptop"], lengths=(6, 12, 18), n_steps=800, mlp_width=64, n_test=1024
    ),
    "paper": replace(CURVE_BUDGETS["paper"], lengths=(15, 30, 45)),
}
BLOCKS = {"smoke": (1, 2), "laptop": (4, 6, 8, 10), "paper": (4, 6, 8, 10)}

SHALLOW, DEEP = 4, 8
"""The numbers of blocks between which depth should help."""

COLOURS = (BLUE, ORANGE, GREEN)


@final
@dataclass(frozen=True)
class DepthFigure(AbstractReproduction[LearntStudy, Outcome]):
    """A panel for each attention, a line for each number of examples."""

    panels: tuple[str, ...]

    def studies(self, preset: str, seed: int) -> list[LearntStudy]:
        """A decoder for each attention, depth and seed; the deepest come first."""
        budget, blocks = preset_of(BUDGETS, preset), preset_of(BLOCKS, preset)
        seeds = range(seed, seed + budget.n_seeds)
        return [
            LearntStudy(N_LAYERS, attention, (PRETRAINING,), each, replace(budget, n_blocks=n))
            for n, attention, each in product(reversed(blocks), self.panels, seeds)
        ]

    def rows(self, studies: Sequence[LearntStudy], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each decoder and number of examples, from few blocks to many."""
        pairs = sorted(
            zip(studies, outcomes, strict=True),
            key=lambda pair: (self.panels.index(pair[0].attention), pair[0].budget.n_blocks),
        )
        return [row for pair in pairs for row in _rows(*pair)]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Means over the seeds with their range, and whether depth helps beyond it."""
        blocks = sorted({int(number(row, "n_blocks")) for row in rows})
        names = ("attention", "examples", *(f"{n} blocks" for n in blocks), "4 to 8 blocks")
        found = (
            (str(attention), str(n), *(_text(of, b) for b in blocks), verdict(of))
            for (attention, n), of in groups(rows, "attention", "n_examples").items()
        )
        return Summary(names, tuple(found))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """Means over the seeds in bands of their range."""
        panels = groups(rows, "attention")
        lengths = sorted({int(number(row, "n_examples")) for row in rows})
        colours = dict(zip(lengths, COLOURS, strict=True))
        figure, axes = plotting.new_panels(len(panels), len(panels), 5.2, 4.2)
        for ax, ((attention,), of_panel) in zip(axes, panels.items(), strict=True):
            _draw(ax, of_panel, colours)
            message = f"{attention} attention\n{_in_title(of_panel)}"
            plotting.describe(ax, message, "blocks of the decoder", "R^2")
        r_squared_height(axes, rows, is_around_data=True)
        plotting.legend(figure, [(f"{n} examples", colour) for n, colour in colours.items()])
        return figure


def _rows(study: LearntStudy, outcome: Outcome) -> Iterator[Row]:
    for point in outcome.points:
        yield {
            "attention": study.attention,
            "n_blocks": study.budget.n_blocks,
            "n_layers": study.n_layers,
            **point.columns,
            "seed": study.seed,
            **study.budget.columns,
            "loss": outcome.loss,
            "seconds": round(outcome.seconds, 1),
        }


def _of_depth(rows: Sequence[Row], n_blocks: int) -> list[float]:
    return [number(row, "r_squared") for row in rows if row["n_blocks"] == n_blocks]


def _text(rows: Sequence[Row], n_blocks: int) -> str:
    values = _of_depth(rows, n_blocks)
    return f"{fmean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def verdict(rows: Sequence[Row]) -> str:
    """Whether every seed of 8 blocks is better than every seed of 4, or the other way round."""
    shallow, deep = _of_depth(rows, SHALLOW), _of_depth(rows, DEEP)
    if not shallow or not deep:
        return "not measured"
    if min(deep) > max(shallow):
        return "depth helps beyond the spread"
    return "worse beyond the spread" if max(deep) < min(shallow) else "no more than the spread"


def _in_title(rows: Sequence[Row]) -> str:
    """The verdict on all lengths, in few words."""
    verdicts = {verdict(of) for of in groups(rows, "n_examples").values()}
    found = verdicts.pop() if len(verdicts) == 1 else "depends on the length"
    return f"{SHALLOW} to {DEEP} blocks: {found}"


def _draw(ax: Axes, rows: Sequence[Row], colours: dict[int, str]) -> None:
    for (n_examples,), of_length in groups(rows, "n_examples").items():
        by_depth = groups(of_length, "n_blocks")
        left = [[1 - number(row, "r_squared") for row in of] for of in by_depth.values()]
        places = [number(of[0], "n_blocks") for of in by_depth.values()]
        plotting.band(ax, places, left, colours[int(n_examples or 0)], marker="o")
        ax.set_xticks(places)


DEPTH = DepthFigure(
    name="wu-fig5",
    place="Figure 5, App. G.3",
    shows="R^2 against 4, 6, 8, 10 blocks of the decoder; both kinds of attention",
    laptop_time="20 minutes",
    panels=("relu", "softmax"),
)
