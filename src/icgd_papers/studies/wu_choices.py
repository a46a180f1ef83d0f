r"""wu-choices: what App. G of wu does not say, chosen otherwise, one thing at a time.

Teachers of 3 layers, a decoder with softmax attention, asked after as many examples as in
pretraining, on the law of pretraining and on the mixture (0.5, 0.5). Every number has both forms of
R^2: over the queries of all prompts, and within prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any, final

from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, INK, RED, Axes, Figure
from icgd_papers.figures.wu_baselines import BaselineStudy
from icgd_papers.figures.wu_curves import BUDGETS as CURVE_BUDGETS
from icgd_papers.figures.wu_curves import CurveStudy
from icgd_papers.figures.wu_learnt import LearntStudy
from icgd_papers.figures.wu_lines import DIRECT, LEARNT, MEAN, RIDGE, Outcome
from icgd_papers.figures.wu_setting import PRETRAINING, Budget, Law
from icgd_papers.reproduction import (
    AbstractReproduction,
    Row,
    Summary,
    groups,
    number,
    preset_of,
)

N_LAYERS = 3
LAWS = (PRETRAINING, Law((0.5, 0.5)))
SHOWN = {LEARNT: RED, DIRECT: BLUE, MEAN: FAINT, RIDGE: INK}

LEAST = -1.0
"""The R^2 at which worse ones stand too, so that they do not stretch the axis."""

AS_CHOSEN = "as chosen"
CHOICES: dict[str, dict[str, Any]] = {
    AS_CHOSEN: {},
    "teachers a quarter as wide": {"hidden_width": 0.25},
    "teachers four times as wide": {"hidden_width": 4},
    "half the learning rate": {"learning_rate": 0.5},
    "twice the learning rate": {"learning_rate": 2},
    "twice the steps": {"n_steps": 2},
    "interleaved tokens": {"tokens": "interleaved"},
}
"""What is changed: a setting by a factor, or to a name."""


def changed(budget: Budget, choice: str) -> Budget:
    """The budget with one thing chosen otherwise."""
    changes: dict[str, Any] = {}
    for name, value in CHOICES[choice].items():
        now = getattr(budget, name)
        changes[name] = value if isinstance(value, str) else type(now)(now * value)
    return replace(budget, **changes)


def _of_one_length(budget: Budget) -> Budget:
    plan = replace(budget.baselines, step_counts=budget.baselines.step_counts[:1])
    return replace(budget, lengths=(budget.n_examples,), baselines=plan)


BUDGETS = {
    "smoke": _of_one_length(CURVE_BUDGETS["smoke"]),
    "laptop": replace(_of_one_length(CURVE_BUDGETS["laptop"]), n_steps=500, n_test=256),
    "paper": _of_one_length(CURVE_BUDGETS["paper"]),
}


@final
@dataclass(frozen=True)
class ChoicesFigure(AbstractReproduction[CurveStudy, Outcome]):
    """A panel for each law and form of R^2, a group of points for each choice."""

    attention: str

    def studies(self, preset: str, seed: int) -> list[CurveStudy]:
        """A decoder, and the lines beside it, for each choice and seed; same studies once."""
        budget = preset_of(BUDGETS, preset)
        pairs = product(CHOICES, range(seed, seed + budget.n_seeds))
        each = (study for pair in pairs for study in self._of_choice(budget, *pair))
        return list(dict.fromkeys(each))

    def _of_choice(self, budget: Budget, choice: str, seed: int) -> Iterator[CurveStudy]:
        own = changed(budget, choice)
        yield LearntStudy(N_LAYERS, self.attention, LAWS, seed, own)
        for law in LAWS:
            yield BaselineStudy(N_LAYERS, law, seed, own)

    def rows(self, studies: Sequence[CurveStudy], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each choice, law, line and seed."""
        named = zip(self._choices(studies), studies, outcomes, strict=True)
        return [
            {
                "choice": choice,
                "n_layers": N_LAYERS,
                **point.columns,
                "attention": self.attention if point.line == LEARNT else None,
                "seed": study.seed,
                **study.budget.columns,
                "seconds": round(outcome.seconds, 1),
            }
            for choice, study, outcome in named
            for point in outcome.points
            if point.line in SHOWN
        ]

    def _choices(self, studies: Sequence[CurveStudy]) -> Iterator[str]:
        """The choice that each study belongs to."""
        base = studies[0].budget
        by_budget = {changed(base, choice): choice for choice in reversed(CHOICES)}
        return (by_budget[study.budget] for study in studies)

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Means over the seeds, with the range of the decoder."""
        forms = {"r_squared": "R^2", "r_squared_within": "within prompts"}
        names = [f"{line}, {form}" for form, line in product(forms.values(), SHOWN)]
        found = (
            (
                str(choice),
                str(law),
                *(_mean(of, line, form) for form, line in product(forms, SHOWN)),
            )
            for (choice, law), of in groups(rows, "choice", "inputs").items()
        )
        return Summary(("choice", "mixture", *names), tuple(found))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """Points of all seeds."""
        laws = groups(rows, "inputs")
        figure, axes = plotting.new_panels(2 * len(laws), 2, 6.4, 4.2)
        cases = product(laws.items(), ("r_squared", "r_squared_within"))
        for ax, (((law,), of), form) in zip(axes, cases, strict=True):
            _draw(ax, of, form)
            words = "over all prompts" if form == "r_squared" else "within prompts"
            plotting.describe(ax, f"mixture {law}, R^2 {words}", _width(of, form), "")
        plotting.legend(figure, list(SHOWN.items()))
        return figure


def _mean(rows: Sequence[Row], line: str, form: str) -> str:
    values = [number(row, form) for row in rows if row["line"] == line]
    spread = f" ({min(values):.3f} to {max(values):.3f})" if line == LEARNT else ""
    return f"{fmean(values):.3f}{spread}"


def _width(rows: Sequence[Row], form: str) -> str:
    """What the axis shows, and that some points would be further to the left."""
    is_cut = any(number(row, form) < LEAST for row in rows if row["line"] in SHOWN)
    return f"R^2; what is below {LEAST:g} stands at {LEAST:g}" if is_cut else "R^2"


def _draw(ax: Axes, rows: Sequence[Row], form: str) -> None:
    choices = list(dict.fromkeys(str(row["choice"]) for row in rows))
    for shift, (line, colour) in enumerate(SHOWN.items()):
        of_line = [row for row in rows if row["line"] == line]
        heights = [-choices.index(str(row["choice"])) - 0.15 * shift for row in of_line]
        values = [max(number(row, form), LEAST) for row in of_line]
        ax.plot(values, heights, "o", color=colour, ms=5, alpha=0.7)
    ax.set_yticks([-place - 0.2 for place in range(len(choices))], choices)
    ax.set_xlim(right=1.0)


CHOICES_FIGURE = ChoicesFigure(
    name="wu-choices",
    place="App. G, what it does not say",
    shows="R^2 with other teachers' widths, learning rates, steps and tokens; both forms of R^2",
    laptop_time="15 minutes",
    attention="softmax",
)
