r"""wu-score: a transformer learns the score of a diffusion in its context, and samples are drawn.

The prompt has pairs of (x_t, t) and what the score is there: exact (Problem 3 of App. H), or the
noise that was added (H.2). The forward pass of a compiled transformer trains a network of three
layers on them; the reverse equation then turns noise into samples with the learnt score. Beside it
stand direct training with the same steps, Adam, and the exact score. All paths have the same noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import final

from icgd.pictures.plotting import Figure
from icgd_papers.reproduction import (
    AbstractReproduction,
    Row,
    Summary,
    Value,
    groups,
    number,
    preset_of,
    six_digits,
)
from icgd_papers.studies import wu_score_picture
from icgd_papers.studies.wu_score_diffusion import TARGETS, Span
from icgd_papers.studies.wu_score_study import (
    ADAM,
    EXACT,
    IN_CONTEXT,
    NORMAL,
    SAMPLED,
    Budget,
    Outcome,
    Study,
)
from icgd_papers.studies.wu_score_training import Legs

SETTLED = 0.05
"""A loss has settled if a tenth of the training lowers it by a smaller share of the signal."""

DIMENSIONS = {
    "smoke": {"ring": 2, "pinwheel": 2, "digits": 3},
    "laptop": {"ring": 2, "pinwheel": 2, "digits": 8},
    "paper": {"ring": 2, "pinwheel": 2, "digits": 8},
}

SMOKE = Budget(
    n_seeds=1, n_examples=16, legs=Legs(2, 2), width=4, adam=Legs(2, 2), n_verified=1,
    n_measured=32, n_samples=24, n_shown=4, n_times=3, steps_between=3, batch_size=16,
)  # fmt: skip
PLANE = Budget(
    n_seeds=3, n_examples=512, legs=Legs(20, 500), width=32, adam=Legs(5, 500), n_verified=8,
    n_measured=4000, n_samples=3000, n_shown=180,
)  # fmt: skip
NOISY = replace(PLANE, n_examples=3072, legs=Legs(20, 125), n_verified=4, step_share=0.3)
IMAGES = replace(
    PLANE, n_examples=1536, legs=Legs(20, 280), n_verified=4, n_samples=800, n_shown=9,
    step_share=0.4, span=Span(0.05, 5.0),
)  # fmt: skip
NOISY_IMAGES = replace(IMAGES, n_examples=6144, legs=Legs(20, 50))
LONG = Budget(
    n_seeds=5, n_examples=16_384, legs=Legs(200, 250), width=64, adam=Legs(40, 1000), n_verified=8,
    n_measured=20_000, n_samples=20_000, n_shown=180, steps_between=100, batch_size=1024,
)  # fmt: skip
LONG_IMAGES = replace(LONG, n_samples=898, n_shown=9, step_share=0.4, span=Span(0.05, 5.0))


Budgets = Mapping[tuple[bool, str], Budget]
"""What is spent on images or points of the plane, and on each kind of labels."""


def _budgets(*budgets: Budget) -> Budgets:
    """The budgets of points with exact labels and with noisy ones, then of images."""
    return dict(zip(product((False, True), TARGETS), budgets, strict=True))


PRESETS: dict[str, Budgets] = {
    "smoke": _budgets(SMOKE, SMOKE, SMOKE, SMOKE),
    "laptop": _budgets(PLANE, NOISY, IMAGES, NOISY_IMAGES),
    "paper": _budgets(LONG, LONG, LONG_IMAGES, LONG_IMAGES),
}
"""The paper has no experiment; the preset `paper` is what more time can buy."""


@final
@dataclass(frozen=True)
class ScoreFigure(AbstractReproduction[Study, Outcome]):
    """Samples along the reverse process, errors of scores and distances of samples."""

    panels: tuple[str, ...]
    """The laws."""

    def studies(self, preset: str, seed: int) -> list[Study]:
        """Both kinds of labels for every law and seed."""
        budgets, dimensions = preset_of(PRESETS, preset), preset_of(DIMENSIONS, preset)
        return [
            Study(law, dimensions[law], targets, seed + index, budget)
            for law, targets in product(self.panels, TARGETS)
            for budget in [budgets[law == "digits", targets]]
            for index in range(budget.n_seeds)
        ]

    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each score at each time, and for each loss that was measured."""
        first = min(study.seed for study in studies)
        pairs = zip(studies, outcomes, strict=True)
        return [
            row
            for study, outcome in pairs
            for row in _rows(study, outcome, shows_points=study.seed == first)
        ]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """A line for each law and kind of labels: means over the seeds."""
        names = (
            "law", "labels", "steps", "settled after", "loss left",
            "score error at T_0: in context / Adam",
            "distance: in context / Adam / exact / floor", "off direct",
        )  # fmt: skip
        parts = groups(rows, "law", "targets").items()
        return Summary(names, tuple(_line(key, of_law) for key, of_law in parts))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """A block for each law."""
        return wu_score_picture.draw(rows)


