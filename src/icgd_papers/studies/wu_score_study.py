r"""One study of wu-score: a law, a kind of labels and a seed; what is trained and measured.

The error of a score at a time is the root of E |score - exact score|^2 over the law of x_t, from
points drawn for this. Samples are compared with data at the same time, by the sliced Wasserstein
distance; its floor is the distance of data from other data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from time import process_time
from typing import Any, final

import torch
from torch import Tensor

from icgd.certificates.report import Report
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.pipeline import compile, verify
from icgd.problems.data import Task, as_task
from icgd.problems.oracles import predict
from icgd.problems.problem import Problem
from icgd.problems.settings import count, named, positive
from icgd.shapes import Parameters
from icgd_papers.reproduction import AbstractStudy, Conduct
from icgd_papers.stopwatch import Stopwatch
from icgd_papers.studies.wu_score_diffusion import (
    TARGETS,
    Prompt,
    Score,
    Span,
    noised,
    prompt,
    reversed_path,
    score_of,
    sliced_wasserstein,
)
from icgd_papers.studies.wu_score_laws import Law, Points, Times, law_named, require_law
from icgd_papers.studies.wu_score_training import (
    AbstractTrainer,
    Adam,
    Direct,
    InContext,
    Legs,
    asked,
    largest_curvature,
    problem_of,
    trained,
)
from icgd_papers.training.covariates import normal
from icgd_papers.training.logs import Log
from icgd_papers.training.tasks import generator_of

PROMPT, CHOICE, MEASURED, START, PATH, DATA, OTHER_DATA, DIRECTIONS = range(8)
"""The numbers of the random streams of a study."""

FRESH = 2**16
"""The number of the random stream of Adam's first batch."""

EXACT, IN_CONTEXT, DIRECT, ADAM, NORMAL = "exact score", "in context", "direct", "Adam", "N(0, I)"
"""The scores that are compared. The last one is -x, which is right if nothing is to be learnt."""

LEARNT = (IN_CONTEXT, DIRECT, ADAM)
SAMPLED = (EXACT, *LEARNT)

N_DIRECTIONS = 128

SPAN = Span()

TIMED_STEPS = 3

AS_ALWAYS = Conduct()


@dataclass(frozen=True)
class Budget:
    """How much is learnt from, how long, and how well it is measured."""

    n_seeds: int
    n_examples: int
    legs: Legs
    width: int
    adam: Legs
    n_verified: int
    """The steps whose errors are bounded, at the start and at the end of training."""
    n_measured: int
    """The points of which the error of a score is the mean."""
    n_samples: int
    n_shown: int
    """The samples that a row keeps for the picture."""
    n_times: int = 7
    steps_between: int = 40
    """The steps of the reverse equation between two times at which samples are looked at."""
    step_share: float = 0.25
    """The step size times the curvature at the first weights, which grows several times while the
    network learns. At 2 over the step size descent becomes unstable, and rounding grows."""
    batch_size: int = 256
    learning_rate: float = 0.005
    span: Span = SPAN

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int):
                count(name, value, least=2 if name == "n_times" else 1)
        positive("step_share", self.step_share)


@dataclass(frozen=True)
class Outcome:
    """What a study found. Lists have an entry for each time, the last time first."""

    step_size: float
    curves: dict[str, list[dict[str, float]]]
    """The loss on the prompt after each leg, for each way to train."""
    label_power: float
    """The loss of the prediction 0."""
    signal: float
    """The part of it that can be learnt: the same of the exact velocities."""
    times: list[float]
    score_sizes: list[float]
    score_errors: dict[str, list[float]]
    distances: dict[str, list[float]]
    floors: list[float]
    points: dict[str, list[str]]
    weight_difference: float
    """The largest difference of a weight, in context and direct."""
    sample_difference: float
    """The largest difference of a sample's coordinate, in context and direct."""
    step_error: float
    step_bound: float
    proved: float
    """The proved distance of the weights from exact descent after a few steps from the start."""
    seconds: float


