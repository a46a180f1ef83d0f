r"""wang-in-context: transformers of equal size train 2 and 3 layers on a ball, in their context.

A transformer is compiled for a network of 3 layers, and one for the network of 2 layers whose
transformer has about as many weights: both are `recursion`, and take as many steps. Each sees
examples of the indicator of the unit ball, trains its network on them by gradient descent in one
forward pass, and predicts fresh points. Each has its own step size, chosen on tasks of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import log, sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from time import perf_counter
from typing import Any, final

import torch

from icgd.compiled import Compiled
from icgd.constructions.recursion import Recursion
from icgd.pictures.plotting import Figure
from icgd.pipeline import compile
from icgd.problems.data import Domain, Task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.problem import Problem
from icgd.shapes import Labels
from icgd.weights.sizes import Summary as Size
from icgd_papers.reproduction import (
    AbstractReproduction,
    AbstractStudy,
    Row,
    Summary,
    groups,
    number,
    preset_of,
    six_digits,
)
from icgd_papers.studies import wang_in_context_picture
from icgd_papers.studies.ball import LARGEST_RADIUS, ball_sample
from icgd_papers.studies.wang_training import ACTIVATION
from icgd_papers.studies.wang_widths import DEEP, DEPTHS, SHALLOW

BOX = 4.0
"""Weights are projected onto this box; the first ones are normal with variance 1 / fan-in."""

FIRST_CHOICE, FIRST_TEST = 0, 10_000
"""The numbers of the first tasks on which step sizes are chosen, and errors are measured."""


@dataclass(frozen=True)
class Budget:
    """How long a transformer trains, on how many examples, and on how many tasks it is tried."""

    n_steps: int
    n_examples: int
    n_queries: int
    n_choice: int
    n_test: int
    step_sizes: tuple[float, ...]


@dataclass(frozen=True)
class Sizes:
    """The dimensions of the ball, and the widths of the networks of 3 layers."""

    dimensions: tuple[int, ...]
    deep_widths: tuple[int, ...]
    budget: Budget


PRESETS = {
    "smoke": Sizes((2,), (2,), Budget(5, 16, 32, 2, 2, (0.25, 0.5))),
    "laptop": Sizes((2, 4), (2, 4, 8), Budget(1000, 256, 512, 6, 16, (0.125, 0.25, 0.5, 1.0, 2.0))),
    "paper": Sizes(
        (2, 4, 8),
        (2, 4, 6, 8, 12, 16),
        Budget(10_000, 1024, 4096, 16, 100, (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)),
    ),
}
"""The paper has no experiment; the preset `paper` is what more time can buy."""


@dataclass(frozen=True)
class Outcome:
    """What a transformer is, which step size it took, and the errors of its predictions."""

    width: int
    weights: int
    heads: int
    layers: int
    choice_errors: tuple[float, ...]
    """The mean error on tasks of choice, for each step size."""
    step_size: float
    errors: tuple[float, ...]
    """The error on the queries of each test task."""
    example_errors: tuple[float, ...]
    """The error on the examples of each test task, after training."""
    off_descent: float
    """The largest distance of a weight from what an exact step makes of the weights before it."""
    seconds: float


@final
@dataclass(frozen=True)
class Study(AbstractStudy[Outcome]):
    """The transformer of one depth, of the size that 3 layers of `deep_width` give."""

    dimension: int
    deep_width: int
    depth: int
    seed: int
    budget: Budget

    def train(self, folder: Path | None = None) -> Outcome:
        """Choose the step size, then measure with it."""
        del folder  # it takes a minute, and begins again if interrupted
        began, size = perf_counter(), self._size()
        choice = [fmean(self._tried(each)) for each in self.budget.step_sizes]
        step_size = self.budget.step_sizes[choice.index(min(choice))]
        compiled = self._compiled(step_size)
        task, wanted = self._tasks(compiled, FIRST_TEST, self.budget.n_test)
        run = compiled.run_task(task)
        oracle, path = compiled.problem.oracle, run.parameters
        risks = oracle.risk(task, path[..., -1, :])  # (1 / 2n) sum of squares
        return Outcome(
            width=self.width,
            weights=size.parameters,
            heads=sum(layer.n_heads for layer in size.layers_of_a_step),
            layers=size.layers_per_step,
            choice_errors=tuple(choice),
            step_size=step_size,
            errors=_errors(run.predictions, wanted),
            example_errors=tuple((2 * risks).tolist()),
            off_descent=float((path[..., 1:, :] - oracle.stepped(task, path)).abs().max()),
            seconds=perf_counter() - began,
        )

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
        return Outcome(**{**data, **lists})

    @property
    def width(self) -> int:
        """The width of this network: that of 3 layers, or the one that makes sizes equal."""
        if self.depth == DEEP:
            return self.deep_width
        return equal_width(self.dimension, self.deep_width)

    def _size(self) -> Size:
        return size_of(self.dimension, self.depth, self.width)

    def _compiled(self, step_size: float) -> Compiled:
        problem = ball_problem(self.dimension, self.depth, self.width, step_size)
        return compile(problem, Recursion(), n_steps=self.budget.n_steps)

    def _tried(self, step_size: float) -> tuple[float, ...]:
        """The errors with a step size, on the tasks of choice."""
        compiled = self._compiled(step_size)
        task, wanted = self._tasks(compiled, FIRST_CHOICE, self.budget.n_choice)
        return _errors(compiled.run_task(task).predictions, wanted)

    def _tasks(self, compiled: Compiled, first: int, n_tasks: int) -> tuple[Task, Labels]:
        """Tasks of fresh points, each with first weights of its own, and the queries' labels."""
        budget, n = self.budget, self.budget.n_examples + self.budget.n_queries
        numbers = range(first, first + n_tasks)
        drawn = [ball_sample(self.dimension, n, seed=self.seed, index=i) for i in numbers]
        x, y = (torch.stack([getattr(each, name) for each in drawn]) for name in "xy")
        seen, asked = slice(budget.n_examples), slice(budget.n_examples, None)
        starts = [compiled.problem.network.initial_parameters(i, BOX) for i in numbers]
        first_weights = torch.stack(starts)
        task = compiled.task(
            x[:, seen], y[:, seen, None], queries=x[:, asked], initial=first_weights
        )
        return task, y[:, asked, None]


