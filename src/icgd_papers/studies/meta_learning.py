r"""meta-learning: what gradients through a compiled run are good for, and what they do to it.

A transformer runs five steps of descent on a relu network, exactly. First its step sizes learn on a
family of tasks, then also the weights from which all tasks start, and last all its weights
(`meta_training.py`). Every line is the loss on new tasks after each step. Beside it stands how far
the transformer is from descent: its weights and predictions after every step against those of exact
descent with the step sizes and the start that it began with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from icgd.learnable import AbstractRun, LearnableRun, unrolled_descent
from icgd.pictures.plotting import Figure
from icgd_papers.reproduction import (
    AbstractReproduction,
    AbstractStudy,
    Conduct,
    Row,
    Summary,
    groups,
    number,
    preset_of,
    six_digits,
)
from icgd_papers.stopwatch import Stopwatch
from icgd_papers.studies import meta_learning_picture
from icgd_papers.studies.meta_training import (
    CANDIDATES,
    HAND_CHOSEN,
    N_EXAMPLES,
    N_QUERIES,
    N_STEPS,
    TEST_INDEX,
    TUNING_INDEX,
    Budget,
    Descent,
    NearTask,
    Stages,
    batch_of,
    best_step_size,
    compiled_run,
    in_units,
)
from icgd_papers.training.query_task import Parts

HAND, BEST, SIZES, START, LONGER, ALL = meta_learning_picture.LINES
NEAREST = meta_learning_picture.NEAREST

BUDGETS = {
    "smoke": Budget(1, 3, 2, 4, 1, 2, 2, 1, 1),
    "laptop": Budget(3, 8, 16, 1000, 250, 300, 3000, 350, 400),
    "paper": Budget(5, 16, 64, 4000, 500, 2000, 40000, 5000, 2000),
}
"""No paper has this figure; the longest preset is called after the others."""


@dataclass(frozen=True)
class Line:
    """A run on new tasks: after 0 .. 5 steps its loss, and its distances from descent."""

    losses: tuple[float, ...]
    weight_distances: tuple[float, ...]
    """Of each task the root mean square of the differences of all weights; of these the median."""
    prediction_distances: tuple[float, ...]
    """The same of the predictions at the queries."""
    mean_distances: tuple[float, ...]
    """The root mean square of these over the tasks; where a unit lies on a ramp they are large."""
    step_sizes: tuple[float, ...]
    """Those of the descent that it is compared with."""


def _distances(one: Tensor, other: Tensor) -> Float[Tensor, "task step"]:
    """Root mean squares of the differences, for each task and step."""
    return (one - other).flatten(2).square().mean(-1).sqrt()


@dataclass(frozen=True)
class Outcome:
    """All lines of one seed by name."""

    lines: dict[str, Line]
    seconds: float


@final
@dataclass(frozen=True)
class Study(AbstractStudy[Outcome]):
    """All stages of one seed."""

    seed: int
    budget: Budget

    @property
    def n_steps(self) -> int:
        return self.budget.n_steps

    def train(self, folder: Path | None = None) -> Outcome:
        return self._found(Conduct(), folder)

    def train_with(self, conduct: Conduct, folder: Path) -> Outcome:
        return self._found(conduct, folder)

    def _found(self, conduct: Conduct, folder: Path | None) -> Outcome:
        stopwatch = Stopwatch(folder)
        stages = Stages(self.seed, self.budget, conduct, folder)
        lines = _lines(stages, batch_of(TEST_INDEX, self.budget.n_test, self.seed))
        return Outcome(lines, stopwatch.seconds)

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        lines = {
            name: Line(**{key: tuple(numbers) for key, numbers in line.items()})
            for name, line in data["lines"].items()
        }
        return Outcome(lines, data["seconds"])


def _lines(stages: Stages, test: Parts) -> dict[str, Line]:
    """Learn stage by stage, and measure each on the tasks of the test."""
    budget, seed = stages.budget, stages.seed
    compiled = compiled_run(budget.width)
    hand = LearnableRun(compiled, step_sizes=HAND_CHOSEN, seed=seed)
    best = best_step_size(hand, batch_of(TUNING_INDEX, budget.n_test, seed), CANDIDATES)
    single = LearnableRun(compiled, step_sizes=best, seed=seed)
    sizes = LearnableRun(compiled, step_sizes=[best] * N_STEPS, seed=seed)
    sizes.initial.requires_grad = False
    stages.learn("step-sizes", sizes, budget.step_size_steps, budget.step_size_rate)
    start = LearnableRun(compiled, step_sizes=[best] * N_STEPS, seed=seed)
    stages.learn("start", start, budget.start_steps, budget.start_rate)
    longer = Descent(start)
    stages.learn("longer", longer, budget.longer_steps, budget.start_rate)
    ready = longer.in_transformer(compiled)
    tuned, nearest = in_units(ready.untied()), Descent(ready)
    stages.learn("all", tuned, budget.all_steps, budget.all_rate)
    near = NearTask(tuned)
    stages.learn("nearest", nearest, budget.nearest_steps, budget.nearest_rate, near)
    tied = {HAND: hand, BEST: single, SIZES: sizes, START: start, LONGER: ready}
    return {
        **{name: _line(run, test, run) for name, run in tied.items()},
        ALL: _line(ready, test, tuned),
        NEAREST: _line(nearest, test, tuned, judges_descent=True),
    }


@torch.no_grad()
def _line(
    descent: LearnableRun | Descent,
    test: Parts,
    run: AbstractRun,
    *,
    judges_descent: bool = False,
) -> Line:
    """The distances of `run` from a descent, and the losses of the run, or of the descent."""
    x, y, queries, labels = test
    sizes = descent.step_sizes.expand(N_STEPS)
    exact = unrolled_descent(descent.problem, x, y, queries, descent.initial, sizes)
    found = run.steps(x, y, queries)
    predictions = (exact if judges_descent else found).predictions
    losses = (predictions - labels[:, None]).square().mean((0, 2, 3))
    of_weights = _distances(found.parameters, exact.parameters)
    of_predictions = _distances(found.predictions, exact.predictions)
    medians = of_weights.median(0).values, of_predictions.median(0).values
    means = of_predictions.square().mean(0).sqrt()
    return Line(*(tuple(part.tolist()) for part in (losses, *medians, means, sizes)))


@final
@dataclass(frozen=True)
class MetaLearning(AbstractReproduction[Study, Outcome]):
    """Losses on new tasks after each step, and distances from descent."""

    def studies(self, preset: str, seed: int) -> list[Study]:
        budget = preset_of(BUDGETS, preset)
        return [Study(each, budget) for each in range(seed, seed + budget.n_seeds)]

    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each seed, line and step."""
        return [
            _row(study, outcome, name, step)
            for study, outcome in zip(studies, outcomes, strict=True)
            for name in outcome.lines
            for step in range(N_STEPS + 1)
        ]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Means over the seeds; after the last step also the spread, and distances from descent."""
        names = ("what learns", "loss after 0", "1", "3", "5 steps", "smallest to largest")
        distances = ("weights from descent", "predictions from descent", "in the mean")
        found = (_cells(str(name), of_line) for (name,), of_line in groups(rows, "line").items())
        return Summary((*names, *distances), tuple(found))

    def picture(self, rows: Sequence[Row]) -> Figure:
        return meta_learning_picture.draw(rows)


def _row(study: Study, outcome: Outcome, name: str, step: int) -> Row:
    line, budget = outcome.lines[name], study.budget
    steps, rate = _learning(budget)[name]
    return {
        "line": name,
        "seed": study.seed,
        "step": step,
        "loss": six_digits(line.losses[step]),
        "weight_distance": six_digits(line.weight_distances[step]),
        "prediction_distance": six_digits(line.prediction_distances[step]),
        "mean_distance": six_digits(line.mean_distances[step]),
        "step_size": six_digits(line.step_sizes[step - 1]) if step else None,
        "learning_steps": steps,
        "learning_rate": rate,
        "width": budget.width,
        "n_examples": N_EXAMPLES,
        "n_queries": N_QUERIES,
        "n_test": budget.n_test,
        "batch_size": budget.batch_size,
        "seconds": round(outcome.seconds, 1),
    }


def _learning(budget: Budget) -> dict[str, tuple[int, float | None]]:
    """The steps that each line has learnt, and the rate of the last stage."""
    longer = budget.start_steps + budget.longer_steps
    return {
        HAND: (0, None),
        BEST: (0, None),
        SIZES: (budget.step_size_steps, budget.step_size_rate),
        START: (budget.start_steps, budget.start_rate),
        LONGER: (longer, budget.start_rate),
        ALL: (longer + budget.all_steps, budget.all_rate),
        NEAREST: (longer + budget.nearest_steps, budget.nearest_rate),
    }


def _cells(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    at = {step: of_step for (step,), of_step in groups(rows, "step").items()}
    losses = [f"{fmean(number(row, 'loss') for row in at[step]):.4f}" for step in (0, 1, 3, 5)]
    last = [number(row, "loss") for row in at[N_STEPS]]
    distances = [
        f"{fmean(number(row, column) for row in at[N_STEPS]):.1e}"
        for column in ("weight_distance", "prediction_distance", "mean_distance")
    ]
    return (name, *losses, f"{min(last):.4f} to {max(last):.4f}", *distances)


META_LEARNING = MetaLearning(
    name="meta-learning",
    place="no paper; after Finn et al. and von Oswald et al.",
    shows="losses on new tasks with learnt step sizes, start, and all weights of the transformer",
    laptop_time="13 minutes",
)