@final
@dataclass(frozen=True)
class Study(AbstractStudy[Outcome]):
    """A network that learns the score of one law from one kind of labels."""

    law: str
    dimension: int
    targets: str
    seed: int
    budget: Budget

    def __post_init__(self) -> None:
        named("targets", self.targets, dict.fromkeys(TARGETS))
        require_law(self.law, self.dimension)

    @property
    def n_steps(self) -> int:
        return 2 * self.budget.legs.total + self.budget.adam.total

    @property
    def work(self) -> float:
        """The time of a step grows with the examples."""
        return float(self.n_steps * self.budget.n_examples)

    def train(self, folder: Path | None = None) -> Outcome:
        return Bench(self, folder).outcome()

    def train_with(self, conduct: Conduct, folder: Path) -> Outcome:
        return Bench(self, folder, conduct).outcome()

    def step_seconds(self, device: str) -> float:
        """The mean of a step in context and of a direct one."""
        del device  # float64 on the processor
        bench = Bench(self)
        trainers = (bench.in_context, Direct(bench.problem, bench.task))
        return sum(_timed(trainer) for trainer in trainers) / len(trainers)

    def outcome_of(self, data: Mapping[str, Any]) -> Outcome:
        return Outcome(**data)


def _timed(trainer: AbstractTrainer) -> float:
    state = trainer.leg(trainer.first, 0, 1)  # it pays for what is made once
    start = process_time()
    trainer.leg(state, 1, TIMED_STEPS)
    return (process_time() - start) / TIMED_STEPS