EMPTY: Row = dict.fromkeys(
    ("method", "time", "score_error", "relative_error", "distance", "floor", "points", "step",
     "loss", "label_power")
)  # fmt: skip
"""The columns in which rows of times and rows of losses differ."""


def _rows(study: Study, outcome: Outcome, *, shows_points: bool) -> list[Row]:
    about = {**_settings(study), **_findings(outcome), **EMPTY}
    rows: list[Row] = []
    for name in (*SAMPLED, NORMAL):
        for place, time in enumerate(outcome.times):
            at_time = _at_time(outcome, name, place, shows_points)
            rows.append({**about, "method": name, "time": six_digits(time), **at_time})
    for name, curve in outcome.curves.items():
        for point in curve:
            at_step = {"step": int(point["step"]), "loss": six_digits(point["loss"])}
            power = {"label_power": six_digits(outcome.label_power)}
            rows.append({**about, "method": name, **at_step, **power})
    return rows


def _settings(study: Study) -> Row:
    budget = study.budget
    return {
        "law": study.law,
        "dimension": study.dimension,
        "targets": study.targets,
        "seed": study.seed,
        "n_examples": budget.n_examples,
        "width": budget.width,
        "n_steps": budget.legs.total,
        "step_share": budget.step_share,
        "adam_steps": budget.adam.total,
        "n_samples": budget.n_samples,
        "first_time": budget.span.first,
        "last_time": budget.span.last,
        "reverse_steps": budget.steps_between * (budget.n_times - 1),
    }


def _findings(outcome: Outcome) -> Row:
    return {
        "step_size": six_digits(outcome.step_size),
        "settled_after": settled_after(outcome.curves[IN_CONTEXT], outcome.signal),
        "signal": six_digits(outcome.signal),
        "weight_difference": six_digits(outcome.weight_difference),
        "sample_difference": six_digits(outcome.sample_difference),
        "step_error": six_digits(outcome.step_error),
        "step_bound": six_digits(outcome.step_bound),
        "proved": six_digits(outcome.proved),
        "seconds": round(outcome.seconds, 1),
    }


def _at_time(outcome: Outcome, name: str, place: int, shows_points: bool) -> Row:
    """What is known of a score at a time: no error of the exact one, no samples of N(0, I)."""
    found: Row = {}
    if name in outcome.score_errors:
        error, size = outcome.score_errors[name][place], outcome.score_sizes[place]
        found |= {"score_error": six_digits(error), "relative_error": six_digits(error / size)}
    if name in outcome.distances:
        found |= {
            "distance": six_digits(outcome.distances[name][place]),
            "floor": six_digits(outcome.floors[place]),
            "points": outcome.points[name][place] if shows_points and name != ADAM else None,
        }
    return found


def settled_after(curve: Sequence[Mapping[str, float]], signal: float) -> int | None:
    """The first step after which a tenth of the training hardly lowers the loss; None if none."""
    window = max(1, (len(curve) - 1) // 10)
    for now, later in zip(curve, curve[window:], strict=False):
        if now["loss"] - later["loss"] < SETTLED * signal:
            return int(now["step"])
    return None


def _line(key: tuple[Value, ...], rows: Sequence[Row]) -> tuple[str, ...]:
    """The cells of a law with one kind of labels."""
    steps = [row for row in rows if row["step"] is not None and row["method"] == IN_CONTEXT]
    ends = [row for row in steps if row["step"] == row["n_steps"]]
    left = fmean(number(row, "loss") / number(row, "label_power") for row in ends)
    last = min(number(row, "time") for row in rows if row["time"] is not None)
    settled = [row["settled_after"] for row in ends]
    errors = [_mean(rows, name, last, "relative_error") for name in (IN_CONTEXT, ADAM)]
    distances = [_mean(rows, name, last, "distance") for name in (IN_CONTEXT, ADAM, EXACT)]
    floor = _mean(rows, EXACT, last, "floor")
    return (
        *map(str, key),
        str(ends[0]["n_steps"]),
        ", ".join("-" if each is None else str(each) for each in settled),
        f"{left:.3f}",
        " / ".join(f"{error:.3f}" for error in errors),
        " / ".join(f"{distance:.3f}" for distance in (*distances, floor)),
        f"{max(number(row, 'weight_difference') for row in ends):.0e}",
    )


def _at(rows: Sequence[Row], time: float) -> dict[str, list[Row]]:
    """The rows of each score at a time."""
    at_time = [row for row in rows if row["time"] == time]
    return {str(name): of for (name,), of in groups(at_time, "method").items()}


def _mean(rows: Sequence[Row], name: str, time: float, column: str) -> float:
    return fmean(number(row, column) for row in _at(rows, time)[name])


SCORE = ScoreFigure(
    name="wu-score",
    place="App. H",
    shows="a diffusion's score learnt in context: errors, distances and samples",
    laptop_time="10 minutes",
    panels=("ring", "pinwheel", "digits"),
)
