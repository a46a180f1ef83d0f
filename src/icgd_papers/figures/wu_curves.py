r"""wu-fig1 to wu-fig4: R^2 against the number of examples, as App. G of wu shows it.

Decoders learn prompts with inputs N(-2, I) and teachers N(0, I). They are tested on mixtures with
N(2, I) (Figures 1 and 2) and on teachers with other weights (Figures 3 and 4), beside everything
else that can be done with a prompt: `wu_baselines.py`. All lines of a panel see the same prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from string import ascii_lowercase
from typing import final

from icgd.pictures.plotting import Figure
from icgd_papers.figures import wu_curves_picture
from icgd_papers.figures.wu_baselines import BaselineStudy
from icgd_papers.figures.wu_curves_picture import law_of
from icgd_papers.figures.wu_learnt import LearntStudy
from icgd_papers.figures.wu_lines import LEARNT, Outcome
from icgd_papers.figures.wu_setting import Baselines, Budget, Law
from icgd_papers.reproduction import (
    AbstractReproduction,
    Row,
    Summary,
    groups,
    number,
    preset_of,
)

CurveStudy = LearntStudy | BaselineStudy

BUDGETS = {
    "smoke": Budget(
        input_width=2,
        hidden_width=4,
        n_examples=4,
        n_blocks=1,
        width=8,
        n_heads=2,
        mlp_width=8,
        n_steps=2,
        batch_size=4,
        learning_rate=0.002,
        lengths=(2, 4, 6),
        n_test=8,
        n_seeds=1,
        baselines=Baselines(4, 3, (0.01,), (1, 2), (0.05,), (1.0,), 4),
    ),
    "laptop": Budget(
        input_width=5,
        hidden_width=20,
        n_examples=20,
        n_blocks=4,
        width=64,
        n_heads=4,
        mlp_width=128,
        n_steps=1200,
        batch_size=64,
        learning_rate=0.002,
        lengths=(2, 5, 10, 20, 30),
        n_test=96,
        n_seeds=3,
        baselines=Baselines(64),
        warmup_steps=50,
    ),
    "paper": Budget(
        input_width=20,
        hidden_width=200,
        n_examples=50,
        n_blocks=12,
        width=256,
        n_heads=8,
        mlp_width=256,
        n_steps=500_000,
        batch_size=64,
        learning_rate=1e-4,
        lengths=(1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75),
        n_test=6400,
        n_seeds=3,
        baselines=Baselines(200, n_choice=64),
        tokens="interleaved",
        warmup_steps=5000,
    ),
}

SLOW = {"relu"}
"""ReLU attention learns later than softmax attention (docs/training/decoder.md)."""


def decoder_budget(attention: str, preset: str) -> Budget:
    """The sizes of a preset; on a laptop slow attention has more steps, and a larger rate."""
    budget = preset_of(BUDGETS, preset)
    if preset != "laptop" or attention not in SLOW:
        return budget
    return replace(budget, n_steps=2000, learning_rate=0.003, warmup_steps=100)


MIXTURES = tuple(Law(mixture) for mixture in ((1.0, 0.0), (0.9, 0.1), (0.7, 0.3), (0.5, 0.5)))
SHIFTED_TEACHERS = tuple(Law(mean=mean) for mean in (0.0, -0.5, 0.5))


@dataclass(frozen=True)
class Panel:
    """One depth of the teachers, and one law of the test."""

    letter: str
    n_layers: int
    law: Law

    @property
    def columns(self) -> Row:
        return {"panel": self.letter, "n_layers": self.n_layers}


def panels_of(depths: Sequence[int], laws: Sequence[Law]) -> tuple[Panel, ...]:
    """A panel for each depth and law, depth by depth."""
    pairs = zip(ascii_lowercase, product(depths, laws), strict=False)
    return tuple(Panel(letter, *pair) for letter, pair in pairs)


@final
@dataclass(frozen=True)
class CurvesFigure(AbstractReproduction[CurveStudy, Outcome]):
    """A row of panels for each depth of the teachers, a column for each law of the test."""

    attention: str
    laws: tuple[Law, ...]
    """Every decoder is tested on all of them, also if only some panels are asked for."""
    panels: tuple[Panel, ...]

    def studies(self, preset: str, seed: int) -> list[CurveStudy]:
        """A decoder for each depth and seed, and the other lines for each panel and seed."""
        budget, of_decoder = preset_of(BUDGETS, preset), decoder_budget(self.attention, preset)
        seeds, depths = range(seed, seed + budget.n_seeds), {p.n_layers: None for p in self.panels}
        learnt = [
            LearntStudy(depth, self.attention, self.laws, each, of_decoder)
            for depth, each in product(reversed(depths), seeds)
        ]
        rest = [
            BaselineStudy(panel.n_layers, panel.law, each, budget)
            for panel, each in product(self.panels, seeds)
        ]
        return [*learnt, *rest]

    def rows(self, studies: Sequence[CurveStudy], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each panel, line, number of examples and seed."""
        pairs = list(zip(studies, outcomes, strict=True))
        return [row for panel in self.panels for pair in pairs for row in self._rows(panel, *pair)]

    def _rows(self, panel: Panel, study: CurveStudy, outcome: Outcome) -> Iterator[Row]:
        """The rows of a study in a panel."""
        if study.n_layers != panel.n_layers:
            return
        for point in outcome.points:
            if (point.inputs, point.teacher_weights) == (panel.law.inputs, panel.law.teachers):
                yield {
                    **panel.columns,
                    **point.columns,
                    "attention": self.attention if point.line == LEARNT else None,
                    "seed": study.seed,
                    **study.budget.columns,
                    "seconds": round(outcome.seconds, 1),
                }

    def summary(self, rows: Sequence[Row]) -> Summary:
        """R^2 at the length of pretraining, and of the decoder at the longest; means over seeds."""
        longest = max(number(row, "n_examples") for row in rows)
        at = number(rows[0], "pretraining_length")
        lines = list(dict.fromkeys(str(row["line"]) for row in rows))
        names = ("layers", "test law", *lines, "range of learnt", f"learnt, {longest:.0f} examples")
        found = (
            (
                *(str(of_panel[0]["n_layers"]), law_of(of_panel[0])),
                *(f"{fmean(values_of(of_panel, line, at)):.3f}" for line in lines),
                "{:.3f} to {:.3f}".format(*ends_of(values_of(of_panel, LEARNT, at))),
                f"{fmean(values_of(of_panel, LEARNT, longest)):.3f}",
            )
            for of_panel in groups(rows, "panel").values()
        )
        return Summary(names, tuple(found))

    def picture(self, rows: Sequence[Row]) -> Figure:
        return wu_curves_picture.draw(rows)