@dataclass(eq=False)
class Bench:
    """A study at work: its data, and what is trained and measured on them."""

    study: Study
    folder: Path | None = None
    conduct: Conduct = AS_ALWAYS

    def __post_init__(self) -> None:
        self.budget, self.span = self.study.budget, self.study.budget.span
        self.stopwatch = Stopwatch(self.folder)

    @cached_property
    def data(self) -> Law:
        return law_named(self.study.law, self.study.dimension, self.study.seed)

    def examples(self, stream: int, n_examples: int) -> Prompt:
        """Examples from one of the study's random streams."""
        generator = generator_of(self.study.seed, stream)
        return prompt(self.data, self.study.targets, self.span, n_examples, generator)

    @cached_property
    def problem(self) -> Problem:
        """The network; its step size follows from the curvature on a prompt of its own."""
        sketch = problem_of(self.study.dimension, self.budget.width)
        task = self._task(sketch, CHOICE)
        return problem_of(
            self.study.dimension,
            self.budget.width,
            self.budget.step_share / largest_curvature(sketch, task, self.study.seed),
        )

    @cached_property
    def task(self) -> Task:
        """The prompt, and the first weights."""
        return self._task(self.problem, PROMPT)

    def _task(self, problem: Problem, stream: int) -> Task:
        examples = self.examples(stream, self.budget.n_examples)
        return as_task(problem, examples.x, examples.y, seed=self.study.seed)

    @cached_property
    def in_context(self) -> InContext:
        return InContext(self.problem, self.task)

    @cached_property
    def trainers(self) -> dict[str, tuple[AbstractTrainer, Legs]]:
        """The ways to train, and how long each does."""
        adam = Adam(
            self.problem,
            self.task.initial,
            lambda step: self.examples(FRESH + step, self.budget.batch_size),
            self.budget.learning_rate,
            self.budget.adam.total,
        )
        return {
            IN_CONTEXT: (self.in_context, self.budget.legs),
            DIRECT: (Direct(self.problem, self.task), self.budget.legs),
            ADAM: (adam, self.budget.adam),
        }

    def outcome(self) -> Outcome:
        """Train, draw samples, measure."""
        data = self.compared(DATA)  # refuses more samples than there are data
        found = {name: self._trained(name) for name in LEARNT}
        weights = {name: reached for name, (reached, _) in found.items()}
        scores = self.scores(weights)
        paths = {name: self.path(scores[name]) for name in SAMPLED}
        ends = [paths[name][-1] for name in (IN_CONTEXT, DIRECT)]
        first = self.verified(self.task.initial, rigorous=True)
        last = self.verified(weights[IN_CONTEXT], rigorous=False)
        errors, sizes = self.errors(scores)
        return Outcome(
            step_size=self.problem.gradient_step.size_of(0),
            curves={name: list(log.rows) for name, (_, log) in found.items()},
            label_power=float(self.task.y.square().sum(-1).mean() / 2),
            signal=self.examples(PROMPT, self.budget.n_examples).signal,
            times=self.times.tolist(),
            score_sizes=sizes,
            score_errors=errors,
            distances={name: self.distances(path, data) for name, path in paths.items()},
            floors=self.distances(self.compared(OTHER_DATA), data),
            points={name: [self.text(at) for at in path] for name, path in paths.items()},
            weight_difference=_apart(weights[IN_CONTEXT], weights[DIRECT]),
            sample_difference=_apart(*ends),
            step_error=max(float(report.step_errors.max()) for report in (first, last)),
            step_bound=max(float(report.step_bounds.max()) for report in (first, last)),
            proved=float(first.rigorous.distances[-1]) if first.rigorous else inf,
            seconds=self.stopwatch.seconds,
        )

    def _trained(self, name: str) -> tuple[Parameters, Log]:
        trainer, legs = self.trainers[name]
        before = sum(self.trainers[each][1].total for each in LEARNT[: LEARNT.index(name)])

        def on_leg(step: int, loss: float) -> None:
            self.stopwatch.keep()
            if self.conduct.on_step:
                self.conduct.on_step(before + step, self.study.n_steps, loss)

        return trained(
            trainer,
            legs,
            lambda weights: float(self.problem.oracle.risk(self.task, weights)),
            folder=self.folder and self.folder / name.replace(" ", "-").lower(),
            identity={"trained": name, **asdict(self.study)},
            on_leg=on_leg,
        )

    def scores(self, weights: Mapping[str, Parameters]) -> dict[str, Score]:
        """The scores by name; the transformer's own predictions are those in context."""
        return {
            EXACT: self.data.mixture.score,
            IN_CONTEXT: self.in_context.score(weights[IN_CONTEXT], self.span),
            DIRECT: self._network_score(weights[DIRECT]),
            ADAM: self._network_score(weights[ADAM]),
            NORMAL: lambda x, _: -x,
        }

    def _network_score(self, weights: Parameters) -> Score:
        def score(x: Points, times: Times) -> Points:
            velocity = predict(self.problem.network, weights, asked(x, times, self.span))
            return score_of(velocity, x, times)

        return score

    @cached_property
    def times(self) -> Times:
        """The times at which everything is looked at, the last one first."""
        return self.span.backwards(self.budget.n_times - 1)

    def path(self, score: Score) -> list[Points]:
        """Samples at each of the times; all scores meet the same noise."""
        seed, every = self.study.seed, self.budget.steps_between
        start = normal(generator_of(seed, START), self.budget.n_samples, self.study.dimension)
        times = self.span.backwards(every * (self.budget.n_times - 1))
        return list(reversed_path(score, start, times, generator_of(seed, PATH)))[::every]

    def compared(self, stream: int) -> list[Points]:
        """Data with noise, at each of the times."""
        generator = generator_of(self.study.seed, stream)
        draw = self.data.fresh if stream == DATA else self.data.clean
        clean = draw(self.budget.n_samples, generator)
        return [noised(clean, time, generator) for time in self.times.tolist()]

    def distances(self, path: list[Points], data: list[Points]) -> list[float]:
        """The sliced Wasserstein distance from the data at each time, along the same directions."""
        seed = self.study.seed
        return [
            sliced_wasserstein(points, there, N_DIRECTIONS, generator_of(seed, DIRECTIONS))
            for points, there in zip(path, data, strict=True)
        ]

    def errors(self, scores: Mapping[str, Score]) -> tuple[dict[str, list[float]], list[float]]:
        """The error of each score at each time, and the size of the exact one."""
        generator, names = generator_of(self.study.seed, MEASURED), (*LEARNT, NORMAL)
        errors: dict[str, list[float]] = {name: [] for name in names}
        sizes: list[float] = []
        for time in self.times.tolist():
            x = noised(self.data.mixture.sample(self.budget.n_measured, generator), time, generator)
            at = torch.full((len(x),), time, dtype=torch.float64)
            exact = scores[EXACT](x, at)
            sizes.append(_size(exact))
            for name in names:
                errors[name].append(_size(scores[name](x, at) - exact))
        return errors, sizes

    def verified(self, weights: Parameters, *, rigorous: bool) -> Report:
        """What is measured and proved of a few steps from these weights."""
        compiled = compile(self.problem, SoftmaxStack(), n_steps=self.budget.n_verified)
        return verify(compiled, self.task.x, self.task.y, initial=weights, rigorous=rigorous)

    def text(self, points: Points) -> str:
        """The first points, as a cell of the table."""
        rows = points[: self.budget.n_shown].tolist()
        return ";".join(" ".join(f"{entry:.2f}" for entry in row) for row in rows)


def _size(vectors: Points) -> float:
    """The root of the mean squared length."""
    return float(vectors.square().sum(-1).mean().sqrt())


def _apart(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max())