def ball_problem(dimension: int, depth: int, width: int, step_size: float = 1.0) -> Problem:
    """A network on points around the ball, as constructions take it."""
    target = MLP((dimension + 1, *[width] * (depth - 1), 1), ACTIVATION)
    return Problem(target, "squared", GradientStep(step_size, BOX), Domain(LARGEST_RADIUS, 1.0))


@lru_cache(maxsize=1024)
def size_of(dimension: int, depth: int, width: int) -> Size:
    """The size of the transformer that trains this network."""
    problem = ball_problem(dimension, depth, width)
    return compile(problem, Recursion(), n_steps=1).summary()


def equal_width(dimension: int, deep_width: int) -> int:
    """The width of 2 layers whose transformer is nearest in weights to that of 3 layers."""
    wanted = size_of(dimension, DEEP, deep_width).parameters
    low, high = 1, 2
    while size_of(dimension, SHALLOW, high).parameters <= wanted:  # sizes grow with the width
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        is_small = size_of(dimension, SHALLOW, middle).parameters <= wanted
        low, high = (middle, high) if is_small else (low, middle)
    ratios = [log(size_of(dimension, SHALLOW, each).parameters / wanted) for each in (low, high)]
    return low if abs(ratios[0]) <= abs(ratios[1]) else high


def _errors(predictions: Labels, wanted: Labels) -> tuple[float, ...]:
    """The mean squared error of each task."""
    return tuple((predictions - wanted).square().mean((-2, -1)).tolist())


FORMATS = {
    "width": ",.0f",
    "heads": ",.0f",
    "step_size": "g",
    "error": ".4f",
    "median_error": ".4f",
}
"""How the summary writes each column."""


@final
class InContextFigure(AbstractReproduction[Study, Outcome]):
    """The errors of two depths against the size of the transformer that trains them."""

    def studies(self, preset: str, seed: int) -> list[Study]:
        """Both depths at every size in every dimension."""
        sizes = preset_of(PRESETS, preset)
        cases = product(sizes.dimensions, sizes.deep_widths, DEPTHS)
        return [Study(*case, seed, sizes.budget) for case in cases]

    def rows(self, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each step size that was tried; that of the one chosen has the test."""
        pairs = zip(studies, outcomes, strict=True)
        return [row for study, outcome in pairs for row in _rows(study, outcome)]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Widths, sizes and errors of 2 / 3 layers side by side."""
        names = ("d", "width", "million weights", "heads", "step size", "error", "median")
        chosen = [row for row in rows if row["is_chosen"]]
        pairs = groups(chosen, "dimension", "deep_width").values()
        return Summary(names, tuple(_compared(pair) for pair in pairs))

    def picture(self, rows: Sequence[Row]) -> Figure:
        """A panel for each dimension."""
        return wang_in_context_picture.draw([row for row in rows if row["is_chosen"]])


def _rows(study: Study, outcome: Outcome) -> list[Row]:
    about: Row = {
        "dimension": study.dimension,
        "deep_width": study.deep_width,
        "depth": study.depth,
        "width": outcome.width,
        "weights": outcome.weights,
        "heads": outcome.heads,
        "layers": outcome.layers,
    }
    tried = zip(study.budget.step_sizes, outcome.choice_errors, strict=True)
    return [
        {
            **about,
            "step_size": step_size,
            "choice_error": six_digits(error),
            **_tested(outcome, step_size == outcome.step_size),
        }
        for step_size, error in tried
    ]


def _tested(outcome: Outcome, is_chosen: bool) -> Row:
    """What the test gave, in the row of the step size that was chosen."""
    errors = outcome.errors
    found = {
        "error": fmean(errors),
        "median_error": median(errors),
        "standard_error": stdev(errors) / sqrt(len(errors)),
        "least_error": min(errors),
        "largest_error": max(errors),
        "example_error": fmean(outcome.example_errors),
        "off_descent": outcome.off_descent,
    }
    cells = {name: six_digits(value) if is_chosen else None for name, value in found.items()}
    return {"is_chosen": is_chosen, "n_test": len(errors) if is_chosen else None, **cells}


def _compared(pair: Sequence[Row]) -> tuple[str, ...]:
    """The cells of two depths."""
    millions = [f"{number(row, 'weights') / 1e6:.2f}" for row in pair]
    width, heads, step_size, error, middle = (
        " / ".join(format(number(row, name), form) for row in pair)
        for name, form in FORMATS.items()
    )
    about = (str(pair[0]["dimension"]), width, " / ".join(millions), heads)
    return (*about, step_size, error, middle)


IN_CONTEXT = InContextFigure(
    name="wang-in-context",
    place="Theorem 3, Section 4",
    shows="in-context training on a ball: 2 and 3 layers at equal transformer size",
    laptop_time="4 minutes",
)
