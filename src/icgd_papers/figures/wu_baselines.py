"""A study: what direct training, the constructed transformer and simple references make of prompts.

Each has one free number: a learning rate, a step size for each number of steps, a penalty. It is
the one with the least squared error, in units of each prompt's labels, on other prompts. These come
from the law of pretraining and have its length: whoever meets a shifted law does not know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, ClassVar, final

from torch import Tensor

from icgd_papers.figures import wu_lines
from icgd_papers.figures.cheng_training import AS_ALWAYS
from icgd_papers.figures.wu_constructed import Constructed
from icgd_papers.figures.wu_direct import DirectTraining, best_epochs
from icgd_papers.figures.wu_lines import (
    ARC_COSINE,
    BEST,
    DIRECT,
    MEAN,
    RIDGE,
    Outcome,
    Point,
    constructed,
)
from icgd_papers.figures.wu_references import arc_cosine, label_mean, relative_error, ridge
from icgd_papers.figures.wu_setting import Budget, Law
from icgd_papers.kept import kept
from icgd_papers.reproduction import AbstractStudy, Conduct
from icgd_papers.stopwatch import Stopwatch

Chosen = dict[str, float]
"""The number that was chosen for a line, by the line's name."""

TIMED_PROMPTS = 32

SECONDS_A_WEIGHT = 1e-8
"""The rough time of an epoch of direct training for each weight, one prompt."""


@final
@dataclass(frozen=True)
class BaselineStudy(AbstractStudy[Outcome]):
    """All lines but the decoder's, on the test prompts of a law."""

    uses_device: ClassVar[bool] = True

    n_layers: int
    law: Law
    seed: int
    budget: Budget

    @property
    def n_steps(self) -> int:
        """A step is a number of examples; the first one chooses the settings."""
        return len(self.budget.lengths) + 1

    @property
    def work(self) -> float:
        """The seconds of all steps, roughly."""
        budget, plan = self.budget, self.budget.baselines
        n_weights = self.n_layers * plan.direct_width**2
        n_passes = plan.n_epochs * n_weights + 10 * sum(plan.step_counts) * budget.hidden_width**2
        return self.n_steps * budget.n_test * n_passes * SECONDS_A_WEIGHT

    def step_seconds(self, device: str) -> float:
        """The time of the longest prompts on few of them, for all of them."""
        few = min(TIMED_PROMPTS, self.budget.n_test)
        test = self.budget.task(self.n_layers, self.law, self.budget.longest)
        batch, rate = test.sample(few, seed=0, index=0), self.budget.baselines.learning_rates[0]
        chosen = dict.fromkeys((DIRECT, RIDGE, *self._constructed_lines()), rate)
        start = process_time()
        list(self._points(batch.x, batch.y, chosen, device))
        return (process_time() - start) * self.budget.n_test / few

    def train(self, folder: Path | None = None) -> Outcome:
        return self._found(AS_ALWAYS, folder)

    def train_with(self, conduct: Conduct, folder: Path) -> Outcome:
        return self._found(conduct, folder)

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        return wu_lines.outcome_of(data)

    def _found(self, conduct: Conduct, folder: Path | None) -> Outcome:
        """Go through the lengths; what was found of each is kept."""
        stopwatch = Stopwatch(folder)
        points: list[Point] = []
        chosen = kept(folder, "choice", lambda: self._chosen(conduct.device))
        test = self.budget.test(self.n_layers, self.law, self.seed)
        for step, n in enumerate(self.budget.lengths, start=2):
            x, y = test.x[:, : n + 1], test.y[:, : n + 1]
            find = partial(self._plain_points, x, y, chosen, conduct.device)
            points += [Point(**point) for point in kept(folder, f"length-{n}", find)]
            stopwatch.keep()
            if conduct.on_step:
                conduct.on_step(step, self.n_steps, 1 - points[-1].r_squared)
        return Outcome(tuple(points), stopwatch.seconds)

    def _plain_points(
        self, x: Tensor, y: Tensor, chosen: Chosen, device: str
    ) -> list[dict[str, Any]]:
        return [asdict(point) for point in self._points(x, y, chosen, device)]

    def _points(self, x: Tensor, y: Tensor, chosen: Chosen, device: str) -> Iterator[Point]:
        """All lines after these examples."""
        epochs = self._direct(chosen[DIRECT], device).predictions(x, y)
        found: dict[str, Tensor] = {
            DIRECT: epochs[-1],
            BEST: best_epochs(epochs, y[:, -1]),
            MEAN: label_mean(x, y),
            RIDGE: ridge(x, y, chosen[RIDGE]),
            ARC_COSINE: arc_cosine(x, y, self.n_layers),
        }
        for n_steps in self.budget.baselines.step_counts:
            line = constructed(n_steps)
            found[line] = self._constructed(chosen[line]).predictions(x, y, n_steps)
        for line, predictions in found.items():
            setting = chosen.get(DIRECT if line == BEST else line)
            yield Point.of(self.law, line, predictions, y, setting)

    def _direct(self, learning_rate: float, device: str) -> DirectTraining:
        plan = self.budget.baselines
        return DirectTraining(
            self.n_layers, plan.direct_width, plan.n_epochs, learning_rate, self.seed, device
        )

    def _constructed(self, step_size: float) -> Constructed:
        return Constructed(self.n_layers, self.budget.hidden_width, step_size, self.seed)

    def _constructed_lines(self) -> list[str]:
        return [constructed(n_steps) for n_steps in self.budget.baselines.step_counts]

    def _chosen(self, device: str) -> Chosen:
        """The best settings on other prompts of pretraining."""
        plan, batch = self.budget.baselines, self.budget.choice(self.n_layers, self.seed)
        x, y = batch.x, batch.y
        paths = {
            size: self._constructed(size).path(x, y, plan.step_counts) for size in plan.step_sizes
        }
        rows = zip(self._constructed_lines(), zip(*paths.values(), strict=True), strict=True)
        return {
            DIRECT: _best(
                plan.learning_rates,
                lambda rate: self._direct(rate, device).predictions(x, y)[-1],
                y,
            ),
            RIDGE: _best(plan.penalties, lambda penalty: ridge(x, y, penalty), y),
            **{
                line: _best(plan.step_sizes, dict(zip(paths, row, strict=True)).__getitem__, y)
                for line, row in rows
            },
        }


def _best(settings: Sequence[float], predict: Callable[[float], Tensor], y: Tensor) -> float:
    """The setting whose predictions have the least relative error."""
    return min(settings, key=lambda each: relative_error(predict(each), y))
