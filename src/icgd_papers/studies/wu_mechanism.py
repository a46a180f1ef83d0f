r"""wu-mechanism: do learnt decoders descend on a network, block by block?

A linear read-out is fitted for every block of a learnt decoder, on prompts of its own. On test
prompts its predictions p are compared with those of gradient descent after s steps, g_s: descent on
a network of the teacher's architecture from random weights, as the constructed transformer carries
it out. The distance is the mean of (p - g_s)^2, as a share of the variance of the labels. g_s is a
mean over several first weights, which a decoder cannot know.

All that predicts well is near to descent that predicts well. So the same is measured of controls
that do not descend on a network: an untrained decoder with fitted read-outs, ridge regression from
a large penalty to a small one, the label mean, the arc-cosine process, and the answer to another
prompt. Descent from one other set of first weights shows what the first weights alone make of it.
The cosine between the errors p - y and g_s - y leaves out what follows from being right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from icgd.pictures.plotting import Figure
from icgd_papers.figures.cheng_training import AS_ALWAYS
from icgd_papers.figures.wu_constructed import Constructed
from icgd_papers.figures.wu_curves import BUDGETS as CURVE_BUDGETS
from icgd_papers.figures.wu_learnt import LearntStudy, trained_decoder
from icgd_papers.figures.wu_lines import ARC_COSINE, MEAN, RIDGE
from icgd_papers.figures.wu_references import arc_cosine, label_mean, relative_error, ridge
from icgd_papers.figures.wu_setting import PRETRAINING, Budget
from icgd_papers.kept import kept
from icgd_papers.reproduction import (
    AbstractReproduction,
    AbstractStudy,
    Conduct,
    Row,
    Summary,
    preset_of,
    six_digits,
)
from icgd_papers.stopwatch import Stopwatch
from icgd_papers.studies import wu_mechanism_picture
from icgd_papers.studies.wu_mechanism_picture import (
    ANOTHER,
    DESCENT,
    LEARNT,
    UNTRAINED,
    summary_lines,
)
from icgd_papers.studies.wu_probes import Compared, read_out, streams_at_query
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.tasks import Batch

N_LAYERS = 3

READ_INDEX, TEST_INDEX = 2**30, 2**30 + 1
"""The numbers of the batches that read-outs are fitted to, and that predictions are compared on."""

PENALTIES = (1000.0, 100.0, 10.0, 1.0, 0.01)
"""Ridge regression from hardly more than the label mean to least squares."""


@dataclass(frozen=True)
class ProbeBudget:
    """The decoder, and how it is compared with descent."""

    decoder: Budget
    n_read: int
    """The prompts to which read-outs are fitted."""
    n_test: int
    steps: tuple[int, ...]
    n_starts: int


SMOKE, LAPTOP, PAPER = (CURVE_BUDGETS[preset] for preset in ("smoke", "laptop", "paper"))
LONG_PATH = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
BUDGETS = {
    "smoke": ProbeBudget(SMOKE, n_read=32, n_test=8, steps=(0, 1, 3), n_starts=2),
    "laptop": ProbeBudget(LAPTOP, n_read=4096, n_test=256, steps=LONG_PATH, n_starts=4),
    "paper": ProbeBudget(PAPER, n_read=6400, n_test=640, steps=LONG_PATH, n_starts=4),
}


@dataclass(frozen=True)
class Outcome:
    """All predictors beside descent."""

    compared: tuple[Compared, ...]
    step_size: float
    seconds: float


@final
@dataclass(frozen=True)
class MechanismStudy(AbstractStudy[Outcome]):
    """A decoder, its blocks, and the controls."""

    uses_device: ClassVar[bool] = True

    attention: str
    seed: int
    budget: ProbeBudget

    @property
    def learnt(self) -> LearntStudy:
        """The decoder, trained as those of wu-fig2 are; with ReLU attention too."""
        return LearntStudy(N_LAYERS, self.attention, (), self.seed, self.budget.decoder)

    @property
    def n_steps(self) -> int:
        return self.learnt.n_steps

    @property
    def work(self) -> float:
        return self.learnt.work

    def require(self, device: str) -> None:
        self.learnt.require(device)

    def step_seconds(self, device: str) -> float:
        return self.learnt.step_seconds(device)

    def train(self, folder: Path | None = None) -> Outcome:
        return self._found(AS_ALWAYS, folder)

    def train_with(self, conduct: Conduct, folder: Path) -> Outcome:
        return self._found(conduct, folder)

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        compared = tuple(compared_of(each) for each in data["compared"])
        return Outcome(compared, data["step_size"], data["seconds"])

    def _found(self, conduct: Conduct, folder: Path | None) -> Outcome:
        stopwatch = Stopwatch(folder)
        model, _ = trained_decoder(self.learnt, conduct, folder, stopwatch)
        test = self._prompts(TEST_INDEX, self.budget.n_test)
        step_size = kept(folder, "step-size", self._step_size)
        paths = torch.tensor(kept(folder, "descent", lambda: self._paths(test, step_size)))
        return Outcome(tuple(self._compared(model, test, paths)), step_size, stopwatch.seconds)

    def _prompts(self, index: int, n_tasks: int) -> Batch:
        """Prompts of pretraining with its length, which training never sees."""
        budget = self.budget.decoder
        task = budget.task(N_LAYERS, PRETRAINING, budget.n_examples)
        return task.sample(n_tasks, seed=self.seed, index=index)

    def _descent(self, step_size: float, start: int) -> Constructed:
        return Constructed(N_LAYERS, self.budget.decoder.hidden_width, step_size, start)

    def _step_size(self) -> float:
        """The best step size after all steps, on other prompts."""
        batch = self.budget.decoder.choice(N_LAYERS, self.seed)

        def error(step_size: float) -> float:
            last = self._descent(step_size, 0).predictions(batch.x, batch.y, self.budget.steps[-1])
            return relative_error(last, batch.y)

        return min(self.budget.decoder.baselines.step_sizes, key=error)

    def _paths(self, test: Batch, step_size: float) -> Any:
        """The predictions of descent: first weights, steps, prompts; one start is kept apart."""
        starts = range(self.budget.n_starts + 1)
        return [
            [each.tolist() for each in self._descent(step_size, start).path(*pair, steps)]
            for pair, steps in [((test.x, test.y), self.budget.steps)]
            for start in starts
        ]

    def _compared(self, model: Decoder, test: Batch, paths: Tensor) -> Iterator[Compared]:
        """All predictors beside the mean descent of all starts but the last."""
        labels, descent = test.y[:, -1], list(paths[:-1].mean(0))
        references = {
            MEAN: label_mean(test.x, test.y),
            RIDGE: ridge(test.x, test.y, 1.0),
            ARC_COSINE: arc_cosine(test.x, test.y, N_LAYERS),
        }
        groups_of = {
            **{LEARNT: self._read(model, test)},
            **{UNTRAINED: self._read(self._untrained(), test)},
            **{RIDGE: [ridge(test.x, test.y, penalty) for penalty in PENALTIES]},
            **{name: [references[name]] for name in (MEAN, ARC_COSINE)},
            **{ANOTHER: [labels.roll(1)], DESCENT: list(paths[-1])},
        }
        for name, stages in groups_of.items():
            for stage, predictions in enumerate(stages, start=1):
                yield Compared.of(name, stage, predictions, labels, descent, references)

    def _untrained(self) -> Decoder:
        return self.budget.decoder.decoder(self.attention, self.seed).float()

    def _read(self, model: Decoder, test: Batch) -> list[Tensor]:
        """The predictions of a read-out of every block."""
        known = self._prompts(READ_INDEX, self.budget.n_read)
        pairs = zip(streams_at_query(model, known), streams_at_query(model, test), strict=True)
        return [read_out(seen, known.y[:, -1], asked) for seen, asked in pairs]


def compared_of(data: Mapping[str, Any]) -> Compared:
    """What JSON made of a comparison."""
    lists = {name: tuple(data[name]) for name in ("distances", "error_cosines")}
    return Compared(**{**data, **lists})


@final
@dataclass(frozen=True)
class MechanismFigure(AbstractReproduction[MechanismStudy, Outcome]):
    """A row of panels for each attention."""

    panels: tuple[str, ...]

    def studies(self, preset: str, seed: int) -> list[MechanismStudy]:
        """A decoder for each attention and seed."""
        budget = preset_of(BUDGETS, preset)
        seeds = range(seed, seed + budget.decoder.n_seeds)
        return [MechanismStudy(*pair, budget) for pair in product(self.panels, seeds)]

    def rows(self, studies: Sequence[MechanismStudy], outcomes: Sequence[Outcome]) -> list[Row]:
        """A row for each predictor, its stage, and each number of steps of descent."""
        pairs = zip(studies, outcomes, strict=True)
        return [
            row
            for study, outcome in pairs
            for compared in outcome.compared
            for row in _rows(study, outcome, compared)
        ]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Means over the seeds, at the number of steps that is nearest; then what follows."""
        return summary_lines(rows)

    def picture(self, rows: Sequence[Row]) -> Figure:
        return wu_mechanism_picture.draw(rows)


def _rows(study: MechanismStudy, outcome: Outcome, compared: Compared) -> Iterator[Row]:
    plan = study.budget
    for place, n_steps in enumerate(plan.steps):
        yield {
            "attention": study.attention,
            "seed": study.seed,
            "predictor": compared.predictor,
            "stage": compared.stage,
            "descent_steps": n_steps,
            "distance": six_digits(compared.distances[place]),
            "error_cosine": six_digits(compared.error_cosines[place]),
            "is_nearest": place == compared.nearest,
            "r_squared": six_digits(compared.r_squared),
            **{f"to_{name}": six_digits(far) for name, far in compared.to_references.items()},
            "step_size": outcome.step_size,
            "n_layers": N_LAYERS,
            "n_blocks": plan.decoder.n_blocks,
            "n_read": plan.n_read,
            "n_starts": plan.n_starts,
            **{**plan.decoder.columns, "n_test": plan.n_test},
        }


MECHANISM = MechanismFigure(
    name="wu-mechanism",
    place="no figure of the paper; the claim of App. G",
    shows="blocks of learnt decoders beside gradient descent, with controls that do not descend",
    laptop_time="10 minutes",
    panels=("relu", "softmax"),
)