def values_of(rows: Sequence[Row], line: str, n_examples: float) -> list[float]:
    """The R^2 of a line after so many examples, for every seed."""
    return [
        number(row, "r_squared")
        for row in rows
        if row["line"] == line and number(row, "n_examples") == n_examples
    ]


def ends_of(values: Sequence[float]) -> tuple[float, float]:
    """The least and the largest of the seeds."""
    return min(values), max(values)


def _of_mixtures(number_in_paper: int, attention: str) -> CurvesFigure:
    words = {"relu": "ReLU", "softmax": "softmax"}[attention]
    return CurvesFigure(
        name=f"wu-fig{number_in_paper}",
        place=f"Figure {number_in_paper}, App. G.1.{number_in_paper}",
        shows=f"R^2 against examples; {words} attention, teachers of 3, 4, 6 layers, four mixtures",
        laptop_time="20 minutes",
        attention=attention,
        laws=MIXTURES,
        panels=panels_of((3, 4, 6), MIXTURES),
    )


def _of_teachers(number_in_paper: int, attention: str) -> CurvesFigure:
    words = {"relu": "ReLU", "softmax": "softmax"}[attention]
    return CurvesFigure(
        name=f"wu-fig{number_in_paper}",
        place=f"Figure {number_in_paper}, App. G.2",
        shows=f"R^2 against examples; {words} attention, teachers N(0, I), N(-0.5, I), N(0.5, I)",
        laptop_time="7 minutes",
        attention=attention,
        laws=SHIFTED_TEACHERS,
        panels=panels_of((4,), SHIFTED_TEACHERS),
    )


FIGURE_1, FIGURE_2 = _of_mixtures(1, "relu"), _of_mixtures(2, "softmax")
FIGURE_3, FIGURE_4 = _of_teachers(3, "relu"), _of_teachers(4, "softmax")
